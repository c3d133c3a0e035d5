"""Models to test with, made of models/tales-4m by the package itself."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import smolrun

REPOSITORY = Path(__file__).parents[3]
TALES = REPOSITORY / "models" / "tales-4m"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}teller: {% endif %}"
)
STRESS = int(os.environ.get("SMOL_STRESS", "1"))
"""How many times as much is done where many calls are made."""


# What a shell runs in the background ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def tales_path(folder: Path) -> Path:
    return smolrun.convert(TALES, folder / "tales.bin").path


@pytest.fixture(scope="session")
def tales(tales_path: Path) -> smolrun.Model:
    return smolrun.load(tales_path, threads=2)


@pytest.fixture(scope="session")
def chat_checkpoint(folder: Path) -> Path:
    """The tales, with a chat template."""
    checkpoint = folder / "chat"
    shutil.copytree(TALES, checkpoint)
    (checkpoint / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return checkpoint


@pytest.fixture(scope="session")
def chat(folder: Path, chat_checkpoint: Path) -> smolrun.Model:
    return smolrun.load(smolrun.convert(chat_checkpoint, folder / "chat.bin").path, threads=2)


@pytest.fixture
def session(tales: smolrun.Model) -> Iterator[smolrun.Session]:
    with tales.session() as session:
        yield session
