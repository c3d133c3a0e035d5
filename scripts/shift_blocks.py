#!/usr/bin/env python3
"""Writes a checkpoint that computes the same as another, with other neighbours in each block of 32 inputs.

usage: shift_blocks.py DIR OUT

A checkpoint that was once quantized in blocks of 32 inputs looks nearly lossless to a quantizer with the same blocks.
Here hidden features, features of each head's values and intermediate features are rolled by 16: the model is the same
function (sums run in another order), but every block has half of each of two old ones. For Llama-family checkpoints in
one model.safetensors; needs numpy.
"""
import json
import shutil
import struct
import sys
from pathlib import Path

import numpy as np

SHIFT = 16
NUMBERS = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32}


def main(source: Path, out: Path) -> None:
    config = json.loads((source / "config.json").read_text())
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    out.mkdir(parents=True)
    for path in source.iterdir():
        if path.suffix in (".json", ".jinja"):
            shutil.copy(path, out)

    data = (source / "model.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    with open(out / "model.safetensors", "wb") as file:
        file.write(data[: 8 + length])
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        for name, entry in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]):
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            array = np.frombuffer(data[begin:end], NUMBERS[entry["dtype"]]).reshape(entry["shape"])
            file.write(np.ascontiguousarray(shift(name, array, head_dim)).tobytes())


def shift(name: str, array: np.ndarray, head_dim: int) -> np.ndarray:
    """The tensor `name` with its features rolled."""
    if name.endswith(("v_proj.weight", "v_proj.bias")):
        array = roll_heads(array, 0, head_dim)
    elif name.endswith("o_proj.weight"):
        array = roll_heads(array, 1, head_dim)
    elif name.endswith(("gate_proj.weight", "up_proj.weight")):
        array = np.roll(array, SHIFT, 0)
    elif name.endswith("down_proj.weight"):
        array = np.roll(array, SHIFT, 1)
    if name.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias", "q_norm.weight", "k_norm.weight")):
        return array
    # The hidden features: outputs of what adds to the residual stream, inputs of all else, norms.
    is_output = name.endswith(("o_proj.weight", "down_proj.weight"))
    return np.roll(array, SHIFT, 0 if is_output or array.ndim == 1 else 1)


def roll_heads(array: np.ndarray, axis: int, head_dim: int) -> np.ndarray:
    heads = array.shape[axis] // head_dim
    shape = array.shape[:axis] + (heads, head_dim) + array.shape[axis + 1 :]
    return np.roll(array.reshape(shape), SHIFT, axis + 1).reshape(array.shape)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
