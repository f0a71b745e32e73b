"""The terminal: its size, the mouse or not, and input that is not as it should be."""

from __future__ import annotations

import codecs
import os
import sys
import time
from contextlib import suppress
from functools import partial
from typing import Any, cast

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.drivers import linux_driver
from textual.drivers.linux_driver import LinuxDriver

_REPLACE = "pkvchat-replace"  # as codecs know it
_TELL_S = 10.0  # between two lines about input that is not UTF-8


def trust_terminal_size() -> None:
    """Where the terminal says how large it is, forget COLUMNS and LINES: a shell exports them once,
    for whatever size that was, and Textual would draw for it."""
    with suppress(OSError, ValueError):
        if all(os.get_terminal_size(sys.__stdout__.fileno())):  # type: ignore[union-attr]
            for name in ("COLUMNS", "LINES"):
                os.environ.pop(name, None)


def read_alt_digits() -> None:
    """Have Alt and a digit read as that key. ESC and the digit is what terminals send for it;
    Textual takes it for the character that Option types on a Mac: "∞" in place of Alt+5."""
    sequences = cast("dict[str, Any]", ANSI_SEQUENCES_KEYS)
    for digit in "123456789":
        sequences.pop(f"\x1b{digit}", None)


class Utf8Driver(LinuxDriver):
    """Replaces bytes that are not UTF-8, and says so; Textual's own driver ends the app."""

    _told = -_TELL_S

    def start_application_mode(self) -> None:
        read_alt_digits()
        super().start_application_mode()  # type: ignore[no-untyped-call]

    def set_mouse(self, on: bool) -> None:
        """Listen to the mouse, or leave it to the terminal's own selecting and copying."""
        self._mouse = True  # or the two do nothing
        if on:
            self._enable_mouse_support()
        else:
            self._disable_mouse_support()
        self._mouse = on

    def _sigcont_application(self, *_: object) -> None:
        """Start again after a stop, and after nothing else. A terminal that goes away brings a
        SIGCONT along: Textual would read from it twice over, and the program never end."""
        reads = self._key_thread is not None and self._key_thread.is_alive()
        if self._app.is_running and not reads:
            super()._sigcont_application()
            redraw = partial(self._app.refresh, layout=True)  # the screen is a new, empty one
            self._loop.call_soon_threadsafe(self._app.call_later, redraw)

    def run_input_thread(self) -> None:
        codecs.register_error(_REPLACE, self._replace)
        decoder = partial(codecs.getincrementaldecoder("utf-8"), errors=_REPLACE)
        linux_driver.getincrementaldecoder = lambda _: decoder  # type: ignore[attr-defined]
        super().run_input_thread()

    def _replace(self, error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        if time.monotonic() - self._told >= _TELL_S:  # a paste may have thousands
            self._told = time.monotonic()
            self._app.call_later(
                self._app.notify,
                f"input that is not UTF-8 (byte {error.object[error.start]:#04x}) was replaced by "
                "U+FFFD: set the terminal to UTF-8",
                severity="warning",
                markup=False,
            )
        return "\N{REPLACEMENT CHARACTER}", error.end
