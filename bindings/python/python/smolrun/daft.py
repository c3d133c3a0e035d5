"""Rows of Daft DataFrames (the extra `daft`), on one machine or with Daft's Ray runner.

    import daft, smolrun.daft

    reviews = daft.read_parquet("reviews.parquet")
    done = smolrun.daft.generate(reviews, "smol.bin", prompt="Summarize: {text}\\n", column="summary", max_tokens=64)
    done.write_parquet("summaries")

Each instance of the UDF maps the blob, whose pages all processes of a node share. Results depend on nothing but the
row. Daft's own counts of the UDF get smolrun_rows, smolrun_errors and smolrun_tokens.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import daft
import pyarrow as pa
from daft.udf.metrics import increment_counter

from smolrun import tasks
from smolrun._worker import Blob, Worker, arrow_type, check_names, decided
from smolrun.tasks import Task


def apply(
    frame: daft.DataFrame,
    model: str | os.PathLike[str],
    task: Task,
    *,
    workers: int | None = None,
    threads: int = 1,
    batch_size: int = 512,
    kv: str | None = None,
    use_process: bool | None = None,
) -> daft.DataFrame:
    """A DataFrame with the columns of a task's results.

    model: as of smolrun.load, which all nodes have under this path, or a URL as of smolrun.distribute
    workers: how many instances, which compute at the same time; by default as Daft decides
    threads: of each instance
    batch_size: rows that an instance gets at a time. In the last passes of a batch places are empty, so hundreds are
        best
    kv: as of smolrun.load
    use_process: whether each instance has a process of its own; by default as Daft decides
    """
    check_names(frame.column_names, task)
    fields = {name: daft.DataType.from_arrow_type(arrow_type(kind)) for name, kind in task.fields.items()}
    blob, task = Blob.of(model, kv), decided(task)
    results = daft.method.batch(return_dtype=daft.DataType.struct(fields), unnest=True, batch_size=batch_size)
    hosted = daft.cls(
        type("Smolrun", (_Apply,), {"results": results(_Apply.results)}),
        cpus=float(threads),
        max_concurrency=workers,
        use_process=use_process,
    )
    columns = [daft.col(name) for name in task.inputs]
    return frame.select("*", hosted(blob, task, threads).results(*columns))


def generate(
    frame: daft.DataFrame,
    model: str | os.PathLike[str],
    prompt: str | None = None,
    *,
    messages: str | Sequence[Mapping[str, str]] | None = None,
    column: str = "answer",
    options_column: str | None = None,
    ids: bool = False,
    prefix: str = "",
    workers: int | None = None,
    threads: int = 1,
    batch_size: int = 512,
    kv: str | None = None,
    use_process: bool | None = None,
    **options: Any,
) -> daft.DataFrame:
    """A DataFrame with generated texts: see smolrun.tasks.Generate and apply."""
    task = tasks.Generate(prompt, messages, column, options, options_column, ids, prefix)
    how: dict[str, Any] = {"workers": workers, "threads": threads, "batch_size": batch_size}
    return apply(frame, model, task, kv=kv, use_process=use_process, **how)


def embed(
    frame: daft.DataFrame,
    model: str | os.PathLike[str],
    prompt: str,
    *,
    column: str = "embedding",
    pooling: str = "last",
    prefix: str = "",
    **how: Any,
) -> daft.DataFrame:
    """A DataFrame with texts' vectors: see smolrun.tasks.Embed and apply."""
    return apply(frame, model, tasks.Embed(prompt, column, pooling, prefix), **how)


def score(
    frame: daft.DataFrame,
    model: str | os.PathLike[str],
    context: str,
    continuations: str | Sequence[str],
    *,
    column: str = "logprobs",
    prefix: str = "",
    **how: Any,
) -> daft.DataFrame:
    """A DataFrame with log-probabilities of continuations: see smolrun.tasks.Score and apply."""
    return apply(frame, model, tasks.Score(context, continuations, column, prefix), **how)


class _Apply:
    """What an instance of the UDF is."""

    def __init__(self, blob: Blob, task: Task, threads: int) -> None:
        self.worker = Worker(blob, task, threads)

    def results(self, *columns: daft.Series) -> pa.Array:
        """The results of columns, in the order of the task's inputs."""
        task = self.worker.task
        rows = pa.table([column.to_arrow() for column in columns], names=task.inputs).to_pylist()
        results = list(self.worker.results(rows))
        self._tell()
        types = [pa.field(name, arrow_type(kind)) for name, kind in task.fields.items()]
        arrays = [pa.array([result[field.name] for result in results], field.type) for field in types]
        return pa.StructArray.from_arrays(arrays, fields=types)

    def _tell(self) -> None:
        new = self.worker.news()
        for name, count in (("rows", new.rows), ("errors", new.errors), ("tokens", new.tokens)):
            increment_counter(f"smolrun_{name}", count)
