"""The help screen: every key and slash command in force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

_INTRO = (
    "Enter sends, Ctrl+J (or Shift+Enter) makes a new line, Up and Down bring back earlier "
    "prompts. A slash lists the commands: Up and Down choose one, Enter or Tab takes it, Esc hides "
    "the list; Tab completes file names, too. Begin with // to send a prompt that starts with a "
    "slash. A prompt sent while an answer runs waits its turn. {browse} moves into the transcript: "
    "Up and Down choose a message for edit, fork and copy. Any command takes a key of yours in the "
    'settings file, under [keys]: new_chat = "ctrl+n"; a wrong name there is answered with all '
    "there are."
)


class HelpScreen(ModalScreen[None]):
    """rows: name, what, key and slash form of each command. browse: the key for the transcript."""

    BINDINGS: ClassVar = [("escape,f1,q,enter", "app.pop_screen", "back")]

    def __init__(self, rows: Sequence[tuple[str, str, str, str]], browse: str) -> None:
        super().__init__()
        self._browse = browse
        self._rows = rows

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(Text(_INTRO.format(browse=self._browse)))
            yield Static(self._table())

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="bold")
        table.add_column("key", no_wrap=True)
        table.add_column("command", no_wrap=True, overflow="ellipsis")
        table.add_column("what it does")
        for _, what, key, slash in self._rows:
            table.add_row(Text(key), Text(slash), Text(what))
        return table
