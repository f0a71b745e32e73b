"""The list of all chats, and the search over them, also where the file is damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pkvchat.chats import Chat
from pkvchat.store import ChatStore

OpenApp = Callable[..., Any]


@pytest.fixture
def two(store: ChatStore) -> ChatStore:
    """Two chats, of which the first is open."""
    for title, said, place in (("sky", "Rayleigh", 0), ("[b]sea[/b]", "salt [water]", None)):
        chat = Chat(title=title)
        chat.add("user", said)
        store.save(chat, place)
    return store


async def test_chats_are_listed_searched_and_opened(open_app: OpenApp, two: ChatStore) -> None:
    async with open_app(store=two) as window:
        app = window.app
        await window.press(*"draft", "f5")
        await window.shows("▎ sky", "[b]sea[/b]")
        await window.press(*"WATER")
        await window.shows("… salt [water]")
        assert "▎ sky" not in window.text
        await window.press("enter")
        await window.settle(lambda: window.chat.title == "[b]sea[/b]")
        assert app.composer.has_focus
        assert app.sidebar.display
        await window.press("f5")
        assert not app.sidebar.display
        await window.press("alt+1")
        assert app.composer.text == "draft"


async def test_the_list_follows_the_tabs_and_keys_reach_it(
    open_app: OpenApp, two: ChatStore
) -> None:
    async with open_app(store=two) as window:
        app = window.app
        await window.press("f5")
        await window.shows("▎ sky")
        await window.press("ctrl+t")
        await window.shows("▎ New chat")
        app.tabs[0].unread = True
        app.draw_around()
        await window.shows("● sky")
        await window.press("f5", "f5", "up", "escape")
        assert app.composer.has_focus
        assert app.sidebar.display
        await window.press("f5", "f5", "up", "up", "enter")
        await window.settle(lambda: app.active == 0)


async def test_a_dot_means_unread_in_every_list(open_app: OpenApp, two: ChatStore) -> None:
    async with open_app(store=two) as window:
        await window.press("ctrl+o")
        await window.shows("open  sky  just now", "[b]sea[/b]")
        assert "●" not in window.text


async def test_enter_opens_what_was_typed_however_fast(open_app: OpenApp, two: ChatStore) -> None:
    async with open_app(store=two) as window:
        await window.press("f5", *"salt", "enter")
        await window.settle(lambda: window.chat.title == "[b]sea[/b]")


async def test_without_a_store_the_open_chats_are_listed(open_app: OpenApp) -> None:
    async with open_app(size=(60, 20)) as window:
        await window.press("f5")
        await window.shows("▎ New chat")
        await window.press(*"nothing like it", "enter")
        assert len(window.app.tabs) == 1


@pytest.mark.parametrize("key", ["f5", "ctrl+o"])
async def test_a_damaged_file_is_said_and_the_chat_goes_on(
    open_app: OpenApp, store: ChatStore, key: str
) -> None:
    for number in range(20):
        chat = Chat(title=f"chat {number}")
        chat.add("user", "x" * 3000)
        store.save(chat, None)
    store.close()
    store = ChatStore(store.path)
    async with open_app(store=store) as window:
        store._db.execute("PRAGMA shrink_memory")  # what was read already stays good otherwise
        with store.path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (store.path.stat().st_size - 4096))
        await window.press(key)
        await window.settle(lambda: "cannot be read" in " ".join(window.notes))
        await window.press("escape", "escape", *"typed")
        assert window.app.composer.text == "typed"


async def test_the_app_starts_beside_a_damaged_file(open_app: OpenApp, store: ChatStore) -> None:
    for number in range(20):
        chat = Chat(title=f"chat {number}")
        chat.add("user", "x" * 3000)
        store.save(chat, number)
    store.close()
    with store.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (store.path.stat().st_size - 4096))
    async with open_app("An answer.", store=ChatStore(store.path)) as window:
        await window.settle(lambda: "cannot be read" in " ".join(window.notes))
        await window.ask("hello")
        await window.settle(lambda: not window.app.tab.busy)


async def test_words_after_the_command_are_searched_for(open_app: OpenApp, two: ChatStore) -> None:
    async with open_app(store=two) as window:
        await window.send("/chats salt")
        await window.shows("… salt [water]")
        await window.press("backspace", "escape")
        assert len(window.app.screen_stack) == 1
