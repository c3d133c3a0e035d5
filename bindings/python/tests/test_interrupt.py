"""Ctrl-C ends what runs within one pass, and leaves everything usable."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import smolrun

PROMPT = [i * 7919 % 4096 for i in range(100_000)]
"""It takes many seconds, in 400 passes."""
MOST_SECONDS = 1.0
"""A pass takes some 20 ms of a free machine's time."""


@pytest.fixture(scope="module")
def model(tales_path: Path) -> Iterator[smolrun.Model]:
    with smolrun.load(tales_path, overflow="slide", threads=2) as model:
        yield model


def seconds_after_interrupt(call: Callable[[], object]) -> float:
    """How long after Ctrl-C `call` ends."""
    sent = 0.0

    def interrupt() -> None:
        nonlocal sent
        sent = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(0.15, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        call()
    timer.join()
    return time.perf_counter() - sent


def test_in_a_prompt(model: smolrun.Model) -> None:
    expected = model.generate("Once upon a time", max_tokens=9).ids
    with model.session() as session:
        for call in (
            lambda: session.generate(PROMPT),
            lambda: next(session.generate(PROMPT, stream=True)),
            lambda: session.logits(PROMPT),
            lambda: session.hidden(PROMPT),
        ):
            session.truncate(0)
            assert seconds_after_interrupt(call) < MOST_SECONDS
            held = session.tokens
            assert len(held) % 256 == 0 and 0 < len(held) < len(PROMPT)
            session.truncate(0)
            assert session.generate("Once upon a time", max_tokens=9).ids == expected
    for asked in (
        lambda: model.generate(PROMPT),
        lambda: model.logits(PROMPT, all=True),
        lambda: model.score(PROMPT, [[1]]),
        lambda: model.score([1, 2], [[1]] * 300_000),
        lambda: model.score("Once upon a time " * 100, [" there"] * 100_000),
        lambda: model.perplexity(PROMPT),
        lambda: model.embed(PROMPT),
        lambda: list(model.batch([PROMPT[:1000]] + [PROMPT[i : i + 900] for i in range(100)])),
    ):
        assert seconds_after_interrupt(asked) < MOST_SECONDS
        assert model.generate("Once upon a time", max_tokens=9).ids == expected


def test_what_was_interrupted_in_a_pass_says_so(model: smolrun.Model) -> None:
    stream = model.generate(PROMPT, stream=True)
    assert seconds_after_interrupt(lambda: next(stream)) < MOST_SECONDS
    assert stream.finish_reason == "cancelled" and list(stream) == []


def test_while_it_generates(model: smolrun.Model) -> None:
    def streamed() -> None:
        for _ in model.generate("Once", max_tokens=10**9, ignore_eos=True, stream=True):
            pass

    assert seconds_after_interrupt(streamed) < MOST_SECONDS
    assert seconds_after_interrupt(lambda: model.generate("Once", max_tokens=10**9, ignore_eos=True)) < MOST_SECONDS


def test_while_it_waits_for_another_thread(model: smolrun.Model) -> None:
    with model.session() as session:
        stream = session.generate(PROMPT[:20_000], stream=True)
        worker = threading.Thread(target=lambda: next(stream, None))
        worker.start()
        time.sleep(0.05)
        assert seconds_after_interrupt(lambda: session.tokens) < MOST_SECONDS
        stream.cancel()
        worker.join()


def test_a_handler_s_exception_is_what_is_raised(model: smolrun.Model) -> None:
    def handle(*_: object) -> None:
        raise TimeoutError("enough")

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(TimeoutError, match="enough"):
            model.generate(PROMPT)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_handler_may_use_the_model_but_not_the_same_session(model: smolrun.Model) -> None:
    found: list[object] = []

    def handle(*_: object) -> None:
        found.append(model.generate("Once", max_tokens=2).ids)
        try:
            found.append(session.tokens)
        except smolrun.BusyError as error:
            found.append(error.code)

    before = signal.signal(signal.SIGALRM, handle)
    with model.session() as session:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            session.logits(PROMPT[:20_000])
        finally:
            signal.signal(signal.SIGALRM, before)
        assert len(session) > 512
    assert len(found) == 2 and found[1] == "busy"
