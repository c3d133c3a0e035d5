#!/usr/bin/env python3
"""The package beside llama-cpp-python, by the calls that both have: first token, decode, prompts, memory, installation.

    python -m venv peers && peers/bin/pip install dist/smolrun-*.whl llama_cpp_python-0.3.36.tar.gz
    peers/bin/python scripts/compare_python.py smol-q4.bin model-Q4_0.gguf model-Q4_K_M.gguf

A file that ends in .gguf is llama-cpp-python's, any other is smolrun's. In each round every file has its turn, in
processes of its own; one that was not alone on the machine is repeated. Figures are medians, with the least and the
largest in parentheses. --install times pip with a wheel or a source distribution, in an empty environment, and measures
nothing else.

Built by gcc 12 on a processor with AMX, llama-cpp-python 0.3.36 crashes in its first quantized product. Then
LLAMA_CPP_LIB_PATH may name the folder of libraries that clang made of the same sources, as in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

from peers.processes import Finished, measured

OPEN = """
import os, sys
if sys.argv[1].endswith(".gguf"):
    from llama_cpp import Llama
else:
    from smolrun.llama_cpp import Llama
def opened(n_ctx):
    threads = int(sys.argv[2])
    return Llama(model_path=sys.argv[1], n_ctx=n_ctx, n_threads=threads, n_threads_batch=threads, verbose=False)
"""
FIRST = """
for piece in opened(64).create_completion("Once upon a time", max_tokens=8, temperature=0, stream=True):
    if piece["choices"][0]["text"]:
        print(piece["choices"][0]["text"], flush=True)
        os._exit(0)
sys.exit("no text")
"""
# No two prompts begin alike, since llama-cpp-python computes nothing twice. The first of each kind warms up.
SPEED = """
import json, time
llm = opened(1024)
def timed(seed, length, tokens):
    prompt = [1000 + (seed * 7919 + i * 104729) % 40000 for i in range(length)]
    start = time.perf_counter()
    told = llm.create_completion(prompt, max_tokens=tokens, temperature=0)
    return time.perf_counter() - start, told["usage"]["completion_tokens"]
found = {}
for seed in range(0, 20, 10):
    prompt, _ = timed(seed, 512, 1)
    short, _ = timed(seed + 1, 16, 1)
    long, tokens = timed(seed + 2, 16, 129)
    found = {"prompt": 512 / prompt, "decode": (tokens - 1) / (long - short)}
print(json.dumps(found))
"""


def run(code: str, file: Path, threads: int) -> Finished:
    """A process that runs `code` with `file`, and has the machine to itself."""
    return measured([sys.executable, "-c", OPEN + code, file, threads])


def figures(file: Path, threads: int) -> dict[str, float]:
    """Milliseconds from the start of Python until a text is there; tokens per second; the most memory in MB."""
    speed = run(SPEED, file, threads)
    return {"first": run(FIRST, file, threads).ms, **json.loads(speed.out), "memory": speed.rss_mb}


def shown(numbers: list[float]) -> str:
    """A median and its range."""
    return f"{median(numbers):.1f} ({min(numbers):.1f} to {max(numbers):.1f})"


def install(package: str) -> None:
    """How long pip takes with `package` in an empty environment, and how long its processes computed."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        start, before = time.perf_counter(), os.times()
        pip = [f"{folder}/bin/pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir", package]
        subprocess.run(pip, check=True)
        took, after = time.perf_counter() - start, os.times()
    computed = after.children_user + after.children_system - before.children_user - before.children_system
    print(f"{Path(package).name}: {took:.1f} s, {computed:.1f} s of processors")


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="blobs and GGUF files; with --install, packages")
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples", type=Path, help="where what is measured is kept, and what was kept before counts")
    asked = parser.parse_args()
    if asked.install:
        for package in asked.files:
            install(package)
        return
    samples: dict[str, list[dict[str, float]]] = {file: [] for file in asked.files}
    if asked.samples and asked.samples.exists():
        samples |= json.loads(asked.samples.read_text())
    for _ in range(asked.rounds):
        for file in asked.files:
            samples[file].append(figures(Path(file), asked.threads))
            if asked.samples:
                asked.samples.write_text(json.dumps(samples))
    peers = ", ".join(f"{name} {version(name)}" for name in ("smolrun", "llama_cpp_python"))
    print(f"CPython {platform.python_version()}, {peers}, {asked.threads} threads\n")
    print("| | first token, ms | decode, tok/s | prompt of 512, tok/s | most memory, MB |\n|---|---:|---:|---:|---:|")
    for file, found in samples.items():
        names = ("first", "decode", "prompt", "memory")
        columns = (shown([taken[name] for taken in found]) for name in names)
        print(f"| {Path(file).name} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
