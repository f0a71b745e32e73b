"""A file of chats that rots, or that others have written into: what can be read still is."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pkvchat.chats import Chat
from pkvchat.errors import ChatError
from pkvchat.store import ChatStore

MakeChat = Callable[[], Chat]
Content = Callable[[Chat], object]


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
def test_values_of_other_types_and_ranges_still_open(
    path: Path, a_chat: MakeChat, damage: str
) -> None:
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
def test_an_id_that_is_damaged_costs_one_chat(
    path: Path, a_chat: MakeChat, content: Content, id: str
) -> None:
    store, chat = ChatStore(path), a_chat()
    store.save(Chat(title="lost"), tab=0)
    store.save(chat, tab=1)
    store._db.execute(f"UPDATE chats SET id = {id}, in_view = 1 WHERE title = 'lost'")
    assert [content(again) for again in store.open_chats()] == [content(chat)]
    assert all(isinstance(found.id, str) for found in store.find(""))
    assert chat.id in [found.id for found in store.find("")]
    assert store.in_view() != chat.id


def test_a_file_that_lost_versions_still_opens(path: Path, a_chat: MakeChat) -> None:
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


def test_a_damaged_file_is_set_aside_not_deleted(path: Path, a_chat: MakeChat) -> None:
    """With what had not been merged into it yet."""
    damage = b"not a database at all" * 100
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)
    Path(f"{path}-wal").write_bytes(b"the last words")
    store = ChatStore(path)
    store.save(a_chat(), 0)
    assert len(store.open_chats()) == 1
    (log,) = path.parent.glob("*.damaged-*-wal")
    kept = Path(str(log).removesuffix("-wal"))
    assert (kept.read_bytes(), log.read_bytes()) == (damage, b"the last words")
    assert f"it is kept as {kept.name}: `sqlite3 {kept} .recover` prints" in store.note
    store.close()
    assert len(ChatStore(path).open_chats()) == 1


KILLED_AS_IT_SETS_ASIDE = """
import os, signal, sys
from pathlib import Path
from pkvchat.store import ChatStore
renames = []
def kill(event, _):
    if event == "os.rename":
        renames.append(event)
        if len(renames) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(kill)
ChatStore(Path(sys.argv[1]))
"""


def test_kill_9_between_two_parts_that_are_set_aside_loses_neither(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database at all" * 100)
    Path(f"{path}-wal").write_bytes(b"the last words")
    killed = subprocess.run([sys.executable, "-c", KILLED_AS_IT_SETS_ASIDE, str(path)])
    assert killed.returncode == -signal.SIGKILL
    assert "was damaged" in ChatStore(path).note
    kept = {file.read_bytes() for file in path.parent.glob("*.damaged-*")}
    assert kept >= {b"not a database at all" * 100, b"the last words"}


def test_an_empty_file_is_no_damage(path: Path, a_chat: MakeChat) -> None:
    path.parent.mkdir(parents=True)
    path.touch()
    store = ChatStore(path)
    store.save(a_chat(), 0)
    assert store.note == ""
    assert not list(path.parent.glob("*.damaged-*"))


def test_damage_that_sqlite_cannot_even_quote_is_set_aside(path: Path, a_chat: MakeChat) -> None:
    ChatStore(path).close()
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"CREATE TABLE messages", b"CREA\xff\xfe\xfdABLE messages"))
    store = ChatStore(path)
    assert "was damaged" in store.note
    store.save(a_chat(), 0)
