#!/usr/bin/env python3
"""Write a checkpoint's SafeTensors weights as a GGUF file in F32, BF16 or F16.

usage: safetensors_to_gguf.py DIR METADATA.gguf DTYPE OUT.gguf        needs: Python 3.11, the packages gguf and numpy

METADATA.gguf is any GGUF file of the same model; its metadata (tokenizer included) is taken over, its weights are not.
Norms stay F32, as in llama.cpp's own converter. DIR holds config.json and one model.safetensors of the Llama family.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np

FILE_TYPES = {
    "F32": (gguf.LlamaFileType.ALL_F32, gguf.GGMLQuantizationType.F32),
    "F16": (gguf.LlamaFileType.MOSTLY_F16, gguf.GGMLQuantizationType.F16),
    "BF16": (gguf.LlamaFileType.MOSTLY_BF16, gguf.GGMLQuantizationType.BF16),
}
OURS = {gguf.Keys.General.ARCHITECTURE, gguf.Keys.General.FILE_TYPE, gguf.Keys.General.QUANTIZATION_VERSION}


def tensors(path):
    """Each tensor's name and values, in float32."""
    data = np.memmap(path, np.uint8, "r")
    length = int(data[:8].view("<u8")[0])
    start = 8 + length
    for name, entry in json.loads(bytes(data[8:start])).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = data[start + begin : start + end]
        yield name, to_float32(values, entry["dtype"]).reshape(entry["shape"])


def to_float32(values, dtype):
    match dtype:
        case "BF16":
            return (values.view("<u2").astype(np.uint32) << 16).view(np.float32)
        case "F16" | "F32":
            return values.view("<f2" if dtype == "F16" else "<f4").astype(np.float32)
    sys.exit(f"dtype {dtype}: expected BF16, F16 or F32")


def interleave_rotary(weight, heads):
    """From the checkpoint's order of a head's rows, one half of the rotation after the other, to llama.cpp's pairs."""
    out, columns = weight.shape
    return weight.reshape(heads, 2, out // heads // 2, columns).swapaxes(1, 2).reshape(out, columns)


def copy_metadata(reader, writer):
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in OURS:
            continue
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1] if is_array else None)


def convert(directory, metadata, dtype, out):
    config = json.loads((directory / "config.json").read_text())
    reader = gguf.GGUFReader(metadata)
    architecture = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    if architecture != "llama":
        sys.exit(f"{metadata}: architecture {architecture}, expected llama")
    file_type, tensor_type = FILE_TYPES[dtype]
    writer = gguf.GGUFWriter(out, architecture)
    writer.add_file_type(file_type)
    copy_metadata(reader, writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, values in tensors(directory / "model.safetensors"):
        if name.endswith("q_proj.weight"):
            values = interleave_rotary(values, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            values = interleave_rotary(values, config["num_key_value_heads"])
        kind = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else tensor_type
        writer.add_tensor(names.get_name(name, (".weight",)), gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[3] not in FILE_TYPES:
        sys.exit(__doc__)
    convert(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4])
