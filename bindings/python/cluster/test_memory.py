"""What workers of one node cost: the weights once, and no time to start."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray

import smolrun
import smolrun.ray
from conftest import REAL_BLOB, TALES
from smolrun.tasks import Generate

WORKER = """
import sys, time
from smolrun._worker import Blob, Worker
from smolrun.tasks import Generate
worker = Worker(Blob(sys.argv[1]), Generate("{text}", options={"max_tokens": int(sys.argv[2])}), threads=1)
print(next(worker.results([{"text": "Once upon a time"}]))["answer"], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def blob(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if REAL_BLOB is not None:
        return Path(REAL_BLOB)
    return smolrun.convert(TALES, tmp_path_factory.mktemp("tales") / "tales.bin").path


def started(blob: Path, count: int, tokens: int) -> tuple[list[subprocess.Popen[str]], float]:
    """Workers that have answered, and how long that took from the first one's start on, in seconds."""
    start = time.perf_counter()
    command = [sys.executable, "-c", WORKER, str(blob), str(tokens)]
    workers = [subprocess.Popen(command, stdin=-1, stdout=-1, text=True) for _ in range(count)]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline()
    return workers, time.perf_counter() - start


def mapped(process: int, blob: Path, what: str) -> int:
    """Bytes of the blob in a process's memory: "Rss" counts a page in full, "Pss" by how many share it."""
    total, is_blob = 0, False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            is_blob = rest[-1:] == [os.path.realpath(blob)]
        elif is_blob and name == f"{what}:":
            total += int(rest[0]) * 1024
    return total


def test_four_workers_hold_the_weights_once(blob: Path) -> None:
    workers, _ = started(blob, 4, 8)
    try:
        check_shared([worker.pid for worker in workers], blob)
    finally:
        for worker in workers:
            worker.communicate()


def test_four_actors_of_ray_hold_the_weights_once(blob: Path) -> None:
    ray.init("local", num_cpus=4, include_dashboard=False, logging_level=logging.ERROR)
    try:
        task, rows = Generate("{text}", options={"max_tokens": 8}), pa.table({"text": ["Once upon a time"]})
        actor: Any = ray.remote(num_cpus=1)(smolrun.ray.Apply)
        actors = [actor.remote(str(blob), task) for _ in range(4)]
        check_shared(ray.get([each.__ray_call__.remote(answered_by, rows) for each in actors]), blob)
    finally:
        ray.shutdown()


def answered_by(actor: smolrun.ray.Apply, rows: pa.Table) -> int:
    """The process of an actor that has answered rows."""
    actor(rows)
    return os.getpid()


def check_shared(processes: list[int], blob: Path) -> None:
    """That processes have a blob once together."""
    rss = [mapped(process, blob, "Rss") for process in processes]
    pss = [mapped(process, blob, "Pss") for process in processes]
    private = [private_bytes(process) for process in processes]
    size = blob.stat().st_size
    told = {"blob": size, "rss": rss, "pss": pss, "pss of all": sum(pss), "private": private}
    print(json.dumps(told))
    assert min(rss) > size * 0.5, "each uses most of it"
    assert sum(pss) <= size * 1.01, "together they have it once"


def private_bytes(process: int) -> int:
    """What a process has for itself alone."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def test_eight_workers_start_together(blob: Path) -> None:
    times = []
    for _ in range(3):
        workers, seconds = started(blob, 8, 1)
        for worker in workers:
            worker.communicate()
        times.append(seconds)
    print(f"8 workers' first answers after {min(times):.2f} to {max(times):.2f} s")
    assert min(times) < 1, times
