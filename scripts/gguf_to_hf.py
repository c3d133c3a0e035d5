#!/usr/bin/env python3
"""Rebuild the Hugging Face directory of SmolLM2-135M-Instruct from its 4-bit GGUF file.

usage: gguf_to_hf.py MODEL.gguf OUT_DIR            needs: Python 3.8 or newer, numpy

OUT_DIR must not exist yet, or be empty. The weights are dequantized, rounded to bfloat16 and written as one
model.safetensors under the checkpoint's own names and [out, in] shapes; they are the 4-bit file's numbers, near the
original's and not equal to them. Every other file comes out byte for byte as it is on the hub.

The directory is built beside OUT_DIR under another name and renamed at the end, so a failure leaves no half of one.
"""
import json
import math
import os
import shutil
import struct
import sys
from pathlib import Path

try:
    import numpy as np
except ImportError:
    sys.exit("gguf_to_hf.py: numpy is missing; python3 -m pip install numpy")


class BadFile(Exception):
    """The GGUF file is damaged, or is not the kind of file this script understands."""


# --- reading GGUF version 3 -------------------------------------------------------------------------------------------

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
MAX_DIMENSIONS = 4


class Cursor:
    """Reads little-endian values in file order, and believes no length before comparing it with what is left."""

    def __init__(self, data):
        self.data, self.at = memoryview(data), 0

    def take(self, size, what):
        if size > len(self.data) - self.at:
            raise BadFile(f"{what} at byte {self.at} needs {size} bytes, the file has {len(self.data) - self.at} left")
        self.at += size
        return self.data[self.at - size:self.at]

    def scalar(self, code, what):
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code), what))[0]

    def string(self, what):
        try:
            return str(self.take(self.scalar("Q", what), what), "utf-8")
        except UnicodeDecodeError as error:
            raise BadFile(f"{what} before byte {self.at} is not UTF-8") from error

    def value(self, kind, what):
        if kind == STRING:
            return self.string(what)
        if kind == ARRAY:
            kind, count = self.scalar("I", what), self.scalar("Q", what)
            if kind == STRING:
                return [self.string(what) for _ in range(count)]
            if kind in SCALARS:
                item = struct.calcsize("<" + SCALARS[kind])
                return list(struct.unpack(f"<{count}{SCALARS[kind]}", self.take(count * item, what)))
        elif kind in SCALARS:
            return self.scalar(SCALARS[kind], what)
        raise BadFile(f"{what} has the unknown value type {kind}")


def from_f32(blocks):
    return blocks.view("<f4")


def from_q8_0(blocks):
    """32 values per block: a float16 scale, 32 signed bytes."""
    scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
    return blocks[:, 2:].view(np.int8) * scale


def from_q4_1(blocks):
    """32 values per block: float16 scale and minimum, 16 bytes whose low nibbles are the first half of the block."""
    scale, minimum = blocks[:, :4].copy().view("<f2").astype(np.float32).T[:, :, None]
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return nibbles * scale + minimum


# GGUF's tensor type: values per block, bytes per block, dequantizer from [blocks, bytes] to float32 [blocks, values]
TENSOR_TYPES = {0: (1, 4, from_f32), 3: (32, 20, from_q4_1), 8: (32, 34, from_q8_0)}
CHUNK = 1 << 16  # blocks per step: a few MB, so the 28 million values of the embedding never lie in float32 at once


class Gguf:
    """The metadata, and each tensor's shape ([out, in]) and bytes."""

    def __init__(self, path):
        cursor = Cursor(path.read_bytes())
        if cursor.take(4, "magic") != b"GGUF":
            raise BadFile("not a GGUF file: it does not begin with GGUF")
        version = cursor.scalar("I", "version")
        if version != 3:
            raise BadFile(f"GGUF version {version}, expected 3")
        tensor_count, pair_count = cursor.scalar("Q", "tensor count"), cursor.scalar("Q", "metadata count")
        self.metadata = {}
        for _ in range(pair_count):
            key = cursor.string("metadata key")
            self.metadata[key] = cursor.value(cursor.scalar("I", key), key)
        entries = [self.read_entry(cursor) for _ in range(tensor_count)]
        self.tensors = self.slices(cursor, entries)

    @staticmethod
    def read_entry(cursor):
        name = cursor.string("tensor name")
        dimensions = cursor.scalar("I", name)
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise BadFile(f"{name} has {dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}")
        shape = tuple(cursor.scalar("Q", name) for _ in range(dimensions))[::-1]  # GGUF names the fastest one first
        return name, shape, cursor.scalar("I", name), cursor.scalar("Q", name)

    def slices(self, cursor, entries):
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise BadFile(f"general.alignment is {alignment!r}, expected a power of two")
        start = -(-cursor.at // alignment) * alignment
        tensors = {}
        for name, shape, kind, offset in entries:
            if kind not in TENSOR_TYPES:
                raise BadFile(f"{name} has tensor type {kind}; known are F32 (0), Q4_1 (3) and Q8_0 (8)")
            per_block, block_bytes, _ = TENSOR_TYPES[kind]
            if shape[-1] % per_block:
                raise BadFile(f"{name}: rows of {shape[-1]} values do not fill blocks of {per_block}")
            if offset % alignment:
                raise BadFile(f"{name}: offset {offset} is not a multiple of {alignment}")
            cursor.at = min(start + offset, len(cursor.data))
            raw = cursor.take(math.prod(shape) // per_block * block_bytes, name)
            if name in tensors:
                raise BadFile(f"{name} is there twice")
            tensors[name] = shape, kind, raw
        return tensors

    def need(self, key, kind):
        value = self.metadata.get(key)
        if not isinstance(value, kind):
            raise BadFile(f"metadata {key}: expected {kind.__name__}, found {type(value).__name__}")
        return value

    def need_size(self, key):
        value = self.need(key, int)
        if value < 1:
            raise BadFile(f"metadata {key}: expected at least 1, found {value}")
        return value

    def need_float(self, key):
        value = self.need(key, float)
        if not math.isfinite(value):
            raise BadFile(f"metadata {key}: expected a finite number, found {value}")
        return value

    def need_strings(self, key):
        values = self.need(key, list)
        if not all(isinstance(value, str) for value in values):
            raise BadFile(f"metadata {key}: expected an array of strings")
        return values


# --- weights ----------------------------------------------------------------------------------------------------------

LARGEST_BF16 = np.float32(2.0 ** 128 - 2.0 ** 120)


def to_bf16(values):
    """Round to nearest even, as raw 16-bit patterns."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def dequantize(name, shape, kind, raw):
    per_block, block_bytes, to_f32 = TENSOR_TYPES[kind]
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, block_bytes)
    out = np.empty((len(blocks), per_block), "<u2")
    for i in range(0, len(blocks), CHUNK):
        values = to_f32(blocks[i:i + CHUNK])
        if not (np.abs(values) <= LARGEST_BF16).all():  # false for NaN too
            raise BadFile(f"{name} has a value that is not a finite number")
        out[i:i + CHUNK] = to_bf16(values)
    return out.reshape(shape)


def unpermute(weight, heads):
    """GGUF keeps the two rows of a rotary pair adjacent, the checkpoint keeps the halves of a head apart."""
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


MAX_LAYERS = 1000  # a damaged count must not fill the memory; a model that large is refused for its missing tensors


def checkpoint_layout(config):
    """GGUF name -> (checkpoint name, shape, heads whose rows are in rotary order or None)."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    if hidden % (2 * heads):
        raise BadFile(f"{heads} heads of an even size do not make a hidden size of {hidden}")
    kv = hidden // heads * kv_heads
    layer = {
        "attn_norm": ("input_layernorm", (hidden,), None),
        "attn_q": ("self_attn.q_proj", (hidden, hidden), heads),
        "attn_k": ("self_attn.k_proj", (kv, hidden), kv_heads),
        "attn_v": ("self_attn.v_proj", (kv, hidden), None),
        "attn_output": ("self_attn.o_proj", (hidden, hidden), None),
        "ffn_norm": ("post_attention_layernorm", (hidden,), None),
        "ffn_gate": ("mlp.gate_proj", (inner, hidden), None),
        "ffn_up": ("mlp.up_proj", (inner, hidden), None),
        "ffn_down": ("mlp.down_proj", (hidden, inner), None),
    }
    layout = {
        "token_embd.weight": ("model.embed_tokens.weight", (config["vocab_size"], hidden), None),
        "output_norm.weight": ("model.norm.weight", (hidden,), None),
    }
    for i in range(min(config["num_hidden_layers"], MAX_LAYERS)):
        for source, (target, shape, rotary) in layer.items():
            layout[f"blk.{i}.{source}.weight"] = (f"model.layers.{i}.{target}.weight", shape, rotary)
    return layout


def check_names_and_shapes(gguf, layout):
    """Before anything is written: exactly the tensors of the model, each as large as the config says."""
    odd = sorted(layout.keys() ^ gguf.tensors.keys())
    if odd:
        raise BadFile(f"{len(odd)} tensors are missing or not of this model, among them {odd[0]}")
    for source, (_, shape, _) in layout.items():
        if gguf.tensors[source][0] != shape:
            raise BadFile(f"{source} has shape {list(gguf.tensors[source][0])}, expected {list(shape)}")


def write_weights(path, gguf, layout):
    """SafeTensors: header length, JSON header padded to 8 bytes, then the tensors in the header's order."""
    by_target = sorted((target, source) for source, (target, _, _) in layout.items())
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for target, source in by_target:
        shape = layout[source][1]
        begin, end = end, end + 2 * math.prod(shape)
        header[target] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, source in by_target:
            weight = dequantize(source, *gguf.tensors[source])
            rotary_heads = layout[source][2]
            file.write(unpermute(weight, rotary_heads).tobytes() if rotary_heads else weight.tobytes())
        file.flush()
        os.fsync(file.fileno())


# --- the JSON files ---------------------------------------------------------------------------------------------------
# Key order and the entries that say nothing about the model (transformers_version and the like) are the hub's, so that
# these files are the hub's byte for byte.

def config_json(gguf):
    hidden = gguf.need_size("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": gguf.need("tokenizer.ggml.bos_token_id", int),
        "eos_token_id": gguf.need("tokenizer.ggml.eos_token_id", int),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": hidden ** -0.5,
        "intermediate_size": gguf.need_size("llama.feed_forward_length"),
        "is_llama_config": True,
        "max_position_embeddings": gguf.need_size("llama.context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": gguf.need_size("llama.attention.head_count"),
        "num_hidden_layers": gguf.need_size("llama.block_count"),
        "num_key_value_heads": gguf.need_size("llama.attention.head_count_kv"),
        "pad_token_id": gguf.need("tokenizer.ggml.padding_token_id", int),
        "pretraining_tp": 1,
        # Stored as float32; its shortest decimal form is the number the checkpoint's config was written with.
        "rms_norm_eps": float(str(np.float32(gguf.need_float("llama.attention.layer_norm_rms_epsilon")))),
        "rope_interleaved": False,
        "rope_scaling": None,
        "rope_theta": int(gguf.need_float("llama.rope.freq_base")),
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.42.3",
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
        "use_cache": True,
        "vocab_size": gguf.need_size("llama.vocab_size"),
    }


def generation_config_json(config):
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return {"_from_model_config": True, **ids, "transformers_version": config["transformers_version"]}


class Vocabulary:
    """The token strings, which of them are control tokens, and the four that have a role."""

    CONTROL = 3  # GGUF's token type

    def __init__(self, gguf):
        self.tokens = gguf.need_strings("tokenizer.ggml.tokens")
        types = gguf.need("tokenizer.ggml.token_type", list)
        self.ids = {token: i for i, token in enumerate(self.tokens)}
        if len(types) != len(self.tokens) or len(self.ids) != len(self.tokens):
            raise BadFile(f"{len(self.tokens)} tokens, {len(self.ids)} of them distinct, with {len(types)} types")
        self.control = {i: token for i, token in enumerate(self.tokens) if types[i] == self.CONTROL}
        self.merges = gguf.need_strings("tokenizer.ggml.merges")
        self.bos, self.eos, self.pad, self.unk = (
            self.control_token(gguf.need(f"tokenizer.ggml.{role}_token_id", int))
            for role in ("bos", "eos", "padding", "unknown"))

    def control_token(self, id):
        if id not in self.control:
            raise BadFile(f"token {id} has a role, and is no control token")
        return self.control[id]


def tokenizer_json(vocabulary):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in vocabulary.control.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, **byte_level}]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, **byte_level},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocabulary.ids,
            # "a b", as on the hub; newer versions of tokenizers write ["a", "b"] and read both.
            "merges": vocabulary.merges,
        },
    }


def token_flags(token, **more):
    return {"content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, **more}


def tokenizer_config_json(gguf, vocabulary):
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(i): token_flags(token, special=True) for i, token in vocabulary.control.items()},
        "additional_special_tokens": [vocabulary.bos, vocabulary.eos],
        "bos_token": vocabulary.bos,
        "chat_template": gguf.need("tokenizer.chat_template", str),
        "clean_up_tokenization_spaces": False,
        "eos_token": vocabulary.eos,
        "model_max_length": gguf.need_size("llama.context_length"),
        "pad_token": vocabulary.pad,
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": vocabulary.unk,
        "vocab_size": len(vocabulary.tokens),
    }


def special_tokens_map_json(vocabulary):
    return {
        "additional_special_tokens": [vocabulary.bos, vocabulary.eos],
        "bos_token": token_flags(vocabulary.bos),
        "eos_token": token_flags(vocabulary.eos),
        "pad_token": token_flags(vocabulary.pad),
        "unk_token": token_flags(vocabulary.unk),
    }


def write_json(path, value, end="\n"):
    path.write_bytes((json.dumps(value, indent=2, ensure_ascii=False) + end).encode())


# --- putting it together ----------------------------------------------------------------------------------------------

def check_kind(gguf):
    """The files hold constants of this one family: refuse others instead of writing nonsense for them."""
    for key, expected in {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2",
                          "tokenizer.ggml.pre": "smollm"}.items():
        found = gguf.need(key, str)
        if found != expected:
            raise BadFile(f"metadata {key} is {found!r}, expected {expected!r}")


def convert(source, out):
    gguf = Gguf(source)
    check_kind(gguf)
    config, vocabulary = config_json(gguf), Vocabulary(gguf)
    layout = checkpoint_layout(config)
    check_names_and_shapes(gguf, layout)
    write_weights(out / "model.safetensors", gguf, layout)
    write_json(out / "config.json", config)
    write_json(out / "generation_config.json", generation_config_json(config))
    write_json(out / "tokenizer.json", tokenizer_json(vocabulary), end="")
    write_json(out / "tokenizer_config.json", tokenizer_config_json(gguf, vocabulary))
    write_json(out / "special_tokens_map.json", special_tokens_map_json(vocabulary))


def build_beside(source, out):
    """Convert into a directory beside `out`, then rename: `out` appears complete or not at all."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} is there already; remove it, or name another directory")
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.parent / f".{out.name}.unfinished.{os.getpid()}"
    unfinished.mkdir()
    try:
        convert(source, unfinished)
        os.replace(unfinished, out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def main(arguments):
    if arguments in (["-h"], ["--help"]):
        print(__doc__.strip())
        return 0
    if len(arguments) != 2:
        print("usage: gguf_to_hf.py MODEL.gguf OUT_DIR", file=sys.stderr)
        return 2
    source, out = Path(arguments[0]), Path(os.path.abspath(arguments[1]))
    try:
        build_beside(source, out)
        return 0
    except BadFile as error:
        print(f"gguf_to_hf.py: {source}: {error}", file=sys.stderr)
    except OSError as error:
        where = "" if error.filename or isinstance(error, FileExistsError) else f", writing {out}"
        print(f"gguf_to_hf.py: {error}{where}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
