#!/usr/bin/env python3
"""Make tests/data/gguf/sentencepiece.json: a small SentencePiece-BPE tokenizer as GGUF keeps one, and its ids.

usage: gguf_sentencepiece.py OUT.json        run in tests/data; needs: sentencepiece 0.2.3

Trained on ppl.txt with Llama 2's settings. `tokens`, `scores` and `types` are the arrays of the GGUF metadata; `cases`
are 1000 texts of tokenizer_cases.jsonl with the ids that sentencepiece gives them.
"""
import json
import sys
import tempfile

import sentencepiece


def kind(model, piece):
    tests = [(2, model.is_unknown), (3, model.is_control), (6, model.is_byte)]
    return next((code for code, test in tests if test(piece)), 1)


def main(out):
    with tempfile.TemporaryDirectory() as folder:
        sentencepiece.SentencePieceTrainer.train(
            input="ppl.txt", model_prefix=f"{folder}/m", model_type="bpe", vocab_size=800, byte_fallback=True,
            character_coverage=0.9995, normalization_rule_name="identity", remove_extra_whitespaces=False,
            split_digits=True, allow_whitespace_only_pieces=True, num_threads=1, minloglevel=2)
        model = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/m.model")
    ids = range(model.get_piece_size())
    texts = [json.loads(line)["text"] for line in open("tokenizer_cases.jsonl")]
    with open(out, "w") as file:
        json.dump({
            "tokens": [model.id_to_piece(i) for i in ids], "scores": [model.get_score(i) for i in ids],
            "types": [kind(model, i) for i in ids],
            "cases": [[text, model.encode(text)] for text in texts if len(text) < 120 and "\0" not in text][:1000],
        }, file, ensure_ascii=False, separators=(",", ":"))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    main(sys.argv[1])
