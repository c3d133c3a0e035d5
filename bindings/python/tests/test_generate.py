"""Texts, streams and their options."""

import json
import pickle
from collections import ChainMap
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest

import smolrun

START = "Once upon a time"


def test_five_lines_print_a_tale(tales: smolrun.Model) -> None:
    completion = tales.generate(START, max_tokens=40)
    assert len(completion.ids) == 40 and completion.finish_reason == "length"
    assert str(completion) == completion.text == tales.detokenize(completion.ids)
    assert completion.seed is None and completion.logprobs is None
    timings = completion.timings
    assert (timings.prompt_tokens, timings.tokens) == (len(tales.tokenize(START)), 40)
    assert timings.prompt_ms > 0 and timings.decode_ms > 0 and timings.tokens_per_second


def test_a_stream_is_the_same_text(tales: smolrun.Model) -> None:
    whole = tales.generate(START, max_tokens=30, logprobs=2)
    stream = tales.generate(START, max_tokens=30, logprobs=2, stream=True)
    pieces = list(stream)
    assert "".join(map(str, pieces)) == whole.text == stream.text
    assert [piece.id for piece in pieces] == whole.ids == stream.ids
    assert [piece.logprobs for piece in pieces] == whole.logprobs
    assert [piece.finish_reason for piece in pieces] == [None] * 29 + ["length"]
    assert stream.finish_reason == "length" and next(stream, None) is None
    half = tales.generate(START, max_tokens=30, stream=True)
    next(half)
    assert half.completion().text == whole.text


def test_a_variable_may_decide_whether_to_stream(tales: smolrun.Model) -> None:
    for stream in (True, False):
        result = tales.generate(START, max_tokens=1, stream=stream)
        assert isinstance(result, smolrun.Stream if stream else smolrun.Completion)


def test_a_prompt_may_be_ids(tales: smolrun.Model) -> None:
    numpy = pytest.importorskip("numpy")
    ids = tales.tokenize(START)
    expected = tales.generate(START, max_tokens=9).ids
    for prompt in (ids, tuple(ids), iter(ids), numpy.array(ids)):
        assert tales.generate(prompt, max_tokens=9).ids == expected


def test_messages_are_rendered(chat: smolrun.Model) -> None:
    messages = [{"role": "child", "content": "Tell me of a king."}]
    text = "child: Tell me of a king.\nteller: "
    assert chat.render_chat(messages) == text
    assert chat.render_chat(messages, add_generation_prompt=False) == "child: Tell me of a king.\n"
    greedy = chat.generate(messages, max_tokens=20, temperature=0)
    assert greedy.ids == chat.generate(text, max_tokens=20).ids and greedy.seed is None
    drawn = chat.generate(messages, max_tokens=20)
    assert drawn.seed is not None
    assert chat.generate(messages, max_tokens=20, seed=drawn.seed).ids == drawn.ids
    assert {chat.generate(messages, max_tokens=20).seed for _ in range(5)} != {drawn.seed}


def test_options_do_what_the_programs_do(tales: smolrun.Model) -> None:
    def text(**options: Any) -> str:
        completion: smolrun.Completion = tales.generate(START, max_tokens=40, **options)
        return completion.text

    plain = text()
    word = plain.split()[5]
    stopped = tales.generate(START, max_tokens=40, stop=word)
    assert stopped.text == plain[: plain.index(word)] and stopped.finish_reason == "stop"
    drawn = text(temperature=0.9, top_k=50, top_p=0.95, min_p=0.01, typical_p=0.99, seed=7)
    assert drawn == text(temperature=0.9, top_k=50, top_p=0.95, min_p=0.01, typical_p=0.99, seed=7)
    assert drawn != text(temperature=0.9, top_k=50, top_p=0.95, min_p=0.01, typical_p=0.99, seed=8)
    assert text(seed=-1, temperature=1) == text(seed=2**64 - 1, temperature=1)
    first = tales.generate(START, max_tokens=1).ids[0]
    assert tales.generate(START, max_tokens=1, logit_bias={first: float("-inf")}).ids != [first]
    assert text(repetition_penalty=1.5, penalty_window=64) != plain
    assert text(sampler_order=["temperature", "top-k"], temperature=0.5, seed=1) == text(
        sampler_order=["temperature"], temperature=0.5, seed=1
    )
    assert text(temperature=None, stop=None) == plain
    assert tales.generate(START, max_tokens=0).finish_reason == "length"


def test_biases_may_come_from_json(tales: smolrun.Model) -> None:
    expected = tales.generate(START, max_tokens=3, logit_bias={5: 100.0}).ids
    assert expected == [5] * 3
    assert tales.generate(START, max_tokens=3, logit_bias=json.loads('{"5": 100}')).ids == expected


def test_logprobs_are_those_of_the_logits(tales: smolrun.Model) -> None:
    numpy = pytest.importorskip("numpy")
    found = tales.generate(START, max_tokens=1, logprobs=3).logprobs
    assert found is not None and len(found[0].top) == 3
    logits = tales.logits(START).astype("f8")
    logprobs = logits - numpy.log(numpy.exp(logits - logits.max()).sum()) - logits.max()
    assert [alternative.id for alternative in found[0].top] == list(numpy.argsort(-logits)[:3])
    for alternative in found[0].top:
        assert abs(alternative.logprob - logprobs[alternative.id]) < 1e-5
        assert alternative.text == tales.detokenize([alternative.id])
    only = tales.generate(START, max_tokens=1, logprobs=True).logprobs
    assert only is not None and only[0].top == [] and only[0].logprob == found[0].logprob


def test_what_makes_no_sense_is_said(tales: smolrun.Model) -> None:
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"temperatur": 1}, TypeError, "unexpected keyword argument 'temperatur'"),
        ({"temperature": "hot"}, TypeError, "temperature: expected a number, found str"),
        ({"max_tokens": -1}, smolrun.ArgumentError, "max_tokens: expected a number from 0 up, found -1"),
        ({"top_p": 0}, smolrun.ArgumentError, "top_p: expected a number above 0, at most 1, found 0"),
        ({"stop": ""}, ValueError, "stop: expected texts that are not empty, found an empty one"),
        ({"stop": 3}, TypeError, "stop: expected a str or a list of them, found int"),
        ({"seed": 2**70}, smolrun.ArgumentError, "seed: expected a number of 64 bits"),
        ({"sampler_order": ["heat"]}, smolrun.ArgumentError, "sampler_order: expected one of bias"),
        ({"logit_bias": {99999: 1.0}}, smolrun.ArgumentError, "token id 99999"),
        ({"logit_bias": {-1: 1.0}}, smolrun.ArgumentError, "logit_bias: expected token ids as keys, found -1"),
        ({"logit_bias": {"a": 1.0}}, smolrun.ArgumentError, "logit_bias: expected token ids as keys, found a"),
        ({"logit_bias": {5: "x"}}, TypeError, "logit_bias: expected a number, found str"),
        ({"now": -1}, smolrun.ArgumentError, "now: expected a number from 0 up, found -1"),
    ]
    for options, error, message in wrong:
        with pytest.raises(error, match=message):
            tales.generate(START, **options)
    once = b"Once"
    for prompt in (3, {"role": "user"}, once, bytearray(once), memoryview(once), {1, 2}, frozenset({1, 2}), [True]):
        with pytest.raises(TypeError, match="^prompt: expected "):
            tales.generate(prompt)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"such as \[\{'role': 'user', 'content': 'Hello'\}\], found dict"):
        tales.generate({"role": "user", "content": "Hello"})  # type: ignore[arg-type]
    for none in (tales.generate, tales.logits):
        with pytest.raises(smolrun.ArgumentError, match="^prompt: expected at least one token, found none"):
            none([])
    for id in (-1, 2**200):
        with pytest.raises(smolrun.ArgumentError, match=f"expected token ids, found {id}"):
            tales.generate([id])
    for counted in (
        lambda: smolrun.load(tales.path, threads=-1),
        lambda: tales.batch([], sequences=2**70),
        lambda: tales.batch([], kv_memory=-1),
        lambda: tales.perplexity(START, window=-1),
        lambda: tales.session().truncate(-1),
    ):
        with pytest.raises(smolrun.ArgumentError, match="[a-z]+: expected a number from 0 up, found "):
            counted()
    with pytest.raises(TypeError, match="continuations: expected an iterable"):
        tales.score(START, "time")
    with pytest.raises(smolrun.ChatTemplateError):
        tales.generate([{"role": "user", "content": "Hello"}])
    with pytest.raises(smolrun.ContextError):
        tales.generate([1] * 2000)


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError])
def test_what_a_value_raises_is_raised(tales: smolrun.Model, raised: type[BaseException]) -> None:
    class Value:
        def fail(self) -> Any:
            raise raised

        __iter__ = __index__ = __float__ = fail

    calls: list[Callable[[Any], object]] = [
        lambda value: tales.generate(value),
        lambda value: tales.generate([value]),
        lambda value: tales.generate(START, temperature=value),
        lambda value: tales.generate(START, max_tokens=value),
        lambda value: tales.generate(START, seed=value),
        lambda value: tales.generate(START, logit_bias={value: 1.0}),
        lambda value: tales.detokenize(value),
        lambda value: tales.perplexity(START, window=value),
        lambda value: smolrun.load(tales.path, threads=value),
    ]
    for call in calls:
        with pytest.raises(raised):
            call(Value())


def test_any_mapping_does(tales: smolrun.Model, chat: smolrun.Model) -> None:
    message = {"role": "child", "content": "Hello"}
    expected = chat.generate([message], max_tokens=3, temperature=0).ids
    found = chat.generate([MappingProxyType(message)], max_tokens=3, temperature=0, template=ChainMap({"a": True}))
    assert found.ids == expected
    request = MappingProxyType({"messages": [MappingProxyType(message)], "temperature": 0})
    assert [completion.ids for completion in chat.batch([request], max_tokens=3)] == [expected]
    assert tales.generate(START, max_tokens=2, logit_bias=MappingProxyType({5: 100.0})).ids == [5] * 2
    tool = MappingProxyType({"name": "find"})
    assert chat.render_chat([MappingProxyType(message)], tools=[tool]) == chat.render_chat([message])
    with pytest.raises(TypeError, match="expected plain values, found set"):
        chat.generate([message], tools=[{"name": {1}}])


def test_results_are_plain_data(tales: smolrun.Model) -> None:
    completion = tales.generate(START, max_tokens=5, logprobs=2)
    assert pickle.loads(pickle.dumps(completion)) == completion
    assert repr(completion).startswith("Completion(text=") and "timings=Timings(" in repr(completion)
    stream = tales.generate(START, max_tokens=1, stream=True)
    piece = next(stream)
    assert pickle.loads(pickle.dumps(piece)) == piece
    with pytest.raises(AttributeError):
        completion.text = "x"  # type: ignore[misc]


def test_a_cancelled_stream_ends(tales: smolrun.Model) -> None:
    stream = tales.generate(START, stream=True)
    next(stream)
    stream.cancel()
    assert len(list(stream)) == 1 and stream.finish_reason == "cancelled"
    with tales.generate(START, stream=True) as closed:
        next(closed)
    with pytest.raises(smolrun.ClosedError):
        next(closed)
    closed.close()


def test_what_messages_alone_can_use_is_not_ignored(tales: smolrun.Model) -> None:
    asked: list[dict[str, Any]] = [
        {"tools": [{"type": "function", "function": {"name": "now"}}]},
        {"documents": [{"text": "x"}]},
    ]
    for options in asked:
        for prompt in ("Once", [1, 2]):
            with pytest.raises(smolrun.ArgumentError, match=f"{next(iter(options))}: expected messages"):
                tales.generate(prompt, max_tokens=1, **options)
