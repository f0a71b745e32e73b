"""The SQLite file that chats are saved in: opened, brought to our schema, set aside if damaged."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from .errors import ChatError

# What brings a file from each schema version to the next; the last entry's number is ours.
MIGRATIONS = (
    """
    CREATE TABLE IF NOT EXISTS chats (
        id TEXT PRIMARY KEY,
        title TEXT NOT NULL,
        system TEXT NOT NULL,
        draft TEXT NOT NULL,
        updated REAL NOT NULL,
        tab INTEGER  -- place among the open tabs; NULL once closed
    );
    CREATE TABLE IF NOT EXISTS messages (
        id TEXT PRIMARY KEY,
        chat_id TEXT NOT NULL REFERENCES chats ON DELETE CASCADE,
        place INTEGER NOT NULL,
        role TEXT NOT NULL,
        chosen INTEGER NOT NULL,
        queued INTEGER NOT NULL
    );
    CREATE INDEX IF NOT EXISTS messages_of_chat ON messages (chat_id, place);
    CREATE TABLE IF NOT EXISTS versions (
        message_id TEXT NOT NULL REFERENCES messages ON DELETE CASCADE,
        number INTEGER NOT NULL,
        text TEXT NOT NULL,
        reason TEXT NOT NULL,
        new_tokens INTEGER NOT NULL,
        ttft_s REAL NOT NULL,
        tokens_per_s REAL NOT NULL,
        PRIMARY KEY (message_id, number)
    );
    """,
    "ALTER TABLE versions ADD COLUMN model TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE chats ADD COLUMN in_view INTEGER NOT NULL DEFAULT 0",
)
# sqlite3 raises the second where its message quotes a schema that is damaged
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)

_PRAGMAS = ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON")
_BUSY_S = 5.0  # for another's write to end


def is_locked(error: Exception) -> bool:
    """Another program is using the file in a way that keeps this one out."""
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


@dataclass(frozen=True)
class ChatFile:
    """db: the writer's connection. alone: it is the only one there can be, the disk being full or
    read-only. note: "" or a line about that, or about a damaged file, which is kept under another
    name.
    """

    path: Path
    db: sqlite3.Connection
    alone: bool = False
    note: str = ""

    @classmethod
    def open(cls, path: Path) -> ChatFile:
        """Of our schema. Raises OSError, SQLITE_ERRORS, or ChatError for a later pkvchat's."""
        if path.exists() and not os.access(path.parent, os.W_OK):
            return _open_to_read(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone_in(path.parent):  # of several first starts, one makes the tables
            try:
                return _open(path)
            except _SetAside as damage:
                return replace(_open(path), note=str(damage))

    def reader(self) -> AbstractContextManager[sqlite3.Connection]:
        """A connection for any thread, while the writer's is in use, too."""
        return nullcontext(self.db) if self.alone else closing(_connect(self.path))


class _SetAside(ChatError):
    """A damaged file is now kept under another name."""


def _set_aside(path: Path) -> Path:
    aside = path.with_suffix(f".damaged-{int(time.time())}")
    # The log first, which may hold what was written last: beside a new file SQLite deletes it.
    for part in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            Path(f"{path}{part}").rename(f"{aside}{part}")
    return aside


def _open(path: Path) -> ChatFile:
    try:
        return _prepare(path, _connect(path), *_PRAGMAS)
    except sqlite3.OperationalError as error:  # a full disk has no room for what processes share
        if is_locked(error):
            raise
        file = _prepare(path, _connect(path), "locking_mode = EXCLUSIVE", *_PRAGMAS)
        return replace(file, alone=True)


def _open_to_read(path: Path) -> ChatFile:
    """Where nothing can be written, not even the locks and the log that SQLite keeps beside it."""
    file = _prepare(path, _connect(f"{path.absolute().as_uri()}?immutable=1", uri=True))
    note = f"{path.parent} can't be written to: its chats can be read, but none will be saved"
    return replace(file, alone=True, note=note)


def _prepare(path: Path, db: sqlite3.Connection, *pragmas: str) -> ChatFile:
    """Where that fails, ``db`` is closed, for it may hold a lock by then."""
    try:
        for pragma in pragmas:
            db.execute(f"PRAGMA {pragma}")
        _migrate(path, db)
    except BaseException as error:
        try:
            if _is_damage(error) and os.access(path.parent, os.W_OK):
                aside = _set_aside(path)
                raise _SetAside(
                    f"{path.name} was damaged ({error}); it is kept as {aside.name}: "
                    f"`sqlite3 {quote(str(aside))} .recover` prints what it still holds"
                ) from error
            raise
        finally:
            db.close()  # now, for it deletes the log of what was written last
    return ChatFile(path, db)


def _is_damage(error: BaseException) -> bool:
    return isinstance(error, (sqlite3.DatabaseError, UnicodeDecodeError)) and not isinstance(
        error, sqlite3.OperationalError
    )


def _connect(path: Path | str, *, uri: bool = False) -> sqlite3.Connection:
    db = sqlite3.connect(
        path, isolation_level=None, timeout=_BUSY_S, check_same_thread=False, uri=uri
    )
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")  # one bad byte costs one byte
    db.create_function("casefold", 1, lambda text: str(text).casefold(), deterministic=True)
    return db


def _migrate(path: Path, db: sqlite3.Connection) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise ChatError(
            f"{path} is of schema {version}, from a later pkvchat; "
            f"this one knows up to {len(MIGRATIONS)}: update pkvchat"
        )
    for number in range(max(version, 0), len(MIGRATIONS)):
        done = f"PRAGMA user_version = {number + 1}"
        try:
            db.executescript(f"BEGIN;{MIGRATIONS[number]};{done};COMMIT;")
        except sqlite3.OperationalError as error:
            if "duplicate column name" not in str(error):
                raise
            db.rollback()  # the file is further than the number in it says
            db.execute(done)


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """No other process is in here for the same directory, where its file system has locks."""
    lock = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def try_lock(path: Path) -> int | None:
    """A lock that ends with the process, or None while another process holds it.

    Raises OSError where the file cannot be made.
    """
    with _alone_in(path.parent):
        return _try_lock(path)


def is_held(path: Path) -> bool:
    """Whether a process has the lock. Raises what ``try_lock`` raises."""
    with _alone_in(path.parent):  # to ask is to hold it for a moment, which nobody is to run into
        lock = _try_lock(path)
        if lock is not None:
            os.close(lock)
        return lock is None


def _try_lock(path: Path) -> int | None:
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:  # a read-only disk has locks, too
        lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock
