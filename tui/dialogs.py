"""Small questions over the chat."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Label

from pkvchat.clean import one_line


class AskLine(ModalScreen[str | None]):
    """Asks for one line; Enter answers it, Esc gives None."""

    def __init__(self, question: str, initial: str) -> None:
        super().__init__()
        self._question = question
        self._initial = initial

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Label(Content(self._question))
            yield Input(one_line(self._initial), id="line")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)

    def key_escape(self) -> None:
        self.dismiss(None)
