"""The file that chats are saved in: brought to our schema, and opened where little is allowed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from pkvchat.chat_file import MIGRATIONS
from pkvchat.chats import Chat
from pkvchat.errors import ChatError
from pkvchat.store import ChatStore

MakeChat = Callable[[], Chat]
Content = Callable[[Chat], object]


@pytest.mark.parametrize("version", range(len(MIGRATIONS)))
def test_every_earlier_schema_is_brought_up_to_date(
    path: Path, a_chat: MakeChat, content: Content, version: int
) -> None:
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


@pytest.mark.parametrize("version", [-1, 0, 1])
def test_a_schema_that_is_further_than_its_number_says(
    path: Path, a_chat: MakeChat, content: Content, version: int
) -> None:
    store, chat = ChatStore(path), a_chat()
    chat.messages[1].version.model = "SmolLM2"
    store.save(chat, tab=0)
    store.close()
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version = {version}")
    store = ChatStore(path)
    assert [content(again) for again in store.open_chats()] == [content(chat)]
    assert store._rows("PRAGMA user_version") == [(len(MIGRATIONS),)]


def test_a_later_schema_is_left_alone(path: Path) -> None:
    path.parent.mkdir(parents=True)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 999")
    db.close()
    with pytest.raises(ChatError, match="update pkvchat"):
        ChatStore(path)


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
def test_a_read_only_folders_chats_can_be_read(
    path: Path, a_chat: MakeChat, content: Content
) -> None:
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
