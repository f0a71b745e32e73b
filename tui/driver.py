"""Input from the terminal, also where it is not what it should be."""

from __future__ import annotations

from textual.drivers.linux_driver import LinuxDriver


class Utf8Driver(LinuxDriver):
    """Leaves out what is read together with bytes that are not UTF-8, and says so; Textual's own
    driver ends the app."""

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
