"""Two programs on one file of chats: neither loses what was said, nor takes the other's tabs."""

from __future__ import annotations

import multiprocessing
import sqlite3
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from pkvchat import chat_file
from pkvchat.chats import Chat
from pkvchat.errors import ChatError
from pkvchat.store import ChatStore

MakeChat = Callable[[], Chat]
Content = Callable[[Chat], object]


def test_a_chat_that_others_deleted_is_written_whole(
    path: Path, a_chat: MakeChat, content: Content
) -> None:
    mine, other, chat = ChatStore(path), ChatStore(path), a_chat()
    mine.save(chat, tab=0)
    other.delete(chat)
    chat.add("user", "and at night?")
    mine.save(chat, tab=0)
    assert content(other.load(chat.id)) == content(chat)


def test_a_chat_that_others_deleted_stays_deleted_while_it_does_not_change(
    path: Path, a_chat: MakeChat
) -> None:
    mine, other, chat = ChatStore(path), ChatStore(path), a_chat()
    mine.save(chat, tab=0)
    other.delete(other.load(chat.id))
    assert not mine.save(chat, tab=1)
    assert mine.is_empty()


def test_who_only_reads_a_chat_writes_nothing(
    path: Path, a_chat: MakeChat, content: Content
) -> None:
    """While it is being answered, too; a save that names no tab leaves its tab alone."""
    mine, other, chat = ChatStore(path), ChatStore(path), a_chat()
    answer = chat.add("assistant", "half an")
    mine.save(chat, tab=3)
    rows = list(mine._db.iterdump())
    theirs = other.load(chat.id)
    assert not other.save(theirs)
    assert list(mine._db.iterdump()) == rows
    answer.version.text += " answer"
    answer.version.reason = "stop"
    mine.save(chat, tab=3)
    assert not other.save(theirs), "it has nothing of its own, so it doesn't part"
    (found,) = mine.find("")
    assert (found.id, found.is_open) == (chat.id, True)
    assert content(mine.load(chat.id)) == content(chat)


def test_two_that_write_to_one_chat_part(path: Path, a_chat: MakeChat) -> None:
    """The first keeps the chat, each keeps all its turns, and nothing is interleaved."""
    mine, other = ChatStore(path), ChatStore(path)
    chat = a_chat()
    mine.save(chat, tab=0)
    theirs = other.load(chat.id)
    chat.add("user", "from me")
    theirs.add("user", "from them")
    assert not mine.save(chat, tab=0)
    assert other.save(theirs)
    assert theirs.key != theirs.id == chat.key
    for store, one in ((mine, chat), (other, theirs), (mine, chat), (other, theirs)):
        one.add("assistant", "and more").version.reason = "stop"
        assert not store.save(one), "they part once"
    for one in (chat, theirs):
        texts = [m.text for m in ChatStore(path).load(one.key).messages]
        assert texts == [m.text for m in one.messages]
    assert [found.id for found in mine.find("") if found.is_open] == [chat.key]
    other.put_in_view(theirs)
    other.delete(theirs)
    assert [found.id for found in mine.find("")] == [chat.key]


def test_one_program_owns_the_tabs_while_it_runs(path: Path, a_chat: MakeChat) -> None:
    owner, other, tab, closed = ChatStore(path), ChatStore(path), a_chat(), Chat(title="closed")
    assert owner.owns_tabs
    assert not other.owns_tabs
    owner.save(tab, 0)
    owner.save(closed, None)
    assert [other.is_shown_elsewhere(chat) for chat in (tab, closed)] == [True, False]
    assert not owner.is_shown_elsewhere(tab)
    owner.close()
    assert not other.is_shown_elsewhere(tab)
    assert not ChatStore(path, tabs=False).owns_tabs
    assert ChatStore(path).owns_tabs, "neither who asks nor who wants none keeps them from another"


def ask_for_ever(path: Path) -> None:
    while True:
        chat_file.is_held(path.with_suffix(".lock"))


def test_who_asks_about_the_tabs_never_keeps_them_from_one_that_starts(path: Path) -> None:
    ChatStore(path).close()
    asking = multiprocessing.get_context("fork").Process(target=ask_for_ever, args=(path,))
    asking.start()
    try:
        for _ in range(200):
            starting = ChatStore(path)
            assert starting.owns_tabs
            starting.close()
    finally:
        asking.kill()
        asking.join()


def test_a_lock_that_is_gone_is_told(path: Path) -> None:
    owner, other, chat = ChatStore(path), ChatStore(path), Chat(title="tab")
    owner.save(chat, tab=0)
    path.with_suffix(".lock").unlink()
    path.with_suffix(".lock").symlink_to("nowhere/at/all")
    with pytest.raises(ChatError, match=r"chats\.lock cannot be read: No such file"):
        other.is_shown_elsewhere(chat)


@pytest.mark.parametrize("table", ["chats", "messages", "versions"])
def test_a_chat_is_read_as_it_was_at_one_moment(
    path: Path, a_chat: MakeChat, content: Content, table: str
) -> None:
    """Even if it is written just before ``table`` is read."""
    writer, reader, chat = ChatStore(path), ChatStore(path), a_chat()
    writer.save(chat, tab=0)
    before = content(chat)

    def write_once(statement: str) -> None:
        if f"FROM {table}" in statement and chat.title != "new":
            chat.title = "new"
            chat.messages[1:] = []
            writer.save(chat, tab=0)

    reader._db.set_trace_callback(write_once)
    read = reader.load(chat.id)
    assert chat.title == "new"
    assert content(read) in (before, content(chat))


def open_and_say(path: Path, start: Barrier, said: SimpleQueue[str]) -> None:
    start.wait()
    try:
        ChatStore(path).close()
        said.put("")
    except ChatError as error:
        said.put(str(error))


def test_several_first_starts_at_once_make_one_file(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, said = context.Barrier(4), context.SimpleQueue()
    processes = [context.Process(target=open_and_say, args=(path, start, said)) for _ in range(4)]
    for process in processes:
        process.start()
    assert [said.get() for _ in processes] == [""] * 4
    for process in processes:
        process.join()


@pytest.mark.parametrize("others", ["CREATE TABLE other (x)", "PRAGMA journal_mode = WAL"])
def test_a_file_that_another_program_holds_is_said_and_opens_afterwards(
    path: Path, a_chat: MakeChat, others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_file, "_BUSY_S", 0.01)
    path.parent.mkdir()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute(others)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ChatError, match="database is locked; another program holds it"):
        ChatStore(path)
    other.execute("ROLLBACK")
    first, second = ChatStore(path), ChatStore(path)
    first.save(a_chat())
    assert not second.is_empty(), "neither has the file to itself"
