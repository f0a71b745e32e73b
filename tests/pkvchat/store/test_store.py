"""Saved chats: what is written comes back and is found, killed process or full disk or not."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkvchat.chats import Chat, Message, Version
from pkvchat.errors import ChatError
from pkvchat.store import ChatStore

MakeChat = Callable[[], Chat]
Content = Callable[[Chat], object]
FullDisk = Callable[[], AbstractContextManager[None]]


def test_a_chat_comes_back_as_it_was(path: Path, a_chat: MakeChat, content: Content) -> None:
    chat = a_chat()
    store = ChatStore(path)
    store.save(chat, 0)
    store.close()
    (loaded,) = ChatStore(path).open_chats()
    assert content(loaded) == content(chat)


TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["add", "grow", "remove", "version", "move", "choose"]),
        st.integers(0, 9),
        TEXTS,
    ),
    max_size=30,
)


def change(chat: Chat, kind: str, at: int, text: str) -> None:
    messages = chat.messages
    if kind == "add" or not messages:
        messages.insert(min(at, len(messages)), Message.of("user", text))
        return
    message = messages[at % len(messages)]
    match kind:
        case "grow":
            message.version.text += text
        case "remove":
            messages.remove(message)
        case "version":
            message.versions.append(Version(text, "stop"))
        case "move":
            messages.remove(message)
            messages.insert(0, message)
        case "choose":
            message.chosen = at % len(message.versions)


@settings(max_examples=40, deadline=None)
@given(CHANGES)
def test_any_run_of_changes_saved_one_by_one_comes_back(
    tmp_path_factory: pytest.TempPathFactory, content: Content, changes: list[tuple[str, int, str]]
) -> None:
    path = tmp_path_factory.mktemp("store") / "chats.db"
    store, chat = ChatStore(path), Chat(title="t")
    for kind, at, text in changes:
        change(chat, kind, at, text)
        store.save(chat, 0)
    store.save(chat, 0)
    store.close()
    other = ChatStore(path)
    assert content(other.load(chat.id)) == content(chat)
    other.close()


@pytest.mark.parametrize("role", ["assistant", "summary"])
def test_an_answer_that_was_running_is_marked_so(path: Path, role: str) -> None:
    chat = Chat()
    chat.add("user", "go")
    chat.add(role, "half an ans")
    store = ChatStore(path)
    store.save(chat, 0)
    assert store.load(chat.id).messages[1].version.reason == "quit"


def test_tabs_keep_their_order_and_closed_chats_stay_to_be_found(path: Path) -> None:
    store = ChatStore(path)
    first, second, closed = (Chat(title=title) for title in ("first", "second", "closed"))
    store.save(first, 1)
    store.save(second, 0)
    store.save(closed, None)
    assert [chat.title for chat in store.open_chats()] == ["second", "first"]
    assert not store.is_empty()
    assert {found.title for found in store.find("")} == {"first", "second", "closed"}
    store.delete(closed)
    assert [found.title for found in store.find("clo")] == []
    with pytest.raises(ChatError, match="deleted meanwhile"):
        store.load(closed.id)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Rayleigh", "RAYLEIGH"),
        ("100%", "100%"),
        ("a_b", "a_b"),
        ("back\\slash", "back\\slash"),
        ("Über", "über"),
        ("Straße", "STRASSE"),
    ],
)
def test_search_takes_words_as_they_are_in_any_case(path: Path, text: str, words: str) -> None:
    store = ChatStore(path)
    hit, miss = Chat(title="hit"), Chat(title="miss")
    hit.add("user", f"{'long before ' * 20}{text} long after")
    miss.add("user", "100 aXb backslash")
    store.save(hit, None)
    store.save(miss, None)
    (found,) = store.find(words)
    assert found.title == "hit"
    assert text in found.snippet


def test_search_takes_any_text(path: Path) -> None:
    store = ChatStore(path)
    store.save(Chat(title="hit"), None)
    assert [found.title for found in store.find("")] == ["hit"]
    for words in ("x" * 100_000, "\udcff", "\0"):
        assert store.find(words) == []


WRITER = """
import sys, time
from pathlib import Path
from pkvchat.chats import Chat
from pkvchat.store import ChatStore
store, chat = ChatStore(Path(sys.argv[1])), Chat(title="streamed")
chat.add("user", "count")
answer = chat.add("assistant", "")
for number in range(10**9):
    answer.version.text += f"{number} "
    store.save(chat, 0)
    print(number, flush=True)
"""


@pytest.mark.parametrize("seed", range(4))
def test_kill_9_loses_nothing_that_was_saved(path: Path, seed: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(random.Random(seed).uniform(0, 0.3))
    process.send_signal(signal.SIGKILL)
    printed = process.stdout.read().split()
    process.wait()
    last = int(printed[-1]) if printed else 0
    store = ChatStore(path)
    assert store.note == ""
    (chat,) = store.open_chats()
    words = chat.messages[1].text.split()
    assert words[: last + 1] == [str(number) for number in range(last + 1)]
    assert len(words) <= last + 2  # one save may have ended without its line printed


def test_a_full_disk_can_still_be_read(
    path: Path, a_chat: MakeChat, content: Content, full_disk: FullDisk
) -> None:
    store, chat = ChatStore(path), a_chat()
    store.save(chat, tab=0)
    store.close()
    with full_disk():
        store = ChatStore(path)
        assert [content(again) for again in store.open_chats()] == [content(chat)]
        (found,) = store.find("blue")
        assert not store.save(store.load(found.id), tab=0), "there is nothing to write"
        with pytest.raises(ChatError, match="cannot be saved"):
            store.save(Chat("new"), tab=1)
        store.close()


def test_a_write_that_finds_the_file_full_says_so(
    path: Path, a_chat: MakeChat, content: Content
) -> None:
    store = ChatStore(path)
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    chat = a_chat()
    chat.messages[0].version.text = "long " * 10_000
    with pytest.raises(ChatError, match="full"):
        store.save(chat, 0)
    store._db.execute("PRAGMA max_page_count = 1000")
    store.save(chat, 0)
    assert content(store.load(chat.id)) == content(chat)
