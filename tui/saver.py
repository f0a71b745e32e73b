"""Writes chats to the store as they change, at most once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pkvchat.chats import Chat
from pkvchat.errors import ChatError
from pkvchat.open_chat import OpenChat
from pkvchat.store import ChatStore, Found, store_path

if TYPE_CHECKING:
    from .app import ChatApp

T = TypeVar("T")

_SAVE_S = 1.0


def open_store() -> tuple[ChatStore | None, str]:
    """The saved chats, and what the person should know about them."""
    try:
        store = ChatStore(store_path())
    except ChatError as error:
        return None, str(error)
    if not store.owns_tabs:
        return store, "Another pkvchat shows your tabs; the chats that were saved can be opened."
    return store, store.note


class Saver:
    """store None: chats are not being saved."""

    def __init__(self, app: ChatApp, store: ChatStore | None) -> None:
        self.store = store
        self._app = app
        self._unsaved: set[OpenChat] = set()
        self._due = False
        self._problem = ""  # of the last write

    def saved_tabs(self) -> list[OpenChat]:
        """The tabs as they were left, unless another running pkvchat shows them."""
        if self.store is None or not self.store.owns_tabs:
            return []
        return [OpenChat(chat) for chat in self._read(self.store.open_chats, list[Chat]())]

    def place_in_view(self, tabs: Sequence[OpenChat]) -> int:
        """Of the tab that was looked at last; the first where that isn't known."""
        in_view = self._read(self.store.in_view, "") if self.store is not None else ""
        return next((i for i, tab in enumerate(tabs) if tab.chat.id == in_view), 0)

    @property
    def first_start(self) -> bool:
        """Nothing was ever saved here."""
        return self.store is not None and self._read(self.store.is_empty, False)

    def soon(self, *tabs: OpenChat) -> None:
        """Write within a second."""
        self._unsaved.update(tabs)
        if self.store is not None and not self._due:
            self._due = True
            self._app.set_timer(_SAVE_S, self.now)

    def now(self) -> None:
        self._due = False
        self._app.keep_draft()
        unsaved, self._unsaved = self._unsaved, set()
        for place, tab in enumerate(self._app.tabs):
            if tab in unsaved:
                self._save(tab, place)
        if self.store is not None and self.store.owns_tabs:
            self._try(self.store.put_in_view, self._app.tab.chat.id)

    async def find(self, words: str) -> list[Found]:
        """The saved chats that hold ``words``; none, and it is said, where they can't be read."""
        if self.store is None:
            return []
        self.now()
        try:
            return await asyncio.to_thread(self.store.find, words)
        except ChatError as error:
            self._app.notify(str(error), severity="error", markup=False, timeout=10)
            return []

    def closing(self, tab: OpenChat) -> None:
        """The tab goes; a chat nothing was said in leaves no trace."""
        self._unsaved.discard(tab)
        if tab.chat.messages or tab.chat.draft:
            self._save(tab, None)
        elif self.store is not None:
            self._try(self.store.delete, tab.chat.id)

    def close(self) -> None:
        self.now()
        if self.store is not None:
            self.store.close()

    def _save(self, tab: OpenChat, place: int | None) -> None:
        if self.store is not None:
            self._try(self.store.save, tab.chat, place)

    def _read(self, read: Callable[[], T], otherwise: T) -> T:
        """``otherwise``, and it is said, where the file is damaged; the app starts all the same."""
        try:
            return read()
        except ChatError as error:
            notify = partial(self._app.notify, severity="error", markup=False, timeout=10)
            self._app.call_later(notify, str(error))  # this may be before the app runs
            return otherwise

    def _try(self, write: Callable[..., None], *arguments: object) -> None:
        """Say it once where the disk refuses; the chat goes on."""
        problem, self._problem = self._problem, ""
        try:
            write(*arguments)
        except ChatError as error:
            self._problem = str(error)
            if self._problem != problem:
                self._app.notify(self._problem, severity="error", markup=False, timeout=10)
