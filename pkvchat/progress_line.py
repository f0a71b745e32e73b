"""How far a long task is, on a stream beside the program's output."""

from __future__ import annotations

from typing import TextIO

from .clean import one_line


class ProgressLine:
    """On a terminal one line, written over as it goes; elsewhere a line for each stage."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """``done`` of ``total``, in the stage's own unit; total 0 is unknown."""
        if self._live:
            share = f" {100 * done // total}%" if total else ""
            self._stream.write(f"\r\x1b[K{one_line(stage)}{share}")
        elif stage != self._stage:
            self._stream.write(f"{one_line(stage)} ...\n")
        self._stage = stage
        self._stream.flush()

    def note(self, text: str) -> None:
        """A line that stays."""
        self.close()
        self._stream.write(f"note: {one_line(text)}\n")
        self._stream.flush()

    def close(self) -> None:
        """Take the live line away, so that what follows starts on a clean one."""
        if self._live and self._stage:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._stage = ""
