"""Input from the terminal: the mouse or not, and what is not as it should be."""

from __future__ import annotations

from typing import Any, cast

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.drivers.linux_driver import LinuxDriver


def read_alt_digits() -> None:
    """Have Alt and a digit read as that key. ESC and the digit is what terminals send for it;
    Textual takes it for the character that Option types on a Mac: "∞" in place of Alt+5."""
    sequences = cast("dict[str, Any]", ANSI_SEQUENCES_KEYS)
    for digit in "123456789":
        sequences.pop(f"\x1b{digit}", None)


class Utf8Driver(LinuxDriver):
    """Leaves out what is read together with bytes that are not UTF-8, and says so; Textual's own
    driver ends the app."""

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

    def run_input_thread(self) -> None:
        while True:
            try:
                return super().run_input_thread()
            except UnicodeDecodeError as error:
                byte = error.object[error.start]
                self._app.call_later(
                    self._app.notify,
                    f"input that is not UTF-8 (byte {byte:#04x}) was left out: "
                    "set the terminal to UTF-8",
                    severity="warning",
                    markup=False,
                )
