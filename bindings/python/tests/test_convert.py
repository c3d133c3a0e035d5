"""From checkpoints to blobs, and what load makes of names."""

import errno
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import smolrun
from conftest import TALES


def test_a_conversion_tells_its_progress(tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    summary = smolrun.convert(
        TALES, tmp_path / "q4.bin", dtype="q4", keep=["down_proj.0=q8"], progress=lambda *step: told.append(step)
    )
    assert summary.path == tmp_path / "q4.bin" and summary.bytes == summary.path.stat().st_size
    assert summary.sections > 50 and summary.report is None
    steps = {step for step, _, _ in told}
    assert "quantizing" in steps, told
    assert all(total is None or 0 <= done <= total for step, done, total in told if step)
    with pytest.raises(smolrun.ConvertError, match="exists"):
        smolrun.convert(TALES, tmp_path / "q4.bin")
    smolrun.convert(TALES, tmp_path / "q4.bin", force=True)
    smolrun.load(tmp_path / "q4.bin", verify=True)


def test_tuning_tells_its_progress(tmp_path: Path) -> None:
    told: set[str] = set()
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a king who had three daughters. " * 100)
    smolrun.convert(
        TALES, tmp_path / "q4.bin", dtype="q4", calibrate=text, tune=1, progress=lambda step, *_: told.add(step)
    )
    assert "tuning" in told, told
    smolrun.load(tmp_path / "q4.bin", verify=True)


def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        smolrun.convert(TALES, tmp_path / "a.bin", dtype="q4", progress=stop)
    timer = threading.Timer(0.4, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        smolrun.convert(TALES, tmp_path / "b.bin", dtype="q4")
    timer.join()
    assert list(tmp_path.iterdir()) == []


def test_wrong_arguments_are_said(tmp_path: Path) -> None:
    out = tmp_path / "out.bin"
    with pytest.raises(smolrun.ArgumentError, match="dtype: expected one of f32, bf16"):
        smolrun.convert(TALES, out, dtype="q5")  # type: ignore[arg-type]
    with pytest.raises(smolrun.ArgumentError, match="keep: expected PATTERN=DTYPE"):
        smolrun.convert(TALES, out, keep=["x"])
    with pytest.raises(smolrun.ArgumentError, match="size: expected bytes, such as 70MB"):
        smolrun.convert(TALES, out, size="large")
    with pytest.raises(smolrun.ArgumentError, match="size: expected no dtype beside it"):
        smolrun.convert(TALES, out, size="70MB", dtype="q4")
    with pytest.raises(smolrun.ArgumentError, match="size 1kB: expected at least"):
        smolrun.convert(TALES, out, size="1kB")
    with pytest.raises(smolrun.ArgumentError, match="--calibrate"):
        smolrun.convert(TALES, out, calibrate="built-in")
    with pytest.raises(smolrun.ArgumentError, match="--tune: expected matrices that are calibrated"):
        smolrun.convert(TALES, out, dtype="q8", tune=1)
    with pytest.raises(smolrun.Error):
        smolrun.convert(tmp_path / "nothing", out)


def test_load_converts_a_checkpoint_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tales: smolrun.Model, chat_checkpoint: Path
) -> None:
    monkeypatch.setenv("SMOLRUN_CACHE", str(tmp_path / "cache"))
    model = smolrun.load(chat_checkpoint)
    assert model.source == chat_checkpoint and model.path.parent == tmp_path / "cache"
    assert model.chat_template and model.generate("Once", max_tokens=5).ids == tales.generate("Once", max_tokens=5).ids
    before = model.path.stat().st_mtime_ns
    assert smolrun.load(chat_checkpoint).path == model.path and model.path.stat().st_mtime_ns == before
    q8 = smolrun.load(chat_checkpoint, dtype="q8")
    assert q8.path != model.path and q8.path.stat().st_size < model.path.stat().st_size


def test_what_is_no_model_is_said(tmp_path: Path, tales_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        smolrun.load(tmp_path / "nothing.bin")
    assert isinstance(missing.value, smolrun.FileError) and missing.value.code == "io"
    assert missing.value.filename == str(tmp_path / "nothing.bin")
    blob = tales_path.read_bytes()
    for content, code in [
        (b"", "blob.too_short"),
        (b"x" * 200, "blob.magic"),
        (blob[:-1000], "blob.header"),
        (blob[:100] + b"\xff" + blob[101:], "blob.directory"),
    ]:
        (tmp_path / "broken.bin").write_bytes(content)
        with pytest.raises(smolrun.BlobError) as broken:
            smolrun.load(tmp_path / "broken.bin")
        assert broken.value.code == code
    changed = bytearray(blob)
    changed[-3] ^= 1
    (tmp_path / "changed.bin").write_bytes(changed)
    smolrun.load(tmp_path / "changed.bin")
    with pytest.raises(smolrun.BlobError) as damaged:
        smolrun.load(tmp_path / "changed.bin", verify=True)
    assert damaged.value.code == "blob.checksum"
    with pytest.raises(smolrun.FileMissingError, match="No such file .*smolconv list shows them") as unknown:
        smolrun.load("smollm2")
    assert unknown.value.errno == errno.ENOENT and unknown.value.filename == "smollm2"
    for threads in (0, 1025):
        with pytest.raises(smolrun.ArgumentError, match=f"^threads: expected 1 to 1024, found {threads}"):
            smolrun.load(tales_path, threads=threads)
    with pytest.raises(smolrun.ArgumentError, match="overflow: expected one of stop, slide"):
        smolrun.load(tales_path, overflow="fall")  # type: ignore[arg-type]


def test_ways_to_open_a_blob_give_the_same(tales: smolrun.Model, tales_path: Path) -> None:
    expected = tales.generate("Once", max_tokens=9).ids
    ways: list[dict[str, Any]] = [{"mmap": False}, {"threads": 1}, {"kv": "f32"}, {"overflow": "slide"}]
    for options in ways:
        assert smolrun.load(tales_path, **options).generate("Once", max_tokens=9).ids == expected
