"""The box a person types in."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events
from textual.message import Message
from textual.widgets import TextArea

from .clean import typed

NEWLINE_KEYS = ("ctrl+j", "shift+enter", "alt+enter")


class Composer(TextArea):
    """Multi-line: Enter sends, Ctrl+J (and Shift+Enter where the terminal tells it apart) breaks
    the line. Text is never lost: it is cleared only once it was sent."""

    @dataclass
    class Sent(Message):
        """A person pressed Enter on ``text``."""

        text: str

    def __init__(self) -> None:
        super().__init__(
            id="composer",
            placeholder="Ask anything. Enter sends, Ctrl+J makes a new line.",
            highlight_cursor_line=False,
        )

    # Textual calls the base class's handlers too, unless the default is prevented.
    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            if self.text.strip():
                self.post_message(self.Sent(self.text))
        elif event.key in NEWLINE_KEYS:
            event.stop()
            event.prevent_default()
            self.insert("\n")

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        self.insert(typed(event.text))
        self.scroll_cursor_visible()

    def put_back(self, text: str) -> None:
        """Set ``text`` before what is there, the cursor at the end."""
        self.take("\n\n".join(part for part in (text, self.text) if part))

    def take(self, text: str) -> None:
        """Hold ``text`` instead, the cursor at its end."""
        self.load_text(typed(text))
        self.move_cursor(self.document.end)
