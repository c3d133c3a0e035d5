"""Rows, tasks and jobs, without any engine: the rest is in cluster/, by scripts/test_cluster.sh."""

import json
from pathlib import Path
from typing import Any

import pytest

import smolrun
from smolrun import jobs
from smolrun.tasks import Embed, Generate, Score, Template

ROWS: list[dict[str, Any]] = [{"n": i, "who": who} for i, who in enumerate(["king", "bear", None, "witch", 7] * 6)]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("part-*")) for line in path.open()]


def test_a_job_s_rows_are_what_the_model_says(tales: smolrun.Model, tales_path: Path, tmp_path: Path) -> None:
    given, out = tmp_path / "in.jsonl", tmp_path / "out"
    given.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    task = Generate("Once there was a {who}", column="tale", options={"max_tokens": 5}, ids=True, prefix="its_")
    manifest = jobs.run(given, out, tales_path, task, shard_rows=8)
    assert [shard["rows"] for shard in manifest["shards"]] == [8, 8, 8, 6]
    for row, found in zip(ROWS, rows_of(out), strict=True):
        assert found["n"] == row["n"]
        if row["who"] is None:
            assert found["its_error"] == "bad_row: column who: expected a value, found null" and found["tale"] is None
            continue
        alone = tales.generate(f"Once there was a {row['who']}", max_tokens=5)
        assert (found["tale"], found["its_ids"], found["its_error"]) == (alone.text, alone.ids, None)
    (out / "part-00002.jsonl").unlink()
    assert jobs.run(given, out, tales_path, task, shard_rows=8)["shards"][1] == manifest["shards"][1]
    assert jobs.verify(out, model=tales_path) == 30
    with pytest.raises(jobs.JobError, match="shard_rows is not the same"):
        jobs.run(given, out, tales_path, task, shard_rows=9)


def test_a_job_removes_no_file_but_those_of_an_earlier_one(tales_path: Path, tmp_path: Path) -> None:
    given, out = tmp_path / "in.jsonl", tmp_path / "out"
    given.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("Once", "A king", "A bear")))
    task = Generate("{text}", options={"max_tokens": 2})
    thesis = out / "part-of-my-thesis.doc"
    out.mkdir()
    thesis.write_text("Chapter 1")
    for force in (False, True):
        with pytest.raises(jobs.JobError, match="thesis.doc: no job here wrote it"):
            jobs.run(given, out, tales_path, task, force=force)
    assert thesis.read_text() == "Chapter 1"
    thesis.unlink()
    jobs.run(given, out, tales_path, task, shard_rows=1)
    jobs.run(given, out, tales_path, task, shard_rows=2, force=True)
    assert sorted(path.name for path in out.glob("part-*")) == ["part-00000.jsonl", "part-00001.jsonl"]
    before = (out / "part-00000.jsonl").read_text()
    with pytest.raises(smolrun.ArgumentError, match="outside of the output's folder"):
        jobs.run(out, out, tales_path, Generate("{text}", prefix="again_"), force=True)
    assert (out / "part-00000.jsonl").read_text() == before


def test_what_cannot_be_run_is_refused_before_anything_is_changed(tales_path: Path, tmp_path: Path) -> None:
    given, out = tmp_path / "in.jsonl", tmp_path / "out"
    given.write_text(json.dumps({"text": "Once"}) + "\n")
    good = Generate("{text}", options={"max_tokens": 2})
    for wrong, error in (
        (Generate("{text}", options={"max_tokens": -1}), "max_tokens"),
        (type("Mine", (Generate,), {})("{text}"), "task: expected Generate, Embed, Score, found Mine"),
    ):
        with pytest.raises(smolrun.ArgumentError, match=error):
            jobs.run(given, out, tales_path, wrong)
        jobs.run(given, out, tales_path, good)
        with pytest.raises(smolrun.ArgumentError, match=error):
            jobs.run(given, out, tales_path, wrong, force=True)
        assert jobs.verify(out) == 1


def test_biases_go_into_a_job_and_a_row(tales_path: Path, tmp_path: Path) -> None:
    options = {"max_tokens": 2, "logit_bias": {5: 100.0}}
    given = tmp_path / "in.jsonl"
    given.write_text(json.dumps({"text": "Once", "how": None}) + "\n" + json.dumps({"text": "Once", "how": options}))
    for out, for_all in (("all", options), ("own", {"max_tokens": 2})):
        task = Generate("{text}", options=for_all, options_column="how", ids=True)
        jobs.run(given, tmp_path / out, tales_path, task)
        assert [found["ids"] == [5, 5] for found in rows_of(tmp_path / out)] == [out == "all", True]


def test_tasks_say_what_they_read_and_write() -> None:
    assert Generate(messages=[{"role": "user", "content": "{a} {b} {a}"}], options_column="c").inputs == ["a", "b", "c"]
    assert Generate(messages=[{"role": "assistant", "tool_calls": "x"}]).inputs == []
    assert list(Score("{a}", ["{b}"]).fields) == ["logprobs", "tokens", "is_greedy", "error"]
    assert Score("{a}", "texts").inputs == ["a", "texts"] and Embed("{a}").fields["embedding"] == "list<float32>"
    assert Template("{{{a}}} {b}").fill({"a": 1, "b": "x"}) == "{1} x"
    for wrong in ("{", "{a.b}", "{a!r}", "{a:>5}", "{}", "{0}"):
        with pytest.raises(smolrun.ArgumentError, match="template"):
            Template(wrong)


def test_a_path_needs_no_fetching(tales: smolrun.Model, tales_path: Path, tmp_path: Path) -> None:
    assert smolrun.distribute(tales_path, sha256=tales.sha256) == tales_path
    fetched = smolrun.distribute(tales_path.as_uri(), folder=tmp_path)
    assert fetched.parent == tmp_path and fetched.read_bytes() == tales_path.read_bytes()
