#!/usr/bin/env python3
"""Writes tests/data/gguf/family/*: models of tests/data/family as GGUF files, by llama.cpp's own converter.

    SMOL_PUBLISHED=DIR python3 tests/data/make/gguf_family.py   # needs torch and transformers; DIR as scripts/test.sh has it

The weights are bfloat16 numbers there and here. Of the converter one function is replaced: the one that knows a
tokenizer by the hash of what it makes of a text, which cannot know one of 37 tokens.
"""

import json
import os
import runpy
import shutil
import sys
import tempfile
from pathlib import Path

DATA = Path(__file__).resolve().parent.parent
OUT = DATA / "gguf" / "family"
PUBLISHED = Path(os.environ["SMOL_PUBLISHED"])
MODELS = {
    "llama-linear": [], "llama3.2": [], "mlp-biased": [], "qwen2": ["--split-max-tensors", "13"], "qwen3": [], "smollm3": [], "v5-yarn": [],
}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def tokenizer():
    """A byte-level BPE of 37 tokens: one special, 26 letters, space, seven merges and two marks."""
    merges = ["t h", "th e", "Ġ the", "i n", "a n", "an d", "e r"]
    tokens = ["<|endoftext|>", *"abcdefghijklmnopqrstuvwxyz", "Ġ", ".", "!", *(merge.replace(" ", "") for merge in merges)]
    special = {"id": 0, "content": tokens[0], "single_word": False, "lstrip": False, "rstrip": False,
               "normalized": False, "special": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": {token: id for id, token in enumerate(tokens)}, "merges": merges}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [special], "normalizer": None,
            "pre_tokenizer": BYTE_LEVEL, "post_processor": None, "decoder": BYTE_LEVEL, "model": model}


def convert(name, arguments, folder):
    model = folder / name
    model.mkdir()
    for file in ["config.json", "model.safetensors"]:
        shutil.copy(DATA / "family" / name / file, model / file)
    shutil.copy(OUT / "tokenizer.json", model / "tokenizer.json")
    (model / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    script = PUBLISHED / "convert_hf_to_gguf.py"
    sys.argv = [str(script), "--outtype", "bf16", "--outfile", str(OUT / f"{name}.gguf"), *arguments, str(model)]
    runpy.run_path(str(script), run_name="__main__")


def main():
    sys.path[:0] = [str(PUBLISHED / "gguf-py"), str(PUBLISHED)]
    from conversion.base import TextModel
    TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    (OUT / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments in MODELS.items():
            convert(name, arguments, Path(folder))


if __name__ == "__main__":
    main()
