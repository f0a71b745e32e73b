"""The list at the left: open chats, and the saved ones, searched as a person types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from pkvchat.chats import NEW_CHAT
from pkvchat.clean import one_line
from pkvchat.open_chat import OpenChat
from pkvchat.store import Found

if TYPE_CHECKING:
    from .app import ChatApp

_PAUSE_S = 0.15  # of the typist, before the store is searched


class Sidebar(Vertical):
    """Hidden until asked for; then the keys go to its search line, and Enter opens a hit."""

    WIDTH = 32  # as the style sheet has it

    @dataclass
    class Picked(Message):
        """A chat to open."""

        chat_id: str

    def __init__(self, app: ChatApp) -> None:
        super().__init__(id="sidebar")
        self.display = False
        self._chat_app = app
        self._found: list[Found] = []
        self._shown: object = None
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield Input(placeholder="Search all chats", id="search", compact=True)
        yield OptionList(id="chats", compact=True, markup=False)

    def toggle(self) -> None:
        self.display = not self.display
        if self.display:
            self.search()
            self.query_one(Input).focus()

    def update(self, tabs: Sequence[OpenChat], active: OpenChat) -> None:
        """Bring the list up to date, if it is seen and anything in it is another."""
        if not self.display:
            return
        words = self._words
        hits = {found.id for found in self._found}
        rows = [
            (tab.chat.key, _open_line(tab, tab is active))
            for tab in tabs
            if tab.chat.key in hits or words.lower() in tab.chat.name.lower()
        ]
        ids = {tab.chat.key for tab in tabs}
        saved = [(found.id, _saved_line(found)) for found in self._found if found.id not in ids]
        shown = (rows, saved)
        if shown != self._shown:
            self._shown = shown
            self._fill(rows, saved)

    def _fill(self, rows: list[tuple[str, str]], saved: list[tuple[str, str]]) -> None:
        chats = self.query_one(OptionList)
        place = chats.highlighted_option.id if chats.highlighted_option else None
        chats.clear_options()
        chats.add_options(self._options("open", rows))
        chats.add_options(self._options("saved", saved))
        with_place = [i for i, option in enumerate(chats.options) if option.id == place and place]
        first = next((i for i, option in enumerate(chats.options) if not option.disabled), None)
        chats.highlighted = with_place[0] if with_place else first

    def _options(self, title: str, rows: list[tuple[str, str]]) -> Iterator[Option]:
        yield Option(Text(title, Style(dim=True)), disabled=True)
        for chat_id, line in rows:
            yield Option(Text(line), id=chat_id)

    # --- searching ----------------------------------------------------------------------------

    @property
    def _words(self) -> str:
        return self.query_one(Input).value.strip()

    @on(Input.Changed)
    def _search_soon(self) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(_PAUSE_S, self.search)

    def search(self) -> None:
        """Ask the store anew; what is listed stays until it has answered."""
        self.run_worker(self._search(), exclusive=True, group="search")

    async def _search(self) -> None:
        self._found = await self._chat_app.saver.find(self._words)
        self.update(self._chat_app.tabs, self._chat_app.tab)

    # --- keys ---------------------------------------------------------------------------------

    def on_key(self, event: events.Key) -> None:
        """Up and Down reach the list from the search line."""
        chats = self.query_one(OptionList)
        if event.key in ("up", "down") and not chats.has_focus:
            event.stop()
            if event.key == "down":
                chats.action_cursor_down()
            else:
                chats.action_cursor_up()

    @on(Input.Submitted)
    def _open_hit(self) -> None:
        self.run_worker(self._search_and_open(), exclusive=True, group="search")

    async def _search_and_open(self) -> None:
        await self._search()  # the list may be of what was typed before
        self.query_one(OptionList).action_select()

    @on(OptionList.OptionSelected)
    def _open(self, event: OptionList.OptionSelected) -> None:
        if event.option_id is not None:
            self.post_message(self.Picked(event.option_id))


def _open_line(tab: OpenChat, active: bool) -> str:
    mark = "…" if tab.busy else "●" if tab.unread else "▎" if active else " "
    return f"{mark} {one_line(tab.chat.name)}"


def _saved_line(found: Found) -> str:
    """Where a word was found stands on a line of its own."""
    snippet = f"\n    … {one_line(found.snippet)}" if found.snippet else ""
    return f"  {one_line(found.title) or NEW_CHAT}{snippet}"
