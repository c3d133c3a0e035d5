#!/usr/bin/env python3
"""How much of `smolrun batch` a Ray pipeline keeps on one machine, and llama-cpp-python in the same pipeline.

    pip install 'dist/smolrun-….whl[ray]' llama-cpp-python
    bindings/python/cluster/bench.py smol-q4.bin --gguf SmolLM2-135M-Instruct.Q4_1.gguf
    bindings/python/cluster/bench.py smol-q4.bin --documents 64

`smolrun batch` has 2 threads, Ray has 2 actors of one thread each. The prompts are those of the tests, the tokens are
counted until the last one: nothing ends early. The two take turns; figures are medians. Nothing else should run.
docs/cluster.md has what came out.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import ray
import ray.data

import smolrun
import smolrun.ray
from conftest import REPOSITORY, prompts
from smolrun.tasks import Generate

WORKERS = 2


def batch(blob: Path, texts: Sequence[str | list[int]], tokens: int, threads: int = WORKERS) -> float:
    """Seconds of the program, its start and end included."""
    with tempfile.TemporaryDirectory() as folder:
        requests, answers = Path(folder, "requests.jsonl"), Path(folder, "answers.jsonl")
        asked = [{"prompt": text, "max_tokens": tokens, "ignore_eos": True} for text in texts]
        requests.write_text("".join(json.dumps(each) + "\n" for each in asked))
        program = Path(sys.executable).with_name("smolrun")
        start = time.perf_counter()
        command = [str(program), "batch", str(blob), str(requests), "--out", str(answers), "--threads", str(threads)]
        subprocess.run(command, check=True)
        return time.perf_counter() - start


class Timed(smolrun.ray.Apply):
    """With a column that says when a batch was begun, when it was done, and by whom."""

    def __call__(self, given: Any) -> Any:
        start = time.time()
        done = super().__call__(given)
        return with_times(done, start)


class LlamaCpp:
    """The same of llama-cpp-python, which computes one text after the other."""

    def __init__(self, gguf: str, tokens: int) -> None:
        from llama_cpp import Llama  # type: ignore[import-not-found]

        self.llama = Llama(gguf, n_threads=1, n_threads_batch=1, n_ctx=512, verbose=False, logit_bias={})
        self.eos = self.llama.token_eos()
        self.tokens = tokens

    def __call__(self, given: Any) -> Any:
        import pyarrow as pa

        start, counts = time.time(), []
        for text in given.column("text").to_pylist():
            options: dict[str, Any] = {"max_tokens": self.tokens, "temperature": 0, "logit_bias": {self.eos: -100.0}}
            counts.append(self.llama.create_completion(text, **options)["usage"]["completion_tokens"])
        return with_times(given.append_column("completion_tokens", pa.array(counts)), start)


def with_times(table: Any, start: float) -> Any:
    """A table with the times of its batch."""
    import pyarrow as pa

    who = ray.get_runtime_context().get_actor_id()
    for name, value in (("begun", start), ("done", time.time()), ("who", who)):
        table = table.append_column(name, pa.array([value] * table.num_rows))
    return table


def pipeline(stage: type[Any], given: dict[str, Any], texts: list[str], batch_size: int) -> dict[str, float]:
    """Seconds of a pipeline, of its workers at work, and tokens."""
    start = time.time()
    rows = ray.data.from_items([{"text": text} for text in texts], override_num_blocks=-(-len(texts) // batch_size))
    done = rows.map_batches(
        stage, fn_constructor_kwargs=given, batch_format="pyarrow", batch_size=batch_size, num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=WORKERS, max_tasks_in_flight_per_actor=1),
    ).take_all()  # fmt: skip
    whole = time.time() - start
    times = {(row["who"], row["begun"]): row["done"] for row in done}
    busy = sum(end - begun for (_, begun), end in times.items()) / WORKERS
    first = min(begun for _, begun in times)
    tokens = sum(row["completion_tokens"] for row in done)
    found = {"whole": whole, "until_first": first - start, "at_work": max(times.values()) - first}
    return found | {"busy": busy, "tokens": tokens}


def documents(blob: Path, count: int, tokens: int) -> None:
    """What texts of 500 tokens cost that are answered with some more: the processor's time, by one thread."""
    ids = smolrun.load(blob).tokenize((REPOSITORY / "tests" / "data" / "ppl.txt").read_text())
    step = (len(ids) - 500) // count
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    batch(blob, [ids[step * i :][:500] for i in range(count)], tokens, threads=1)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    each = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / count
    print(f"{blob.name}: {each:.3f} core seconds for 500 + {tokens} tokens, {1e6 * each / 3600:.0f} core hours for 1e6")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("blob", type=Path)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--peer-rows", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--documents", type=int, help="only that many texts of 500 tokens, by smolrun batch")
    args = parser.parse_args()
    if args.documents:
        return documents(args.blob, args.documents, args.tokens)
    texts = [text for text in prompts(2 * args.rows) if text][: args.rows]
    ray.init("local", num_cpus=WORKERS, include_dashboard=False, logging_level=logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    task = Generate("{text}", options={"max_tokens": args.tokens, "ignore_eos": True})
    given = {"model": str(args.blob), "task": task, "threads": 1}
    alone, by_ray = [], []
    for _ in range(args.rounds):
        alone.append(batch(args.blob, texts, args.tokens))
        by_ray.append(pipeline(Timed, given, texts, args.batch_size))
        print(json.dumps({"batch": alone[-1], "ray": by_ray[-1]}), flush=True)
    tokens = by_ray[0]["tokens"]
    middle = {name: median(each[name] for each in by_ray) for name in by_ray[0]}
    one, at_work, first = median(alone), middle["at_work"], middle["until_first"]
    print(f"smolrun batch: {tokens / one:.0f} tokens/s")
    print(f"Ray: {tokens / middle['whole']:.0f} tokens/s with its start, then {tokens / at_work:.0f}")
    print(f"Ray keeps {one / middle['whole']:.1%} with its start, {one / at_work:.1%} from the first batch on")
    rest = middle["whole"] - first - middle["busy"]
    print(f"{middle['whole']:.1f} s: {first:.1f} until the first batch, {middle['busy']:.1f} at work, {rest:.2f} else")
    if args.gguf is not None:
        peer = pipeline(LlamaCpp, {"gguf": str(args.gguf), "tokens": args.tokens}, texts[: args.peer_rows], 8)
        print(json.dumps({"llama-cpp-python": peer}))
        print(f"llama-cpp-python: {peer['tokens'] / peer['at_work']:.0f} tokens/s")


if __name__ == "__main__":
    main()
