"""The engines that are compared: how each gets its file of the same weights, and how it is run."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

from .processes import Failed, Finished, make, measured, run

PEERS = Path(__file__).resolve().parent


class Missing(Exception):
    """Why an engine is left out, and how to get it."""


class Smolrun:
    """This project's program."""

    name, options = "smolrun", ()
    dtypes = ("f32", "bf16", "q8", "q4", "q3")

    def __init__(self, args):
        self.program, self.work = args.smolrun, args.work
        self.env = {"SMOLRUN_ISA": args.isa} if args.isa else {}
        if not args.smolrun.exists() or not args.smolconv.exists():
            raise Failed(f"{args.smolrun}, {args.smolconv}: not there; cargo build --release --bins")
        self.dtypes = tuple(dtype for dtype in self.dtypes if dtype in args.dtypes)
        for dtype in self.dtypes:
            blob = self.model(dtype)
            make(blob, [args.smolconv], [args.smolconv, args.model, "--dtype", dtype, "--force", "-o", blob])
        self.version = Finished([self.program, "--version"]).out.strip()

    def model(self, dtype):
        return self.work / f"smol-{dtype}.bin"

    def report(self, dtype, *options):
        """What `smolrun bench --json` says."""
        command = [self.program, "bench", self.model(dtype), "--json", *self.options, *options]
        return json.loads(measured(command, self.env).out)

    def bench(self, dtype, threads, prompt, tokens):
        report = self.report(dtype, "-r", 1, "-p", prompt, "-n", tokens, "--threads", threads)
        machine = {key: report[key] for key in ("isa", "read_gb_s", "fma_gflop_s")}
        return machine | {
            "pp": report["pp"]["tokens_per_second"]["median"],
            "tg": report["tg"]["tokens_per_second"]["median"],
            "fraction_of_fma": report["pp"]["fraction_of_fma"],
            "fraction_of_bandwidth": report["tg"]["fraction_of_bandwidth"],
        }

    def together(self, dtype, threads, counts, prompt, tokens):
        """Tokens per second that so many sequences generate together."""
        shape = ["--sequences", ",".join(map(str, counts)), "-p", prompt, "-n", tokens]
        report = self.report(dtype, "-r", 1, *shape, "--threads", threads)
        return {case["n"]: case["tokens_per_second"]["median"] for case in report["sequences"]}

    def first(self, dtype, threads, prompt):
        command = [self.program, self.model(dtype), prompt, "-n", 1, "--threads", threads]
        return [*command, *self.options], self.env


class FastSmolrun(Smolrun):
    """The same, with prompts that are not exact."""

    name, options = "smolrun --fast", ("--fast",)
    dtypes = ("bf16", "q8", "q4", "q3")


class LlamaCpp:
    """llama.cpp, driven by a small C program."""

    name = "llama.cpp"
    dtypes = ("f32", "bf16", "f16", "q8_0", "q4_0", "q4_k_m")
    # What smolrun's files are compared with.
    likes = {"q8": ("q8_0",), "q4": ("q4_0", "q4_k_m"), "bf16": ("bf16", "f16")}

    def __init__(self, args):
        if not args.llama:
            raise Missing("needs its source, with cmake's build folder in it: --llama DIR")
        if not args.gguf:
            raise Missing("needs a GGUF file of the model, for its metadata: --gguf FILE.gguf")
        build = args.llama_build or args.llama / "build"
        libraries = build.resolve() / "bin"
        if not (libraries / "libllama.so").exists() or not shutil.which("cc"):
            raise Missing(f"needs cc, and libllama.so in {libraries}")
        python_says(args.gguf_python, "import gguf", "gguf", "--gguf-python")
        wanted = {theirs for ours in args.dtypes for theirs in self.likes.get(ours, (ours,))}
        self.dtypes = tuple(dtype for dtype in self.dtypes if dtype in wanted)
        self.work, self.program = args.work, args.work / f"llama_peer-{build.name}"
        self.batched_bench = libraries / "llama-batched-bench"
        self.version = f"llama.cpp of {args.llama.resolve().parents[1].name}, {build.name}"
        include = [f"-I{args.llama / 'include'}", f"-I{args.llama / 'ggml' / 'include'}"]
        link = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", "-lllama", "-lggml", "-lggml-base"]
        source = PEERS / "llama_peer.c"
        make(self.program, [source, libraries], ["cc", "-O2", *include, source, "-o", self.program, *link])
        convert = [args.gguf_python, PEERS / "safetensors_to_gguf.py", args.model, args.gguf]
        for dtype in self.dtypes:
            gguf = self.model(dtype)
            if dtype.startswith("q"):
                quantize = [args.llama / "build" / "bin" / "llama-quantize", self.model("f32"), gguf, dtype.upper()]
                make(self.model("f32"), convert[1:2], [*convert, "F32", self.model("f32")])
                make(gguf, [self.model("f32")], quantize)
            else:
                make(gguf, convert[1:2], [*convert, dtype.upper(), gguf])

    def model(self, dtype):
        return self.work / f"model-{dtype.upper()}.gguf"

    def bench(self, dtype, threads, prompt, tokens):
        return json.loads(measured([self.program, "bench", self.model(dtype), threads, prompt, tokens]).out)

    def together(self, dtype, threads, counts, prompt, tokens):
        if not self.batched_bench.exists():
            build = f"cmake --build {self.batched_bench.parents[1]} --target llama-batched-bench"
            raise Failed(f"{self.batched_bench}: not there; {build}")
        shape = ["-npl", ",".join(map(str, counts)), "-npp", prompt, "-ntg", tokens]
        shape += ["-c", max(counts) * (prompt + tokens)]
        command = [self.batched_bench, "-m", self.model(dtype), *shape, "-t", threads, "--output-format", "jsonl"]
        lines = [json.loads(line) for line in measured(command).out.splitlines() if line.startswith("{")]
        return {line["pl"]: line["speed_tg"] for line in lines}

    def first(self, dtype, threads, prompt, context=64):
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


ENGINES = {engine.name: engine for engine in (Smolrun, FastSmolrun, LlamaCpp, Candle, Transformers)}


def python_says(python, script, packages, option):
    """What a line of Python prints in a peer's environment."""
    try:
        return Finished([python, "-c", script]).out.strip()
    except (Failed, OSError):
        raise Missing(f"{packages} not in this Python: pip install {packages}, or {option} PATH") from None


def available(args):
    """Those that can run, smolrun first, and of the others why not."""
    found, left_out = [], {}
    for name in args.peers:
        try:
            found.append(ENGINES[name](args))
        except Missing as why:
            left_out[name] = str(why)
            print(f"{name} left out: {why}", file=sys.stderr)
    return found, left_out
