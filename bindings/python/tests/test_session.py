"""Sequences that several calls go on with."""

from pathlib import Path
from typing import Any

import pytest

import smolrun

START = "Once upon a time"


def test_texts_are_appended(tales: smolrun.Model, session: smolrun.Session) -> None:
    whole = tales.generate(START, max_tokens=20)
    first = session.generate(START, max_tokens=8)
    assert session.tokens == tales.tokenize(START) + first.ids
    ids = first.ids + session.generate([tales.tokenize(" and")[0]], max_tokens=1).ids
    assert first.ids == whole.ids[:8] and len(ids) == 9
    session.truncate(len(tales.tokenize(START)) + 8)
    assert session.tokens == tales.tokenize(START) + first.ids
    # The prompt of a model that goes on from here is the next token itself.
    session.truncate(len(tales.tokenize(START)) + 7)
    assert session.generate(first.ids[7:8], max_tokens=12).ids == whole.ids[8:]


def test_a_conversation_is_computed_once(chat: smolrun.Model) -> None:
    messages = [{"role": "child", "content": "Tell me of a king. " * 20}]
    with chat.session() as session:
        first = session.generate(messages, max_tokens=10, temperature=0)
        assert first.timings.cached_tokens == 0
        messages += [{"role": "teller", "content": first.text}, {"role": "child", "content": "And then?"}]
        second = session.generate(messages, max_tokens=10, temperature=0)
    assert second.timings.cached_tokens >= first.timings.prompt_tokens - 1
    assert second.ids == chat.generate(messages, max_tokens=10, temperature=0).ids


def test_forks_go_their_own_ways(tales: smolrun.Model, session: smolrun.Session) -> None:
    session.generate(START, max_tokens=10)
    tokens = session.tokens
    with session.fork() as fork:
        assert fork.tokens == tokens
        forked = fork.generate(" The king", max_tokens=10)
        assert session.tokens == tokens and session.generate(" The king", max_tokens=10).ids == forked.ids


def test_a_saved_session_goes_on(tales: smolrun.Model, session: smolrun.Session, tmp_path: Path) -> None:
    session.generate(START, max_tokens=10)
    tokens = session.tokens
    session.save(tmp_path / "saved")
    expected = session.generate(" The king", max_tokens=10).ids
    with tales.session() as other:
        other.load(tmp_path / "saved")
        assert other.tokens == tokens and other.generate(" The king", max_tokens=10).ids == expected
        (tmp_path / "broken").write_bytes(b"x" * 100)
        with pytest.raises(smolrun.SavedSessionError):
            other.load(tmp_path / "broken")
        assert other.tokens == [] and other.generate(START, max_tokens=3).ids
        with pytest.raises(FileNotFoundError):
            other.load(tmp_path / "nothing")


def test_a_stream_ends_when_something_else_begins(session: smolrun.Session) -> None:
    stream = session.generate(START, stream=True)
    first = [next(stream).id, next(stream).id]
    assert session.tokens[-2:] == first
    session.generate(" and", max_tokens=2)
    with pytest.raises(smolrun.StreamEndedError) as raised:
        next(stream)
    assert raised.value.code == "stream_ended"


def test_what_is_closed_says_so(tales_path: Path) -> None:
    model = smolrun.load(tales_path)
    session, stream = model.session(), model.generate(START, stream=True)
    session.close()
    session.close()
    for call in (
        lambda: session.tokens,
        lambda: session.generate(START),
        lambda: session.logits(START),
        lambda: session.fork(),
        lambda: len(session),
    ):
        with pytest.raises(smolrun.ClosedError, match="the session is closed"):
            call()
    model.close()
    model.close()
    for call in (lambda: model.generate(START), lambda: model.session(), lambda: model.vocab_size):
        with pytest.raises(smolrun.ClosedError, match="the model is closed"):
            call()
    # What had begun goes on: it has the blob until it ends.
    assert len(list(stream)) == 256
    with smolrun.load(tales_path) as other:
        assert other.vocab_size == 4096
    with pytest.raises(ValueError):
        other.tokenize("x")


def test_a_call_that_is_refused_changes_nothing(chat: smolrun.Model) -> None:
    messages = [{"role": "child", "content": "Tell me of a king."}]
    expected = chat.generate(messages, max_tokens=9, temperature=0).ids
    refused: list[tuple[Any, dict[str, Any], type[Exception]]] = [
        ([{"role": "child", "content": "Another one."}], {"temperature": -1}, smolrun.ArgumentError),
        ([{"role": "child", "content": "Another one."}], {"stop": [""]}, smolrun.ArgumentError),
        (" more", {"top_p": 7}, smolrun.ArgumentError),
        (" more", {"logit_bias": {9999: 1.0}}, smolrun.ArgumentError),
        ([9999], {}, smolrun.ArgumentError),
        ([5] * 1024, {}, smolrun.ContextError),
    ]
    with chat.session() as session:
        stream = session.generate(messages, max_tokens=9, temperature=0, stream=True)
        ids = [next(stream).id]
        tokens = session.tokens
        for prompt, options, error in refused:
            with pytest.raises(error):
                session.generate(prompt, **options)
            assert session.tokens == tokens
        with pytest.raises(smolrun.ContextError):
            session.logits([5] * 1024)
        assert ids + [piece.id for piece in stream] == expected


def test_a_session_goes_on_from_its_last_token(tales: smolrun.Model, session: smolrun.Session, tmp_path: Path) -> None:
    prompt = tales.tokenize(START)
    whole = tales.generate(prompt, max_tokens=12).ids

    def goes_on(session: smolrun.Session) -> None:
        tokens = session.tokens
        done = len(tokens) - len(prompt)
        assert (session.logits("") == tales.logits(tokens)).all() and session.tokens == tokens
        assert session.generate("", max_tokens=2).ids == whole[done : done + 2]
        assert session.tokens == prompt + whole[: done + 2]

    with pytest.raises(smolrun.ArgumentError, match="^prompt: expected at least one token, found none"):
        session.generate([])
    session.logits(prompt)
    goes_on(session)
    goes_on(session)
    session.save(tmp_path / "saved")
    goes_on(session)
    with tales.session() as other:
        other.load(tmp_path / "saved")
        goes_on(other)
    session.truncate(len(prompt) + 1)
    goes_on(session)


def test_a_session_is_true(tales: smolrun.Model) -> None:
    session = tales.session()
    assert session and len(session) == 0
    session.close()
    assert session


def test_a_full_session_is_saved_without_the_token_it_has_no_place_for(tales: smolrun.Model, tmp_path: Path) -> None:
    with tales.session() as session:
        assert session.generate("Once", max_tokens=5000, ignore_eos=True).finish_reason == "context"
        full = session.tokens
        session.save(tmp_path / "full")
        with tales.session() as other:
            other.load(tmp_path / "full")
            assert other.tokens == full[: tales.context_size]
