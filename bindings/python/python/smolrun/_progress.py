"""One line on standard error that says how far it is."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

_BETWEEN_LINES = 10.0
"""Seconds, where standard error is no terminal."""


class Line:
    """The line. On a terminal it is written over itself; elsewhere, if anybody wants it, another follows at times."""

    def __init__(self, wanted: bool | None = None) -> None:
        """It is there if wanted; where nobody says so, on terminals."""
        self._is_terminal = sys.stderr.isatty()
        self.is_on = self._is_terminal if wanted is None else wanted
        self._shown = 0.0
        self._text = ""

    def show(self, text: str) -> None:
        """Say something new, unless it is too soon."""
        is_new, self._text = text != self._text, text
        if is_new and self.is_on and (self._is_terminal or time.monotonic() - self._shown > _BETWEEN_LINES):
            self._write()

    def end(self) -> None:
        """Say the last thing."""
        if self.is_on and self._text:
            self._write()
            if self._is_terminal:
                sys.stderr.write("\n")

    def _write(self) -> None:
        self._shown = time.monotonic()
        form = "\rsmolrun: {}\x1b[K" if self._is_terminal else "smolrun: {}\n"
        sys.stderr.write(form.format(self._text))
        sys.stderr.flush()


def follow(read: Callable[[], str | None], wanted: bool | None) -> None:
    """Show what is read every second, in a thread that ends with the process or when there is nothing to read."""
    line = Line(wanted)

    def look() -> None:
        while (text := read()) is not None:
            line.show(text)
            time.sleep(1)
        line.end()

    if line.is_on:
        threading.Thread(target=look, name="smolrun-progress", daemon=True).start()
