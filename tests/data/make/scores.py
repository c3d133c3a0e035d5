"""Write the log-likelihoods that transformers gives to continuations, in float32.

usage: scores.py HF_DIR > scores.json      needs: torch transformers

Context and continuation are encoded together, after the blanks at the context's end were moved to the continuation, as
lm-evaluation-harness moves them. The continuation begins with the first token that is not the context's own: past the
context, or where the two merge into one token. The first token of an empty context is the model's bos.
"""
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTIONS = [
    ["Once upon a time", [" there was a king", " there was a", " xylophone of glass", ", in a faraway land,"]],
    ["The king had a daughter, and she was as fair as ", ["the sun", "a toad", "seven thousand pumpkins"]],
    ["The capital of France is", [" Paris", " London", " Paris.", " a city that lies on the Seine"]],
    ["Question: What is 2 + 2?\nAnswer:", [" 4", " 5", " four"]],
    ["", ["Once upon a time", "Hello"]],
    ["naïve 日本", ["語", " café", "\n\n"]],
    ["<|im_end|>", ["<|im_end|>", " x"]],
    ["In the year 2024 ", ["the world", " "]],
]

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32, attn_implementation="eager").eval()


def encode(text):
    # Control tokens are text.
    return tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids


def split(context, continuation):
    if not context:
        return [model.config.bos_token_id], encode(continuation)
    blanks = len(context) - len(context.rstrip())
    if blanks:
        continuation, context = context[-blanks:] + continuation, context[:-blanks]
    whole, alone = encode(context + continuation), encode(context)
    first = next((i for i, (a, b) in enumerate(zip(whole, alone)) if a != b), len(alone))
    return whole[:first], whole[first:]


rows = []
with torch.no_grad():
    for context, continuations in QUESTIONS:
        scores = []
        for continuation in continuations:
            before, after = split(context, continuation)
            logits = model(torch.tensor([before + after])).logits[0].double().log_softmax(-1)[len(before) - 1 : -1]
            picked = logits.gather(1, torch.tensor(after, dtype=torch.long)[:, None])
            is_greedy = bool((logits.argmax(-1) == torch.tensor(after, dtype=torch.long)).all())
            top = logits.topk(2).values
            scores.append({"logprob": picked.sum().item(), "tokens": len(after), "is_greedy": is_greedy,
                           "smallest_margin": (top[:, 0] - top[:, 1]).min().item()})
        rows.append({"context": context, "continuations": continuations, "scores": scores})
print(json.dumps(rows, ensure_ascii=False, indent=1))
