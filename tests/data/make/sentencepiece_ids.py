#!/usr/bin/env python3
"""Make tests/data/gguf/sentencepiece_ids.json: what sentencepiece makes of the texts of tokenizer_cases.jsonl.

usage: SMOL_PUBLISHED=DIR sentencepiece_ids.py       needs: sentencepiece 0.2.3, protobuf; DIR as scripts/test.sh has it

For each vocabulary, 8 hexadecimal digits of a text's ids, one text after the other: SHA-256 of the ids in decimal with
spaces between. The vocabularies are the published ones, and that of gguf/sentencepiece.json with scores that many
pieces share. Each is made a model of sentencepiece of the pieces, scores and types that the GGUF file has.
"""
import hashlib
import json
import os
import sys
from pathlib import Path

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

DATA = Path(__file__).resolve().parent.parent
PUBLISHED = Path(os.environ["SMOL_PUBLISHED"])
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def read_gguf(path):
    sys.path.insert(0, str(PUBLISHED / "gguf-py"))
    import gguf
    fields = gguf.GGUFReader(path).fields

    def array(name):
        return fields[f"tokenizer.ggml.{name}"].contents()

    return array("tokens"), array("scores"), array("token_type")


def processor(tokens, scores, types):
    model = sentencepiece_model_pb2.ModelProto()
    for token, score, kind in zip(tokens, scores, types):
        # sentencepiece has one unknown piece, and it is the first here.
        if kind == UNKNOWN or token == "<unk>":
            kind = UNKNOWN if token == "<unk>" else CONTROL
        model.pieces.add(piece=token, score=score, type=kind)
    model.trainer_spec.model_type = 2  # BPE
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.vocab_size = len(tokens)
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = True
    model.normalizer_spec.remove_extra_whitespaces = False
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def hashes(model, texts):
    def digest(text):
        return hashlib.sha256(" ".join(map(str, model.encode(text))).encode()).hexdigest()[:8]

    return "".join(digest(text) for text in texts)


def main():
    texts = [json.loads(line)["text"] for line in open(DATA / "tokenizer_cases.jsonl")]
    found = {}
    for name in ("llama-spm", "phi-3", "baichuan"):
        model = processor(*read_gguf(PUBLISHED / "models" / f"ggml-vocab-{name}.gguf"))
        found[name] = hashes(model, texts)
    small = json.load(open(DATA / "gguf/sentencepiece.json"))
    for share in (40, 200, 1000):
        scores = [-float(i // share) for i in range(len(small["tokens"]))]
        found[f"ties of {share}"] = hashes(processor(small["tokens"], scores, small["types"]), texts)
    with open(DATA / "gguf/sentencepiece_ids.json", "w") as file:
        json.dump(found, file, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
