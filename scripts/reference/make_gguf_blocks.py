#!/usr/bin/env python3
"""Make tests/data/gguf/blocks.safetensors: blocks of every GGUF type that smolconv reads, and what gguf-py makes of them.

usage: make_gguf_blocks.py OUT.safetensors        needs: gguf 0.19.0, numpy, safetensors

For each type NAME, `NAME.bytes` are blocks, and `NAME.values` their numbers as f32. The first blocks are edge cases in
every combination: scales that are zero, negative zero, subnormal, the largest, infinite and NaN; all other bits clear,
set, or alternating. The rest is random, of random bits and of blocks with scales as they occur in models.
"""
import sys

import numpy as np
from gguf import GGMLQuantizationType, quants
from safetensors.numpy import save_file

# Type, bytes of a block, where its binary16 scales lie, random blocks of each kind.
TYPES = [
    ("F32", 4, [], 64), ("F16", 2, [0], 64), ("BF16", 2, [], 64),
    ("Q4_0", 18, [0], 16), ("Q4_1", 20, [0, 2], 16), ("Q5_0", 22, [0], 16), ("Q5_1", 24, [0, 2], 16),
    ("Q8_0", 34, [0], 16), ("Q4_K", 144, [0, 2], 4), ("Q5_K", 176, [0, 2], 4), ("Q6_K", 210, [208], 4),
    ("Q2_K", 84, [80, 82], 4), ("Q3_K", 110, [108], 4), ("IQ4_NL", 18, [0], 16), ("IQ4_XS", 136, [0], 4),
    ("MXFP4", 17, [], 16),
]
SCALES = [0x0000, 0x8000, 0x0001, 0x83FF, 0x7BFF, 0x7C00, 0x7E00]
FILLS = [0x00, 0xFF, 0xA5]


def edge_blocks(size, scale_places):
    for fill in FILLS:
        for scale in SCALES if scale_places else [None]:
            block = np.full(size, fill, np.uint8)
            for place in scale_places:
                block[place:place + 2] = np.frombuffer(np.uint16(scale).tobytes(), np.uint8)
            yield block


def random_blocks(name, size, scale_places, count, rng):
    yield from rng.integers(0, 256, (count, size), np.uint8)
    for block in rng.integers(0, 256, (count, size), np.uint8):
        for place in scale_places:
            scale = np.float16(rng.normal() * 0.01)
            block[place:place + 2] = np.frombuffer(scale.tobytes(), np.uint8)
        if name == "MXFP4":
            block[0] = 127 - rng.integers(4, 12)  # of a power of two
        yield block


def main(out):
    rng, tensors = np.random.default_rng(5), {}
    for name, size, scale_places, count in TYPES:
        blocks = np.array([*edge_blocks(size, scale_places), *random_blocks(name, size, scale_places, count, rng)])
        with np.errstate(all="ignore"):
            values = quants.dequantize(blocks, GGMLQuantizationType[name])
        tensors[f"{name}.bytes"] = np.ascontiguousarray(blocks)
        tensors[f"{name}.values"] = np.ascontiguousarray(values, np.float32)
    save_file(tensors, out)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    main(sys.argv[1])
