"""What a result depends on can be told, and held fast."""

from pathlib import Path
from typing import Any

import pytest

import smolrun
from conftest import TALES


def test_a_blob_has_a_hash(tales: smolrun.Model, tales_path: Path, folder: Path) -> None:
    assert len(bytes.fromhex(tales.sha256)) == 32
    assert smolrun.load(tales_path, mmap=False).sha256 == tales.sha256
    assert smolrun.load(smolrun.convert(TALES, folder / "again.bin").path).sha256 == tales.sha256
    assert smolrun.load(smolrun.convert(TALES, folder / "q8.bin", dtype="q8").path).sha256 != tales.sha256


def test_templates_are_told_a_time(folder: Path, chat_checkpoint: Path) -> None:
    (chat_checkpoint / "chat_template.jinja").write_text("{{ strftime_now('%d %B %Y') }}: {{ messages[0].content }}")
    model = smolrun.load(smolrun.convert(chat_checkpoint, folder / "dated.bin").path)
    messages = [{"role": "user", "content": "Hello"}]
    told: dict[str, Any] = {"max_tokens": 8, "temperature": 0}
    dated = model.generate("02 January 1970: Hello", max_tokens=8)
    assert model.generate(messages, now=86_400, **told).ids == dated.ids
    assert model.generate(messages, now=10 * 86_400, **told).timings.prompt_tokens
    for wrong in (-1, "now", 2**64):
        with pytest.raises((TypeError, smolrun.ArgumentError), match="now"):
            model.generate(messages, now=wrong)  # type: ignore[arg-type]
