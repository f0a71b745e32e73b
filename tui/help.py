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

# Keys of the composer, and what they do there; {browse} is the transcript's.
_TYPING = (
    ("Enter", "sends; while an answer runs, the prompt waits its turn"),
    ("^J", "makes a new line, as does Shift+Enter in most terminals"),
    ("Up, Down", "bring back earlier prompts"),
    ("/", "lists the commands: Up, Down and Enter take one, Esc hides them"),
    ("Tab", "completes commands and the names of files"),
    ("//", "begins a prompt that starts with a slash"),
    ("{browse}", "moves into the transcript, to a message to edit, fork or copy"),
)
_OWN_KEYS = (
    "^ is the Ctrl key. Any command takes a key of yours in the settings file, under [keys]: "
    'new_chat = "ctrl+n"; a wrong name there is answered with all there are.'
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
            yield Static(self._typing())
            yield Static(self._commands())
            yield Static(Text(_OWN_KEYS))

    def _typing(self) -> Table:
        table = _table("key", "while typing")
        for key, what in _TYPING:
            table.add_row(Text(key.format(browse=self._browse)), Text(what))
        return table

    def _commands(self) -> Table:
        table = _table("key", "command", "what it does")
        for _, what, key, slash in self._rows:
            table.add_row(Text(key), Text(slash), Text(what))
        return table


def _table(*heads: str) -> Table:
    """Of whose columns only the last one wraps."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        table.add_column(head, no_wrap=head != heads[-1])
    return table
