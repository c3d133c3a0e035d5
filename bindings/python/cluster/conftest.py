"""A corpus of prompts, and what the program `smolrun batch` answers: what every engine must answer, too.

Three of five prompts are parts of a printed book, four to 23 words in a row. The others are strings made to be hard for
tokenizers. Nobody has asked them of a model: no log of people's prompts is at hand.

SMOL_CLUSTER_PROMPTS is how many prompts models/tales-4m gets (5,000). SMOL_CLUSTER_BLOB is a blob of the real model,
which gets SMOL_CLUSTER_REAL_PROMPTS (200).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

import smolrun
from smolrun import jobs
from smolrun.tasks import Generate

REPOSITORY = Path(__file__).parents[3]
TALES = REPOSITORY / "models" / "tales-4m"
PROMPTS = int(os.environ.get("SMOL_CLUSTER_PROMPTS", "5000"))
REAL_BLOB = os.environ.get("SMOL_CLUSTER_BLOB")
REAL_PROMPTS = int(os.environ.get("SMOL_CLUSTER_REAL_PROMPTS", "200"))
TASK = Generate("{text}", options={"max_tokens": 16}, options_column="own", ids=True)

Row = dict[str, Any]
os.environ["PYSPARK_PYTHON"] = sys.executable


@dataclass(frozen=True)
class Corpus:
    """Prompts, and what `smolrun batch` answers to them."""

    blob: Path
    rows: list[Row]
    """n, text, and a JSON text of the row's own options."""
    answers: list[Row]
    """The lines of OUT."""

    def check(self, results: Iterable[Mapping[str, Any]]) -> None:
        """That results are those of all rows, each once, and the same as `smolrun batch` has."""
        found = sorted(results, key=lambda row: row["n"])
        assert [row["n"] for row in found] == [row["n"] for row in self.rows], "every row once"
        differences = [row for row, answer in zip(found, self.answers, strict=True) if told(row) != answer]
        assert not differences, (len(differences), differences[0], self.answers[differences[0]["n"]])

    def part(self, count: int) -> Corpus:
        """Its first rows, and the last one, which is wrong."""
        chosen = [*range(min(count, len(self.rows)) - 1), len(self.rows) - 1]
        rows = [{**self.rows[i], "n": n} for n, i in enumerate(chosen)]
        return Corpus(self.blob, rows, [{**self.answers[i], "line": n + 1} for n, i in enumerate(chosen)])


def told(row: Mapping[str, Any]) -> Row:
    """A result as a line of `smolrun batch` says it."""
    line = {"line": row["n"] + 1, "custom_id": None}
    if row["error"] is not None:
        assert row["answer"] is None and row["completion_tokens"] is None
        code, _, message = row["error"].partition(": ")
        return line | {"error": {"code": code, "message": message}}
    counts = [row["prompt_tokens"], row["completion_tokens"]]
    usage = dict(zip(["prompt_tokens", "completion_tokens", "total_tokens"], [*counts, sum(counts)]))
    answer = {"text": row["answer"], "ids": list(row["ids"]), "finish_reason": row["finish_reason"], "usage": usage}
    return line | answer


def prompts(count: int) -> list[str]:
    """Parts of sentences of tests/data/ppl.txt, then the hard strings of tests/data/tokenizer_cases.jsonl."""
    data = REPOSITORY / "tests" / "data"
    words = (data / "ppl.txt").read_text().split()
    hard = [json.loads(line)["text"] for line in (data / "tokenizer_cases.jsonl").open()]
    hard = hard[: count * 2 // 5]
    step = max(1, (len(words) - 24) // (count - len(hard)))
    return [" ".join(words[step * i :][: 4 + i % 20]) for i in range(count - len(hard))] + hard


def corpus(blob: Path, folder: Path, count: int) -> Corpus:
    """Every fourth prompt draws by a seed of its own; the last one is longer than any context."""
    texts = [*prompts(count - 1), "no end " * 20_000]
    own: list[Row] = [{"temperature": 0.9, "top_p": 0.95, "seed": i} if i % 4 == 0 else {} for i in range(count)]
    rows = [{"n": i, "text": text, "own": json.dumps(own[i])} for i, text in enumerate(texts)]
    requests, answers = folder / "requests.jsonl", folder / "answers.jsonl"
    lines = [json.dumps({"prompt": row["text"], **TASK.options, **own[i]}) for i, row in enumerate(rows)]
    requests.write_text("".join(line + "\n" for line in lines))
    smolrun_program = Path(sys.executable).with_name("smolrun")
    subprocess.run([smolrun_program, "batch", blob, requests, "--out", answers], check=True)
    return Corpus(blob, rows, [json.loads(line) for line in answers.open()])


@pytest.fixture(scope="session")
def tales(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("tales")
    blob = smolrun.convert(TALES, folder / "tales.bin").path
    return corpus(blob, folder, PROMPTS)


@pytest.fixture(scope="session")
def few(tales: Corpus) -> Corpus:
    """Some of it, for what is tried several times."""
    return tales.part(1000)


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    if REAL_BLOB is None:
        pytest.skip("SMOL_CLUSTER_BLOB names no blob of the real model")
    return corpus(Path(REAL_BLOB), tmp_path_factory.mktemp("real"), REAL_PROMPTS)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Rows, a line each."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_jsonl(folder: Path) -> list[Row]:
    """All rows of a job's shards, in their order."""
    return [json.loads(line) for path in sorted(folder.glob("part-*")) for line in path.open()]


def read_parquet(folder: Path) -> list[Row]:
    """All rows of a job's shards, in their order."""
    import pyarrow.parquet as pq

    return [row for path in sorted(folder.glob("part-*")) for row in pq.read_table(path).to_pylist()]


def bytes_of(folder: Path) -> dict[str, bytes]:
    """The bytes of a job's shards."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*"))}


def killed_with_shards(out: Path, shards: int, *command: object) -> list[psutil.Process]:
    """Runs a Python program until a job has so many shards, then kills it. Returns the processes that it had begun."""
    child = subprocess.Popen([sys.executable, "-c", *map(str, command)], cwd=Path(__file__).parent)
    deadline = time.monotonic() + 60
    while len(list(out.glob("part-*"))) < shards:
        assert child.poll() is None and time.monotonic() < deadline, "it ended too soon, or never began"
        time.sleep(0.01)
    begun: list[psutil.Process] = psutil.Process(child.pid).children(recursive=True)
    child.kill()
    child.wait()
    return begun


def without(file: Path, over: jobs.Over) -> jobs.Over:
    """As over, but a file vanishes before anybody computes."""

    def computed(shards: Callable[[int], jobs.Manifest], numbers: Any) -> Iterable[jobs.Manifest]:
        file.unlink()
        return over(shards, numbers)

    return computed


def on_a_small_disk(disk: Path, program: str, *arguments: object) -> str:
    """What a Python program prints that finds a disk of 64 kB at a path."""
    disk.mkdir()
    mounted = 'mount -t tmpfs -o size=64k none "$0" && exec "$@"'
    command = [*"unshare --user --map-root-user --mount sh -c".split(), mounted, disk, sys.executable, "-c", program]
    words = [*map(str, [*command, *arguments])]
    return subprocess.run(words, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, check=True).stdout


FULL = """
import os, sys, conftest, smolrun
from smolrun import jobs
{over}
try:
    jobs.run(*sys.argv[1:4], conftest.TASK, shard_rows=100, over=over, threads=1)
except smolrun.FileError as error:
    print(type(error).__name__, error.errno, error, error.code)
    print(*os.listdir(sys.argv[2] + "/_smolrun"))
"""


def job_on_a_full_disk(corpus: Corpus, folder: Path, over: str) -> str:
    """Checks the error of a job for whose output there is no room. The Python text `over` sets who computes. Returns
    the names that are left beside the shards."""
    given, disk = write_jsonl(folder / "in.jsonl", corpus.rows[:500]), folder / "disk"
    told, left = on_a_small_disk(disk, FULL.format(over=over), given, disk / "out", corpus.blob).splitlines()
    assert told.startswith(f"FileError 28 [Errno 28] No space left on device: '{disk}/out/"), told
    assert told.endswith("' io"), told
    return left


def last_line(error: BaseException) -> str:
    """The last thing that somebody sees on a terminal."""
    return "".join(traceback.format_exception(error)).strip().splitlines()[-1]


def gone(blob: Path) -> str:
    """That line, where a blob has vanished."""
    return f"smolrun._errors.FileMissingError: [Errno 2] No such file or directory: '{blob}'"
