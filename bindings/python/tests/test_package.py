"""The package itself: its programs, how soon it is there, and how much memory it takes."""

import gc
import os
import pydoc
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import smolrun
from conftest import STRESS, TALES

PROGRAMS = Path(sysconfig.get_path("scripts"))


def test_both_programs_come_along(tmp_path: Path) -> None:
    def run(*args: str | Path) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(args, capture_output=True, text=True)

    for name in ("smolrun", "smolconv"):
        assert run(PROGRAMS / name, "--version").stdout == f"{name} {smolrun.__version__}\n"
        assert run(PROGRAMS / name, "--no-such-option").returncode == 2
    blob = tmp_path / "tales.bin"
    assert run(PROGRAMS / "smolconv", TALES, "-o", blob, "--quiet").returncode == 0
    tale = run(PROGRAMS / "smolrun", blob, "Once upon a time", "-n", "20")
    expected = smolrun.load(blob).generate("Once upon a time", max_tokens=20).text
    assert tale.returncode == 0 and tale.stdout == expected + "\n"
    failed = run(PROGRAMS / "smolrun", tmp_path / "nothing.bin", "x")
    assert failed.returncode == 1 and failed.stderr.startswith("smolrun: error: ")


def test_a_program_ends_on_ctrl_c(tales_path: Path) -> None:
    running = subprocess.Popen(
        [PROGRAMS / "smolrun", tales_path, "Once", "-n", "1000000000", "--ignore-eos", "--overflow", "slide"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert running.stdout and running.stdout.read(20)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=20)
    assert running.returncode == 130


def test_an_import_is_cheap() -> None:
    """Nothing large comes with it. (Its time is measured where the machine is quiet.)"""
    code = "import sys; before = set(sys.modules); import smolrun; print(*sorted(set(sys.modules) - before))"
    output = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env=os.environ | {
        "PYTHONPATH": str(Path(smolrun.__file__).parents[1])
    })  # fmt: skip
    loaded = set(output.stdout.split())
    assert "smolrun._smolrun" in loaded, output.stderr
    assert not loaded & {"numpy", "asyncio", "typing", "threading", "json", "inspect"}


def test_help_reads_well() -> None:
    text = pydoc.plain(pydoc.render_doc(smolrun))
    assert "Once upon a time" in text and "max_tokens: most tokens" in text
    assert "generate(self, /, prompt, *, stream=False, **options)" in text
    for name in smolrun.__all__:
        assert getattr(smolrun, name).__doc__


def test_memory_stays_flat(tales: smolrun.Model) -> None:
    def resident() -> int:
        gc.collect()
        fields = Path("/proc/self/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGESIZE")

    def calls(count: int) -> None:
        for i in range(count):
            tales.generate("Once upon a time", max_tokens=3, logprobs=2)
            next(tales.generate("Once upon a time", stream=True))
            if i % 10 == 0:
                with tales.session() as session, session.fork() as fork:
                    fork.logits("Once upon a time", all=True)
                list(tales.batch(["Once"] * 3, max_tokens=2))

    calls(100)
    before = resident()
    calls(200 * STRESS)
    assert resident() - before < 2 << 20


def test_a_tale_is_there_soon(tales_path: Path) -> None:
    """Five lines, from import to the first text. The limit is for a machine that does something else, too."""
    code = f"""
import time
import smolrun
start = time.perf_counter()
model = smolrun.load({str(tales_path)!r})
next(model.generate("Once upon a time", stream=True))
print(time.perf_counter() - start)
"""
    seconds = []
    for _ in range(3):
        output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        seconds.append(float(output.stdout))
        time.sleep(0.1)
    assert min(seconds) < 0.1, seconds
