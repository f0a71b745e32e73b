"""How many tokens the chat would have with what is typed, counted by the engine's own tokenizer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.timer import Timer

from pkvchat.commands.slash import is_command, to_prompt
from pkvchat.messages import ChatMessage, Counted, CountTokens

if TYPE_CHECKING:
    from .app import ChatApp

_PAUSE_S = 0.2  # of the typist, before anything is asked,
_PAUSE_PER_CHAR_S = 1e-6  # and about as long again as the counting takes


class TokenCount:
    """Typing never waits for it: while the exact count is on its way, an estimate stands in."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self._number = 0  # of the text that was typed last
        self._exact: int | None = None
        self._timer: Timer | None = None

    def typed(self) -> None:
        """The draft, or the chat it is in, is another."""
        self._number += 1
        self._exact = None
        if self._timer is not None:
            self._timer.stop()
        tab = self._app.tab
        chars = len(self._app.composer.full_text) + tab.context_tokens * tab.chars_per_token
        self._timer = self._app.set_timer(_PAUSE_S + _PAUSE_PER_CHAR_S * chars, self._ask)

    def _ask(self) -> None:
        text, session = self._text(), self._app.session
        if text and session.state.ready:
            chat = self._app.tab.chat
            messages = (*chat.conversation(), ChatMessage("user", text))
            session.client.send(CountTokens(chat.id, self._number, messages))

    def take(self, counted: Counted) -> None:
        """What the engine counted, if it is about the text that is there now."""
        if counted.number == self._number:
            self._exact = counted.tokens

    def line(self) -> str:
        """For a person; "" where nothing is typed, or the engine's context isn't known."""
        text, ready = self._text(), self._app.session.state.ready
        if not text or ready is None:
            return ""
        tab = self._app.tab
        total = self._exact or tab.context_tokens + round(len(text) / tab.chars_per_token)
        about = "" if self._exact else "about "
        left = ready.context - total
        if left <= 0:  # an answer needs room for one token, as the engine counts, too
            return f"{about}{total:,} tokens with this, {1 - left:,} too many"
        return f"{about}{total:,} tokens with this, {left:,} left"

    def _text(self) -> str:
        """The prompt that is being typed; "" for a command."""
        text = self._app.composer.full_text
        return "" if is_command(text) else to_prompt(text)
