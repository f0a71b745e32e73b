"""Chats on disk: SQLite in the user's data directory, written as answers stream."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from platformdirs import user_data_path

from .chat_file import SQLITE_ERRORS, ChatFile, is_held, is_locked, try_lock
from .chats import ANSWERS, NEW_CHAT, Chat, Message, Saved, Version, new_id, parted_title
from .clean import one_line
from .errors import ChatError

T = TypeVar("T")

_VERSION = "text, reason, new_tokens, ttft_s, tokens_per_s, model"  # Version's fields, in order
# SQLite holds any value in any column; what others have written there becomes what it should be.
_READ_VERSION = (
    "CAST(text AS TEXT), CAST(reason AS TEXT), CAST(new_tokens AS INTEGER), CAST(ttft_s AS REAL), "
    "CAST(tokens_per_s AS REAL), CAST(model AS TEXT)"
)
TAB_STAYS = -1  # for ``save``: the chat's place among the tabs is another's to say
PARTED = "another pkvchat wrote to this chat, too; yours is now saved as a chat of its own"
_IN_USE = "another program holds it: let that one end first"
_SNIPPET = 60  # characters of a search hit's surroundings


@dataclass(frozen=True)
class Found:
    """A saved chat in a list. updated: seconds since the epoch. snippet: where the search hit."""

    id: str
    title: str
    updated: float
    is_open: bool
    snippet: str = ""

    @property
    def line(self) -> str:
        """For a list: its title, how long it has been left alone, and what was found."""
        snippet = f"  … {one_line(self.snippet)}" if self.snippet else ""
        return f"{one_line(self.title) or NEW_CHAT}  {_ago(time.time() - self.updated)}{snippet}"


def _ago(seconds: float) -> str:
    seconds = min(seconds, 1e9)  # infinite where the file is damaged
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return "just now"


def store_path() -> Path:
    return user_data_path("pkvchat") / "chats.db"


class ChatStore:
    """One file of chats. All calls but ``find`` from one thread.

    At most what changed since the last ``save`` is lost when the process is killed. Raises
    ChatError where the file cannot be opened, is from a later pkvchat, or a write fails.
    """

    def __init__(self, path: Path, *, tabs: bool = True) -> None:
        """tabs: this program shows them, unless another does already."""
        self.path = path
        self._lock_path = path.with_suffix(".lock")
        try:
            with ExitStack() as undo:
                self._file = ChatFile.open(path)
                undo.callback(self._file.db.close)
                self._lock = try_lock(self._lock_path) if tabs else None
                undo.pop_all()
        except (OSError, *SQLITE_ERRORS) as error:
            advice = _IN_USE if is_locked(error) else "check its permissions and space"
            raise ChatError(f"chats cannot be saved in {path}: {error}; {advice}") from error
        self.note, self._db = self._file.note, self._file.db

    @property
    def owns_tabs(self) -> bool:
        """This is the running pkvchat that shows this file's tabs."""
        return self._lock is not None

    def close(self) -> None:
        self._db.close()
        if self._lock is not None:
            os.close(self._lock)

    # --- writing ------------------------------------------------------------------------------

    def save(self, chat: Chat, tab: int | None = TAB_STAYS) -> bool:
        """Write what changed in ``chat``; ``tab`` is its place among the open ones.

        Returns whether another process has written to it meanwhile, as has this one: then theirs
        stays as it is, and this one is saved from now on as a chat of its own, with a title of
        its own. One that others deleted comes back with what changes in it, and only then.
        """
        before = chat.saved or Saved()
        messages = {m.id: _signature(m, place) for place, m in enumerate(chat.messages)}
        after = Saved(before.prefix, time.time(), (chat.title, chat.system, chat.draft), messages)

        def write() -> Saved:
            there = self._rows("SELECT updated FROM chats WHERE id = ?", chat.key)
            known, now = before, after
            if (after.head, messages) == (before.head, before.messages):
                now = before
            elif not there:  # new, or deleted by others
                known = Saved()
            elif there != [(before.updated,)]:
                head = (parted_title(chat.title), chat.system, chat.draft)
                known, now = Saved(), replace(after, prefix=new_id(), head=head)
            if now is not before:
                self._write(chat, known, now)
            if tab != TAB_STAYS:
                query = "UPDATE chats SET tab = ?1 WHERE id = ?2 AND tab IS NOT ?1"
                self._db.execute(query, (tab, f"{now.prefix}{chat.id}"))
            return now

        chat.saved = self._transaction(write)
        parted = chat.saved.prefix != before.prefix
        if parted:
            chat.title = chat.saved.head[0]
        return parted

    def _write(self, chat: Chat, before: Saved, after: Saved) -> None:
        """All but the tab, of what ``before`` does not have yet."""
        db, prefix = self._db, after.prefix
        key = f"{prefix}{chat.id}"
        db.execute(
            "INSERT INTO chats (id, title, system, draft, updated) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET title = excluded.title, system = excluded.system, "
            "draft = excluded.draft, updated = excluded.updated",
            (key, *map(_utf8, after.head), after.updated),
        )
        gone = before.messages.keys() - after.messages.keys()
        db.executemany("DELETE FROM messages WHERE id = ?", [(f"{prefix}{id}",) for id in gone])
        for place, message in enumerate(chat.messages):
            if before.messages.get(message.id) == after.messages[message.id]:
                continue
            id = f"{prefix}{message.id}"
            # REPLACE would cascade to the versions; they are few, and written again just below.
            db.execute(
                "INSERT OR REPLACE INTO messages VALUES (?, ?, ?, ?, ?, ?)",
                (id, key, place, message.role, message.chosen, message.queued),
            )
            db.executemany(
                f"INSERT OR REPLACE INTO versions (message_id, number, {_VERSION}) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [(id, n, *_row(version)) for n, version in enumerate(message.versions)],
            )

    def delete(self, chat: Chat) -> None:
        self._transaction(lambda: self._db.execute("DELETE FROM chats WHERE id = ?", (chat.key,)))
        chat.saved = None

    def drop_empty(self, chat: Chat) -> None:
        """Delete a chat nothing was said in, unless others have said something in it."""
        query = (
            "DELETE FROM chats WHERE id = ?1 "
            "AND NOT EXISTS (SELECT 1 FROM messages WHERE chat_id = ?1)"
        )
        self._transaction(lambda: self._db.execute(query, (chat.key,)))
        chat.saved = None

    def put_in_view(self, chat: Chat) -> None:
        """Note the chat whose tab is looked at, for the next start."""
        query = "UPDATE chats SET in_view = (id = ?1) WHERE in_view != (id = ?1)"
        self._transaction(lambda: self._db.execute(query, (chat.key,)))

    def _transaction(self, write: Callable[[], T]) -> T:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                written = write()
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # a full disk ends it, and keeps its own message
                    self._db.execute("ROLLBACK")
                raise
            return written
        except SQLITE_ERRORS as error:
            raise ChatError(f"chats cannot be saved in {self.path}: {error}") from error

    # --- reading ------------------------------------------------------------------------------

    def open_chats(self) -> list[Chat]:
        """The chats that were open in tabs, in their order. Raises ChatError."""
        query = "SELECT CAST(id AS TEXT) FROM chats WHERE tab IS NOT NULL ORDER BY tab"
        with self._snapshot():
            chats = [self._load(chat_id) for (chat_id,) in self._rows(query)]
        return [chat for chat in chats if chat]  # an id that is damaged leads to none

    def in_view(self) -> str:
        """The id of the chat that was looked at last, "" where none was. Raises ChatError."""
        rows = self._rows("SELECT id FROM chats WHERE in_view AND tab IS NOT NULL")
        return str(rows[0][0]) if rows else ""

    def is_shown_elsewhere(self, chat: Chat) -> bool:
        """It is in a tab of another pkvchat that runs. Raises ChatError."""
        query = "SELECT 1 FROM chats WHERE id = ? AND tab IS NOT NULL"
        if self.owns_tabs or not self._rows(query, chat.key):
            return False
        try:
            return is_held(self._lock_path)  # else who had it in a tab has ended since
        except OSError as error:
            raise ChatError(f"{self._lock_path} cannot be read: {error.strerror}") from error

    def is_empty(self) -> bool:
        """Nothing is saved here yet. Raises ChatError."""
        return not self._rows("SELECT 1 FROM chats LIMIT 1")

    def load(self, chat_id: str) -> Chat:
        """A chat as it was saved; an answer that was still running ends with reason "quit".

        Raises ChatError if there is none, or the file cannot be read.
        """
        with self._snapshot():
            chat = self._load(chat_id)
        if chat is None:
            raise ChatError(f"that chat is no longer in {self.path}: it was deleted meanwhile")
        return chat

    def _load(self, chat_id: str) -> Chat | None:
        rows = self._rows(
            "SELECT updated, CAST(title AS TEXT), CAST(system AS TEXT), CAST(draft AS TEXT) "
            "FROM chats WHERE id = ?",
            chat_id,
        )
        if not rows:
            return None
        ((updated, title, system, draft),) = rows
        messages = [
            self._message(id, role, chosen, bool(queued))
            for id, role, chosen, queued in self._rows(
                "SELECT id, CAST(role AS TEXT), CAST(chosen AS INTEGER), queued "
                "FROM messages WHERE chat_id = ? ORDER BY place",
                chat_id,
            )
        ]
        for message in messages:
            if message.role in ANSWERS:
                message.version.reason = message.version.reason or "quit"
        # As if "quit" stood in the file: another pkvchat may be writing that answer right now.
        written = {m.id: _signature(m, place) for place, m in enumerate(messages)}
        saved = Saved("", updated, (title, system, draft), written)
        return Chat(title, messages, system, draft, chat_id, saved)

    def _message(self, id: str, role: str, chosen: int, queued: bool) -> Message:
        """A file that lost some rows may lack the version that was chosen, or all of them."""
        rows = self._rows(
            f"SELECT {_READ_VERSION} FROM versions WHERE message_id = ? ORDER BY number", id
        )
        versions = [Version(*row) for row in rows] or [Version()]
        chosen = max(0, min(chosen, len(versions) - 1))
        return Message(role, versions, chosen, queued, id)

    def find(self, words: str, limit: int = 200) -> list[Found]:
        """Saved chats that hold ``words`` in title or text, the newest first; "" finds all.

        Reads every text that there is, so it may be called from any thread. Raises ChatError.
        """
        with self._reading(), self._file.reader() as db:
            rows = db.execute(
                "SELECT c.id, CAST(c.title AS TEXT), CAST(c.updated AS REAL), c.tab IS NOT NULL, ("
                "  SELECT CAST(v.text AS TEXT)"
                "  FROM messages m JOIN versions v ON v.message_id = m.id"
                "  WHERE m.chat_id = c.id AND instr(casefold(v.text), ?1) LIMIT 1) AS hit "
                "FROM chats c WHERE typeof(c.id) = 'text' "
                "AND (hit IS NOT NULL OR instr(casefold(c.title), ?1)) "
                "ORDER BY c.updated DESC LIMIT ?2",
                (_utf8(words).casefold(), limit),
            ).fetchall()
        return [
            Found(id, title, updated, bool(is_open), _snippet(hit or "", words))
            for id, title, updated, is_open, hit in rows
        ]

    def _rows(self, query: str, *values: object) -> list[Any]:
        with self._reading():
            return self._db.execute(query, values).fetchall()

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """All that is read in it is of one moment, whatever others write meanwhile."""
        with self._reading():
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                self._db.execute("COMMIT")

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except SQLITE_ERRORS as error:
            afresh = "move it away to start afresh, or save what it holds with sqlite3's .recover"
            advice = _IN_USE if is_locked(error) else afresh
            raise ChatError(f"{self.path} cannot be read: {error}; {advice}") from error


def _signature(message: Message, place: int) -> tuple[object, ...]:
    """Changes whenever what is written of a message does; texts only ever grow."""
    versions = tuple((len(v.text), v.reason, v.new_tokens) for v in message.versions)
    return (place, message.chosen, message.queued, versions)


def _row(version: Version) -> tuple[object, ...]:
    """The columns _VERSION."""
    counts = (version.new_tokens, version.ttft_s, version.tokens_per_s)
    return (_utf8(version.text), version.reason, *counts, _utf8(version.model))


def _utf8(text: str) -> str:
    """Without halves of surrogate pairs, which SQLite cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _snippet(text: str, words: str) -> str:
    if not words:
        return ""
    at = max(text.casefold().find(words.casefold()), 0)  # as SQL has found it
    start = max(at - _SNIPPET // 3, 0)
    return " ".join(text[start : start + _SNIPPET].split())
