#!/usr/bin/env python3
"""transformers as a peer of smolrun: the same measurements, for scripts/compare_peers.py.

usage: transformers_peer.py bench DIR DTYPE THREADS N_PROMPT N_TOKENS   a JSON line on standard output
       transformers_peer.py first DIR DTYPE THREADS PROMPT              a token there, a JSON line on standard error

DTYPE is f32 or bf16.
"""

import json
import sys
import time

START = time.perf_counter()

import torch  # noqa: E402 - its import is part of what is measured
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def load(directory, dtype, threads):
    torch.set_num_threads(int(threads))
    return AutoModelForCausalLM.from_pretrained(directory, dtype=DTYPES[dtype]).eval()


def speed(model, count, step):
    """Tokens per second of `count` tokens, which ones does not matter, `step` at a time, from an empty context."""
    if count == 0:
        return 0.0
    tokens = torch.arange(count)[None] * 2654435761 % model.config.vocab_size
    cache = None
    start = time.perf_counter()
    for at in range(0, count, step):
        out = model(tokens[:, at : at + step], past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
    return count / (time.perf_counter() - start)


def bench(directory, dtype, threads, prompt, tokens):
    model, prompt, tokens = load(directory, dtype, threads), int(prompt), int(tokens)
    speed(model, min(prompt, 32), 32)  # to warm up
    speed(model, min(tokens, 4), 1)
    print(json.dumps({"pp": speed(model, prompt, prompt), "tg": speed(model, tokens, 1)}))


def first(directory, dtype, threads, prompt):
    elapsed = lambda: round((time.perf_counter() - START) * 1e3, 2)  # noqa: E731
    imported = elapsed()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenized = elapsed()
    model = load(directory, dtype, threads)
    loaded = elapsed()
    logits = model(**tokenizer(prompt, return_tensors="pt"), logits_to_keep=1).logits
    print(tokenizer.decode(logits[0, -1].argmax()))
    phases = {"imports": imported, "tokenizer": tokenized, "model": loaded, "token": elapsed()}
    print(json.dumps(phases), file=sys.stderr)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["bench", *rest] if len(rest) == 5:
            torch.set_grad_enabled(False)
            bench(*rest)
        case ["first", *rest] if len(rest) == 4:
            torch.set_grad_enabled(False)
            first(*rest)
        case _:
            sys.exit(__doc__)
