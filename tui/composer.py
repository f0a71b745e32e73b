"""The box a person types in."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from textual import events
from textual.message import Message
from textual.widgets import TextArea

from pkvchat.clean import typed
from pkvchat.commands.slash import to_line

from .slash_list import SlashList

_NEWLINE_KEYS = ("ctrl+j", "shift+enter", "alt+enter")
_FOLD_CHARS = 10_000  # a longer paste is held aside, so that it costs nothing to show
_FOLD = re.compile(r"\[paste (\d+): [\d,]+ characters\]")


class Composer(TextArea):
    """Multi-line: Enter sends, Ctrl+J (and Shift+Enter where the terminal tells it apart) breaks
    the line, Up and Down at the edges bring back earlier prompts, Tab completes slash commands.
    While their names are listed, Up and Down choose one, and Enter or Tab takes it.
    Text is never lost: it is cleared only once it was sent.
    """

    @dataclass
    class Sent(Message):
        """A person pressed Enter on ``text``."""

        text: str

    def __init__(
        self, history: list[str], complete: Callable[[str], list[str]], commands: SlashList
    ) -> None:
        super().__init__(
            id="composer",
            placeholder="Ask anything. Enter sends, Ctrl+J makes a new line.",
            highlight_cursor_line=False,
        )
        self._history = history
        self._complete = complete
        self._commands = commands
        self._recalled: int | None = None  # place in the history while walking through it
        self._typed = ""  # what was there before the walk
        self._pastes: list[str] = []

    @property
    def full_text(self) -> str:
        """The text with what long pastes stand for."""
        return _FOLD.sub(self._unfold, self.text) if self._pastes else self.text

    def _unfold(self, mark: re.Match[str]) -> str:
        number = int(mark[1]) - 1
        return self._pastes[number] if number < len(self._pastes) else mark[0]

    def _folded(self, text: str) -> str:
        if len(text) < _FOLD_CHARS:
            return text
        self._pastes.append(text)
        return f"[paste {len(self._pastes)}: {len(text):,} characters]"

    # Textual calls the base class's handlers too, unless the default is prevented.
    async def _on_key(self, event: events.Key) -> None:
        handled = True
        if self._commands.display and self._is_for_list(event.key):
            pass
        elif event.key == "enter":
            self._send()
        elif event.key in _NEWLINE_KEYS:
            self.insert("\n")
        elif event.key == "tab" and self.text.startswith("/"):
            self._complete_slash()
        elif event.key == "up" and self.cursor_at_first_line and self._history:
            self._recall(-1)
        elif event.key == "down" and self.cursor_at_last_line and self._recalled is not None:
            self._recall(1)
        else:
            handled = False
        if handled:
            event.stop()
            event.prevent_default()

    def _is_for_list(self, key: str) -> bool:
        """Whether the list of commands has taken ``key``: Enter only once one of them is chosen,
        since what was typed may be none."""
        commands = self._commands
        if key == "up":
            commands.action_cursor_up()
        elif key == "down":
            commands.action_cursor_down()
        elif key == "tab" or (key == "enter" and commands.highlighted is not None):
            self.take(commands.line())
        else:
            return False
        return True

    def on_text_area_changed(self) -> None:
        self._commands.follow(self.text)

    def on_blur(self) -> None:
        self._commands.leave(self.text)

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        self.insert(self._folded(typed(event.text)))
        self.scroll_cursor_visible()

    def _send(self) -> None:
        text = self.full_text
        if text.strip():
            self._recalled = None
            self.post_message(self.Sent(text))

    def _recall(self, step: int) -> None:
        """An earlier prompt, or a later one; past the newest, what was being typed."""
        if self._recalled is None:
            self._recalled, self._typed = len(self._history), self.full_text
        at = self._recalled + step
        if at < 0:
            return
        self._recalled = at if at < len(self._history) else None
        place = self._recalled
        line = self._typed if place is None else to_line(self._history[place])
        self.take(line, recalled=place)

    def _complete_slash(self) -> None:
        found = self._complete(self.text)
        if not found:
            return
        common = _common_start(found)
        if len(found) == 1 and not common.endswith("/"):
            common += " "
        if len(common) > len(self.text):
            self.take(common)
        elif len(found) > 1:
            self.app.notify("  ".join(found[:40]), title="Tab completes", markup=False, timeout=4)

    def put_back(self, text: str) -> None:
        """Set ``text`` before what is there, the cursor at the end."""
        self.take("\n\n".join(part for part in (text, self.full_text) if part))

    def take(self, text: str, recalled: int | None = None) -> None:
        """Hold ``text`` instead, the cursor at its end."""
        self._recalled = recalled
        self._pastes.clear()
        self.load_text(self._folded(typed(text)))
        self._commands.leave(self.text)
        self.move_cursor(self.document.end)


def _common_start(texts: list[str]) -> str:
    first, last = min(texts), max(texts)
    same = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), None)
    return first[:same]
