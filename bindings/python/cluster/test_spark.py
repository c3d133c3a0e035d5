"""Spark: two executors in processes of their own."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import psutil  # type: ignore[import-untyped]
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

import smolrun
import smolrun.spark
from conftest import (
    TASK,
    Corpus,
    Row,
    bytes_of,
    gone,
    job_on_a_full_disk,
    killed_with_shards,
    last_line,
    read_jsonl,
    without,
    write_jsonl,
)
from smolrun import jobs

PARTITIONS = 8
TASK_COLUMNS = ["answer", "finish_reason", "prompt_tokens", "completion_tokens", "error"]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    # Executors read the tests' own modules, too.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    settings: dict[str, Any] = {"spark.ui.enabled": "false", "spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
    spark = SparkSession.builder.master("local-cluster[2,1,1024]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    yield spark
    spark.stop()


def frame(spark: SparkSession, rows: list[Row], partitions: int = PARTITIONS) -> DataFrame:
    return spark.createDataFrame(rows).repartition(partitions)


def apply(spark: SparkSession, corpus: Corpus, **how: Any) -> DataFrame:
    return smolrun.spark.apply(frame(spark, corpus.rows), corpus.blob, TASK, **how)


def test_a_frame_is_as_batch_has_it(spark: SparkSession, tales: Corpus, capfd: pytest.CaptureFixture[str]) -> None:
    tales.check(row.asDict() for row in apply(spark, tales, progress=True).collect())
    time.sleep(1.5)
    assert "tokens/s by " in capfd.readouterr().err


def test_the_real_model_is_as_batch_has_it(spark: SparkSession, real: Corpus) -> None:
    real.check(row.asDict() for row in apply(spark, real).collect())


def test_an_executor_is_killed(spark: SparkSession, few: Corpus, tmp_path: Path) -> None:
    given, out = write_jsonl(tmp_path / "in.jsonl", few.rows), tmp_path / "out"
    killed: list[int] = []

    def kill() -> None:
        while len(list(out.glob("part-*"))) < 3:
            time.sleep(0.01)
        executor = executors()[0]
        executor.kill()
        killed.append(executor.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    jobs.run(given, out, few.blob, TASK, shard_rows=50, over=smolrun.spark.over(spark), threads=1)
    killer.join()
    assert killed
    few.check(read_jsonl(out))
    jobs.run(given, tmp_path / "alone", few.blob, TASK, shard_rows=50)
    assert bytes_of(out) == bytes_of(tmp_path / "alone")


def test_an_executor_is_killed_while_a_frame_is_computed(spark: SparkSession, few: Corpus) -> None:
    killer = threading.Timer(2.5, lambda: executors()[0].kill())
    killer.start()
    found = apply(spark, few).collect()
    assert not killer.is_alive(), "it was too soon"
    few.check(row.asDict() for row in found)


DRIVER = """
import sys, conftest, smolrun.spark
from pyspark.sql import SparkSession
from smolrun import jobs
spark = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false").getOrCreate()
jobs.run(*sys.argv[1:4], conftest.TASK, shard_rows=50, over=smolrun.spark.over(spark), threads=1)
"""


def test_a_killed_driver_goes_on(spark: SparkSession, few: Corpus, tmp_path: Path) -> None:
    """At once, while executors of the killed one may still be at work. A second Spark starts here, which may take more
    than 20 seconds where others compute, too."""
    given, out = write_jsonl(tmp_path / "in.jsonl", few.rows), tmp_path / "out"
    left = killed_with_shards(out, 4, DRIVER, given, out, few.blob)
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    jobs.run(given, out, few.blob, TASK, shard_rows=50, over=smolrun.spark.over(spark), threads=1)
    few.check(read_jsonl(out))
    jobs.run(given, tmp_path / "alone", few.blob, TASK, shard_rows=50)
    _, alive = psutil.wait_procs(left, timeout=20)
    assert len(left) > 3 and not alive, "Spark ends what a driver began"
    assert bytes_of(out) == bytes_of(tmp_path / "alone")
    kept = [name for name, time_ns in before.items() if (out / name).stat().st_mtime_ns == time_ns]
    # Each executor may have been between a shard and its record.
    assert len(kept) >= len(before) - 2, "what was done is not done again"


def executors() -> list[psutil.Process]:
    """The executors of this process's cluster."""
    return [child for child in psutil.Process().children(recursive=True) if is_executor(child)]


def is_executor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):  # it has ended
        return any("CoarseGrainedExecutorBackend" in word for word in process.cmdline())
    return False


def test_spark_takes_the_blob_along(spark: SparkSession, few: Corpus) -> None:
    few.check(row.asDict() for row in apply(spark, few, ship=True).collect())


def test_a_pandas_udf_is_as_batch_has_it(spark: SparkSession, few: Corpus) -> None:
    continued = smolrun.spark.udf(few.blob, max_tokens=16)
    plain = [(row, answer) for row, answer in zip(few.rows, few.answers) if row["n"] % 4 != 0][-200:]
    rows = frame(spark, [row for row, _ in plain]).select("n", continued("text").alias("done")).select("n", "done.*")
    found = {row.n: (row.answer, row.finish_reason, row.error) for row in rows.collect()}
    for row, answer in plain:
        error = answer.get("error")
        told = f"{error['code']}: {error['message']}" if error else None
        assert found[row["n"]] == (answer.get("text"), answer.get("finish_reason"), told)
    spark.udf.register("continued", continued)
    once = spark.sql("SELECT continued('Once upon a time').answer AS answer").collect()[0].answer
    assert once == smolrun.load(few.blob).generate("Once upon a time", max_tokens=16).text


def test_embeddings_and_scores(spark: SparkSession, few: Corpus) -> None:
    model, rows = smolrun.load(few.blob), frame(spark, few.rows[:30], 2)
    for row in smolrun.spark.embed(rows, few.blob, "{text}", pooling="mean").collect():
        assert (numpy.asarray(row.embedding, "f4") == model.embed(row.text, pooling="mean")).all()
    for row in smolrun.spark.score(rows, few.blob, "Once upon", [" a time", " {n}"]).collect():
        scores = model.score("Once upon", [" a time", f" {row.n}"])
        assert row.logprobs == [score.logprob for score in scores]
        assert row.is_greedy == [score.is_greedy for score in scores]


def test_any_columns_are_kept(spark: SparkSession, few: Corpus) -> None:
    rows = spark.range(6).selectExpr(
        "id", "concat('Once ', id) AS text", "named_struct('a b', id, 'c', array(1.5, null)) AS `x y`",
        "map('k', date'2026-01-02') AS m", "timestamp'2026-01-02 03:04:05' AS t", "cast(1 AS decimal(9, 2)) AS d",
    )  # fmt: skip
    done = smolrun.spark.generate(rows, few.blob, "{text}", max_tokens=2)
    assert done.drop(*TASK_COLUMNS).sort("id").collect() == rows.sort("id").collect()
    assert done.where("error IS NULL").count() == 6


def test_a_poisoned_row_is_an_error_in_its_row(spark: SparkSession, few: Corpus) -> None:
    rows = [{"n": i, "text": "Once upon a time" if i != 7 else None} for i in range(40)]
    found = smolrun.spark.generate(frame(spark, rows, 2), few.blob, "{text}", max_tokens=4).collect()
    assert {row.n: row.error for row in found if row.error} == {7: "bad_row: column text: expected a value, found null"}


FULL = """
import smolrun.spark
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local-cluster[1,1,1024]").config("spark.ui.enabled", "false").getOrCreate()
over = smolrun.spark.over(spark)
"""


def test_a_full_disk_is_one_error(few: Corpus, tmp_path: Path) -> None:
    """A second Spark starts here, too."""
    job_on_a_full_disk(few, tmp_path, FULL)


def test_a_vanished_blob_is_one_error(spark: SparkSession, few: Corpus, tmp_path: Path) -> None:
    """Spark tries each task four times."""
    given, blob = write_jsonl(tmp_path / "in.jsonl", few.rows[:100]), tmp_path / "blob.bin"
    with pytest.raises(smolrun.FileMissingError, match="/nowhere/gone.bin"):
        smolrun.spark.generate(frame(spark, few.rows[:4]), "/nowhere/gone.bin", "{text}")
    shutil.copy(few.blob, blob)
    done = smolrun.spark.generate(frame(spark, few.rows[:4]), blob, "{text}")
    blob.unlink()
    with pytest.raises(PythonException) as lazy:
        done.collect()
    assert last_line(lazy.value) == gone(blob)
    shutil.copy(few.blob, blob)
    with pytest.raises(smolrun.FileMissingError) as found:
        jobs.run(given, tmp_path / "out", blob, TASK, over=without(blob, smolrun.spark.over(spark)))
    assert last_line(found.value) == gone(blob) and found.value.errno == errno.ENOENT
    with pytest.raises(smolrun.ArgumentError, match="column x"):
        smolrun.spark.generate(frame(spark, few.rows[:4]), few.blob, "{x}")
