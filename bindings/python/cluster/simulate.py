#!/usr/bin/env python3
"""A job on 1 to 1,000 nodes: Ray's real scheduler with workers that only sleep, beside a formula.

    bindings/python/cluster/simulate.py

A shard takes SHARD seconds here; measured ones take minutes, so what Ray itself costs weighs that much more. Some
nodes are slow, each shard takes a little more or less, and some tries fail halfway and are done again. Up to PROCESSES
nodes are Ray's tasks, each in a process of its own, as smolrun.ray.over runs them; more are calls of asyncio actors,
each of which stands for many nodes. All processes are on this machine, and they are one node for Ray.

The formula, for M shards of t seconds on nodes of speeds v: the work is M * t * (1 + p / 2) where a share p of tries
fails halfway, the cluster does sum(v) of it each second, and in the end the last shard, which may have a slow node, is
waited for: on average half of t / min(v). docs/cluster.md has what came out.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

SHARD = 2.0
"""Seconds of a shard on a node of speed 1."""
SLOW, SLOW_SPEED = 0.05, 0.5
"""The share of nodes that are slow, and their speed."""
SPREAD = 0.1
"""The standard deviation of a shard's time, as a share of it."""
FAILING = 0.01
"""The share of tries that fail, halfway."""
PROCESSES = 100
SHARDS_PER_NODE = 12
NODES_PER_ACTOR = 100


class Nodes:
    """Many nodes in one process: calls sleep side by side."""

    async def shard(self, seconds: float, fails: bool) -> bool:
        await asyncio.sleep(seconds / 2 if fails else seconds)
        return not fails


def task(seconds: float, fails: bool) -> bool:
    """A shard in a process of its own."""
    time.sleep(seconds / 2 if fails else seconds)
    return not fails


def who(seconds: float) -> int:
    """The process that does it."""
    time.sleep(seconds)
    return os.getpid()


def processes(count: int) -> set[int]:
    """So many of Ray's, which wait for tasks."""
    call: Any = ray.remote(num_cpus=1)(who)
    seconds = 2.0
    found: set[int] = set()
    while len(found) < count:  # one that has begun too soon takes two tasks
        seconds *= 2
        found = set(ray.get([call.remote(seconds) for _ in range(count)]))
    return found


def memory(process: int) -> int:
    """Bytes of a process, of what it shares its part."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def speeds(nodes: int) -> list[float]:
    slow = round(nodes * SLOW)
    return [SLOW_SPEED] * slow + [1.0] * (nodes - slow)


def formula(nodes: int, shards: int, scheduling: float) -> float:
    """Seconds of a job; `scheduling` is what Ray needs for a shard, one after the other."""
    v = speeds(nodes)
    work = shards * SHARD * (1 + FAILING / 2)
    return max(work / sum(v) + SHARD / min(v) / 2, shards * scheduling)


def simulate(nodes: int, shards: int, calls: Sequence[Any]) -> float:
    """Seconds of a job: a shard for whichever node is free, until none is left. Nodes share calls."""
    draw = random.Random(nodes)
    v, left, start = speeds(nodes), shards, time.perf_counter()
    running: dict[Any, int] = {}

    def begin(node: int) -> None:
        seconds = max(0.1, draw.gauss(1, SPREAD)) * SHARD / v[node]
        call = calls[node // NODES_PER_ACTOR if len(calls) > 1 else 0]
        running[call.remote(seconds, draw.random() < FAILING)] = node

    for node in range(min(nodes, left)):
        begin(node)
    while running:
        done, _ = ray.wait(list(running), num_returns=1)
        done, _ = ray.wait(list(running), num_returns=len(running), timeout=0) if len(running) > 50 else (done, _)
        for each in done:
            node = running.pop(each)
            left -= ray.get(each)
            if left > len(running):
                begin(node)
    return time.perf_counter() - start


def many_nodes() -> Any:
    """An actor that stands for them."""
    remote: Any = ray.remote
    return remote(num_cpus=0, max_concurrency=NODES_PER_ACTOR)(Nodes).remote()


def scheduling() -> float:
    """Seconds that Ray needs for a call that does nothing, one after the other."""
    actor = many_nodes()
    ray.get(actor.shard.remote(0, False))
    start, count = time.perf_counter(), 2000
    ray.get([actor.shard.remote(0, False) for _ in range(count)])
    return (time.perf_counter() - start) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1, 4, 16, 32, 64, 100, 300, 1000])
    args = parser.parse_args()
    ray.init("local", num_cpus=PROCESSES, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    call = scheduling()
    print(f"Ray: {1 / call:.0f} calls/s")
    print("| nodes | in | shards | simulated, s | formula, s | difference | of perfect |")
    print("|---|---|---|---|---|---|---|")
    shard: Any = ray.remote(num_cpus=1, max_retries=0)(task)
    start, most = time.perf_counter(), max((nodes for nodes in args.nodes if nodes <= PROCESSES), default=1)
    started = processes(most)
    took, gigabytes = time.perf_counter() - start, sum(map(memory, started)) / 1e9
    print(f"{most} processes: after {took:.0f} s, {gigabytes:.1f} GB")
    actors = [many_nodes() for _ in range(-(-max(args.nodes) // NODES_PER_ACTOR))]
    ray.get([each.shard.remote(0, False) for each in actors])
    for nodes in args.nodes:
        shards, is_small = nodes * SHARDS_PER_NODE, nodes <= PROCESSES
        calls = [shard] if is_small else [each.shard for each in actors]
        found, told = simulate(nodes, shards, calls), formula(nodes, shards, call)
        perfect, where = shards * SHARD / nodes, "processes" if is_small else "actors"
        numbers = f"{found:.1f} | {told:.1f} | {found / told - 1:+.1%} | {perfect / found:.0%}"
        print(f"| {nodes:,} | {where} | {shards:,} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
