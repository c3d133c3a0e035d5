#!/usr/bin/env python3
"""Writes tests/data/tales-4m/perplexity.json: perplexities of ppl.txt, and divergences between two models.

    python3 tests/data/make/perplexity.py        # needs torch and transformers

The text is tokenised whole, without special tokens, and cut into windows that do not overlap (the rest is dropped); each
is run on its own from position 0 and its tokens 1.. are scored: transformers, float32, probabilities in float64. The
other model is tales-4m with the last layer's down_proj set to zero. The divergence is that of the other model from
tales-4m, in nats, its 99 % by numpy's percentile, which interpolates linearly.
"""

import json
import math
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

DATA = Path(__file__).resolve().parent.parent
MODEL = DATA.parent.parent / "models/tales-4m"
WINDOWS = [1024, 256, 100]


def load():
    return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager").eval()


def log_probabilities(model, window):
    return torch.log_softmax(model(window[None]).logits[0, :-1].double(), -1)


def evaluate(tales, other, ids, size):
    nll, other_nll, divergences, agreements = 0.0, 0.0, [], 0
    for window in ids[: len(ids) // size * size].split(size):
        p, q = log_probabilities(tales, window), log_probabilities(other, window)
        nll -= p.gather(1, window[1:, None]).sum().item()
        other_nll -= q.gather(1, window[1:, None]).sum().item()
        divergences += (p.exp() * (p - q)).sum(1).tolist()
        agreements += (p.argmax(1) == q.argmax(1)).sum().item()
    tokens = len(divergences)
    return {
        "window": size, "tokens": tokens, "text_tokens": len(ids),
        "mean_nll": nll / tokens, "perplexity": math.exp(nll / tokens),
        "other_mean_nll": other_nll / tokens, "other_perplexity": math.exp(other_nll / tokens),
        "mean_kl": float(np.mean(divergences)), "kl_99": float(np.percentile(divergences, 99)),
        "top_1_agreement": agreements / tokens,
    }


def main():
    text = (DATA / "ppl.txt").read_text()
    ids = torch.tensor(AutoTokenizer.from_pretrained(MODEL)(text, add_special_tokens=False).input_ids)
    tales, other = load(), load()
    with torch.no_grad():
        other.model.layers[-1].mlp.down_proj.weight.zero_()
        rows = [evaluate(tales, other, ids, size) for size in WINDOWS]
    out = DATA / "tales-4m/perplexity.json"
    out.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


main()
