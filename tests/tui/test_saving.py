"""Chats that last: what is on the screen is on the disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pkvchat.chats import Chat
from pkvchat.messages import Delta
from pkvchat.store import ChatStore
from pkvchat.tui import saver

OpenApp = Callable[..., Any]


async def test_chats_come_back_as_they_were_left(open_app: OpenApp, store: ChatStore) -> None:
    async with open_app("blue", store=store) as window:
        await window.ask("sky?")
        await window.settle(lambda: not window.app.tab.busy)
        await window.press("ctrl+t", *"draft", "ctrl+t", "ctrl+pageup")
    async with open_app(store=ChatStore(store.path)) as again:
        assert [tab.chat.name for tab in again.app.tabs] == ["sky?", "New chat", "New chat"]
        assert [m.text for m in again.app.tabs[0].chat.messages] == ["sky?", "blue"]
        assert again.app.composer.text == "draft"
        await again.press("up")
        assert again.app.composer.text == "sky?"


async def test_the_tab_in_view_comes_back_in_view(open_app: OpenApp, store: ChatStore) -> None:
    async with open_app(store=store) as window:
        await window.press(*"one", "ctrl+t", *"two", "ctrl+t", *"three", "ctrl+pageup")
    async with open_app(store=ChatStore(store.path)) as again:
        assert again.app.active == 1
        assert again.app.composer.text == "two"
        await again.press("ctrl+w")
        assert again.app.active == 1
    async with open_app(store=ChatStore(store.path)) as last:
        assert last.app.composer.text == "three"


async def test_a_streaming_answer_is_on_disk_within_a_second(
    open_app: OpenApp, store: ChatStore
) -> None:
    async with open_app(store=store) as window:
        window.say(Delta(await window.ask("go"), "half an answer", 3))
        reader = ChatStore(store.path)
        await window.settle(lambda: reader.find("half an answer"))
        (chat,) = reader.open_chats()
        assert chat.messages[-1].version.reason == "quit"


async def test_a_second_app_leaves_the_first_ones_tabs_alone(
    open_app: OpenApp, store: ChatStore, talk: Chat
) -> None:
    store.save(talk, 0)
    async with open_app(store=ChatStore(store.path)) as window:
        assert [tab.chat.messages for tab in window.app.tabs] == [[]]


async def test_a_second_app_leaves_the_first_ones_places_and_chats_alone(
    open_app: OpenApp, store: ChatStore, talk: Chat
) -> None:
    empty = Chat()
    store.save(empty, 4)
    store.save(talk, 7)
    store.put_in_view(talk)
    places = store._rows("SELECT id, tab, in_view, updated FROM chats ORDER BY tab")
    async with open_app("blue", store=ChatStore(store.path)) as window:
        for chat in (talk, empty):
            window.app.open_saved(chat.id)
            await window.send("/delete")
            assert "another pkvchat shows" in window.notes[-1]
            await window.press("ctrl+w")
        window.app.open_saved(talk.id)
        await window.press("ctrl+t")
        await window.ask("sky?")
        await window.settle(lambda: not window.app.tab.busy)
    open_ones = "SELECT id, tab, in_view, updated FROM chats WHERE tab IS NOT NULL ORDER BY tab"
    assert store._rows(open_ones) == places
    assert [found.title for found in store.find("") if not found.is_open] == ["sky?"]


async def test_a_tab_closed_empty_does_not_take_what_others_said_in_it(
    open_app: OpenApp, store: ChatStore
) -> None:
    async with open_app(store=store) as window:
        window.app.saver.soon(window.app.tab)
        window.app.saver.now()
        other = ChatStore(store.path)
        theirs = other.load(window.chat.id)
        theirs.add("user", "from elsewhere")
        other.save(theirs)
        await window.press("ctrl+w")
        (found,) = store.find("from elsewhere")
        assert not found.is_open
        await window.press("ctrl+t", "ctrl+w")
        assert [found.title for found in store.find("") if not found.is_open] == ["from elsewhere"]


async def test_a_chat_that_was_deleted_elsewhere_stays_deleted(
    open_app: OpenApp, store: ChatStore, talk: Chat
) -> None:
    store.save(talk, None)
    async with open_app(store=store) as window:
        window.app.open_saved(talk.id)
        await window.press("ctrl+w")
        other = ChatStore(store.path)
        other.delete(other.load(talk.id))
        await window.press("alt+t", "ctrl+t")
        window.app.saver.now()
        assert store.find("one") == []


async def test_a_chat_that_others_wrote_to_becomes_one_of_its_own(
    open_app: OpenApp, store: ChatStore, talk: Chat
) -> None:
    store.save(talk, 0)
    async with open_app("blue", store=store) as window:
        other = ChatStore(store.path)
        theirs = other.load(talk.id)
        theirs.add("user", "from elsewhere")
        other.save(theirs)
        await window.ask("sky?")
        await window.settle(lambda: "yours is now saved as" in " ".join(window.notes))
        await window.shows("blue")
        assert len(window.notes) == 1
        await window.shows("1 one (2)")
        window.app.open_saved(talk.id)
        assert window.chat.messages[-1].text == "from elsewhere", "it is another chat than ours"
    first, ours = ChatStore(store.path).open_chats()
    texts = {chat.title: chat.messages[-1].text for chat in (first, ours)}
    assert texts == {"one (2)": "blue", "one": "from elsewhere"}


async def test_a_disk_that_refuses_is_said_once_and_the_chat_goes_on(
    open_app: OpenApp, store: ChatStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "_RETRY_S", 0.05)
    async with open_app("blue", store=store) as window:
        store._db.execute("PRAGMA query_only = ON")
        await window.ask("sky?")
        await window.settle(lambda: "cannot be saved" in " ".join(window.notes))
        await window.press(*"more")
        window.app.saver.now()
        assert len(window.notes) == 1
        await window.shows("blue")
        await window.press("ctrl+w")
        window.app.composer.take("")
        await window.send("/save")
        assert "cannot be saved" in window.notes[-1]
        store._db.execute("PRAGMA query_only = OFF")
        again = "Chats are saved again."
        await window.settle(lambda: again in window.notes)
        window.app.saver.now()
        assert window.notes.count(again) == 1
    (chat,) = [found for found in ChatStore(store.path).find("sky?") if not found.is_open]
    assert ChatStore(store.path).load(chat.id).draft == "more", "it was closed meanwhile"


async def test_chats_that_could_not_be_saved_at_the_start_are_saved_later(
    open_app: OpenApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "_RETRY_S", 0.05)
    path = tmp_path / "data" / "chats.db"
    path.parent.write_text("in the way")
    async with open_app("blue", path=path) as window:
        await window.ask("sky?")
        await window.settle(lambda: not window.app.tab.busy)
        path.parent.unlink()
        await window.shows("chats are saved from now on")
        await window.settle(lambda: path.exists() and ChatStore(path).find("blue"))
        await window.press(*"more")
    (chat,) = ChatStore(path).open_chats()
    assert [m.text for m in chat.messages] == ["sky?", "blue", "chats are saved from now on"]
    assert chat.draft == "more"


async def test_a_chat_goes_to_a_file_and_back(
    open_app: OpenApp, store: ChatStore, talk: Chat, tmp_path: Path
) -> None:
    store.save(talk, 0)
    async with open_app(store=store) as window:
        await window.send(f"/export {tmp_path}/chat.json")
        assert json.loads((tmp_path / "chat.json").read_text())["messages"][3]["content"] == "2"
        await window.send(f"/load {tmp_path}/chat.json")
        assert [m.text for m in window.chat.messages] == ["one", "1", "two", "2"]
        assert len(window.app.tabs) == 2
        await window.send("/save")
        assert window.chat.messages[-1].text == f"saved in {store.path}, as always"
