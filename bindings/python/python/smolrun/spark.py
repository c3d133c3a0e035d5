"""Rows of Spark DataFrames, and shards of smolrun.jobs, on a Spark cluster (the extra `spark`).

    import smolrun.spark

    done = smolrun.spark.generate(reviews, "smol.bin", prompt="Summarize: {text}\\n", column="summary", max_tokens=64)
    done.write.parquet("summaries")

Each Python worker opens the blob once and keeps it; its pages are shared by all workers of a node. A worker computes
with spark.task.cpus threads. Results depend on nothing but the row, so that a task that Spark runs again, or twice,
gives the same bits.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import SparkFiles, TaskContext
from pyspark.accumulators import AccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import pandas_udf
from pyspark.sql.types import StructField, StructType

import smolrun
from smolrun import jobs, tasks
from smolrun._errors import error as error_of
from smolrun._errors import file_error
from smolrun._progress import follow
from smolrun._worker import Blob, Tally, Worker, check_names, decided
from smolrun.tasks import Task

_ADDED = "sparkfile:"
"""What the name of a file begins with that SparkContext.addFile took to all nodes."""

_FAILED = "a shard failed: "
"""What comes before the JSON of an error, in the text that Spark makes of what a task raises."""


@dataclass(frozen=True)
class _Stage:
    """What a Python worker does with a partition."""

    blob: Blob
    task: Task
    tally: Any = None
    """An accumulator, if somebody wants to know."""

    def worker(self) -> Worker:
        context = TaskContext.get()
        source, threads = self.blob.source, context.cpus() if context is not None else 1
        if source.startswith(_ADDED):
            source = SparkFiles.get(source.removeprefix(_ADDED))
        return Worker(Blob(source, self.blob.sha256, self.blob.kv), self.task, max(1, threads))

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        worker = self.worker()
        for table in worker.tables(pa.Table.from_batches([batch]) for batch in batches):
            yield from table.combine_chunks().to_batches()
            if self.tally is not None:
                self.tally.add({_who(): worker.news()})


def apply(
    frame: DataFrame,
    model: str | os.PathLike[str],
    task: Task,
    *,
    ship: bool = False,
    kv: str | None = None,
    progress: bool = False,
) -> DataFrame:
    """A DataFrame with the columns of a task's results.

    model: as of smolrun.load, which all nodes have under this path, or a URL as of smolrun.distribute
    ship: whether Spark takes the blob at this path to all executors (SparkContext.addFile)
    kv: as of smolrun.load
    progress: whether standard error is told how many rows, errors and tokens there are, and how fast
    """
    check_names(frame.columns, task)
    blob = Blob.of(model, kv)
    session = frame.sparkSession
    if ship:
        session.sparkContext.addFile(blob.source)
        blob = Blob(_ADDED + os.path.basename(blob.source), blob.sha256, kv)
    tally = _followed(session) if progress else None
    return frame.mapInArrow(_Stage(blob, decided(task), tally), _schema(frame, task))


def generate(
    frame: DataFrame,
    model: str | os.PathLike[str],
    prompt: str | None = None,
    *,
    messages: str | Sequence[Mapping[str, str]] | None = None,
    column: str = "answer",
    options_column: str | None = None,
    ids: bool = False,
    prefix: str = "",
    ship: bool = False,
    kv: str | None = None,
    progress: bool = False,
    **options: Any,
) -> DataFrame:
    """A DataFrame with generated texts: see smolrun.tasks.Generate and apply."""
    task = tasks.Generate(prompt, messages, column, options, options_column, ids, prefix)
    return apply(frame, model, task, ship=ship, kv=kv, progress=progress)


def embed(
    frame: DataFrame,
    model: str | os.PathLike[str],
    prompt: str,
    *,
    column: str = "embedding",
    pooling: str = "last",
    prefix: str = "",
    **how: Any,
) -> DataFrame:
    """A DataFrame with texts' vectors: see smolrun.tasks.Embed and apply."""
    return apply(frame, model, tasks.Embed(prompt, column, pooling, prefix), **how)


def score(
    frame: DataFrame,
    model: str | os.PathLike[str],
    context: str,
    continuations: str | Sequence[str],
    *,
    column: str = "logprobs",
    prefix: str = "",
    **how: Any,
) -> DataFrame:
    """A DataFrame with log-probabilities of continuations: see smolrun.tasks.Score and apply."""
    return apply(frame, model, tasks.Score(context, continuations, column, prefix), **how)


def udf(model: str | os.PathLike[str], *, kv: str | None = None, **options: Any) -> Any:
    """A pandas UDF of a column of prompts: it gives a struct of answer, finish_reason, prompt_tokens,
    completion_tokens and error.

        continued = smolrun.spark.udf("smol.bin", max_tokens=64)
        reviews.select(continued("text").answer)
        spark.udf.register("continued", continued)  # for SQL
    """
    import pandas as pd

    stage = _Stage(Blob.of(model, kv), tasks.Generate("{prompt}", options=options))

    def continued(prompts: Iterator[pd.Series]) -> Iterator[pd.DataFrame]:
        worker = stage.worker()
        for table in worker.tables(pa.table({"prompt": pa.Array.from_pandas(each)}) for each in prompts):
            # As objects: a count beside a null would become a float.
            columns = table.drop_columns(["prompt"]).to_pydict()
            yield pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in columns.items()})

    fields = ", ".join(f"{name}: {_spark_type(kind)}" for name, kind in stage.task.fields.items())
    continued.__annotations__ = {"prompts": Iterator[pd.Series], "return": Iterator[pd.DataFrame]}
    return pandas_udf(continued, f"struct<{fields}>")


def over(session: SparkSession) -> jobs.Over:
    """What computes the shards of smolrun.jobs.run on the cluster: a task for each, of spark.task.cpus CPUs.

        jobs.run("reviews.parquet", "answers", "smol.bin", task, over=smolrun.spark.over(spark), threads=1)
    """

    def computed(shards: Callable[[int], jobs.Manifest], numbers: Sequence[int]) -> Iterable[jobs.Manifest]:
        rdd = session.sparkContext.parallelize(numbers, len(numbers)).map(functools.partial(_call, shards))
        try:
            records: list[jobs.Manifest] = rdd.collect()
        except Exception as error:
            ours = _error_in(str(error))
            if ours is None:
                raise
            raise ours from None
        return records

    return computed


def _call(shards: Callable[[int], jobs.Manifest], number: int) -> jobs.Manifest:
    try:
        return shards(number)
    except smolrun.FileError as error:
        told = {"code": error.code, "errno": error.errno, "message": error.strerror, "path": error.filename}
        raise RuntimeError(_FAILED + json.dumps(told)) from error
    except smolrun.Error as error:
        raise RuntimeError(_FAILED + json.dumps({"code": error.code, "message": str(error)})) from error


def _error_in(text: str) -> smolrun.Error | None:
    """The error that a task raised, if it is one of ours."""
    _, _, told = text.partition(_FAILED)
    if not told:
        return None
    error, _ = json.JSONDecoder().raw_decode(told)
    if "path" in error:
        return file_error(error["errno"], error["message"], error["path"])
    return error_of(error["code"], error["message"])


def _schema(frame: DataFrame, task: Task) -> StructType:
    own = [StructField(field.name, field.dataType, metadata=field.metadata) for field in frame.schema.fields]
    added = ", ".join(f"`{name}` {_spark_type(kind)}" for name, kind in task.fields.items())
    return StructType([*own, *StructType.fromDDL(added).fields])


def _spark_type(kind: str) -> str:
    if kind.startswith("list<"):
        return f"array<{_spark_type(kind[5:-1])}>"
    return {"int32": "int", "bool": "boolean", "float32": "float", "float64": "double"}.get(kind, "string")


def _who() -> str:
    return f"{os.uname().nodename}:{os.getpid()}"


class _Tallies(AccumulatorParam[Mapping[str, Tally]]):
    """Tallies by worker."""

    def zero(self, value: Mapping[str, Tally]) -> Mapping[str, Tally]:
        return {}

    def addInPlace(self, value1: Mapping[str, Tally], value2: Mapping[str, Tally]) -> Mapping[str, Tally]:
        return {who: value1.get(who, Tally()) + value2.get(who, Tally()) for who in {*value1, *value2}}


def _followed(session: SparkSession) -> Any:
    """An accumulator of tallies, and a thread that shows it."""
    context = session.sparkContext
    tallies = context.accumulator({}, _Tallies())

    def read() -> str | None:
        if context._jsc is None:  # it has been stopped
            return None
        return sum(tallies.value.values(), Tally()).told(len(tallies.value))

    follow(read, True)
    return tallies
