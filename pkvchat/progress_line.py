"""How far a long task is, on a stream beside the program's output."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TextIO

from .clean import one_line

_COLUMNS = 80  # of a terminal that doesn't say


class ProgressLine:
    """On a terminal one line, written over as it goes; elsewhere a line for each stage."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._line = ""  # written last

    def __call__(self, stage: str, done: int, total: int) -> None:
        """``done`` of ``total``, in the stage's own unit; total 0 is unknown."""
        line = one_line(stage)
        if self._live:
            share = f" {100 * done // total}%" if total else ""
            line = line[: self._columns() - 1 - len(share)] + share  # one that wraps would stay
        if line != self._line:
            self._line = line
            self._stream.write(f"\r\x1b[K{line}" if self._live else f"{line} ...\n")
            self._stream.flush()

    def note(self, text: str) -> None:
        """A line that stays."""
        self.close()
        self._stream.write(f"note: {one_line(text)}\n")
        self._stream.flush()

    def close(self) -> None:
        """Take the live line away, so that what follows starts on a clean one."""
        if self._live and self._line:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._line = ""

    def _columns(self) -> int:
        with suppress(OSError):  # it only says that it is a terminal
            return os.get_terminal_size(self._stream.fileno()).columns or _COLUMNS
        return _COLUMNS
