"""Other processes: pickled models, forked ones, and what a fork leaves behind."""

import multiprocessing
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import smolrun
from conftest import TALES

START = "Once upon a time"


def in_child(work: Callable[[], None]) -> None:
    """Runs `work` in a forked child."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:
            print(f"the child: {error!r}", flush=True)
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def generated(model: smolrun.Model) -> smolrun.Completion:
    return model.generate(START, max_tokens=9)


def test_a_pickled_model_is_its_path(tales: smolrun.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = pickle.dumps(tales)
    assert len(pickled) < 1000
    monkeypatch.chdir(tmp_path)
    again: smolrun.Model = pickle.loads(pickled)
    assert again.path == tales.path and generated(again).ids == generated(tales).ids
    # Wherever the process has gone since it was loaded.
    monkeypatch.chdir(tales.path.parent)
    relative = smolrun.load(tales.path.name)
    monkeypatch.chdir(tmp_path)
    assert generated(pickle.loads(pickle.dumps(relative))).ids == generated(tales).ids


def test_pools_of_processes_work(tales: smolrun.Model) -> None:
    expected = generated(tales).ids
    for how in ("fork", "spawn"):
        with multiprocessing.get_context(how).Pool(2) as pool:
            assert [found.ids for found in pool.map(generated, [tales] * 4)] == [expected] * 4


def test_a_model_works_in_a_forked_child(tales: smolrun.Model) -> None:
    expected, session, stream = generated(tales).ids, tales.session(), tales.generate(START, stream=True)
    batch = tales.batch([START])
    session.generate(START, max_tokens=3)
    next(stream)

    def work() -> None:
        assert generated(tales).ids == expected
        assert [found.ids for found in tales.batch([START] * 3, max_tokens=9)] == [expected] * 3
        with tales.session() as own:
            assert own.generate(START, max_tokens=9).ids == expected
        for call in (lambda: session.tokens, lambda: next(stream), lambda: next(batch), lambda: session.fork()):
            with pytest.raises(smolrun.ForkedError, match="made before a fork") as raised:
                call()
            assert raised.value.code == "forked"
        session.close()
        stream.close()

    in_child(work)
    # What the parent has is as it was.
    assert len(session) > 3 and next(stream).id == expected[1] and generated(tales).ids == expected


def test_a_child_may_drop_and_convert(tales_path: Path, tmp_path: Path) -> None:
    model = smolrun.load(tales_path)
    generated(model)
    session = model.session()

    def work() -> None:
        nonlocal model, session
        del model, session
        blob = smolrun.convert(TALES, tmp_path / "child.bin", dtype="q8").path
        assert generated(smolrun.load(blob)).ids

    in_child(work)
    assert generated(model).ids and session.tokens == []
