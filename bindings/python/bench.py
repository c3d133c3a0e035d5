#!/usr/bin/env python3
"""The package beside the program: how fast each imports or starts, decodes, and runs many requests.

    pip install dist/smolrun-*.whl && cargo build --release --locked --bins
    bindings/python/bench.py target/release/smolrun smol-q4.bin target/tales.bin

The two take turns, in processes of their own; figures are medians, with the least and the largest in parentheses.
Nothing else should run. docs/python.md has what came out.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

PROMPT = "Once upon a time, in a small village at the edge of a great forest, there lived"
START = """
import time
begin = time.perf_counter()
import smolrun
imported = time.perf_counter()
stream = smolrun.load(argument).generate("Once upon a time", max_tokens=100, stream=True)
next(stream)
first = time.perf_counter()
for piece in stream: pass
print([1000 * (at - begin) for at in (imported, first, time.perf_counter())])
"""
DECODE = """
import smolrun
model, asked = smolrun.load(argument), {"max_tokens": 200, "ignore_eos": True}
whole = model.generate(prompt, **asked).timings
stream = model.generate(prompt, stream=True, **asked)
for piece in stream: pass
print([whole.tokens_per_second, stream.completion().timings.tokens_per_second])
"""
BATCH = """
import json, sys, smolrun
requests = [json.loads(line) for line in open(sys.argv[1])]
print([found.ids for found in smolrun.load(argument).batch(requests)])
"""


def output(*command: object) -> str:
    """What a process prints."""
    told = [str(part) for part in command]
    return subprocess.run(told, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout


def python(code: str, blob: Path, *arguments: object) -> list[float]:
    """The list that `code` prints, in a process of its own."""
    known = f"argument, prompt = {str(blob)!r}, {PROMPT!r}\n"
    found: list[float] = json.loads(output(sys.executable, "-c", known + code, *arguments))
    return found


def shown(numbers: list[float], unit: str) -> str:
    """A median and its range."""
    return f"{median(numbers):.1f} {unit} ({min(numbers):.1f} to {max(numbers):.1f})"


def seconds(work: Callable[[], object]) -> tuple[float, object]:
    """How long `work` takes, and what it gives."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def starts(tales: Path, rounds: int) -> None:
    """From the import on."""
    found = [python(START, tales) for _ in range(rounds)]
    for name, times in zip(["imported", "first piece", "100 tokens"], zip(*found)):
        print(f"{name}, {shown(list(times), 'ms')} after the script's first line")


def decode(program: Path, blob: Path, rounds: int) -> None:
    """One text of 200 tokens."""
    asked = [program, blob, PROMPT, "-n", 200, "--ignore-eos", "--json"]
    rows = []
    for _ in range(rounds):
        own = json.loads(output(*asked))["timings"]["tokens_per_second"]
        rows.append((own, *python(DECODE, blob)))
    for name, speeds in zip(["program", "Python", "Python, streamed"], zip(*rows)):
        print(f"decode, {name}: {shown(list(speeds), 'tokens per second')}")


def batch(program: Path, blob: Path, rounds: int) -> None:
    """96 requests of 64 tokens, the start of the process included."""
    with tempfile.TemporaryDirectory() as folder:
        requests, results = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
        lines = ({"prompt": f"{PROMPT} {i}", "max_tokens": 64, "ignore_eos": True} for i in range(96))
        requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
        rows = []
        for _ in range(rounds):
            own, _ = seconds(lambda: output(program, "batch", blob, requests, "-o", results, "--force"))
            ours, ids = seconds(lambda: python(BATCH, blob, requests))
            if ids != [json.loads(line)["ids"] for line in results.read_text().splitlines()]:
                sys.exit("the program and the package give other tokens")
            rows.append((own, ours))
    for name, times in zip(["program", "Python"], zip(*rows)):
        print(f"batch, {name}: {shown(list(times), 's')}")


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, help="the program smolrun")
    parser.add_argument("blob", type=Path, help="a real model, for speed")
    parser.add_argument("tales", type=Path, help="a small one, for the start")
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    print(f"CPython {platform.python_version()}; `smolrun info`:\n{output(asked.program, 'info', asked.blob)}")
    starts(asked.tales, asked.rounds)
    decode(asked.program, asked.blob, asked.rounds)
    batch(asked.program, asked.blob, asked.rounds)


if __name__ == "__main__":
    main()
