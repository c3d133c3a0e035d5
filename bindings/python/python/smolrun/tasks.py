"""What a model does with each row of a table: Generate, Embed and Score.

A task is plain data, so that it can be sent to any worker. smolrun.ray, smolrun.spark, smolrun.daft and smolrun.jobs
take tasks and give their results as columns beside the rows' own. What comes of a row depends on nothing but the row,
the task and the model: not on its neighbors, the worker or its threads.
"""

from __future__ import annotations

import hashlib
import json
import math
import string
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import smolrun
from smolrun._smolrun import Completion, Model

Row = Mapping[str, Any]
"""The values of a row by the names of their columns."""

Result = dict[str, Any]
"""What came of a row: a value, or None, for each column of a task's `fields`."""

ERROR = "error"
"""The column that says why a row has no result."""

_ELSEWHERE_FINE = {"busy", "cancelled", "closed", "forked", "io", "out_of_memory", "panic", "threads"}
"""Codes of errors that the row is not to blame for: whoever runs the task may try again."""


class RowError(smolrun.Error):
    """A row is not what a task needs (bad_row)."""

    code = "bad_row"


class Task(Protocol):
    """What is done with each row."""

    @property
    def fields(self) -> dict[str, str]:
        """The columns of its results and what they hold: "string", "int32", "bool", "float64", "list<float32>", ..."""

    @property
    def inputs(self) -> list[str]:
        """The columns that it reads."""

    def results(self, model: Model, rows: Iterable[Row]) -> Iterator[Result]:
        """The results of rows, in their order."""


class Template:
    """A text with columns' names in braces, such as "Summarize: {text}". A brace itself is written twice."""

    def __init__(self, text: str) -> None:
        """Take it apart; ArgumentError if it is none."""
        self._parts: list[tuple[str, str | None]] = []
        try:
            for literal, name, form, conversion in string.Formatter().parse(text):
                if name is not None and (form or conversion or not name.isidentifier()):
                    raise ValueError(f"expected a column's name in braces, found {name!r}")
                self._parts.append((literal, name))
        except ValueError as error:
            raise smolrun.ArgumentError(f"template {text!r}: {error}") from None

    @property
    def columns(self) -> list[str]:
        """The columns that it names."""
        return list(dict.fromkeys(name for _, name in self._parts if name is not None))

    def fill(self, row: Row) -> str:
        """It, with a row's values."""
        return "".join(literal + ("" if name is None else _text(row, name)) for literal, name in self._parts)

    def prompt(self, row: Row) -> str | list[int]:
        """As fill; where it is a column alone that holds token ids, these."""
        if len(self._parts) == 1 and not self._parts[0][0] and self._parts[0][1] is not None:
            value = _plain(_value(row, self._parts[0][1]))
            if isinstance(value, list):
                return value
        return self.fill(row)


@dataclass(frozen=True)
class Generate:
    """Generate what follows a text, or answer messages.

    prompt: a template of the text. A column of token ids is given as "{its name}"
    messages: instead, the name of a column that holds lists of dicts with role and content, or such a list, with
        templates as contents
    column: the column of the generated text. Beside it are finish_reason, prompt_tokens, completion_tokens and error
    options: as of smolrun.Model.generate, for all rows
    options_column: a column of dicts, or of JSON texts, with a row's own options
    ids: whether the column "ids" is to have the generated tokens
    prefix: what the names of all columns but `column` begin with
    sequences, kv_memory, prefix_memory: as of smolrun.Model.batch

    Where nobody gives a seed, a row's draws follow from its own request, so that any worker draws the same.
    """

    prompt: str | None = None
    messages: str | Sequence[Mapping[str, str]] | None = None
    column: str = "answer"
    options: Mapping[str, Any] = field(default_factory=dict)
    options_column: str | None = None
    ids: bool = False
    prefix: str = ""
    sequences: int = 64
    kv_memory: int | None = None
    prefix_memory: int = 256

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise smolrun.ArgumentError("expected a prompt or messages")
        if self.options.get("logprobs"):
            raise smolrun.ArgumentError("logprobs: expected none, which have no column")
        self._columns()

    @property
    def fields(self) -> dict[str, str]:
        fields = {self.column: "string"}
        names = {"finish_reason": "string", "prompt_tokens": "int32", "completion_tokens": "int32"}
        names |= {"ids": "list<int32>"} if self.ids else {}
        return fields | {self.prefix + name: kind for name, kind in (names | {ERROR: "string"}).items()}

    @property
    def inputs(self) -> list[str]:
        return self._columns() + ([self.options_column] if self.options_column else [])

    def results(self, model: Model, rows: Iterable[Row]) -> Iterator[Result]:
        read = self._reader()
        asked: deque[str | None] = deque()  # of each row that was read and has no result yet, its error

        def requests() -> Iterator[dict[str, Any]]:
            for row in rows:
                try:
                    request = _seeded(self._request(read, row), self.options)
                except smolrun.Error as error:
                    asked.append(_told(error))
                    continue
                asked.append(None)
                yield request

        limits = {"sequences": self.sequences, "kv_memory": self.kv_memory, "prefix_memory": self.prefix_memory}
        options: dict[str, Any] = {**self.options, **limits}
        with model.batch(requests(), return_exceptions=True, **options) as batch:
            for outcome in batch:
                while (error := asked.popleft()) is not None:
                    yield self._failed(error)
                yield self._result(outcome)
        for error in asked:
            yield self._failed(str(error))

    def _columns(self) -> list[str]:
        templates = [self.prompt] if self.prompt is not None else []
        if isinstance(self.messages, str):
            return [self.messages]
        templates += [text for message in self.messages or [] if isinstance(text := message.get("content"), str)]
        return list(dict.fromkeys(name for text in templates for name in Template(text).columns))

    def _reader(self) -> Callable[[Row], dict[str, Any]]:
        """What makes a prompt, or messages, of a row."""
        if self.prompt is not None:
            prompt = Template(self.prompt)
            return lambda row: {"prompt": prompt.prompt(row)}
        messages = self.messages
        if isinstance(messages, str):
            column = messages
            return lambda row: {"messages": _messages(row, column)}
        # A message may have calls of tools instead of content.
        filled = [(dict(message), Template(message.get("content") or "")) for message in messages or []]
        return lambda row: {
            "messages": [m | ({"content": content.fill(row)} if "content" in m else {}) for m, content in filled]
        }

    def _request(self, read: Callable[[Row], dict[str, Any]], row: Row) -> dict[str, Any]:
        return (_options(row, self.options_column) if self.options_column else {}) | read(row)

    def _result(self, outcome: Completion | Exception) -> Result:
        if isinstance(outcome, Exception):
            return self._failed(_told(outcome))
        timings = outcome.timings
        values: Result = {"finish_reason": outcome.finish_reason, "prompt_tokens": timings.prompt_tokens}
        values |= {"completion_tokens": len(outcome.ids), "ids": outcome.ids, ERROR: None}
        return self._named(outcome.text, values)

    def _failed(self, error: str) -> Result:
        return self._named(None, {ERROR: error})

    def _named(self, text: str | None, values: Mapping[str, Any]) -> Result:
        """A value for each field."""
        rest = {name: values.get(name.removeprefix(self.prefix)) for name in self.fields if name != self.column}
        return {self.column: text} | rest


@dataclass(frozen=True)
class Embed:
    """Make a text one vector.

    prompt: a template of the text
    column: the column of the vectors, of f32. Beside it is error
    pooling: "last" or "mean", as of smolrun.Model.embed
    """

    prompt: str
    column: str = "embedding"
    pooling: str = "last"
    prefix: str = ""

    def __post_init__(self) -> None:
        Template(self.prompt)
        if self.pooling not in ("last", "mean"):
            raise smolrun.ArgumentError(f"pooling: expected last or mean, found {self.pooling}")

    @property
    def fields(self) -> dict[str, str]:
        return {self.column: "list<float32>", self.prefix + ERROR: "string"}

    @property
    def inputs(self) -> list[str]:
        return Template(self.prompt).columns

    def results(self, model: Model, rows: Iterable[Row]) -> Iterator[Result]:
        prompt = Template(self.prompt)
        for row in rows:
            try:
                vector = model.embed(prompt.prompt(row), pooling=self.pooling)  # type: ignore[arg-type]
                yield {self.column: vector, self.prefix + ERROR: None}
            except Exception as error:
                yield {self.column: None, self.prefix + ERROR: _told(error)}


@dataclass(frozen=True)
class Score:
    """Find out how likely continuations of a text are.

    context: a template of the text
    continuations: a list of templates, or the name of a column of lists of texts
    column: the column of their log-probabilities, in nats. Beside it are tokens, is_greedy and error
    """

    context: str
    continuations: str | Sequence[str]
    column: str = "logprobs"
    prefix: str = ""

    def __post_init__(self) -> None:
        self._templates()

    @property
    def fields(self) -> dict[str, str]:
        names = {"tokens": "list<int32>", "is_greedy": "list<bool>", ERROR: "string"}
        return {self.column: "list<float64>"} | {self.prefix + name: kind for name, kind in names.items()}

    @property
    def inputs(self) -> list[str]:
        context, templates = self._templates()
        own = [self.continuations] if isinstance(self.continuations, str) else []
        return list(dict.fromkeys([*context.columns, *own, *(name for each in templates for name in each.columns)]))

    def results(self, model: Model, rows: Iterable[Row]) -> Iterator[Result]:
        context, templates = self._templates()
        names = [name for name in self.fields if name != self.column]
        for row in rows:
            try:
                scores = model.score(context.fill(row), self._texts(row, templates))
            except Exception as error:
                yield {self.column: None} | dict(zip(names, [None, None, _told(error)]))
                continue
            rest = [[score.tokens for score in scores], [score.is_greedy for score in scores], None]
            yield {self.column: [score.logprob for score in scores]} | dict(zip(names, rest))

    def _templates(self) -> tuple[Template, list[Template]]:
        texts = [] if isinstance(self.continuations, str) else self.continuations
        return Template(self.context), [Template(text) for text in texts]

    def _texts(self, row: Row, templates: Sequence[Template]) -> list[str]:
        if not isinstance(self.continuations, str):
            return [template.fill(row) for template in templates]
        texts = _plain(_value(row, self.continuations))
        if not isinstance(texts, list):
            raise RowError(f"column {self.continuations}: expected a list of texts, found {_kind(texts)}")
        return texts


def _is_null(value: Any) -> bool:
    """Whether it is None, or pandas' word for that."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _value(row: Row, column: str) -> Any:
    try:
        value = row[column]
    except KeyError:
        raise RowError(f"column {column}: expected one of that name, found none") from None
    if _is_null(value):
        raise RowError(f"column {column}: expected a value, found null")
    return value


def _text(row: Row, column: str) -> str:
    value = _plain(_value(row, column))
    if not isinstance(value, str | int | float):
        raise RowError(f"column {column}: expected a text or a number, found {_kind(value)}")
    return str(value)


def _plain(value: Any) -> Any:
    """A value of numpy's as one of Python's."""
    return value.tolist() if hasattr(value, "tolist") else value


def _kind(value: Any) -> str:
    return type(value).__name__


def _messages(row: Row, column: str) -> list[dict[str, Any]]:
    messages = _plain(_value(row, column))
    if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
        raise RowError(f"column {column}: expected a list of dicts with role and content, found {_kind(messages)}")
    # Tables have a value for each name, or null.
    return [{name: value for name, value in message.items() if value is not None} for message in messages]


def _options(row: Row, column: str) -> dict[str, Any]:
    value = row.get(column)
    if _is_null(value):
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise RowError(f"column {column}: expected a JSON object: {error}") from None
    if not isinstance(value, Mapping):
        raise RowError(f"column {column}: expected a dict of options, found {_kind(value)}")
    given = {name: _plain(option) for name, option in value.items() if option is not None}
    for name in ("prompt", "messages", "logprobs"):
        if name in given:
            raise RowError(f"column {column}: expected options, found {name}")
    return given


def _seeded(request: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A request with a seed of its own, unless it has one: by what it asks for, and by the seed for all."""
    if request.get("seed") is not None:
        return request
    told = json.dumps([options.get("seed"), request], sort_keys=True, default=str).encode()
    return request | {"seed": int.from_bytes(hashlib.sha256(told).digest()[:8], "little")}


def _told(error: Exception) -> str:
    """What the column `error` says. What the row is not to blame for is raised."""
    code = error.code if isinstance(error, smolrun.Error) else "bad_row"
    if code in _ELSEWHERE_FINE or not isinstance(error, smolrun.Error | TypeError | ValueError):
        raise error
    return f"{code}: {error}"
