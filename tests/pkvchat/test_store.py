"""Saved chats: what is written comes back, whatever happens to the process or the file."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pkvchat import chat_file
from pkvchat.chat_file import MIGRATIONS
from pkvchat.chats import Chat, Message, Version
from pkvchat.errors import ChatError
from pkvchat.store import ChatStore

FullDisk = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "chats.db"


def content(chat: Chat) -> object:
    """Everything of a chat, for comparing."""
    messages = [(vars(m) | {"versions": [vars(v) for v in m.versions]}) for m in chat.messages]
    return vars(chat) | {"messages": messages, "saved": None}


def a_chat() -> Chat:
    chat = Chat(system="Be brief.", draft="half typ")
    chat.add("user", "why [is] it \x00 blue? 🌈")
    answer = chat.add("assistant", "scattering")
    answer.version.reason = "stop"
    answer.versions.append(Version("Rayleigh", "length", 12, 0.5, 90.0))
    answer.chosen = 1
    chat.add("note", "the engine died")
    chat.add("user", "later").queued = True
    return chat


def test_a_chat_comes_back_as_it_was(path: Path) -> None:
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
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int, str]]
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


@pytest.mark.parametrize("words", ["RAYLEIGH", "100%", "a_b", "back\\slash"])
def test_search_takes_words_as_they_are(path: Path, words: str) -> None:
    store = ChatStore(path)
    hit, miss = Chat(title="hit"), Chat(title="miss")
    hit.add("user", f"long before {words.lower()} long after")
    miss.add("user", "100 aXb backslash")
    store.save(hit, None)
    store.save(miss, None)
    (found,) = store.find(words)
    assert found.title == "hit"
    assert words.lower() in found.snippet


def test_bytes_that_rot_inside_the_file(path: Path) -> None:
    store = ChatStore(path)
    for place in range(20):
        chat = Chat(title="long")
        chat.add("user", "x" * 3000)
        store.save(chat, place)
    store.close()
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"xxx", b"xx\xff", 1))
    (bad,) = {chat.messages[0].text for chat in ChatStore(path).open_chats()} - {"x" * 3000}
    assert bad == "xx\ufffd" + "x" * 2997
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    rotten = ChatStore(path)
    for read in (rotten.open_chats, lambda: rotten.load(chat.id), lambda: rotten.find("x")):
        with pytest.raises(ChatError, match=r"cannot be read: .*malformed; move it away"):
            read()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE messages SET chosen = -5",
        "UPDATE messages SET chosen = 'x'",
        "UPDATE messages SET role = x'00ff'",
        "UPDATE messages SET id = x'00ff' WHERE place = 0",
        "UPDATE chats SET tab = 'x'",
        "UPDATE chats SET updated = 'abc'",
        "UPDATE chats SET updated = -9e999",
        "UPDATE chats SET title = x'00ff', system = 7, draft = 1.5",
        "UPDATE versions SET text = x'0001', reason = 3, new_tokens = 'n', ttft_s = 't', model = 1",
    ],
)
def test_values_of_other_types_and_ranges_still_open(path: Path, damage: str) -> None:
    store, chat = ChatStore(path), a_chat()
    store.save(chat, tab=0)
    store.close()
    with sqlite3.connect(path) as db:
        db.execute(damage)
    store = ChatStore(path)
    (found,) = store.find("")
    assert found.line
    (again,) = store.open_chats()
    assert [m.text for m in again.messages] == [str(m.version.text) for m in again.messages]
    store.save(again, tab=0)


@pytest.mark.parametrize("id", ["NULL", "x'ff00'", "CAST(x'ff00' AS TEXT)"])
def test_an_id_that_is_damaged_costs_one_chat(path: Path, id: str) -> None:
    store, chat = ChatStore(path), a_chat()
    store.save(Chat(title="lost"), tab=0)
    store.save(chat, tab=1)
    store._db.execute(f"UPDATE chats SET id = {id}, in_view = 1 WHERE title = 'lost'")
    assert [content(again) for again in store.open_chats()] == [content(chat)]
    assert all(isinstance(found.id, str) for found in store.find(""))
    assert chat.id in [found.id for found in store.find("")]
    assert store.in_view() != chat.id


def test_a_chat_that_others_deleted_is_written_whole(path: Path) -> None:
    mine, other, chat = ChatStore(path), ChatStore(path), a_chat()
    mine.save(chat, tab=0)
    other.delete(chat)
    chat.add("user", "and at night?")
    mine.save(chat, tab=0)
    assert content(other.load(chat.id)) == content(chat)


def test_a_chat_that_others_deleted_stays_deleted_while_it_does_not_change(path: Path) -> None:
    mine, other, chat = ChatStore(path), ChatStore(path), a_chat()
    mine.save(chat, tab=0)
    other.delete(other.load(chat.id))
    assert not mine.save(chat, tab=1)
    assert mine.is_empty()


def test_opening_a_chat_that_is_being_answered_writes_nothing(path: Path) -> None:
    mine, other, chat = ChatStore(path), ChatStore(path), a_chat()
    answer = chat.add("assistant", "half an")
    mine.save(chat, tab=0)
    rows = list(mine._db.iterdump())
    theirs = other.load(chat.id)
    assert not other.save(theirs)
    assert list(mine._db.iterdump()) == rows
    answer.version.text += " answer"
    mine.save(chat, tab=0)
    assert not other.save(theirs), "it has nothing of its own, so it doesn't part"
    assert [found.id for found in mine.find("")] == [chat.id]


def test_two_that_write_to_one_chat_part(path: Path) -> None:
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


def test_who_only_reads_a_chat_makes_none_of_their_own(path: Path) -> None:
    mine, other, chat = ChatStore(path), ChatStore(path), a_chat()
    mine.save(chat, tab=3)
    theirs = other.load(chat.id)
    chat.add("user", "go on")
    mine.save(chat, tab=3)
    assert not other.save(theirs)
    (found,) = mine.find("")
    assert found.is_open, "a save that names no tab leaves it alone"
    assert content(mine.load(chat.id)) == content(chat)


@pytest.mark.parametrize("version", [-1, 0, 1])
def test_a_schema_that_is_further_than_its_number_says(path: Path, version: int) -> None:
    store, chat = ChatStore(path), a_chat()
    chat.messages[1].version.model = "SmolLM2"
    store.save(chat, tab=0)
    store.close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {version}")
    store = ChatStore(path)
    assert [content(again) for again in store.open_chats()] == [content(chat)]
    assert store._rows("PRAGMA user_version") == [(len(MIGRATIONS),)]


def test_a_full_disk_can_still_be_read(path: Path, full_disk: FullDisk) -> None:
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


def test_search_ignores_case_in_any_alphabet(path: Path) -> None:
    store, chat = ChatStore(path), Chat()
    chat.add("user", "Hello Über Straße")
    store.save(chat, tab=None)
    for words in ("über", "STRASSE", "hello"):
        assert [found.id for found in store.find(words)] == [chat.id]


def test_a_file_that_lost_versions_still_opens(path: Path) -> None:
    store, chat = ChatStore(path), a_chat()
    store.save(chat, 0)
    store._db.execute("DELETE FROM versions WHERE text IN ('Rayleigh', 'later')")
    (loaded,) = ChatStore(path).open_chats()
    assert [m.text for m in loaded.messages] == [
        chat.messages[0].text,
        "scattering",
        "the engine died",
        "",
    ]


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


def test_only_one_process_owns_the_tabs(path: Path) -> None:
    first = ChatStore(path)
    second = ChatStore(path)
    assert first.owns_tabs
    assert not second.owns_tabs
    first.close()
    assert ChatStore(path).owns_tabs


def test_a_chat_is_shown_elsewhere_while_the_tabs_owner_runs(path: Path) -> None:
    owner, other, tab, closed = ChatStore(path), ChatStore(path), a_chat(), Chat(title="closed")
    owner.save(tab, 0)
    owner.save(closed, None)
    assert [other.is_shown_elsewhere(chat) for chat in (tab, closed)] == [True, False]
    assert not owner.is_shown_elsewhere(tab)
    owner.close()
    assert not other.is_shown_elsewhere(tab)
    assert ChatStore(path).owns_tabs, "asking leaves the tabs to the next who starts"


@pytest.mark.parametrize("damage", [b"not a database at all" * 100, b""])
def test_a_damaged_file_is_set_aside_not_deleted(path: Path, damage: bytes) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)
    store = ChatStore(path)
    store.save(a_chat(), 0)
    assert len(store.open_chats()) == 1
    kept = list(path.parent.glob("*.damaged-*"))
    assert [file.read_bytes() for file in kept] == ([damage] if damage else [])
    assert ("sqlite3 " in store.note and " .recover" in store.note) is bool(damage)
    store.close()
    assert len(ChatStore(path).open_chats()) == 1


def test_damage_that_sqlite_cannot_even_quote_is_set_aside(path: Path) -> None:
    ChatStore(path).close()
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"CREATE TABLE messages", b"CREA\xff\xfe\xfdABLE messages"))
    store = ChatStore(path)
    assert "was damaged" in store.note
    store.save(a_chat(), 0)


def test_what_a_damaged_file_had_not_merged_yet_is_kept_beside_it(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database at all" * 100)
    Path(f"{path}-wal").write_bytes(b"the last words")
    ChatStore(path)
    (log,) = path.parent.glob("*.damaged-*-wal")
    assert log.read_bytes() == b"the last words"


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


def test_a_write_that_finds_the_file_full_says_so(path: Path) -> None:
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


@pytest.mark.parametrize("version", range(len(MIGRATIONS)))
def test_every_earlier_schema_is_brought_up_to_date(path: Path, version: int) -> None:
    """With the chats in it whole; what a schema did not know has its default."""
    path.parent.mkdir(parents=True)
    db = sqlite3.connect(path)
    for number in range(version):
        db.executescript(MIGRATIONS[number])
    db.execute(f"PRAGMA user_version = {version}")
    before = a_chat()
    if version:
        write_as_schema_1(db, before)
    db.close()
    store = ChatStore(path)
    if version:
        assert [content(chat) for chat in store.open_chats()] == [content(before)]
    chat = a_chat()
    chat.messages[1].version.model = "SmolLM2"
    store.save(chat, 1)
    store.close()
    assert content(ChatStore(path).open_chats()[-1]) == content(chat)


def write_as_schema_1(db: sqlite3.Connection, chat: Chat) -> None:
    """Later schemas added columns, each with a default."""
    row = (chat.id, chat.title, chat.system, chat.draft, 0.0, 0)
    db.execute(
        "INSERT INTO chats (id, title, system, draft, updated, tab) VALUES (?, ?, ?, ?, ?, ?)", row
    )
    for place, m in enumerate(chat.messages):
        db.execute(
            "INSERT INTO messages (id, chat_id, place, role, chosen, queued) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (m.id, chat.id, place, m.role, m.chosen, m.queued),
        )
        for number, v in enumerate(m.versions):
            db.execute(
                "INSERT INTO versions "
                "(message_id, number, text, reason, new_tokens, ttft_s, tokens_per_s) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (m.id, number, v.text, v.reason, v.new_tokens, v.ttft_s, v.tokens_per_s),
            )
    db.commit()


def test_a_later_schema_is_left_alone(path: Path) -> None:
    path.parent.mkdir(parents=True)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 999")
    db.close()
    with pytest.raises(ChatError, match="update pkvchat"):
        ChatStore(path)


@pytest.mark.parametrize("others", ["CREATE TABLE other (x)", "PRAGMA journal_mode = WAL"])
def test_a_file_that_another_program_holds_is_said_and_opens_afterwards(
    path: Path, others: str, monkeypatch: pytest.MonkeyPatch
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


def test_an_open_that_fails_leaves_no_lock(path: Path) -> None:
    path.parent.mkdir()
    other = sqlite3.connect(path, isolation_level=None, timeout=0)
    other.execute("CREATE VIEW versions AS SELECT 1")
    with pytest.raises(ChatError, match="cannot be saved"):
        ChatStore(path)
    other.executescript("DROP VIEW versions; PRAGMA user_version = 0")
    other.close()
    path.with_suffix(".lock").symlink_to("nowhere/at/all")
    with pytest.raises(ChatError, match="No such file"):
        ChatStore(path)
    assert not Path(f"{path}-wal").exists(), "the last who closes the file merges its log"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folders_chats_can_be_read(path: Path) -> None:
    store, chat = ChatStore(path), a_chat()
    store.save(chat, tab=0)
    store.close()
    path.parent.chmod(0o500)
    for file in path.parent.iterdir():
        file.chmod(0o400)
    store = ChatStore(path)
    assert "none will be saved" in store.note
    assert store.owns_tabs
    assert not ChatStore(path).owns_tabs
    assert [content(again) for again in store.open_chats()] == [content(chat)]
    assert [found.id for found in store.find("blue")] == [chat.id]
    with pytest.raises(ChatError, match="cannot be saved"):
        store.save(Chat("new"), tab=1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_unwritable_folder_is_said_in_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ChatError, match="cannot be saved") as error:
        ChatStore(tmp_path / "data" / "chats.db")
    assert "\n" not in str(error.value)


def test_a_file_in_the_folders_place_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(ChatError, match="cannot be saved"):
        ChatStore(tmp_path / "data" / "chats.db")
