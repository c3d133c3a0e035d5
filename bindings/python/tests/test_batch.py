"""Many requests at once give what each gives alone."""

from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import smolrun

PROMPTS = [f"Once upon a time there {word}" for word in ("was a king", "were", "lived a bear", "is")] * 8


def test_a_batch_is_what_each_gives_alone(tales: smolrun.Model) -> None:
    alone = [tales.generate(prompt, max_tokens=40 - i, logprobs=1) for i, prompt in enumerate(PROMPTS)]
    requests = [{"prompt": prompt, "max_tokens": 40 - i} for i, prompt in enumerate(PROMPTS)]
    batch = list(tales.batch(requests, logprobs=1))
    assert [found.ids for found in batch] == [found.ids for found in alone]
    assert [found.logprobs for found in batch] == [found.logprobs for found in alone]
    assert [found.text for found in batch] == [found.text for found in alone]
    unordered = dict(tales.batch(requests, logprobs=1, ordered=False, sequences=4))
    assert list(unordered) != sorted(unordered), "as they finish"
    assert [unordered[i].ids for i in range(len(PROMPTS))] == [found.ids for found in alone]


def test_draws_are_by_seed_and_number(tales: smolrun.Model) -> None:
    batch = list(tales.batch(PROMPTS[:6], max_tokens=9, temperature=1.0, seed=40))
    assert [found.seed for found in batch] == [40, 41, 42, 43, 44, 45]
    for i, found in enumerate(batch):
        assert tales.generate(PROMPTS[i], max_tokens=9, temperature=1.0, seed=40 + i).ids == found.ids
    own = list(tales.batch([{"prompt": "Once", "seed": 3}] * 2, max_tokens=9, temperature=1.0))
    assert own[0].ids == own[1].ids


def test_requests_are_read_as_needed(tales: smolrun.Model) -> None:
    read = 0

    def requests() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield "Once upon a time"

    with tales.batch(requests(), max_tokens=3, sequences=2) as batch:
        assert len([next(batch) for _ in range(10)]) == 10
    assert read < 100


def test_what_is_wrong_is_one_request_s(tales: smolrun.Model, chat: smolrun.Model) -> None:
    requests: list[Any] = ["Once", {"prompt": "Once", "top_p": 7}, [9999], {"x": 1}, 5, "Once", []]
    found = list(tales.batch(requests, max_tokens=3, return_exceptions=True))
    assert [type(result).__name__ for result in found] == [
        "Completion", "ArgumentError", "ArgumentError", "ArgumentError", "TypeError", "Completion", "ArgumentError",
    ]  # fmt: skip
    assert str(found[-1]) == "prompt: expected at least one token, found none"
    batch = tales.batch(requests, max_tokens=3)
    assert next(batch).ids
    with pytest.raises(smolrun.ArgumentError, match="top_p"):
        next(batch)
    with pytest.raises(smolrun.ArgumentError, match="token id 9999"):
        next(batch)
    messages = [{"role": "child", "content": "Hello"}]
    mixed = list(chat.batch([messages, {"messages": messages}, "Hello"], max_tokens=3, temperature=0))
    assert mixed[0].ids == mixed[1].ids
    with pytest.raises(TypeError, match="unexpected keyword argument 'maximum'"):
        tales.batch([], maximum=3)  # type: ignore[call-overload]
    with pytest.raises(smolrun.ArgumentError, match="^sequences: expected 1 to 256, found 0"):
        tales.batch([], sequences=0)
    assert list(tales.batch([])) == []


def test_a_request_s_own_word_counts_before_that_for_all(tales: smolrun.Model) -> None:
    eos = tales.eos_token_ids[0]
    requests: list[Any] = [{"prompt": "Once", "ignore_eos": ignores} for ignores in (False, True, None)]
    found = tales.batch(requests, max_tokens=5, logit_bias={eos: 100.0}, ignore_eos=True)
    assert [completion.finish_reason for completion in found] == ["eos", "length", "length"]


def test_one_request_is_not_taken_for_many(tales: smolrun.Model) -> None:
    for requests in ("Once", {"prompt": "Once"}, MappingProxyType({"prompt": "Once"})):
        with pytest.raises(TypeError, match="requests: expected an iterable"):
            tales.batch(requests)


def test_a_closed_batch_says_so(tales: smolrun.Model, tales_path: Path) -> None:
    batch = tales.batch(PROMPTS)
    next(batch)
    batch.close()
    with pytest.raises(smolrun.ClosedError):
        next(batch)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit])
def test_what_is_no_error_of_a_request_is_raised_at_once(tales: smolrun.Model, raised: type[BaseException]) -> None:
    class Ids:
        def __iter__(self) -> Iterator[int]:
            raise raised

    requests: list[Any] = ["Once", Ids(), "Once"]
    batch = tales.batch(requests, max_tokens=3, return_exceptions=True)
    with pytest.raises(raised):
        next(batch)
    assert [getattr(result, "code", "none") for result in batch] == ["none", "cancelled", "none"]
