"""Processes that had the machine to themselves, and files in or out of the page cache."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


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
    silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    result = subprocess.run(command, **silent, check=False, **options)
    if result.returncode != 0:
        raise Failed(f"{' '.join(command)}: exit code {result.returncode}\n{result.stderr.strip()[-2000:]}")


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
