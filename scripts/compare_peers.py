#!/usr/bin/env python3
"""Compare smolrun with llama.cpp, candle and transformers on the same weights, on this machine.

Every round runs each peer once, one after the other, so that all see the same moods of a shared machine; what is
printed are medians and ratios, as Markdown. The peers' programs are in scripts/peers; what they need is built or
converted once, into the working directory. A peer that is not installed is named, with how to get it.
"""

import argparse
import functools
import json
import os
import platform
import random
import re
import subprocess
import sys
import time
from pathlib import Path

from peers import report
from peers.engines import ENGINES, FastSmolrun, LlamaCpp, Smolrun, available
from peers.processes import Failed, Finished, evict, measured, refresh
from peers.report import DEPTH, FEW_TOKENS, TOGETHER

ROOT = Path(__file__).resolve().parent.parent
PROMPT = "Hello"
# A prompt of 511 tokens in SmolLM2's vocabulary; with the token that follows the context holds 512.
LONG_PROMPT = "a" + " a" * 510
PROMPT_TOKENS, GENERATED_TOKENS, CONTEXT = 512, 128, 512
# Starts before the one that counts.
STARTS_TO_WARM_UP = 5

EXAMPLES = """\
examples:
  everything, five rounds (an hour; nothing else should run):
    scripts/compare_peers.py --model models/smollm2-135m-instruct --gguf SmolLM2-135M-Instruct.Q4_1.gguf --llama DIR
  in pieces, then the tables and the plot:
    scripts/compare_peers.py ... --measure speed --threads 2 --samples runs.json
    scripts/compare_peers.py ... --measure start,cold,memory --samples runs.json
    scripts/compare_peers.py --report --samples runs.json --svg docs/benchmarks.svg
  as if the processor had nothing newer than AVX2 (llama.cpp built with -DGGML_NATIVE=OFF in build-avx2):
    scripts/compare_peers.py ... --isa avx2 --llama-build DIR/build-avx2 --samples avx2.json

peers:
  llama.cpp     its source, e.g. vendor/llama.cpp in llama-cpp-python's source distribution, and in it
                cmake -B build -DCMAKE_BUILD_TYPE=Release
                cmake --build build --target llama llama-quantize llama-batched-bench
                (and a Python with the packages gguf and numpy)
  transformers  pip install torch transformers
  candle        cargo
"""


def rounds(found, threads, repetitions):
    """Each engine with each dtype and number of threads, in turn, in another order each round."""
    for repetition in range(repetitions):
        for count in threads:
            cases = [(engine, dtype) for engine in found for dtype in engine.dtypes]
            random.shuffle(cases)
            for engine, dtype in cases:
                print(f"{repetition + 1} of {repetitions}: {engine.name} {dtype}, {count} threads", file=sys.stderr)
                yield engine, dtype, count


def exact(found):
    """smolrun as it is without options."""
    return [engine for engine in found if type(engine) is Smolrun]


def measure_speed(found, args):
    for engine, dtype, threads in rounds(found, args.threads, args.rounds):
        refresh(engine.model(dtype))
        yield sample("speed", engine, dtype, threads, **engine.bench(dtype, threads, PROMPT_TOKENS, GENERATED_TOKENS))


def measure_few(found, args):
    """Prompts of few tokens beside tokens one at a time."""
    for engine, dtype, threads in rounds(exact(found), args.threads, args.rounds):
        for count in FEW_TOKENS:
            said = engine.report(dtype, "-r", 5, "-p", count, "-n", 32, "--threads", threads)
            pp, tg = (said[key]["tokens_per_second"]["median"] for key in ("pp", "tg"))
            yield sample("few", engine, dtype, threads, **{f"pp{count}": pp / tg})


def measure_together(found, args):
    """Many sequences at once: a short prompt each, then a token of each in every pass."""
    both = exact(found) + [engine for engine in found if isinstance(engine, LlamaCpp)]
    for engine, dtype, threads in rounds(both, args.threads[-1:], args.rounds):
        speeds = engine.together(dtype, threads, TOGETHER, 32, 64)
        yield sample("together", engine, dtype, threads, **{f"tg{count}": speed for count, speed in speeds.items()})


def measure_depth(found, args):
    """Tokens after many others, with keys and values kept in each way, beside tokens after none."""
    for engine, dtype, threads in rounds(exact(found), args.threads, args.rounds):
        for kv in ("f32", "f16", "q8"):
            run = functools.partial(engine.report, dtype, "-r", 1, "-p", 0, "-n", 48, "--threads", threads, "--kv", kv)
            near, far = run(), run("-d", DEPTH)
            ms = [1e3 / said["tg"]["tokens_per_second"]["median"] for said in (near, far)]
            yield sample("depth", engine, dtype, threads, kv=kv, near=ms[0], far=ms[1], read_gb_s=far["read_gb_s"])


def measure_start(found, args):
    for engine, dtype, threads in rounds(found, args.threads, args.starts):
        if isinstance(engine, FastSmolrun):
            continue
        command, env = engine.first(dtype, threads, PROMPT)
        refresh(engine.model(dtype))
        for _ in range(STARTS_TO_WARM_UP):
            Finished(command, env)
        done = measured(command, env)
        token = done.out.removesuffix("\n")
        yield sample("start", engine, dtype, threads, ms=done.ms, rss_mb=done.rss_mb, token=token, phases=done.phases())


def measure_cold(found, args):
    """Starts with the model's file out of the page cache, each beside a plain read of it."""
    local = exact(found) + [engine for engine in found if isinstance(engine, LlamaCpp)]
    for engine, dtype, threads in rounds(local, args.threads[-1:], args.rounds):
        file = engine.model(dtype)
        cold = functools.partial(evict, file)
        cat_ms = measured(["sh", "-c", 'cat "$0" >/dev/null', file], prepare=cold).ms
        ms = measured(*engine.first(dtype, threads, PROMPT), prepare=cold).ms
        yield sample("cold", engine, dtype, threads, ms=ms, cat_ms=cat_ms)


def measure_memory(found, args):
    for engine, dtype, threads in rounds(found, args.threads[-1:], 1):
        context = {"context": CONTEXT} if isinstance(engine, LlamaCpp) else {}
        done = Finished(*engine.first(dtype, threads, LONG_PROMPT, **context))
        yield sample("memory", engine, dtype, threads, rss_mb=done.rss_mb)
    for engine in exact(found):
        for dtype in engine.dtypes:
            yield sample("shared", engine, dtype, 1, processes=4, **shared_memory(engine, dtype, 4))


def shared_memory(engine, dtype, processes):
    """Resident and proportional memory of one of several processes that generate from one blob, in MB."""
    command, env = engine.first(dtype, 1, PROMPT)
    command = [str(part) for part in command]
    command[command.index("-n") + 1] = "4096"
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    running = [subprocess.Popen(command, env={**os.environ, **env}, **quiet) for _ in range(processes)]
    try:
        time.sleep(3)
        rollup = Path(f"/proc/{running[0].pid}/smaps_rollup").read_text()
    finally:
        for process in running:
            process.kill()
            process.wait()
    kb = {key: int(value) for key, value in re.findall(r"^(\w+): +(\d+) kB", rollup, re.MULTILINE)}
    return {"rss_mb": kb["Rss"] * 1.024e-3, "pss_mb": kb["Pss"] * 1.024e-3}


def sample(measure, engine, dtype, threads, **values):
    return {"measure": measure, "engine": engine.name, "dtype": dtype, "threads": threads, **values}


MEASURES = {
    "speed": measure_speed,
    "few": measure_few,
    "together": measure_together,
    "depth": measure_depth,
    "start": measure_start,
    "cold": measure_cold,
    "memory": measure_memory,
}


def machine(args):
    """The processor, in words."""
    lscpu = subprocess.run(
        ["lscpu"], capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}
    ).stdout
    facts = dict(re.split(r":\s+", line, maxsplit=1) for line in lscpu.splitlines() if re.search(r":\s+\S", line))
    keys = ("Model name", "CPU(s)", "L1d cache", "L2 cache", "L3 cache")
    known = {key: facts[key].strip() for key in keys if key in facts}
    flags = [
        flag
        for flag in ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "asimd")
        if flag in facts.get("Flags", "").split()
    ]
    held = {"held to": args.isa} if args.isa else {}
    return known | {"Instruction sets": " ".join(flags)} | held | {"Kernel": platform.release().split("-")[0]}


def measure(args):
    """Runs what is asked for, and saves after each run."""
    found, left_out = available(args)
    record = load(args.samples) or {"machine": machine(args), "versions": {}, "left_out": {}, "samples": []}
    if record["machine"] != machine(args):
        raise Failed(f"{args.samples} was measured on another machine; choose another file")
    record["versions"] |= {engine.name: engine.version for engine in found}
    record["left_out"] = {**record["left_out"], **left_out}
    for name in record["versions"]:
        record["left_out"].pop(name, None)
    for name in args.measure:
        for values in MEASURES[name](found, args):
            record["samples"].append(values)
            save(args.samples, record)
    return record


def load(path):
    return json.loads(path.read_text()) if path and path.exists() else None


def save(path, record):
    if path:
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(record, indent=1) + "\n")
        part.replace(path)


# --- the command line ---


def listed(choices):
    def parse(text):
        names = text.split(",")
        for name in names:
            if name not in choices:
                raise argparse.ArgumentTypeError(f"{name}: expected some of {','.join(choices)}")
        return names

    return parse


def counts(text):
    return [int(count) for count in text.split(",")]


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def add(option, metavar, text, **settings):
        parser.add_argument(option, metavar=metavar, help=text, **settings)

    def some(option, names, default=None):
        add(option, "NAME,...", f"some of {','.join(names)}", type=listed(names), default=default or list(names))

    add("--model", "DIR", "the Hugging Face directory of a Llama model, one model.safetensors", type=Path)
    add("--gguf", "FILE", "any GGUF file of the same model: its metadata, for llama.cpp", type=Path)
    release = ROOT / "target/release"
    add("--smolrun", "PATH", "the program to measure", type=Path, default=release / "smolrun")
    add("--smolconv", "PATH", "makes the blobs", type=Path, default=release / "smolconv")
    add("--llama", "DIR", "llama.cpp's source, with cmake's build folder in it", type=Path)
    add("--llama-build", "DIR", "another build folder", type=Path)
    add("--isa", "NAME", "the instruction set that smolrun is held to (SMOLRUN_ISA)")
    work = ROOT / "target/peers"
    add("--work", "DIR", "for blobs, GGUF files, programs (3 GB; reused)", type=Path, default=work)
    for peer in ("gguf", "transformers"):
        add(f"--{peer}-python", "PATH", f"the Python that has what {peer} needs", default=sys.executable)
    some("--peers", ENGINES)
    some("--measure", MEASURES)
    some("--dtypes", Smolrun.dtypes)
    add("--threads", "N,...", "numbers of threads (1,2)", type=counts, default=[1, 2])
    add("--rounds", "N", "rounds of speeds and of cold starts (5)", type=int, default=5)
    add("--starts", "N", "rounds of warm starts (15)", type=int, default=15)
    add("--samples", "FILE", "keep every run in this JSON file, adding to those in it", type=Path)
    parser.add_argument("--report", action="store_true", help="measure nothing, report what is in --samples")
    parser.add_argument("--json", action="store_true", help="print all runs as JSON instead of tables")
    add("--svg", "FILE", "draw a plot too", type=Path)
    args = parser.parse_args()
    if args.report and not (args.samples and args.samples.exists()):
        parser.error("--report needs --samples FILE")
    if not args.report and not args.model:
        parser.error("--model DIR is needed")
    if "smolrun" not in args.peers:
        parser.error("--peers must include smolrun: the others are compared with it")
    return args


def main():
    args = parse_args()
    if not args.report:
        args.work.mkdir(parents=True, exist_ok=True)
    try:
        record = load(args.samples) if args.report else measure(args)
    except (Failed, OSError) as error:
        sys.exit(f"compare_peers.py: {error}")
    print(json.dumps(record, indent=1) if args.json else report.markdown(record))
    if args.svg:
        args.svg.write_text(report.svg(record))


if __name__ == "__main__":
    main()
