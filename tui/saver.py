"""Writes chats to the store as they change, at most once a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pkvchat.chats import Chat
from pkvchat.errors import ChatError
from pkvchat.open_chat import OpenChat
from pkvchat.store import PARTED, TAB_STAYS, ChatStore, Found, store_path

if TYPE_CHECKING:
    from .app import ChatApp

T = TypeVar("T")

_SAVE_S = 1.0
_RETRY_S = 10.0  # after a disk has refused


def open_store() -> tuple[ChatStore | None, str]:
    """The saved chats, None where they can't be opened; and what the person should know."""
    try:
        store = ChatStore(store_path())
    except ChatError as error:
        return None, str(error)
    if not store.owns_tabs:
        return store, "Another pkvchat shows your tabs; the chats that were saved can be opened."
    return store, store.note


class Saver:
    """store None: chats are not being saved; where there is a ``path`` it is opened later, should
    that become possible. problem: why the last write failed, "" where it did not.
    """

    def __init__(self, app: ChatApp, store: ChatStore | None, path: Path | None = None) -> None:
        self.store = store
        self.problem = ""
        self._path = path
        self._app = app
        self._unsaved: set[Chat] = set()
        self._due = False

    def saved_tabs(self) -> list[OpenChat]:
        """The tabs as they were left, unless another running pkvchat shows them."""
        if self.store is None or not self.store.owns_tabs:
            return []
        return [OpenChat(chat) for chat in self._read(self.store.open_chats, list[Chat]())]

    def place_in_view(self, tabs: Sequence[OpenChat]) -> int:
        """Of the tab that was looked at last; the first where that isn't known."""
        in_view = self._read(self.store.in_view, "") if self.store is not None else ""
        return next((i for i, tab in enumerate(tabs) if tab.chat.key == in_view), 0)

    @property
    def first_start(self) -> bool:
        """Nothing was ever saved here."""
        return self.store is not None and self._read(self.store.is_empty, False)

    def soon(self, *tabs: OpenChat) -> None:
        """Write within a second, or once the disk takes it again."""
        self._unsaved.update(tab.chat for tab in tabs)
        if (self.store or self._path) and not self._due:
            self._due = True
            well = self.store is not None and not self.problem
            self._app.set_timer(_SAVE_S if well else _RETRY_S, self._on_timer)

    def _on_timer(self) -> None:
        self._due = False
        self.now()
        if self._unsaved:
            self.soon()

    def now(self) -> None:
        """Write what has changed; what the disk refuses stays to be written."""
        self._app.keep_draft()
        if self.store is None:
            self._open_late()
        if self.store is None:
            return
        places = {tab.chat: place for place, tab in enumerate(self._app.tabs)}
        unsaved, self._unsaved = self._unsaved, set()
        for chat in unsaved:
            place = places.get(chat) if self.store.owns_tabs else TAB_STAYS
            if place == TAB_STAYS and not (chat.saved or _has_words(chat)):
                continue  # without its tab there is nothing to come back to
            if not self._try(self._save, self.store, chat, place):
                self._unsaved.add(chat)
        if self.problem and unsaved and not self._unsaved:
            self.problem = ""
            self._app.notify("Chats are saved again.")
        if self.store.owns_tabs:
            self._try(self.store.put_in_view, self._app.tab.chat)

    def _save(self, store: ChatStore, chat: Chat, tab: int | None) -> None:
        if store.save(chat, tab):
            self._app.notify(f"{chat.name}: {PARTED}.", markup=False, timeout=10)
            self._app.call_later(self._app.draw_around)  # it has another title now

    def _open_late(self) -> None:
        """What kept the chats from being saved may have passed: a disk has room again."""
        if self._path is not None:
            with suppress(ChatError):  # still the one that was told at the start
                self.store = ChatStore(self._path)
                self._unsaved.update(tab.chat for tab in self._app.tabs)
                self._app.host.say("chats are saved from now on")

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

    def closed(self, chat: Chat) -> None:
        """Its tab is gone; a chat nothing was said in leaves no trace."""
        self._unsaved.add(chat)
        self.now()
        if not (_has_words(chat) or self.is_shown_elsewhere(chat)):
            self._unsaved.discard(chat)
            if self.store is not None:
                self._try(self.store.drop_empty, chat)

    def is_shown_elsewhere(self, chat: Chat) -> bool:
        """It is in a tab of another pkvchat that runs."""
        store = self.store
        return store is not None and self._read(lambda: store.is_shown_elsewhere(chat), False)

    def delete(self, chat: Chat) -> None:
        self._unsaved.discard(chat)
        if self.store is not None:
            self._try(self.store.delete, chat)

    def close(self) -> None:
        self.now()
        if self.store is not None:
            self.store.close()

    def _read(self, read: Callable[[], T], otherwise: T) -> T:
        """``otherwise``, and it is said, where the file is damaged; the app starts all the same."""
        try:
            return read()
        except ChatError as error:
            notify = partial(self._app.notify, severity="error", markup=False, timeout=10)
            self._app.call_later(notify, str(error))  # this may be before the app runs
            return otherwise

    def _try(self, write: Callable[..., None], *arguments: object) -> bool:
        """Whether the disk took it; where it refuses, that is said once, and the chat goes on."""
        try:
            write(*arguments)
        except ChatError as error:
            if str(error) != self.problem:
                self.problem = str(error)
                self._app.notify(self.problem, severity="error", markup=False, timeout=10)
            return False
        return True


def _has_words(chat: Chat) -> bool:
    return bool(chat.messages or chat.draft)
