#!/usr/bin/env python3
"""Writes tests/data/tokenizers/*.json: a small tokenizer of each kind, in the form of the family's own files.

    python3 tests/data/make/make_tokenizers.py        # needs tokenizers 0.23

The vocabularies are trained on the public-domain text in tests/data/ppl.txt; what stands around them is what the models'
published tokenizer.json files say.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

DATA = Path(__file__).resolve().parent.parent
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
EXTRA = """def f(x):
    if x > 10:
        return [x, 2024, 31415]

naïve café, Straße, Übung; ça va? Москва, привет; 東京 日本語 你好; Ελλάδα; e\u0301 n\u0303
I'll we've don't THEY'RE it's 12 345 6789
"""


def corpus():
    return ((DATA / "ppl.txt").read_text() + EXTRA * 8).splitlines(keepends=True)


def added(token_id, content, normalized=False, special=True, lstrip=False, rstrip=False):
    return {
        "id": token_id, "content": content, "single_word": False, "lstrip": lstrip, "rstrip": rstrip,
        "normalized": normalized, "special": special,
    }


def byte_level(use_regex=True, add_prefix_space=False):
    return {
        "type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex,
    }


def split(regex):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def sequence(*parts):
    return {"type": "Sequence", "pretokenizers": list(parts)}


def template(*tokens):
    """What Llama's converter writes: the tokens, then the text."""
    specials = [{"SpecialToken": {"id": content, "type_id": 0}} for _, content in tokens]
    return {
        "type": "TemplateProcessing",
        "single": specials + [{"Sequence": {"id": "A", "type_id": 0}}],
        "pair": specials + [{"Sequence": {"id": "A", "type_id": 0}}]
        + [{"SpecialToken": {"id": content, "type_id": 1}} for _, content in tokens]
        + [{"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            content: {"id": content, "ids": [token_id], "tokens": [content]} for token_id, content in tokens
        },
    }


def train(tokenizer, size, alphabet=()):
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=list(alphabet), show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    return json.loads(tokenizer.to_str())


def gpt2_like(name, pre_tokenizer, specials, size=700, normalizer=None, post=None, model=None, first=()):
    """A byte-level tokenizer. `first` lists tokens at the start of the vocabulary, `specials` those added at its end."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trained = train(tokenizer, size, pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(first)}
    for token in sorted(trained["model"]["vocab"], key=trained["model"]["vocab"].get):
        vocab.setdefault(token, len(vocab))
    tokens = [added(vocab[token], token) for token in first]
    tokens += [{**token, "id": len(vocab) + i} for i, token in enumerate(specials)]
    merges = trained["model"]["merges"]
    model = dict(model or {})
    if model.get("ignore_merges"):
        merges = [merge for i, merge in enumerate(merges) if i % 5 != 4]  # so that some tokens can be had no other way
    write(name, tokens, normalizer, pre_tokenizer, post or byte_level(), byte_level(add_prefix_space=True), {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **model,
        "vocab": vocab, "merges": merges,
    })


def llama2_like(name, normalizer, pre_tokenizer, tokens=(), normalized=False, strip=True, size=600):
    """A tokenizer as transformers makes it of a SentencePiece model."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    trained = train(tokenizer, size)["model"]
    vocab = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>"])}
    vocab.update({f"<0x{byte:02X}>": 3 + byte for byte in range(256)})
    letters = {token for token in trained["vocab"] if len(token) == 1}
    for token in sorted(trained["vocab"], key=lambda token: (len(token) == 1, trained["vocab"][token])):
        if token != "日":  # a character without a token, between some that have one
            vocab.setdefault(token, len(vocab))
    assert letters
    specials = [added(i, token, normalized) for i, token in enumerate(["<unk>", "<s>", "</s>"])]
    specials += [{**token, "id": len(vocab) + i} for i, token in enumerate(tokens)]
    parts = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    parts += [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if strip else []
    write(name, specials, normalizer, pre_tokenizer, template((1, "<s>")), {"type": "Sequence", "decoders": parts}, {
        "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
        "vocab": vocab, "merges": [merge for merge in trained["merges"] if "日" not in "".join(merge)],
    })


def write(name, added_tokens, normalizer, pre_tokenizer, post_processor, decoder, model):
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens,
        "normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "post_processor": post_processor,
        "decoder": decoder, "model": model,
    }
    text = json.dumps(tokenizer, ensure_ascii=False)
    Tokenizer.from_str(text)  # the library takes it
    (DATA / "tokenizers" / f"{name}.json").write_text(text + "\n")


def main():
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Prepend", "prepend": "▁"}

    def metaspace(scheme, **more):
        return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False, **more}

    end, header = added(0, "<|endoftext|>"), [added(0, f"<|{name}|>") for name in ("begin_of_text", "end_of_text", "eot_id")]
    chat = [added(0, f"<|im_{name}|>") for name in ("start", "end")]
    odd = [
        added(0, "<mask>", lstrip=True), added(0, "<cut>", rstrip=True), added(0, "<both>", lstrip=True, rstrip=True),
        added(0, "  ", special=False, normalized=True), added(0, "<think>", special=False),
    ]
    gpt2_like("gpt2", byte_level(), [end, *odd])
    gpt2_like("smollm", sequence({"type": "Digits", "individual_digits": True}, byte_level()), [],
              first=["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    gpt2_like("llama3", sequence(split(WORDS % "{1,3}"), byte_level(use_regex=False)), header,
              post={"type": "Sequence", "processors": [byte_level(), template((700, "<|begin_of_text|>"))]},
              model={"ignore_merges": True})
    gpt2_like("qwen2", sequence(split(WORDS % ""), byte_level(use_regex=False)), [end, *chat],
              normalizer={"type": "NFC"},
              model={"continuing_subword_prefix": "", "end_of_word_suffix": ""})
    gpt2_like("qwen3", sequence(split(WORDS % ""), byte_level(use_regex=False)),
              [end, *chat, added(0, "<think>", special=False), added(0, "<tool>", normalized=True, special=False)],
              normalizer={"type": "NFC"}, model={"continuing_subword_prefix": "", "end_of_word_suffix": ""})
    llama2_like("llama2-legacy", {"type": "Sequence", "normalizers": [prepend, replace]}, None)
    llama2_like("llama2", None, metaspace("first"))
    llama2_like("llama2-normalized", {"type": "Sequence", "normalizers": [prepend, replace]}, None, normalized=True,
                tokens=odd)
    llama2_like("mistral", None, metaspace("first"), tokens=[added(0, "[INST]"), added(0, "[/INST]"), *odd])
    llama2_like("metaspace-always", None, metaspace("always", split=True), tokens=odd)
    llama2_like("metaspace-never", None, metaspace("never"), strip=False)
    llama2_like("replace-only", replace, None, strip=False)


if __name__ == "__main__":
    main()
