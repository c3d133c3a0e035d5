#!/usr/bin/env python3
"""Writes tests/data/tales-4m/hidden.safetensors: per prompt of reference.json the last hidden states, after the final norm.

    python3 tests/data/make/hidden.py        # needs torch and transformers

transformers, float32, eager attention: `last_hidden_state` of the model without its head, f32 [tokens, hidden_size].
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModel

DATA = Path(__file__).resolve().parent.parent
MODEL = DATA.parent.parent / "models/tales-4m"


def main():
    rows = json.loads((DATA / "tales-4m/reference.json").read_text())
    model = AutoModel.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        states = {row["name"]: model(torch.tensor([row["ids"]])).last_hidden_state[0].contiguous() for row in rows}
    save_file(states, DATA / "tales-4m/hidden.safetensors")


if __name__ == "__main__":
    main()
