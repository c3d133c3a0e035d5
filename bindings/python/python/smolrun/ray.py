"""Rows of Ray Data datasets, and shards of smolrun.jobs, on a Ray cluster (the extra `ray`).

    import ray, smolrun.ray

    reviews = ray.data.read_parquet("reviews.parquet")
    done = smolrun.ray.generate(reviews, "smol.bin", prompt="Summarize: {text}\\n", column="summary", max_tokens=64)
    done.write_parquet("summaries")

Each actor maps the blob, whose pages all actors of a node share, and computes with as many threads as Ray gave it CPUs.
Results depend on nothing but the row, so that a task that Ray runs again gives the same bits.

Ray's metrics get smolrun_rows, smolrun_errors and smolrun_tokens, counted, and smolrun_tokens_per_second, each with the
tag `worker`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.data.block import BlockAccessor
from ray.util.metrics import Counter, Gauge

import smolrun
from smolrun import jobs, tasks
from smolrun._progress import follow
from smolrun._worker import Blob, Tally, Worker, check_names, decided
from smolrun.tasks import Task

_SECONDS_BETWEEN_REPORTS = 1.0


class Apply:
    """A task for Dataset.map_batches: batches in, with the results' columns beside their own out.

        dataset.map_batches(smolrun.ray.Apply, fn_constructor_kwargs={"model": "smol.bin", "task": task},
                            batch_size=512, num_cpus=1, compute=ray.data.ActorPoolStrategy(size=8))

    model: a path that all nodes have, or a URL as of smolrun.distribute
    threads: by default as many as the actor has CPUs, at least one
    """

    def __init__(self, model: str | Blob, task: Task, *, threads: int | None = None, totals: Any = None) -> None:
        """Open the blob. totals is the actor that is told what was done."""
        blob = model if isinstance(model, Blob) else Blob(model)
        self._worker = Worker(blob, decided(task), threads or _threads())
        self._meter = _Meter(totals)

    def __call__(self, batch: Any) -> pa.Table:
        """An Arrow table for a batch in any of Ray Data's formats."""
        table = batch if isinstance(batch, pa.Table) else _table(batch)
        done = self._worker.table(table)
        self._meter.tell(self._worker)
        return done


class Generate(Apply):
    """As Apply, with smolrun.tasks.Generate. Options are those of smolrun.Model.generate."""

    def __init__(
        self,
        model: str | Blob,
        prompt: str | None = None,
        *,
        messages: str | Sequence[Mapping[str, str]] | None = None,
        column: str = "answer",
        options_column: str | None = None,
        ids: bool = False,
        prefix: str = "",
        threads: int | None = None,
        **options: Any,
    ) -> None:
        """Open the blob."""
        task = tasks.Generate(prompt, messages, column, options, options_column, ids, prefix)
        super().__init__(model, task, threads=threads)


class Embed(Apply):
    """As Apply, with smolrun.tasks.Embed."""

    def __init__(
        self, model: str | Blob, prompt: str, *, column: str = "embedding", pooling: str = "last", prefix: str = ""
    ) -> None:
        """Open the blob."""
        super().__init__(model, tasks.Embed(prompt, column, pooling, prefix))


class Score(Apply):
    """As Apply, with smolrun.tasks.Score."""

    def __init__(
        self,
        model: str | Blob,
        context: str,
        continuations: str | Sequence[str],
        *,
        column: str = "logprobs",
        prefix: str = "",
    ) -> None:
        """Open the blob."""
        super().__init__(model, tasks.Score(context, continuations, column, prefix))


def apply(
    dataset: ray.data.Dataset,
    model: str | os.PathLike[str],
    task: Task,
    *,
    workers: int | tuple[int, int] | None = None,
    num_cpus: float = 1,
    batch_size: int = 512,
    kv: str | None = None,
    progress: bool = False,
    **remote: Any,
) -> ray.data.Dataset:
    """A dataset with the columns of a task's results.

    model: as of smolrun.load, which all nodes have under this path, or a URL as of smolrun.distribute
    workers: how many actors, or at least and at most; by default as many as the cluster has room for
    num_cpus: of each actor, which computes with as many threads
    batch_size: rows that an actor gets at a time. In the last passes of a batch places are empty, so hundreds are best
    kv: as of smolrun.load
    progress: whether standard error is told how many rows, errors and tokens there are, and how fast; Ray has bars
    remote: more for Ray, such as memory=
    """
    task, blob = decided(task), Blob.of(model, kv)
    columns = dataset.columns(fetch_if_missing=False)
    if columns is not None:
        check_names(columns, task)
    given: dict[str, Any] = {"model": blob, "task": task, "threads": max(1, int(num_cpus))}
    if progress:
        given["totals"] = _followed()
    return dataset.map_batches(
        Apply,
        fn_constructor_kwargs=given,
        batch_format="pyarrow",
        batch_size=batch_size,
        compute=_pool(workers, num_cpus),
        num_cpus=num_cpus,
        udf_modifying_row_count=False,
        **remote,
    )


def generate(
    dataset: ray.data.Dataset,
    model: str | os.PathLike[str],
    prompt: str | None = None,
    *,
    messages: str | Sequence[Mapping[str, str]] | None = None,
    column: str = "answer",
    options_column: str | None = None,
    ids: bool = False,
    prefix: str = "",
    workers: int | tuple[int, int] | None = None,
    num_cpus: float = 1,
    batch_size: int = 512,
    kv: str | None = None,
    progress: bool = False,
    **options: Any,
) -> ray.data.Dataset:
    """A dataset with generated texts: see smolrun.tasks.Generate and apply."""
    task = tasks.Generate(prompt, messages, column, options, options_column, ids, prefix)
    how: dict[str, Any] = {"workers": workers, "num_cpus": num_cpus, "batch_size": batch_size}
    return apply(dataset, model, task, kv=kv, progress=progress, **how)


def embed(
    dataset: ray.data.Dataset,
    model: str | os.PathLike[str],
    prompt: str,
    *,
    column: str = "embedding",
    pooling: str = "last",
    prefix: str = "",
    **how: Any,
) -> ray.data.Dataset:
    """A dataset with texts' vectors: see smolrun.tasks.Embed and apply."""
    return apply(dataset, model, tasks.Embed(prompt, column, pooling, prefix), **how)


def score(
    dataset: ray.data.Dataset,
    model: str | os.PathLike[str],
    context: str,
    continuations: str | Sequence[str],
    *,
    column: str = "logprobs",
    prefix: str = "",
    **how: Any,
) -> ray.data.Dataset:
    """A dataset with log-probabilities of continuations: see smolrun.tasks.Score and apply."""
    return apply(dataset, model, tasks.Score(context, continuations, column, prefix), **how)


def over(*, num_cpus: float = 1, max_retries: int = -1, **remote: Any) -> jobs.Over:
    """What computes the shards of smolrun.jobs.run on the cluster: a task for each, of so many CPUs.

        jobs.run("reviews.parquet", "answers", "smol.bin", task, over=smolrun.ray.over(), threads=1)

    max_retries: how often a task is run again whose node has died; -1 is until it is done
    """

    def computed(shards: Callable[[int], jobs.Manifest], numbers: Sequence[int]) -> Iterator[jobs.Manifest]:
        call = ray.remote(num_cpus=num_cpus, max_retries=max_retries, **remote)(_call)
        known = ray.put(shards)
        running = [call.remote(known, number) for number in numbers]
        try:
            while running:
                done, running = ray.wait(running)
                yield ray.get(done[0])
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, smolrun.Error):
                raise error.cause from None
            raise
        finally:
            for task in running:
                ray.cancel(task)

    return computed


def _call(shards: Callable[[int], jobs.Manifest], number: int) -> jobs.Manifest:
    return shards(number)


def _threads() -> int:
    """What Ray gave this worker."""
    resources: Mapping[str, float] = ray.get_runtime_context().get_assigned_resources()
    return max(1, int(resources.get("CPU", 1)))


def _pool(workers: int | tuple[int, int] | None, num_cpus: float) -> ray.data.ActorPoolStrategy:
    if workers is None:
        cpus = ray.cluster_resources().get("CPU", 1)
        workers = (1, max(1, int(cpus // max(num_cpus, 0.01))))
    # A batch takes seconds: whoever is ready first should not have a second one waiting.
    how = {"max_tasks_in_flight_per_actor": 1}
    if isinstance(workers, int):
        return ray.data.ActorPoolStrategy(size=workers, **how)
    return ray.data.ActorPoolStrategy(min_size=workers[0], max_size=workers[1], **how)


def _table(batch: Any) -> pa.Table:
    """Columns in numpy arrays, or a DataFrame of pandas', as Ray itself keeps them."""
    return BlockAccessor.for_block(BlockAccessor.batch_to_block(batch)).to_arrow()


class _Meter:
    """Tells Ray what a worker has done."""

    def __init__(self, totals: Any) -> None:
        self._totals = totals
        self._at = 0.0
        self._name = ray.get_runtime_context().get_actor_id() or str(os.getpid())
        keys, tags = ("worker",), {"worker": self._name}
        self._counters = [
            Counter(f"smolrun_{name}", f"{name} so far", keys).set_default_tags(tags)
            for name in ("rows", "errors", "tokens")
        ]
        self._speed = Gauge("smolrun_tokens_per_second", "tokens generated in a second", keys).set_default_tags(tags)

    def tell(self, worker: Worker) -> None:
        """What is new."""
        new = worker.news()
        for counter, count in zip(self._counters, (new.rows, new.errors, new.tokens)):
            if count:
                counter.inc(count)
        if new.seconds:
            self._speed.set(new.tokens / new.seconds)
        if self._totals is not None and time.monotonic() - self._at >= _SECONDS_BETWEEN_REPORTS:
            self._at = time.monotonic()
            self._totals.tell.remote(self._name, worker.tally)


class _Totals:
    """What all workers have done: an actor."""

    def __init__(self) -> None:
        self._tallies: dict[str, Tally] = {}

    def tell(self, worker: str, tally: Tally) -> None:
        self._tallies[worker] = tally

    def told(self) -> str:
        return sum(self._tallies.values(), Tally()).told(len(self._tallies))


def _followed() -> Any:
    """An actor for totals, and a thread that shows them."""
    totals: Any = ray.remote(num_cpus=0)(_Totals).remote()

    def read() -> str | None:
        try:
            told: str = ray.get(totals.told.remote())
        except Exception:  # the cluster is gone
            return None
        return told

    follow(read, True)
    return totals
