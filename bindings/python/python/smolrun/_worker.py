"""What every worker of a cluster does: it opens the blob once, and gives rows their results."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import smolrun
from smolrun.tasks import ERROR, Generate, Result, Row, Task

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Blob:
    """What any node finds the blob by."""

    source: str
    """As of smolrun.load, or a URL as of smolrun.distribute."""
    sha256: str | None = None
    """Its Model.sha256, where it is known: another blob is an error then."""
    kv: str | None = None
    """As of smolrun.load."""

    @staticmethod
    def of(source: str | os.PathLike[str] | Blob, kv: str | None = None) -> Blob:
        """The blob at a path or a URL. What is at a path must be here, too, and every node must have the same one."""
        if isinstance(source, Blob):
            return source
        given = os.fspath(source)
        if is_url(given):
            return Blob(given, None, kv)
        with smolrun.load(given, kv=kv, threads=1) as model:  # type: ignore[arg-type]
            # What is no path is a model's name: each node finds its own path.
            return Blob(os.path.abspath(model.path) if os.path.exists(given) else given, model.sha256, kv)

    def open(self, threads: int | None) -> smolrun.Model:
        """It, opened once in each process."""
        return _opened(self, threads)


@functools.lru_cache(maxsize=4)
def _opened(blob: Blob, threads: int | None) -> smolrun.Model:
    source = smolrun.distribute(blob.source, sha256=blob.sha256) if is_url(blob.source) else blob.source
    model = smolrun.load(source, kv=blob.kv, threads=threads)  # type: ignore[arg-type]
    if blob.sha256 not in (None, model.sha256):
        raise smolrun.BlobError(f"{model.path}: expected the blob {blob.sha256}, found {model.sha256}")
    return model


def is_url(source: str) -> bool:
    """Whether something is a URL: a scheme, and two slashes."""
    scheme, found, _ = source.partition("://")
    return bool(found) and scheme.isascii() and scheme.replace("+", "").replace("-", "").isalnum()


@dataclass
class Tally:
    """What a worker has done so far."""

    rows: int = 0
    errors: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other))))

    def __sub__(self, other: Tally) -> Tally:
        return Tally(*(a - b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other))))

    def told(self, workers: int) -> str:
        """In one line."""
        speed = self.tokens * workers / self.seconds if self.seconds else 0.0
        text = f"{self.rows:,} rows, {self.errors:,} errors, {self.tokens:,} tokens"
        return f"{text}, {speed:,.0f} tokens/s by {workers} workers"


class Worker:
    """A model and a task."""

    def __init__(self, blob: Blob, task: Task, threads: int | None = None) -> None:
        """Open the blob. threads is how many the worker may compute with; None for all of the process's."""
        self.model = blob.open(threads)
        self.task = task
        self.tally = Tally()
        self._told = Tally()
        names = list(task.fields)
        self._error = next(name for name in reversed(names) if name.endswith(ERROR))
        self._tokens = next((name for name in names if name.endswith("completion_tokens")), None)

    def results(self, rows: Iterable[Row]) -> Iterator[Result]:
        """The results of rows, in their order. Rows are read ahead, so that no place in a pass is empty."""
        start = time.perf_counter()
        for result in self.task.results(self.model, rows):
            self.tally.rows += 1
            self.tally.errors += result[self._error] is not None
            self.tally.tokens += (result[self._tokens] or 0) if self._tokens else 0
            self.tally.seconds += time.perf_counter() - start
            yield result
            start = time.perf_counter()

    def news(self) -> Tally:
        """What has been done since this was asked last."""
        news = self.tally - self._told
        self._told = dataclasses.replace(self.tally)
        return news

    def table(self, table: pa.Table) -> pa.Table:
        """A table with the results' columns beside its own."""
        return with_results(table, list(self.results(rows_of(table, self.task))), self.task)

    def tables(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """As table, for a stream of them: the rows of the next one begin while the last ones of this one end."""
        waiting: list[pa.Table] = []

        def rows() -> Iterator[Row]:
            for table in tables:
                waiting.append(table)
                yield from rows_of(table, self.task)

        done: list[Result] = []
        for result in self.results(rows()):
            done.append(result)
            while waiting and len(done) >= waiting[0].num_rows:
                table = waiting.pop(0)
                yield with_results(table, done[: table.num_rows], self.task)
                done = done[table.num_rows :]
        yield from (with_results(table, [], self.task) for table in waiting)  # which have no rows


def decided(task: Task) -> Task:
    """A task in which nothing depends on when and where it runs: chat templates are told the present time of now."""
    if isinstance(task, Generate) and task.messages is not None and "now" not in task.options:
        return dataclasses.replace(task, options={**task.options, "now": int(time.time())})
    return task


def check_names(columns: Iterable[str], task: Task) -> None:
    """That a table has what a task reads, and no column that it writes."""
    there = list(columns)
    if not task.inputs:
        raise smolrun.ArgumentError("expected a template that names a column, found none")
    missing = [name for name in task.inputs if name not in there]
    if missing:
        raise smolrun.ArgumentError(f"column {missing[0]}: expected one of that name, found {', '.join(there)}")
    twice = [name for name in task.fields if name in there]
    if twice:
        raise smolrun.ArgumentError(f"column {twice[0]}: the table has one already; give another name, or a prefix")


def arrow_type(kind: str) -> pa.DataType:
    """Arrow's type of that name."""
    import pyarrow as pa

    if kind.startswith("list<"):
        return pa.list_(arrow_type(kind[5:-1]))
    kinds = {"int32": pa.int32(), "bool": pa.bool_(), "float32": pa.float32(), "float64": pa.float64()}
    return kinds.get(kind, pa.string())


def rows_of(table: pa.Table, task: Task) -> Iterator[Row]:
    """A table's rows, of which a task reads some columns."""
    for batch in table.select(task.inputs).to_batches(max_chunksize=1024):
        yield from batch.to_pylist()


def with_results(table: pa.Table, results: list[Result], task: Task) -> pa.Table:
    """A table with results as columns."""
    import pyarrow as pa

    check_names(table.column_names, task)
    for name, kind in task.fields.items():
        table = table.append_column(name, pa.array([result[name] for result in results], arrow_type(kind)))
    return table
