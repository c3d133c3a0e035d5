"""Jobs: from files into files, exactly once, whatever happens."""

from __future__ import annotations

import dataclasses
import functools
import json
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import smolrun
from conftest import (
    TALES,
    TASK,
    Corpus,
    bytes_of,
    job_on_a_full_disk,
    killed_with_shards,
    read_jsonl,
    read_parquet,
    without,
    write_jsonl,
)
from smolrun import jobs
from smolrun.tasks import Embed, Generate, Score

run = functools.partial(jobs.run, shard_rows=100, threads=2)


def test_jsonl_is_as_batch_has_it(tales: Corpus, tmp_path: Path) -> None:
    given = write_jsonl(tmp_path / "in.jsonl", tales.rows)
    manifest = jobs.run(given, tmp_path / "out", tales.blob, TASK, threads=2)
    tales.check(read_jsonl(tmp_path / "out"))
    assert sum(shard["rows"] for shard in manifest["shards"]) == len(tales.rows)
    assert manifest["job"]["blob"] == smolrun.load(tales.blob).sha256
    assert jobs.verify(tmp_path / "out") == min(100, len(tales.rows))


def test_parquet_is_as_batch_has_it_in_any_shards_by_anybody(few: Corpus, tmp_path: Path) -> None:
    table = pa.Table.from_pylist(few.rows)
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=130)
    run(tmp_path / "in.parquet", tmp_path / "one", few.blob, TASK, shard_rows=70)
    few.check(read_parquet(tmp_path / "one"))
    assert jobs.verify(tmp_path / "one", rows=30) == 30
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        run(tmp_path / "in.parquet", tmp_path / "two", few.blob, TASK, shard_rows=70, threads=1, over=pool.map)
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "two")


def test_several_files_are_one_input(few: Corpus, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i, rows in enumerate((few.rows[:150], few.rows[150:300], few.rows[300:])):
        write_jsonl(tmp_path / "in" / f"{i}.jsonl", rows)
    manifest = run(tmp_path / "in", tmp_path / "out", few.blob, TASK)
    few.check(read_jsonl(tmp_path / "out"))
    assert [shard["rows"] for shard in manifest["shards"]][:5] == [100, 50, 100, 50, 100]
    assert len(manifest["job"]["input"]) == 3


def test_bad_lines_are_errors_in_their_rows(few: Corpus, tmp_path: Path) -> None:
    good = {"text": "Once upon a time"}
    lines = ["nonsense", "[1]", json.dumps({"text": None}), json.dumps({"x": 1}), json.dumps(good), ""]
    lines += [json.dumps(good | {"own": own}) for own in ("{", {"top_p": 7}, {"max_tokens": 3}, [1], {"nope": 1})]
    lines += [json.dumps(good | {"answer": 1}), '{"text": "\\ud800"}', "[" * 100_000, json.dumps({"text": [5000]})]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n\n")
    run(tmp_path / "in.jsonl", tmp_path / "out", few.blob, TASK)
    rows = read_jsonl(tmp_path / "out")
    errors = [row["error"] for row in rows]
    assert [error is None for error in errors] == [i in (4, 7) for i in range(14)]
    assert errors[0].startswith("bad_row: line 1: expected a JSON object")
    assert errors[3] == "bad_row: column text: expected one of that name, found none"
    assert errors[10] == "bad_row: line 12: column answer: the row has one already"
    assert "token id 5000" in errors[13] and errors[13].startswith("argument.token_id")
    assert rows[7]["completion_tokens"] == 3 and rows[4]["answer"].startswith(rows[7]["answer"])


def test_embeddings_and_scores_are_the_model_s(few: Corpus, tmp_path: Path) -> None:
    rows, model = few.rows[:40], smolrun.load(few.blob)
    given = write_jsonl(tmp_path / "in.jsonl", rows)
    run(given, tmp_path / "embedded", few.blob, Embed("{text}", pooling="mean"))
    for row, found in zip(rows, read_jsonl(tmp_path / "embedded"), strict=True):
        assert found["embedding"] == model.embed(row["text"], pooling="mean").tolist()
    run(given, tmp_path / "scored", few.blob, Score("Once upon a time", [" {text}", " there"]))
    for row, found in zip(rows, read_jsonl(tmp_path / "scored"), strict=True):
        scores = model.score("Once upon a time", [f" {row['text']}", " there"])
        assert found["logprobs"] == [score.logprob for score in scores] and found["error"] is None
    assert jobs.verify(tmp_path / "embedded") == jobs.verify(tmp_path / "scored") == 40


def test_messages_are_told_the_time_of_the_first_start(few: Corpus, tmp_path: Path) -> None:
    shutil.copytree(TALES, tmp_path / "chat")
    template = "{{ strftime_now('%H:%M:%S') }} {{ messages[-1].content }}"
    (tmp_path / "chat" / "chat_template.jinja").write_text(template)
    blob = smolrun.convert(tmp_path / "chat", tmp_path / "chat.bin").path
    task = Generate(messages=[{"role": "user", "content": "{text}"}], options={"max_tokens": 8})
    given, out = write_jsonl(tmp_path / "in.jsonl", few.rows[:40]), tmp_path / "out"
    run(given, out, blob, task, shard_rows=20)
    whole = bytes_of(out)
    (out / "part-00001.jsonl").unlink()
    time.sleep(1.1)
    run(given, out, blob, task, shard_rows=20)
    assert bytes_of(out) == whole and jobs.verify(out) == 40
    run(given, tmp_path / "later", blob, task, shard_rows=20)
    assert bytes_of(tmp_path / "later") != whole


def test_a_row_s_draws_are_its_own(few: Corpus, tmp_path: Path) -> None:
    task = Generate("{text}", options={"max_tokens": 8, "temperature": 1.0})
    rows = few.rows[:60]
    drawn: list[dict[int, str]] = []
    for order in (rows, rows[::-1]):
        folder = tmp_path / str(len(drawn))
        run(write_jsonl(tmp_path / f"{len(drawn)}.jsonl", order), folder, few.blob, task, shard_rows=7)
        drawn.append({row["n"]: row["answer"] for row in read_jsonl(folder)})
    assert drawn[0] == drawn[1]
    another = dataclasses.replace(task, options={**task.options, "seed": 1})
    run(tmp_path / "0.jsonl", tmp_path / "2", few.blob, another)
    assert {row["n"]: row["answer"] for row in read_jsonl(tmp_path / "2")} != drawn[0]


DRIVER = """
import sys, conftest
from smolrun import jobs
jobs.run(sys.argv[1], sys.argv[2], sys.argv[3], conftest.TASK, shard_rows=50, threads=1)
"""


def test_a_killed_driver_goes_on(few: Corpus, tmp_path: Path) -> None:
    given, out = write_jsonl(tmp_path / "in.jsonl", few.rows), tmp_path / "out"
    for shards in (2, 5, 9):
        killed_with_shards(out, shards, DRIVER, given, out, few.blob)
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
    assert 9 <= len(before) < 20
    run(given, out, few.blob, TASK, shard_rows=50)
    few.check(read_jsonl(out))
    kept = [name for name, time_ns in before.items() if (out / name).stat().st_mtime_ns == time_ns]
    assert len(kept) >= len(before) - 1, "what was done is not done again"
    assert not list((out / "_smolrun").glob("*.part"))
    run(given, tmp_path / "whole", few.blob, TASK, shard_rows=50)
    assert bytes_of(out) == bytes_of(tmp_path / "whole")


def test_workers_of_a_killed_driver_change_nothing(few: Corpus, tmp_path: Path) -> None:
    """They may still write what another driver's workers have written already."""
    given, out = write_jsonl(tmp_path / "in.jsonl", few.rows), tmp_path / "out"
    run(given, tmp_path / "whole", few.blob, TASK, shard_rows=50)
    whole = bytes_of(tmp_path / "whole")
    late: list[Future[Any]] = []
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:

        def over(shards: Callable[[int], Any], numbers: Any) -> Any:
            yield from map(shards, numbers)
            late.extend(pool.submit(shards, number) for number in numbers)

        run(given, out, few.blob, TASK, shard_rows=50, over=over)
        while not all(each.done() for each in late):
            assert bytes_of(out) == whole
    # The next driver removes what it finds half written.
    assert all(isinstance(each.exception(), smolrun.FileMissingError | None) for each in late)
    assert bytes_of(out) == whole and jobs.verify(out, rows=20) == 20


def test_a_second_start_does_what_is_missing_or_damaged(few: Corpus, tmp_path: Path) -> None:
    given, out = write_jsonl(tmp_path / "in.jsonl", few.rows[:300]), tmp_path / "out"
    run(given, out, few.blob, TASK)
    whole = bytes_of(out)
    (out / "part-00001.jsonl").unlink()
    (out / "part-00002.jsonl").write_bytes(whole["part-00002.jsonl"][:-7])
    with pytest.raises(smolrun.Error, match="part-00001"):
        jobs.verify(out)
    run(given, out, few.blob, TASK)
    assert bytes_of(out) == whole and jobs.verify(out) == 100


def test_verify_finds_a_bit(few: Corpus, tmp_path: Path) -> None:
    given, out = write_jsonl(tmp_path / "in.jsonl", few.rows[:50]), tmp_path / "out"
    run(given, out, few.blob, Embed("{text}"))
    rows = read_jsonl(out)
    rows[17]["embedding"][3] += abs(rows[17]["embedding"][3]) * 2**-23
    write_jsonl(out / "part-00000.jsonl", rows)
    with pytest.raises(jobs.JobError, match="its bytes are not those that were written"):
        jobs.verify(out)
    told = json.loads((out / "_smolrun" / "manifest.json").read_text())
    told["shards"][0]["sha256"] = jobs._sha256(out / "part-00000.jsonl")
    (out / "_smolrun" / "manifest.json").write_text(json.dumps(told))
    with pytest.raises(jobs.JobError, match="row 18, column embedding"):
        jobs.verify(out)


def test_another_job_is_not_mixed_in(few: Corpus, tmp_path: Path) -> None:
    given, out = write_jsonl(tmp_path / "in.jsonl", few.rows[:50]), tmp_path / "out"
    run(given, out, few.blob, TASK)
    with pytest.raises(jobs.JobError, match="task is not the same"):
        run(given, out, few.blob, Generate("{text}", options={"max_tokens": 17}))
    write_jsonl(given, few.rows[:51])
    with pytest.raises(jobs.JobError, match="input is not the same"):
        run(given, out, few.blob, TASK)
    run(given, out, few.blob, TASK, force=True)
    assert len(read_jsonl(out)) == 51


def test_only_one_driver_is_at_work(few: Corpus, tmp_path: Path) -> None:
    given, out = write_jsonl(tmp_path / "in.jsonl", few.rows[:50]), tmp_path / "out"

    def meddling(shards: Callable[[int], Any], numbers: Any) -> Any:
        with pytest.raises(jobs.JobError, match="another process is at work"):
            run(given, out, few.blob, TASK)
        return map(shards, numbers)

    run(given, out, few.blob, TASK, over=meddling)


def test_a_vanished_blob_is_one_error(few: Corpus, tmp_path: Path) -> None:
    given, blob = write_jsonl(tmp_path / "in.jsonl", few.rows[:50]), tmp_path / "blob.bin"
    shutil.copy(few.blob, blob)
    with pytest.raises(smolrun.FileMissingError, match="gone.bin"):
        run(given, tmp_path / "out", tmp_path / "gone.bin", TASK)

    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(smolrun.FileMissingError, match="blob.bin"):
            run(given, tmp_path / "out", blob, TASK, over=without(blob, pool.map))
    shutil.copy(few.blob, blob)
    with pytest.raises(smolrun.FileMissingError, match="in.jsonl"):
        run(given, tmp_path / "out", blob, TASK, over=without(given, map))
    write_jsonl(given, few.rows[:50])
    run(given, tmp_path / "out", blob, TASK)
    assert len(read_jsonl(tmp_path / "out")) == 50


def test_a_full_disk_is_one_error(few: Corpus, tmp_path: Path) -> None:
    left = job_on_a_full_disk(few, tmp_path, "over = None")
    assert ".part" not in left


def test_wrong_arguments_are_told_at_once(few: Corpus, tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{"text": "a", "answer": "b"}])
    pq.write_table(table, tmp_path / "in.parquet")
    with pytest.raises(smolrun.ArgumentError, match="column answer"):
        run(tmp_path / "in.parquet", tmp_path / "out", few.blob, Generate("{text}"))
    with pytest.raises(smolrun.ArgumentError, match="column x: expected one of that name, found text, answer"):
        run(tmp_path / "in.parquet", tmp_path / "out", few.blob, Generate("{x}", column="new"))
    with pytest.raises(smolrun.ArgumentError, match="names a column"):
        run(tmp_path / "in.parquet", tmp_path / "out", few.blob, Generate("Once", column="new"))
    with pytest.raises(smolrun.ArgumentError, match="expected .parquet files or .jsonl files, found .csv"):
        run(tmp_path / "in.csv", tmp_path / "out", few.blob, Generate("{x}"))
    with pytest.raises(smolrun.ArgumentError, match="a column's name in braces"):
        Generate("{x.__class__}")
    with pytest.raises(smolrun.ArgumentError, match="prompt or messages"):
        Generate()
    assert os.path.exists(tmp_path / "out")
