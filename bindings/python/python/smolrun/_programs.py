"""The programs smolrun and smolconv, which come with the package."""

import os
import signal
import sys
from collections.abc import Callable, Sequence

from smolrun._smolrun import run_smolconv, run_smolrun


def smolrun() -> None:
    """Run the program smolrun with this process's arguments."""
    _run(run_smolrun)


def smolconv() -> None:
    """Run the program smolconv with this process's arguments."""
    _run(run_smolconv)


def _run(program: Callable[[Sequence[str]], int]) -> None:
    # The programs handle signals themselves: Python would only note them.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = program(sys.argv)
    # There is nothing of Python's to end in an orderly way.
    os._exit(code)
