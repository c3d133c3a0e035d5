"""Write what transformers' logits processors make of some random logits, computed in float64.

usage: sampling.py > sampling.json      needs: torch transformers
"""
import json
import torch
from transformers.generation import logits_process as lp

VOCAB_SIZE = 256
PAST = [3, 17, 17, 200, 17, 4, 255, 3, 90]
MAKE = {
    "temperature": lambda x: lp.TemperatureLogitsWarper(x),
    "top_k": lambda x: lp.TopKLogitsWarper(x),
    "top_p": lambda x: lp.TopPLogitsWarper(x),
    "min_p": lambda x: lp.MinPLogitsWarper(x),
    "typical_p": lambda x: lp.TypicalLogitsWarper(x),
    "repetition_penalty": lambda x: lp.RepetitionPenaltyLogitsProcessor(x),
}
# Each in the order in which the processors are applied.
CASES = [
    {"temperature": 0.7},
    {"temperature": 1.9},
    {"top_k": 1},
    {"top_k": 40},
    {"top_p": 0.5},
    {"top_p": 0.95},
    {"min_p": 0.05},
    {"min_p": 0.5},
    {"typical_p": 0.2},
    {"typical_p": 0.9},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    {"repetition_penalty": 1.1, "temperature": 1.2, "top_k": 100, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.9},
    {"min_p": 0.1, "temperature": 1.5},
    {"top_p": 0.8, "temperature": 2.0, "top_k": 20},
]


def probabilities(logits, case):
    scores, past = logits.clone()[None], torch.tensor([PAST])
    for name, value in case.items():
        scores = MAKE[name](value)(past, scores)
    return torch.softmax(scores, dim=-1)[0]


torch.manual_seed(20240615)
rows = []
for spread in (1.0, 3.0, 8.0):
    # Numbers of few binary digits: the same in JSON, f32 and float64.
    logits = (torch.randn(VOCAB_SIZE) * spread * 1024).round().double() / 1024
    cases = []
    for case in CASES:
        p = probabilities(logits, case)
        kept = [[i, float(f"{x:.12g}")] for i, x in enumerate(p.tolist()) if x > 0]
        cases.append({"options": list(case.items()), "probabilities": kept})
    rows.append({"logits": logits.tolist(), "cases": cases})
print(json.dumps({"past": PAST, "rows": rows}, separators=(",", ":")))
