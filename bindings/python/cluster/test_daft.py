"""Daft's native runner."""

from __future__ import annotations

import shutil
from pathlib import Path

import daft
import numpy
import pytest

import smolrun
import smolrun.daft
from conftest import TASK, Corpus, gone, last_line

daft.set_runner_native()


@pytest.mark.parametrize("in_processes", [False, True])
def test_a_frame_is_as_batch_has_it(tales: Corpus, few: Corpus, in_processes: bool) -> None:
    corpus = few if in_processes else tales
    frame = daft.from_pylist(corpus.rows)
    corpus.check(smolrun.daft.apply(frame, corpus.blob, TASK, workers=2, use_process=in_processes).to_pylist())


def test_the_real_model_is_as_batch_has_it(real: Corpus) -> None:
    frame = daft.from_pylist(real.rows)
    real.check(smolrun.daft.apply(frame, real.blob, TASK, workers=2, batch_size=64).to_pylist())


def test_embeddings_and_scores(few: Corpus) -> None:
    model, frame = smolrun.load(few.blob), daft.from_pylist(few.rows[:30])
    for row in smolrun.daft.embed(frame, few.blob, "{text}").to_pylist():
        assert (numpy.asarray(row["embedding"], "f4") == model.embed(row["text"])).all()
    for row in smolrun.daft.score(frame, few.blob, "Once upon", [" a time", " {n}"]).to_pylist():
        scores = model.score("Once upon", [" a time", f" {row['n']}"])
        assert row["logprobs"] == [score.logprob for score in scores]


def test_a_poisoned_row_is_an_error_in_its_row(few: Corpus) -> None:
    frame = daft.from_pylist([{"n": i, "text": "Once upon a time" if i != 7 else None} for i in range(40)])
    found = smolrun.daft.generate(frame, few.blob, "{text}", max_tokens=4).to_pylist()
    errors = {row["n"]: row["error"] for row in found if row["error"]}
    assert errors == {7: "bad_row: column text: expected a value, found null"}


@pytest.mark.parametrize("in_processes", [False, True])
def test_a_vanished_blob_is_one_error(few: Corpus, tmp_path: Path, in_processes: bool) -> None:
    frame, blob = daft.from_pylist(few.rows[:4]), tmp_path / "blob.bin"
    with pytest.raises(smolrun.FileMissingError, match="/nowhere/gone.bin"):
        smolrun.daft.generate(frame, "/nowhere/gone.bin", "{text}")
    shutil.copy(few.blob, blob)
    done = smolrun.daft.generate(frame, blob, "{text}", use_process=in_processes)
    blob.unlink()
    with pytest.raises(RuntimeError if in_processes else smolrun.FileMissingError) as found:
        done.to_pylist()
    assert last_line(found.value) == gone(blob)
    with pytest.raises(smolrun.ArgumentError, match="column x"):
        smolrun.daft.generate(frame, few.blob, "{x}")
