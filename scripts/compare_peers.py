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
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "scripts" / "peers"
PROMPT = "Hello"
# A prompt of 511 tokens in SmolLM2's vocabulary; with the token that follows the context holds 512.
LONG_PROMPT = "a" + " a" * 510
PROMPT_TOKENS, GENERATED_TOKENS, CONTEXT = 512, 128, 512
DTYPES = ("f32", "bf16", "f16")
# Starts before the one that counts.
STARTS_TO_WARM_UP = 5

EXAMPLES = """\
examples:
  everything, five rounds (half an hour; nothing else should run):
    scripts/compare_peers.py --model models/smollm2-135m-instruct --gguf SmolLM2-135M-Instruct.Q4_1.gguf
  in pieces, then the tables and the plot:
    scripts/compare_peers.py ... --measure speed --threads 2 --samples runs.json
    scripts/compare_peers.py ... --measure start,cold,memory --samples runs.json
    scripts/compare_peers.py --report --samples runs.json --svg docs/benchmarks.svg

peers, each in a Python environment of its own or in one:
  llama.cpp     pip install llama-cpp-python (built here, for this processor); pip install gguf; cc
  transformers  pip install torch transformers
  candle        cargo
"""


# --- running ---


class Failed(Exception):
    """A command did not do what it should."""


class Finished:
    """A finished process: its output, its wall-clock time in ms, its peak resident memory in MB, and whether other
    processes, or other guests of this machine's host, took much of the processor meanwhile."""

    # Of each second of each processor, and seconds at all: the clock ticks in hundredths.
    TOLERATED_SHARE, TOLERATED = 0.04, 0.03

    def __init__(self, command, env=None):
        command, env = [str(part) for part in command], {**os.environ, **(env or {})}
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            streams = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1), (os.POSIX_SPAWN_DUP2, err.fileno(), 2)]
            busy, start = busy_seconds(), time.perf_counter()
            pid = os.posix_spawnp(command[0], command, env, file_actions=streams)
            _, status, usage = os.wait4(pid, 0)
            seconds = time.perf_counter() - start
            self.ms = seconds * 1e3
            others = busy_seconds() - busy - usage.ru_utime - usage.ru_stime
            self.rss_mb = usage.ru_maxrss / 1e3 * 1.024
            self.out, self.err = (self.text(stream) for stream in (out, err))
        if status != 0:
            raise Failed(f"{' '.join(command)[:300]}\n{self.err.strip()[-2000:]}")
        self.is_disturbed = others > self.TOLERATED + self.TOLERATED_SHARE * seconds * os.cpu_count()

    @staticmethod
    def text(stream):
        stream.seek(0)
        return stream.read().decode(errors="replace")

    def phases(self):
        """What a peer's program tells of itself on its last line of standard error: milliseconds since its `main`."""
        last = self.err.strip().rpartition("\n")[2]
        return json.loads(last) if last.startswith("{") else {}


def busy_seconds():
    """Processor time that was used, or taken by the host, since the machine started, by whomever."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def measured(command, env=None, prepare=lambda: None, attempts=30):
    """A finished process that had the machine to itself: run again as long as others use it too."""
    for attempt in range(attempts):
        prepare()
        done = Finished(command, env)
        if not done.is_disturbed:
            return done
        print("other processes keep the processor busy: again", file=sys.stderr)
        time.sleep(min(attempt, 5))
    raise Failed(f"other processes kept the processor busy through {attempts} attempts")


def make(out, sources, command):
    """Runs a command that makes the file `out`, unless it is there and newer than what it is made from."""
    if out.exists() and all(out.stat().st_mtime >= Path(source).stat().st_mtime for source in sources):
        return
    print(f"making {out.name}", file=sys.stderr)
    run(command)


def run(command, **options):
    command = [str(part) for part in command]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False, **options)
    if result.returncode != 0:
        raise Failed(f"{' '.join(command)}: exit code {result.returncode}")


def refresh(path):
    """Fills the page cache with a file anew, in one go: all files are to come the same way. How large the pieces are in
    which it lies there, up to the kernel and its free memory, decides how long it takes to map.
    """
    evict(path)
    buffer = bytearray(1 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def evict(path, attempts=50):
    """Takes a file out of the page cache, and makes sure of it."""
    with open(path, "rb", buffering=0) as file:
        os.fsync(file.fileno())
        for _ in range(attempts):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if not is_cached(file.fileno()):
                return
            time.sleep(0.1)  # the memory of a process that has just ended is still being given back
    raise Failed(f"{path} stays in the page cache: is it mapped by a running program?")


def is_cached(file, samples=64):
    """Whether any of some places of a file lies in the page cache."""
    size = os.fstat(file).st_size
    for offset in range(0, size, max(1, size // samples)):
        try:
            os.preadv(file, [bytearray(1)], offset, os.RWF_NOWAIT)
            return True
        except BlockingIOError:
            continue
    return False


# --- engines ---


class Missing(Exception):
    """Why an engine is left out, and how to get it."""


class Smolrun:
    """This project's program."""

    name = "smolrun"
    dtypes = ("f32", "bf16")

    def __init__(self, args, isa=None):
        self.program, self.env, self.work = args.smolrun, {}, args.work
        if not args.smolrun.exists() or not args.smolconv.exists():
            raise Failed(f"{args.smolrun}, {args.smolconv}: not there; cargo build --release --bins")
        for dtype in self.dtypes:
            blob = self.model(dtype)
            make(blob, [args.smolconv], [args.smolconv, args.model, "--dtype", dtype, "--force", "-o", blob])
        if isa:
            self.name, self.env = f"smolrun ({isa})", {"SMOLRUN_ISA": isa}
        self.version = Finished([self.program, "--version"]).out.strip()

    def model(self, dtype):
        return self.work / f"smol-{dtype}.bin"

    def bench(self, dtype, threads, prompt, tokens):
        command = [self.program, "bench", self.model(dtype), "--json", "-r", 1]
        report = json.loads(measured([*command, "-p", prompt, "-n", tokens, "--threads", threads], self.env).out)
        machine = {key: report[key] for key in ("isa", "read_gb_s", "fma_gflop_s")}
        return machine | {
            "pp": report["pp"]["tokens_per_second"]["median"],
            "tg": report["tg"]["tokens_per_second"]["median"],
            "fraction_of_fma": report["pp"]["fraction_of_fma"],
            "fraction_of_bandwidth": report["tg"]["fraction_of_bandwidth"],
        }

    def first(self, dtype, threads, prompt):
        return [self.program, self.model(dtype), prompt, "-n", 1, "--threads", threads], self.env


class LlamaCpp:
    """llama.cpp as llama-cpp-python ships it, driven by a small C program."""

    name = "llama.cpp"
    dtypes = ("f32", "bf16", "f16")

    def __init__(self, args):
        script = (
            "import importlib.metadata as m, llama_cpp; print(llama_cpp.__path__[0], m.version('llama-cpp-python'))"
        )
        package, version = python_says(args.llama_python, script, "llama-cpp-python", "--llama-python").split()
        python_says(args.gguf_python, "import gguf", "gguf", "--gguf-python")
        if not args.gguf:
            raise Missing("needs a GGUF file of the model, for its metadata: --gguf FILE.gguf")
        include, libraries = Path(package).parent / "include", Path(package) / "lib"
        if not (include / "llama.h").exists() or not shutil.which("cc"):
            build_it = "pip install --force-reinstall --no-binary llama-cpp-python llama-cpp-python"
            raise Missing(f"needs cc, and llama.h beside llama_cpp: {build_it}")
        self.version, self.work = f"llama.cpp of llama-cpp-python {version}", args.work
        self.program = args.work / "llama_peer"
        link = ["-L", libraries, f"-Wl,-rpath,{libraries}", "-lllama", "-lggml", "-lggml-base"]
        source, converter = PEERS / "llama_peer.c", PEERS / "safetensors_to_gguf.py"
        make(self.program, [source, package], ["cc", "-O2", "-I", include, source, "-o", self.program, *link])
        for dtype in self.dtypes:
            gguf = self.model(dtype)
            make(gguf, [converter], [args.gguf_python, converter, args.model, args.gguf, dtype.upper(), gguf])

    def model(self, dtype):
        return self.work / f"model-{dtype.upper()}.gguf"

    def bench(self, dtype, threads, prompt, tokens):
        return json.loads(measured([self.program, "bench", self.model(dtype), threads, prompt, tokens]).out)

    def first(self, dtype, threads, prompt):
        context = 64 if prompt == PROMPT else CONTEXT
        return [self.program, "first", self.model(dtype), threads, context, prompt], {}


class Candle:
    """candle-transformers' Llama, in a program of ours."""

    name = "candle"
    dtypes = ("f32", "bf16")

    def __init__(self, args):
        if not shutil.which("cargo"):
            raise Missing("needs cargo (https://rustup.rs)")
        self.directory, target = args.model, args.work / "candle"
        self.program = target / "release" / "candle-peer"
        native = {**os.environ, "RUSTFLAGS": "-C target-cpu=native"}
        command = ["cargo", "build", "--quiet", "--release", "--locked", "--target-dir", target.resolve()]
        run(command, cwd=PEERS / "candle", env=native)
        lock = (PEERS / "candle" / "Cargo.lock").read_text()
        self.version = "candle-transformers " + re.search(r'"candle-transformers"\nversion = "([^"]+)"', lock)[1]

    def model(self, _dtype):
        return self.directory / "model.safetensors"

    def bench(self, dtype, threads, prompt, tokens):
        command = [self.program, "bench", self.directory, dtype, prompt, tokens]
        return json.loads(measured(command, {"RAYON_NUM_THREADS": str(threads)}).out)

    def first(self, dtype, threads, prompt):
        return [self.program, "first", self.directory, dtype, prompt], {"RAYON_NUM_THREADS": str(threads)}


class Transformers:
    """transformers on PyTorch."""

    name = "transformers"
    dtypes = ("f32", "bf16")

    def __init__(self, args):
        script = "import importlib.metadata as m; print(m.version('transformers'), 'on PyTorch', m.version('torch'))"
        says = python_says(args.transformers_python, script, "torch transformers", "--transformers-python")
        self.version, self.directory = f"transformers {says}", args.model
        self.command = [args.transformers_python, PEERS / "transformers_peer.py"]

    def model(self, _dtype):
        return self.directory / "model.safetensors"

    def bench(self, dtype, threads, prompt, tokens):
        command = [*self.command, "bench", self.directory, dtype, threads, prompt, tokens]
        return json.loads(measured(command, self.env(threads)).out)

    def first(self, dtype, threads, prompt):
        return [*self.command, "first", self.directory, dtype, threads, prompt], self.env(threads)

    @staticmethod
    def env(threads):
        return {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


ENGINES = {engine.name: engine for engine in (Smolrun, LlamaCpp, Candle, Transformers)}


def python_says(python, script, packages, option):
    """What a line of Python prints in a peer's environment."""
    try:
        return Finished([python, "-c", script]).out.strip()
    except (Failed, OSError):
        raise Missing(f"{packages} not in this Python: pip install {packages}, or {option} PATH") from None


def engines(args):
    """Those that can run, and of the others why not."""
    found, left_out = [], {}
    for name, engine in ENGINES.items():
        if name not in args.peers:
            continue
        try:
            found.append(engine(args))
        except Missing as why:
            left_out[name] = str(why)
            print(f"{name} left out: {why}", file=sys.stderr)
    ours = found[0]
    if ours.bench("bf16", 1, 1, 1)["isa"].startswith("avx512"):
        found.append(Smolrun(args, isa="avx2"))
    return found, left_out


# --- measuring ---


def rounds(found, args, repetitions):
    """Each engine with each dtype and number of threads, in turn, in another order each round."""
    for repetition in range(repetitions):
        for threads in args.threads:
            cases = [(engine, dtype) for dtype in args.dtypes for engine in found if dtype in engine.dtypes]
            random.shuffle(cases)
            for engine, dtype in cases:
                print(f"{repetition + 1} of {repetitions}: {engine.name} {dtype}, {threads} threads", file=sys.stderr)
                yield engine, dtype, threads


def measure_speed(found, args):
    for engine, dtype, threads in rounds(found, args, args.rounds):
        refresh(engine.model(dtype))
        yield sample("speed", engine, dtype, threads, **engine.bench(dtype, threads, PROMPT_TOKENS, GENERATED_TOKENS))


def measure_start(found, args):
    for engine, dtype, threads in rounds(found, args, args.starts):
        command, env = engine.first(dtype, threads, PROMPT)
        refresh(engine.model(dtype))
        for _ in range(STARTS_TO_WARM_UP):
            Finished(command, env)
        done = measured(command, env)
        token = done.out.removesuffix("\n")
        yield sample("start", engine, dtype, threads, ms=done.ms, rss_mb=done.rss_mb, token=token, phases=done.phases())


def measure_cold(found, args):
    """Starts with the model's file out of the page cache, each beside a plain read of it."""
    local = [engine for engine in found if isinstance(engine, (Smolrun, LlamaCpp))]
    for engine, dtype, threads in rounds(local, args, args.rounds):
        file = engine.model(dtype)
        cold = functools.partial(evict, file)
        cat_ms = measured(["sh", "-c", 'cat "$0" >/dev/null', file], prepare=cold).ms
        ms = measured(*engine.first(dtype, threads, PROMPT), prepare=cold).ms
        yield sample("cold", engine, dtype, threads, ms=ms, cat_ms=cat_ms)


def measure_memory(found, args):
    for engine, dtype, threads in rounds(found, args, 1):
        done = Finished(*engine.first(dtype, threads, LONG_PROMPT))
        yield sample("memory", engine, dtype, threads, rss_mb=done.rss_mb)
    for dtype in Smolrun.dtypes:
        yield sample("shared", found[0], dtype, 1, processes=4, **shared_memory(found[0], dtype, 4))


def shared_memory(engine, dtype, processes):
    """Resident and proportional memory of one of several processes that generate from one blob, in MB."""
    command, env = engine.first(dtype, 1, PROMPT)
    command = [str(part) for part in command]
    command[command.index("-n") + 1] = "4096"
    running = [
        subprocess.Popen(command, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) for _ in range(processes)
    ]
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


MEASURES = {"speed": measure_speed, "start": measure_start, "cold": measure_cold, "memory": measure_memory}


def machine():
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
    return known | {"Instruction sets": " ".join(flags), "Kernel": platform.release().split("-")[0]}


def measure(args):
    """Runs what is asked for, and saves after each run."""
    found, left_out = engines(args)
    record = load(args.samples) or {"machine": machine(), "versions": {}, "left_out": {}, "samples": []}
    if record["machine"] != machine():
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


# --- the tables ---


class Results:
    """The samples by what was measured: medians."""

    def __init__(self, samples):
        self.groups = defaultdict(list)
        for values in samples:
            self.groups[values["measure"], values["engine"], values["dtype"], values["threads"]].append(values)

    def all(self, measure, engine, dtype, threads, key):
        return [values[key] for values in self.groups.get((measure, engine, dtype, threads), []) if key in values]

    def median(self, *which):
        values = self.all(*which)
        return statistics.median(values) if values else None

    def cases(self, measure):
        """Engines with dtypes that were measured, in order of appearance by dtype."""
        seen = dict.fromkeys((engine, dtype) for kind, engine, dtype, _ in self.groups if kind == measure)
        order = list(dict.fromkeys(engine for engine, _ in seen))
        order.sort(key=lambda name: (list(ENGINES).index(name.split(" ")[0]), name))
        return sorted(seen, key=lambda case: (order.index(case[0]), DTYPES.index(case[1])))

    def threads(self, measure):
        return sorted({threads for kind, _, _, threads in self.groups if kind == measure})


def table(header, rows):
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value, digits=0):
    return "-" if value is None else f"{value:,.{digits}f}"


def ratio(a, b):
    return "-" if a is None or b is None else f"{a / b:.2f}"


def spread(values, digits=0):
    if not values:
        return "-"
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def compared(results, measure, key, is_speed, digits=0):
    """One row per engine and dtype: median and range, and how many times faster smolrun is, with f32 and with bf16."""
    threads = results.threads(measure)
    header = ["", *(f"{n} thread{'s' * (n > 1)}" for n in threads)]
    header += [f"{dtype}, {n} thr." for n in threads for dtype in Smolrun.dtypes]
    rows = []
    for engine, dtype in results.cases(measure):
        row = [f"{engine} {dtype}", *(spread(results.all(measure, engine, dtype, n, key), digits) for n in threads)]
        for n in threads:
            theirs = results.median(measure, engine, dtype, n, key)
            for ours_dtype in Smolrun.dtypes:
                ours = results.median(measure, "smolrun", ours_dtype, n, key)
                row.append("" if engine == "smolrun" else ratio(*((ours, theirs) if is_speed else (theirs, ours))))
        rows.append(row)
    return table(header, rows)


def machine_table(results):
    """smolrun beside what the machine gives, measured in the same runs."""
    header = ["smolrun", "read GB/s", "decode reaches", "FMA GFLOP/s", "prefill reaches"]
    rows = []
    for engine, dtype in results.cases("speed"):
        for n in results.threads("speed"):
            keys = ("read_gb_s", "fraction_of_bandwidth", "fma_gflop_s", "fraction_of_fma")
            read, decode, fma, prefill = (results.median("speed", engine, dtype, n, key) for key in keys)
            if read is not None:
                name = f"{engine.removeprefix('smolrun')} {dtype}, {n} thread{'s' * (n > 1)}".strip()
                rows.append([name, number(read, 1), f"{decode:.0%}", number(fma), f"{prefill:.0%}"])
    return table(header, rows)


def cold_table(results):
    header = [
        "",
        *(f"{n} thread{'s' * (n > 1)}: {what}" for n in results.threads("cold") for what in ("ms", "cat, ms", "ratio")),
    ]
    rows = []
    for engine, dtype in results.cases("cold"):
        row = [f"{engine} {dtype}"]
        for n in results.threads("cold"):
            ms, cat = (results.median("cold", engine, dtype, n, key) for key in ("ms", "cat_ms"))
            row += [number(ms), number(cat), ratio(ms, cat)]
        rows.append(row)
    return table(header, rows)


def memory_table(results):
    threads = max(results.threads("memory"))
    rows = []
    for engine, dtype in results.cases("memory"):
        hello, full = (results.median(kind, engine, dtype, threads, "rss_mb") for kind in ("start", "memory"))
        rows.append([f"{engine} {dtype}", number(hello), number(full)])
    return table([f"peak RSS, MB, {threads} threads", "one token", f"context of {CONTEXT}"], rows)


def shared_table(results):
    rows = []
    for engine, dtype in results.cases("shared"):
        rss, pss = (results.median("shared", engine, dtype, 1, key) for key in ("rss_mb", "pss_mb"))
        rows.append([f"{engine} {dtype}", number(rss), number(pss)])
    return table(["4 processes on one file, each, MB", "RSS", "PSS"], rows)


def phases_table(results):
    """Where the time of a start goes, as each peer tells it: milliseconds since its `main`, medians."""
    rows = []
    for engine, dtype in results.cases("start"):
        threads = max(results.threads("start"))
        phases = [values for values in results.all("start", engine, dtype, threads, "phases") if values]
        if phases:
            at = {key: statistics.median(values[key] for values in phases) for key in phases[0]}
            in_order = sorted(at.items(), key=lambda phase: phase[1])
            rows.append([f"{engine} {dtype}", ", ".join(f"{key} {ms:.0f}" for key, ms in in_order)])
    return table(["done at, ms since `main`", ""], rows) if rows else None


def same_token(results):
    tokens = {
        values["token"].strip() for (kind, *_), group in results.groups.items() if kind == "start" for values in group
    }
    return "All answer with the same token." if len(tokens) == 1 else f"**The answers differ: {sorted(tokens)}.**"


def markdown(record):
    """The whole report."""
    results = Results(record["samples"])
    kinds = {kind for kind, *_ in results.groups}
    parts = [" · ".join(f"{key}: {value}" for key, value in record["machine"].items())]
    parts += [" · ".join(record["versions"].values())]
    parts += [f"Left out: {name}: {why}" for name, why in record["left_out"].items()]
    parts += ["Medians (and ranges). The last columns: how many times faster smolrun is, with f32 and with bf16."]
    if "speed" in kinds:
        parts += ["### Decode, tg128, tokens per second", compared(results, "speed", "tg", True, 1)]
        parts += ["### Prefill, pp512, tokens per second", compared(results, "speed", "pp", True)]
        parts += ["### Beside the machine", machine_table(results)]
    if "start" in kinds:
        parts += [f'### Start, whole process, prompt "{PROMPT}", one token, warm page cache, ms']
        parts += [compared(results, "start", "ms", False), same_token(results), phases_table(results)]
    if "cold" in kinds:
        parts += ["### Start, cold page cache, beside `cat FILE >/dev/null`", cold_table(results)]
    if "memory" in kinds:
        parts += ["### Memory", memory_table(results)]
    if "shared" in kinds:
        parts += [shared_table(results)]
    return "\n\n".join(part for part in parts if part)


# --- the plot ---

COLOURS = {"smolrun": "#c2410c", "llama.cpp": "#475569", "candle": "#7c93ad", "transformers": "#b6c2cf"}
PLOTS = [
    ("speed", "tg", "Decode, tokens per second"),
    ("speed", "pp", "Prefill, tokens per second"),
    ("start", "ms", "Start to first token, ms (less is better)"),
]
BAR, GAP, LABEL, WIDTH = 16, 5, 150, 760


def svg(record):
    """Bars of the three headline figures, with the most threads measured."""
    results, shapes, y = Results(record["samples"]), [], 10
    for kind, key, title in PLOTS:
        if results.threads(kind):
            threads = max(results.threads(kind))
            bars = [
                (engine, dtype, results.median(kind, engine, dtype, threads, key))
                for engine, dtype in results.cases(kind)
            ]
            shapes += chart(f"{title}, {threads} threads", [bar for bar in bars if bar[2]], y)
            y += 40 + len(bars) * (BAR + GAP)
    style = "text{font:12px system-ui,sans-serif;fill:#334155}.title{font-weight:600;font-size:13px}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}">'
    return "\n".join(
        [head, f"<style>{style}</style>", f'<rect width="{WIDTH}" height="{y}" fill="#fff"/>', *shapes, "</svg>", ""]
    )


def chart(title, bars, top):
    """A title and bars from `top` down, cut at 20 times the shortest, so that all can be seen."""
    values = [value for *_, value in bars]
    longest = min(max(values), 20 * min(values))
    yield f'<text class="title" x="10" y="{top + 14}">{title}</text>'
    for row, (engine, dtype, value) in enumerate(bars):
        y, length = top + 24 + row * (BAR + GAP), (WIDTH - LABEL - 90) * min(value, longest) / longest
        yield f'<text x="{LABEL - 8}" y="{y + 12}" text-anchor="end">{engine} {dtype}</text>'
        colour = COLOURS[engine.split(" ")[0]]
        yield f'<rect x="{LABEL}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2" fill="{colour}"/>'
        yield f'<text x="{LABEL + length + 6:.1f}" y="{y + 12}">{value:,.0f}{" (cut)" * (value > longest)}</text>'


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
    add = parser.add_argument
    add("--model", type=Path, metavar="DIR", help="the Hugging Face directory of a Llama model, one model.safetensors")
    add("--gguf", type=Path, metavar="FILE", help="any GGUF file of the same model: its metadata, for llama.cpp")
    add("--smolrun", default=ROOT / "target/release/smolrun", type=Path, metavar="PATH", help="the program to measure")
    add("--smolconv", default=ROOT / "target/release/smolconv", type=Path, metavar="PATH", help="makes the blobs")
    add(
        "--work",
        default=ROOT / "target/peers",
        type=Path,
        metavar="DIR",
        help="for blobs, GGUF files, programs (2 GB; reused)",
    )
    for peer in ("llama", "gguf", "transformers"):
        add(f"--{peer}-python", default=sys.executable, metavar="PATH", help=f"the Python that has what {peer} needs")
    add("--peers", type=listed(ENGINES), default=list(ENGINES), metavar="NAME,...", help=f"some of {','.join(ENGINES)}")
    add(
        "--measure",
        type=listed(MEASURES),
        default=list(MEASURES),
        metavar="WHAT,...",
        help=f"some of {','.join(MEASURES)}",
    )
    add(
        "--dtypes",
        type=listed(DTYPES),
        default=DTYPES,
        metavar="DTYPE,...",
        help="some of f32,bf16,f16, where a peer has it",
    )
    add("--threads", type=counts, default=[1, 2], metavar="N,...", help="numbers of threads (1,2)")
    add("--rounds", type=int, default=5, metavar="N", help="rounds of speeds and of cold starts (5)")
    add("--starts", type=int, default=15, metavar="N", help="rounds of warm starts (15)")
    add("--samples", type=Path, metavar="FILE", help="keep every run in this JSON file, adding to those in it")
    add("--report", action="store_true", help="measure nothing, report what is in --samples")
    add("--json", action="store_true", help="print all runs as JSON instead of tables")
    add("--svg", type=Path, metavar="FILE", help="draw a plot too")
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
    print(json.dumps(record, indent=1) if args.json else markdown(record))
    if args.svg:
        args.svg.write_text(svg(record))


if __name__ == "__main__":
    main()
