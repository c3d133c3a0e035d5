"""Ray: a cluster of three nodes in processes of their own."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
import ray
import ray.data
from ray.cluster_utils import Cluster

import smolrun
import smolrun.ray
from conftest import (
    TALES,
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

MEMORY = 100 << 20
BLOCKS = 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head that computes nothing, and two nodes of one CPU."""
    head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        add_node(cluster)
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    ray.init(address=cluster.address, logging_level=logging.ERROR, runtime_env={"env_vars": {"PYTHONPATH": paths}})
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def add_node(cluster: Cluster) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=MEMORY)


def dataset(rows: list[Row]) -> ray.data.Dataset:
    return ray.data.from_items(rows, override_num_blocks=BLOCKS)


def generate(corpus: Corpus, **how: Any) -> ray.data.Dataset:
    return smolrun.ray.apply(dataset(corpus.rows), corpus.blob, TASK, **how)


def test_a_dataset_is_as_batch_has_it(cluster: Cluster, tales: Corpus, capfd: pytest.CaptureFixture[str]) -> None:
    tales.check(generate(tales, workers=2, progress=True).take_all())
    assert "tokens/s by " in capfd.readouterr().err


def test_the_real_model_is_as_batch_has_it(cluster: Cluster, real: Corpus) -> None:
    real.check(generate(real, workers=2, batch_size=64).take_all())


def test_batches_of_every_format(cluster: Cluster, few: Corpus) -> None:
    given = {"model": str(few.blob), "prompt": "{text}", "options_column": "own", "ids": True, "max_tokens": 16}
    for form in ("numpy", "pandas", "pyarrow"):
        done = dataset(few.rows).map_batches(
            smolrun.ray.Generate, fn_constructor_kwargs=given, concurrency=2, num_cpus=1, batch_size=128,
            batch_format=form,
        )  # fmt: skip
        few.check(done.take_all())


def test_a_node_is_killed(cluster: Cluster, few: Corpus) -> None:
    node = add_node(cluster)
    rows: list[Row] = []
    for row in generate(few, workers=3, batch_size=50).iter_rows():
        rows.append(row)
        if len(rows) == 50:
            cluster.remove_node(node, allow_graceful=False)
    few.check(rows)


def test_a_node_is_killed_in_a_job(cluster: Cluster, few: Corpus, tmp_path: Path) -> None:
    node = add_node(cluster)
    given, out = write_jsonl(tmp_path / "in.jsonl", few.rows), tmp_path / "out"

    def kill() -> None:
        while len(list(out.glob("part-*"))) < 3:
            time.sleep(0.01)
        cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    jobs.run(given, out, few.blob, TASK, shard_rows=50, over=smolrun.ray.over(), threads=1)
    killer.join()
    few.check(read_jsonl(out))
    jobs.run(given, tmp_path / "alone", few.blob, TASK, shard_rows=50)
    assert bytes_of(out) == bytes_of(tmp_path / "alone")
    assert jobs.verify(out, rows=20) == 20


DRIVER = """
import sys, conftest, ray, smolrun.ray
from smolrun import jobs
ray.init(address=sys.argv[4], logging_level="error")
jobs.run(*sys.argv[1:4], conftest.TASK, shard_rows=50, over=smolrun.ray.over(), threads=1)
"""


def test_a_killed_driver_goes_on(cluster: Cluster, few: Corpus, tmp_path: Path) -> None:
    given, out = write_jsonl(tmp_path / "in.jsonl", few.rows), tmp_path / "out"
    killed_with_shards(out, 4, DRIVER, given, out, few.blob, cluster.address)
    jobs.run(given, out, few.blob, TASK, shard_rows=50, over=smolrun.ray.over(), threads=1)
    few.check(read_jsonl(out))
    jobs.run(given, tmp_path / "alone", few.blob, TASK, shard_rows=50)
    assert bytes_of(out) == bytes_of(tmp_path / "alone")


def test_a_poisoned_row_is_an_error_in_its_row(cluster: Cluster, few: Corpus) -> None:
    rows = [{"n": i, "text": "Once upon a time"} for i in range(40)]
    rows[7]["text"] = None
    rows[31]["text"] = "no end " * 20_000
    found = smolrun.ray.generate(dataset(rows), few.blob, "{text}", max_tokens=4).take_all()
    errors = {row["n"]: row["error"] for row in found if row["error"] is not None}
    assert len(found) == 40 and sorted(errors) == [7, 31]
    assert errors[7] == "bad_row: column text: expected a value, found null"
    assert errors[31].startswith(("text_too_long: ", "context_full: "))


def test_embeddings_and_scores(cluster: Cluster, few: Corpus) -> None:
    model, rows = smolrun.load(few.blob), few.rows[:30]
    for row in smolrun.ray.embed(dataset(rows), few.blob, "{text}").take_all():
        assert (numpy.asarray(row["embedding"], "f4") == model.embed(row["text"])).all()
    for row in smolrun.ray.score(dataset(rows), few.blob, "Once upon", [" a time", " {n}"]).take_all():
        expected = [score.logprob for score in model.score("Once upon", [" a time", f" {row['n']}"])]
        assert list(row["logprobs"]) == expected


def test_messages_are_answered(cluster: Cluster, tmp_path: Path) -> None:
    checkpoint = tmp_path / "chat"
    shutil.copytree(TALES, checkpoint)
    (checkpoint / "chat_template.jinja").write_text("{{ strftime_now('%Y') }}{{ messages[-1].content }}")
    model = smolrun.load(smolrun.convert(checkpoint, tmp_path / "chat.bin").path)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The {what} said"}]
    rows = [{"n": i, "what": what, "messages": [{"role": "user", "content": f"The {what} said"}]}
            for i, what in enumerate(("king", "bear", "witch"))]  # fmt: skip
    options: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "now": 0}
    own = smolrun.ray.generate(dataset(rows), model.path, messages=messages, **options).take_all()
    column = smolrun.ray.generate(dataset(rows), model.path, messages="messages", **options).take_all()
    for row in own + column:
        assert row["answer"] == model.generate(f"1970The {row['what']} said", max_tokens=8).text


FULL = """
import ray, smolrun.ray
ray.init("local", num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
over = smolrun.ray.over()
"""


def test_a_full_disk_is_one_error(few: Corpus, tmp_path: Path) -> None:
    job_on_a_full_disk(few, tmp_path, FULL)


def test_a_vanished_blob_is_one_error(cluster: Cluster, few: Corpus, tmp_path: Path) -> None:
    given, blob = write_jsonl(tmp_path / "in.jsonl", few.rows[:100]), tmp_path / "blob.bin"
    with pytest.raises(smolrun.FileMissingError, match="/nowhere/gone.bin"):
        smolrun.ray.generate(dataset(few.rows[:40]), "/nowhere/gone.bin", "{text}", workers=1)
    shutil.copy(few.blob, blob)
    done = smolrun.ray.generate(dataset(few.rows[:40]), blob, "{text}", workers=1)
    blob.unlink()
    with pytest.raises(ray.exceptions.RayError) as lazy:
        done.take_all()
    assert last_line(lazy.value) == gone(blob)
    shutil.copy(few.blob, blob)
    with pytest.raises(smolrun.FileMissingError) as found:
        jobs.run(given, tmp_path / "out", blob, TASK, over=without(blob, smolrun.ray.over()))
    assert last_line(found.value) == gone(blob) and not isinstance(found.value, ray.exceptions.RayError)
    with pytest.raises(smolrun.ArgumentError, match="column x: expected one of that name, found n, text, own"):
        smolrun.ray.generate(dataset(few.rows[:40]), few.blob, "{x}")


def test_another_blob_on_a_node_is_an_error(cluster: Cluster, few: Corpus, tmp_path: Path) -> None:
    (tmp_path / "blob.bin").write_bytes(few.blob.read_bytes())
    done = smolrun.ray.generate(dataset(few.rows[:40]), tmp_path / "blob.bin", "{text}", workers=1, max_tokens=3)
    (tmp_path / "blob.bin").unlink()
    smolrun.convert(TALES, tmp_path / "blob.bin", dtype="q8")
    with pytest.raises(Exception, match="expected the blob"):
        done.take_all()


def test_metrics_are_ray_s(cluster: Cluster, few: Corpus) -> None:
    names = ["ray_smolrun_rows", "ray_smolrun_errors", "ray_smolrun_tokens", "ray_smolrun_tokens_per_second"]
    generate(few, workers=2).take_all()
    deadline, found = time.monotonic() + 20, ""
    while not all(name in found for name in names) and time.monotonic() < deadline:
        time.sleep(0.5)
        found = "".join(map(exported, ray.nodes()))
    assert not [name for name in names if name not in found]


def exported(node: Mapping[str, Any]) -> str:
    """The metrics of a node, if it is there."""
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            text: str = answer.read().decode()
    except OSError:
        return ""
    return text
