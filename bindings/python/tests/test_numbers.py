"""Logits, hidden states, scores and perplexity: the library's, to the bit."""

import hashlib
import json
import math
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy
import pytest

import smolrun
from conftest import TALES

IDS = [i * 2_654_435_761 % 2**32 % 4096 for i in range(300)]
# `cargo run --release --example hash_logits -- BLOB 1 300` of a blob of models/tales-4m in f32, and in q4.
LIBRARY = {
    "f32": "2fb006646806f38654f7c1a3dd8cfead081d39871cd193914ddd1bcd33e59d32",
    "q4": "0f3f63724b6ea59c3410e915083e64175e57c3db409f45978f5c699829838c41",
}


@pytest.mark.parametrize("dtype", ["f32", "q4"])
def test_logits_are_the_library_s(folder: Path, dtype: str) -> None:
    blob = smolrun.convert(TALES, folder / f"hash-{dtype}.bin", dtype=dtype).path  # type: ignore[arg-type]
    model = smolrun.load(blob, threads=2)
    logits = model.logits(IDS, all=True)
    assert logits.dtype == numpy.float32 and logits.shape == (300, model.vocab_size)
    assert hashlib.sha256(logits.tobytes()).hexdigest() == LIBRARY[dtype]
    assert (model.logits(IDS) == logits[-1]).all() and (model.logits(IDS[:7]) == logits[6]).all()


def test_logits_are_the_program_s(tales: smolrun.Model, tales_path: Path) -> None:
    program = Path(sysconfig.get_path("scripts")) / "smolrun"
    ids = ",".join(map(str, IDS[:20]))
    output = subprocess.run([program, "logits", tales_path, "--ids", ids], capture_output=True, check=True)
    assert numpy.array_equal(numpy.array(json.loads(output.stdout), "f4"), tales.logits(IDS[:20]))


def test_arrays_own_their_memory_and_speak_dlpack(tales: smolrun.Model) -> None:
    logits = tales.logits(IDS, all=True)
    assert logits.base is not None or logits.flags.owndata
    assert numpy.shares_memory(numpy.from_dlpack(logits), logits)


def test_a_session_s_logits_follow_what_it_holds(tales: smolrun.Model, session: smolrun.Session) -> None:
    expected = tales.logits(IDS, all=True)
    assert (session.logits(IDS[:100], all=True) == expected[:100]).all()
    assert (session.logits(IDS[100:200]) == expected[199]).all()
    assert (session.logits(IDS[200:], all=True) == expected[200:]).all()
    assert session.tokens == IDS and len(session) == 300


def test_hidden_states_make_embeddings(tales: smolrun.Model, session: smolrun.Session) -> None:
    hidden = tales.hidden(IDS)
    assert hidden.shape == (300, tales.hidden_size)
    assert (tales.embed(IDS) == hidden[-1]).all()
    assert numpy.allclose(tales.embed(IDS, pooling="mean"), hidden.mean(0), atol=1e-5)
    session.logits(IDS[:50])
    assert (session.hidden(IDS[50:]) == hidden[50:]).all()


def test_scores_are_sums_of_log_probabilities(tales: smolrun.Model) -> None:
    text = tales.score("Once upon a", [" time", " king"])
    assert text[0].logprob > text[1].logprob and text[0].is_greedy and not text[1].is_greedy
    context, first, second = IDS[:50], IDS[50:52], IDS[60:61]
    scores = tales.score(context, [first, second])
    logits = tales.logits(context + first, all=True).astype("f8")
    expected = 0.0
    for place, token in zip(range(49, 51), first, strict=True):
        row = logits[place]
        expected += row[token] - row.max() - math.log(numpy.exp(row - row.max()).sum())
    assert abs(scores[0].logprob - expected) < 1e-4 and (scores[0].tokens, scores[1].tokens) == (2, 1)
    with pytest.raises(smolrun.ArgumentError):
        tales.score("Once", [""])
    with pytest.raises(TypeError):
        tales.score("Once", [[1]])  # type: ignore[list-item]


def test_perplexity_is_of_windows(tales: smolrun.Model) -> None:
    whole = tales.perplexity(IDS, window=300)
    assert whole.tokens == 299 and math.isclose(whole.perplexity, math.exp(whole.nll / 299))
    assert math.isclose(-whole.nll, tales.score(IDS[:1], [IDS[1:]])[0].logprob, rel_tol=1e-9)
    halves = tales.perplexity(IDS, window=150)
    assert halves.tokens == 298
    tale = "Once upon a time there was a little girl who lived in a house in the wood. " * 100
    assert tales.perplexity(tale).tokens % 1023 == 0
    with pytest.raises(smolrun.ArgumentError, match=r"^text: expected at least 1024 tokens \(window\), found 2"):
        tales.perplexity([5, 6])


def test_texts_and_ids_are_the_same(tales: smolrun.Model) -> None:
    for text in ["Once upon a time", "été \U0001f600\n\tx", "<|endoftext|>", ""]:
        assert tales.detokenize(tales.tokenize(text)) == text
    special = tales.tokenize("<|endoftext|>", special=True)
    assert special == tales.eos_token_ids == [0] and len(tales.tokenize("<|endoftext|>")) > 1
    assert tales.detokenize(special, skip_special=True) == ""
    assert tales.special_tokens[0] == "<|endoftext|>" and tales.token_bytes(0) == b"<|endoftext|>"
    with pytest.raises(smolrun.ArgumentError) as raised:
        tales.detokenize([5000])
    assert raised.value.code == "argument.token_id"
    with pytest.raises(smolrun.ArgumentError) as raised:
        tales.token_bytes(5000)
    assert raised.value.code == "argument.token_id"
    with pytest.raises(smolrun.ArgumentError, match="^id: expected a token id, found -1"):
        tales.token_bytes(-1)
    with pytest.raises(TypeError, match="^id: expected an int, found str"):
        tales.token_bytes("x")  # type: ignore[arg-type]


def test_without_numpy_only_arrays_fail(tales_path: Path) -> None:
    code = f"""
import sys
sys.modules["numpy"] = None
import smolrun
model = smolrun.load({str(tales_path)!r})
assert model.generate("Once", max_tokens=3).ids
try:
    model.logits("Once")
except ImportError:
    print("no arrays")
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert output.stdout == "no arrays\n"
