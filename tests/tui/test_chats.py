"""Chats in tabs: side by side, closed and opened again, named, moved, copied, forked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pkvchat.chats import Chat
from pkvchat.messages import Close, Delta, Finished, Fork, Started
from pkvchat.store import ChatStore

OpenApp = Callable[..., Any]


def names(window: Any) -> list[str]:
    return [tab.chat.name for tab in window.app.tabs]


async def test_two_tabs_stream_side_by_side(open_app: OpenApp) -> None:
    async with open_app() as window:
        one = await window.ask("first")
        await window.press("ctrl+t")
        two = await window.ask("second")
        window.say(Started(one, 5, 0), Started(two, 5, 0))
        window.say(Delta(one, "ONE", 1), Delta(two, "TWO", 1))
        await window.shows("TWO")
        assert "ONE" not in window.text
        assert window.app.tabs[0].unread
        window.say(*(Finished(chat, "stop", 5, 1, 0.1, 1.0) for chat in (one, two)))
        await window.press("ctrl+pageup")
        await window.shows("ONE")
        assert not window.app.tabs[0].unread
        assert "TWO" not in window.text


async def test_each_tab_keeps_its_draft(open_app: OpenApp) -> None:
    async with open_app(loaded=False) as window:
        composer = window.app.composer
        await window.press(*"one")
        await window.press("ctrl+t", *"two", "ctrl+j", *"lines")
        await window.press("ctrl+pageup")
        assert composer.text == "one"
        await window.press("ctrl+pagedown")
        assert composer.text == "two\nlines"
        await window.press("alt+1")
        assert composer.text == "one"


async def test_closing_tabs_frees_them_and_never_leaves_none(open_app: OpenApp) -> None:
    async with open_app() as window:
        await window.press("ctrl+t", "ctrl+w", "ctrl+w")
        assert names(window) == ["New chat"]
        assert len([c for c in window.engine.sent if isinstance(c, Close)]) == 2


async def test_closing_is_undone_the_last_first(
    open_app: OpenApp, store: ChatStore, talk: Chat
) -> None:
    for place, title in enumerate(("a", "b")):
        store.save(Chat(title, [m.copy() for m in talk.messages]), place)
    async with open_app(store=store) as window:
        await window.press("alt+2", *"half typed", "ctrl+w", "ctrl+w")
        assert names(window) == ["New chat"]
        await window.press("alt+t", "alt+t")
        assert names(window) == ["a", "b", "New chat"], "each in its place"
        assert window.app.composer.text == "half typed"
        await window.press("alt+t")
        assert "no chat was closed since the start" in window.notes[-1]


async def test_a_closed_chat_can_be_found(open_app: OpenApp, store: ChatStore, talk: Chat) -> None:
    store.save(talk, 0)
    async with open_app(store=store) as window:
        await window.press("ctrl+w")
        assert Close(talk.id) in window.engine.sent
        await window.press("ctrl+o")
        await window.shows("one  just now")
        await window.press(*"tw")
        await window.shows("… two")
        await window.press("down", "enter")
        await window.settle(lambda: window.chat.id == talk.id)


async def test_tabs_take_names(open_app: OpenApp, store: ChatStore, talk: Chat) -> None:
    store.save(talk, 0)
    async with open_app(store=store) as window:
        await window.press("f2", *"mine", "enter")
        assert names(window) == ["mine"]
        await window.send("/rename [b]yours")
        assert names(window) == ["[b]yours"]
        await window.shows("▎1 [b]yours")
        await window.press("f2", "escape")
        assert names(window) == ["[b]yours"]
        await window.send("/rename \u200b")
        assert names(window) == ["[b]yours"]
    (chat,) = ChatStore(store.path).open_chats()
    assert chat.title == "[b]yours"


async def test_tabs_move_and_stay_where_they_were_put(open_app: OpenApp, store: ChatStore) -> None:
    for place, title in enumerate("abc"):
        store.save(Chat(title), place)
    async with open_app(store=store) as window:
        await window.press("alt+pageup")  # the first goes no further
        await window.press("alt+pagedown", "alt+pagedown", "alt+pagedown")
        assert names(window) == ["b", "c", "a"]
        assert window.app.active == 2
        await window.press("alt+1", "alt+pagedown")
    assert [chat.title for chat in ChatStore(store.path).open_chats()] == ["c", "b", "a"]


async def test_a_copy_and_a_fork_leave_the_chat_whole(
    open_app: OpenApp, store: ChatStore, talk: Chat
) -> None:
    store.save(talk, 0)
    async with open_app("more", store=store) as window:
        source = window.chat
        await window.send("/duplicate")
        assert (window.chat.name, len(window.chat.messages)) == ("copy: one", 4)
        await window.press("alt+1", "shift+tab", "up", "up")
        assert window.app.transcript.cursor == 1
        await window.press("f")
        fork = window.chat
        assert [m.text for m in fork.messages] == ["one", "1"]
        assert Fork(source.id, fork.id) in window.engine.sent
        await window.ask("other")
        assert window.prompts()[-1] == ["one", "1", "other"]
        await window.press("alt+1")
        await window.send("/fork")
        assert len(window.chat.messages) == 4
        assert len(source.messages) == 4
        assert len(window.app.tabs) == 4


async def test_a_prompt_that_is_changed_is_asked_in_a_fork(
    open_app: OpenApp, store: ChatStore, talk: Chat
) -> None:
    store.save(talk, 0)
    async with open_app("new answer", store=store) as window:
        await window.press("shift+tab", "up", "e")
        assert [m.text for m in window.chat.messages] == ["one", "1"]
        assert window.app.composer.text == "two"
        await window.press("!", "enter")
        await window.shows("new answer")
        assert window.prompts() == [["one", "1", "two!"]]
        assert [m.text for m in window.app.tabs[0].chat.messages] == ["one", "1", "two", "2"]


@pytest.mark.parametrize("key", ["escape", "ctrl+w"])
async def test_an_edit_that_is_not_sent_leaves_nothing_behind(
    open_app: OpenApp, store: ChatStore, talk: Chat, key: str
) -> None:
    store.save(talk, 0)
    store.save(Chat("after"), 1)
    async with open_app(store=store) as window:
        await window.press("alt+e")
        assert names(window) == ["one", "after", "edit: one"]
        await window.shows("Esc drops this edit")
        window.app.saver.now()
        await window.press("!", key)
        assert names(window) == ["one", "after"]
        assert window.chat.key == talk.key, "it is seen again"
        window.app.saver.now()
        assert sorted(found.title for found in store.find("")) == ["after", "one"]
        await window.press("alt+t")
        assert window.app.composer.text == "two!", "thrown away by mistake"


async def test_an_edit_that_was_sent_is_a_chat_as_others(
    open_app: OpenApp, store: ChatStore, talk: Chat
) -> None:
    store.save(talk, 0)
    async with open_app("new", store=store) as window:
        await window.press("alt+e", "!", "enter")
        await window.shows("new")
        await window.press("escape")
        assert names(window) == ["one", "edit: one"]
        await window.press("ctrl+w")
        assert "edit: one" in [found.title for found in store.find("")]


async def test_a_fresh_chat_in_place_keeps_the_old_one_saved(
    open_app: OpenApp, store: ChatStore, talk: Chat
) -> None:
    store.save(talk, 0)
    async with open_app(store=store) as window:
        await window.press("ctrl+t", "alt+1")
        await window.send("/clear")
        assert names(window) == ["New chat", "New chat"]
        assert window.app.active == 0
        await window.press("alt+t")
        assert window.chat.id == talk.id
        for answer, left in (("enter", 1), ("escape", 1), ("y", 0)):
            await window.send("/delete")
            await window.shows("for good? Type yes")
            await window.press(answer, *(["enter"] if answer == "y" else []))
            assert len(store.find("one")) == left
        await window.send("/fork")  # of an empty chat: said, not done
        assert names(window) == ["New chat", "New chat"]
        assert store.find("one") == []
