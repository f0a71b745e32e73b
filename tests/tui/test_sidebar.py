"""The list of all chats, and the search over them, also where the file is damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pkvchat.chats import Chat
from pkvchat.store import ChatStore

Make = Callable[..., Any]


@pytest.fixture
def store(tmp_path: Path) -> ChatStore:
    """Two chats, of which the first is open."""
    store = ChatStore(tmp_path / "chats.db")
    for place, (title, said) in enumerate([("sky", "Rayleigh"), ("[b]sea[/b]", "salt [water]")]):
        chat = Chat(title=title)
        chat.add("user", said)
        store.save(chat, None if place else 0)
    return store


async def test_chats_are_listed_searched_and_opened(
    scripted: Make, make_app: Make, store: ChatStore, settle: Make, screen_text: Make
) -> None:
    app = make_app(scripted(), store)
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press(*"draft", "f5")
        await settle(pilot, lambda: "▎ sky" in screen_text(app))
        await settle(pilot, lambda: "[b]sea[/b]" in screen_text(app))
        await pilot.press(*"WATER")
        await settle(pilot, lambda: "… salt [water]" in screen_text(app))
        assert "▎ sky" not in screen_text(app)
        await pilot.press("enter")
        await settle(pilot, lambda: app.tab.chat.title == "[b]sea[/b]")
        assert app.composer.has_focus
        assert app.sidebar.display
        await pilot.press("f5")
        assert not app.sidebar.display
        await pilot.press("alt+1")
        assert app.composer.text == "draft"


async def test_the_list_follows_the_tabs_and_keys_reach_it(
    scripted: Make, make_app: Make, store: ChatStore, settle: Make, screen_text: Make
) -> None:
    app = make_app(scripted(), store)
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press("f5")
        await settle(pilot, lambda: "▎ sky" in screen_text(app))
        await pilot.press("ctrl+t")
        await settle(pilot, lambda: "▎ New chat" in screen_text(app))
        app.tabs[0].unread = True
        app.draw_around()
        await settle(pilot, lambda: "● sky" in screen_text(app))
        await pilot.press("f5", "f5", "up", "escape")
        assert app.composer.has_focus
        assert app.sidebar.display
        await pilot.press("f5", "f5", "up", "up", "enter")
        await settle(pilot, lambda: app.active == 0)


@pytest.mark.parametrize("keys", [["f5"], ["ctrl+o"]])
async def test_a_damaged_file_is_said_and_the_chat_goes_on(
    scripted: Make,
    make_app: Make,
    tmp_path: Path,
    settle: Make,
    screen_text: Make,
    keys: list[str],
) -> None:
    path = tmp_path / "chats.db"
    store = ChatStore(path)
    for number in range(20):
        chat = Chat(title=f"chat {number}")
        chat.add("user", "x" * 3000)
        store.save(chat, None)
    store.close()
    store = ChatStore(path)
    app = make_app(scripted(), store)
    store._db.execute("PRAGMA shrink_memory")  # what was read already stays good otherwise
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    async with app.run_test(size=(120, 30)) as pilot:
        await pilot.press(*keys)
        await settle(pilot, lambda: "cannot be read" in said(app, screen_text))
        await pilot.press("escape", "escape", *"typed")
        assert app.composer.text == "typed"


def said(app: Any, screen_text: Make) -> str:
    notes = " ".join(notification.message for notification in app._notifications)
    return " ".join(f"{screen_text(app)} {notes}".split())
