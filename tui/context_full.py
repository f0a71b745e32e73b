"""The question what to do about a chat that has filled its context."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

from pkvchat.commands.context import droppable, turns_read
from pkvchat.messages import Ready
from pkvchat.open_chat import OpenChat

if TYPE_CHECKING:
    from .app import ChatApp

_PROSE = 4.0  # characters per token, which a short chat with its template's tokens understates


def offer_choices(app: ChatApp, tab: OpenChat, *, refused: bool) -> None:
    """Ask at once, unless the person looks elsewhere or types, or a prompt alone is too long.

    refused: ``tab``'s prompt, which is in the composer again and not being typed.
    """
    ready = app.session.state.ready
    looks_here = tab is app.tab and len(app.screen_stack) == 1
    if ready and refused and not _less_chat_helps(tab, app.composer.full_text, ready):
        return  # the engine's own line says by how much
    if ready and looks_here and (refused or not app.composer.text):
        app.draw()
        app.push_screen(ContextFull(tab, ready), partial(_carry_out, app))


def _less_chat_helps(tab: OpenChat, prompt: str, ready: Ready) -> bool:
    """Whether there is any of it before ``prompt``, which by itself seems to fit."""
    chars_per_token = max(tab.chars_per_token, _PROSE)
    return bool(turns_read(tab.chat)) and len(prompt) / chars_per_token < ready.context


def _carry_out(app: ChatApp, chosen: tuple[str, str] | None) -> None:
    """Run the command that was chosen; a copy of the chat takes what is typed along."""
    if chosen is None:
        return
    typed = app.composer.full_text if chosen[0] == "summarise" else ""
    if typed:
        app.composer.take("")
    app.command(*chosen)
    if typed:
        app.composer.put_back(typed)


class ContextFull(ModalScreen[tuple[str, str] | None]):
    """Gives the command that was chosen and its argument, or None to leave all as it is."""

    BINDINGS: ClassVar = [("escape", "dismiss(None)", "not now")]

    def __init__(self, chat: OpenChat, ready: Ready) -> None:
        super().__init__()
        self._title = f"The context of {ready.context:,} tokens is full."
        self._choices = [*_choices(chat, ready), _Choice("Not now", "nothing changes")]

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Label(Content(self._title))
            yield OptionList(*(choice.option() for choice in self._choices))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._choices[event.option_index].command)


@dataclass(frozen=True)
class _Choice:
    """command None: nothing is done. possible: it can be chosen."""

    what: str
    means: str
    command: tuple[str, str] | None = None
    possible: bool = True

    def option(self) -> Option:
        return Option(Content(f"{self.what}\n  {self.means}"), disabled=not self.possible)


def _choices(chat: OpenChat, ready: Ready) -> list[_Choice]:
    return [
        _Choice(
            "Go on from a summary, in a copy",
            "the model sums up this chat, which stays as it is",
            ("summarise", ""),
        ),
        _drop(droppable(chat)),
        _raise(ready),
    ]


def _drop(turns: int) -> _Choice:
    what = f"Drop the oldest {turns} turns" if turns != 1 else "Drop the oldest turn"
    if not turns:
        return _Choice("Drop the oldest turns", "there is only one", possible=False)
    means = "they stay here, and the model reads them no more"
    return _Choice(what, means, ("drop", str(turns)))


def _raise(ready: Ready) -> _Choice:
    """Twice the context, or what the model and the memory allow of that."""
    context = min(2 * ready.context, ready.model_context, ready.memory_context)
    if context > ready.context:
        means = "the engine starts again, then reads chats anew"
        return _Choice(f"Raise the limit to {context:,} tokens", means, ("context", str(context)))
    limits = {
        "the model takes no more than": ready.model_context,
        "there is memory for no more than": ready.memory_context,
    }
    why, tokens = min(limits.items(), key=lambda item: item[1])
    return _Choice("Raise the limit", f"{why} {tokens:,} tokens", possible=False)
