"""Conversations as a ledger keeps them: rows of messages whose text it does not look into."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from forkwise.errors import LedgerError
from forkwise.linux import fds

__all__ = [
    "SCRIPTS",
    "ConversationRecord",
    "Conversations",
    "Database",
    "MessageRow",
    "SqliteConversations",
    "prepare",
]


#: What leads from each version to the next. One that was released is never changed.
SCRIPTS = (
    """
    CREATE TABLE events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, fork TEXT NOT NULL, attempt TEXT,
        kind TEXT NOT NULL, data TEXT NOT NULL
    );
    CREATE INDEX events_of_fork ON events (fork);
    CREATE TABLE forks (
        seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, state TEXT NOT NULL, parent TEXT,
        "commit" INTEGER, undone INTEGER, data TEXT NOT NULL
    );
    CREATE INDEX forks_by_state ON forks (state);
    CREATE INDEX forks_in_attempt ON forks (parent) WHERE parent IS NOT NULL;
    CREATE TABLE attempts (
        seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, fork TEXT NOT NULL, key TEXT NOT NULL, round INTEGER NOT NULL,
        state TEXT NOT NULL, score REAL, data TEXT NOT NULL,
        UNIQUE (fork, key, round)
    );
    CREATE INDEX attempts_of_fork ON attempts (fork, state, score);
    CREATE TABLE progress (attempt TEXT PRIMARY KEY, data TEXT NOT NULL) WITHOUT ROWID;
    """,
    """
    CREATE TABLE conversations (id TEXT PRIMARY KEY, updated REAL NOT NULL, data TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE messages (
        conversation TEXT NOT NULL, node INTEGER NOT NULL, parent INTEGER NOT NULL, awaits TEXT NOT NULL,
        message TEXT NOT NULL, results TEXT, PRIMARY KEY (conversation, node)
    ) WITHOUT ROWID;
    """,
)


def prepare(database: sqlite3.Connection, path: str) -> None:
    """Bring a database, which may be new, to the version this forkwise knows."""
    if _version(database, path) == len(SCRIPTS):
        return
    # Two that turn a new file into a WAL database at once would refuse each other: one at a time.
    place, flags = os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    directory = fds.track(lambda: os.open(place, flags))
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        database.execute("PRAGMA journal_mode = WAL")
        for version in range(_version(database, path), len(SCRIPTS)):
            script = f"BEGIN IMMEDIATE; {SCRIPTS[version]}; PRAGMA user_version = {version + 1}; COMMIT"
            database.executescript(script)
    finally:
        fcntl.flock(directory, fcntl.LOCK_UN)  # a child forked meanwhile holds a copy of the descriptor
        fds.close(directory)


def _version(database: sqlite3.Connection, path: str) -> int:
    with closing(database.execute("PRAGMA user_version")) as rows:
        version: int = rows.fetchone()[0]
    if version > len(SCRIPTS):
        raise LedgerError(
            f"the ledger {path} was written by a newer forkwise (version {version} of its tables, this one knows "
            f"{len(SCRIPTS)}): install a newer forkwise"
        )
    return version


_PATIENCE = 60.0  # seconds for which another writer is waited for


class Database:
    """A SQLite database in WAL mode: readers wait for nobody, and writers take turns."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        with _guard:
            _all.add(self)
        self.rows("SELECT 1")

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All that a statement gives."""
        with self.lock:
            try:
                return self._connected().execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise LedgerError(f"the ledger {self.path} cannot be used: {error}") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything inside happens as one or not at all, and no other thread or process writes meanwhile."""
        with self.lock:
            self.rows("BEGIN IMMEDIATE")
            try:
                yield
                self.rows("COMMIT")
            except BaseException:
                with suppress(LedgerError):  # where it was rolled back already
                    self.rows("ROLLBACK")
                raise

    def disconnect(self) -> None:
        """Close the connection; the next statement opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Close it for good."""
        with self.lock:
            self._closed = True
            self.disconnect()

    def _connected(self) -> sqlite3.Connection:
        if self._closed:
            raise LedgerError(f"the ledger {self.path} is closed")
        if self._connection is None:
            connection = sqlite3.connect(self.path, _PATIENCE, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("PRAGMA synchronous = NORMAL")
                prepare(connection, self.path)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection


_all: weakref.WeakSet[Database] = weakref.WeakSet()
_guard = threading.Lock()


def _before_fork() -> None:
    _guard.acquire()
    for database in _all:
        database.lock.acquire()
        database.disconnect()


def _after_fork() -> None:
    for database in _all:
        database.lock.release()
    _guard.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


class MessageRow(NamedTuple):
    """A message: its number, that of the one it follows, the calls it awaits, and its text. ``results`` is what is
    known of its own calls, and may be told again later."""

    node: int
    parent: int
    awaits: Sequence[str]
    message: str
    results: str | None = None


@dataclass(frozen=True, slots=True)
class ConversationRecord:
    """What is known of a conversation beside its messages."""

    id: str
    here: int = 0
    labels: Mapping[str, int] = field(default_factory=dict)
    title: str = ""
    updated: float = 0.0


class Conversations(ABC):
    """Where conversations are kept."""

    @abstractmethod
    def save(self, record: ConversationRecord, rows: Sequence[MessageRow]) -> None:
        """Write down a conversation, with those of its messages that are new or were changed; all of it or nothing."""

    @abstractmethod
    def load(self, conversation: str) -> tuple[ConversationRecord, list[MessageRow]]:
        """A conversation with all its messages, in their order; LedgerError where there is none of that name."""

    @abstractmethod
    def all(self) -> list[ConversationRecord]:
        """All of them, the last used first."""

    @abstractmethod
    def forget(self, conversation: str) -> None:
        """Delete one."""


class SqliteConversations(Conversations):
    """Conversations in the tables of a ledger's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, record: ConversationRecord, rows: Sequence[MessageRow]) -> None:
        told = {"here": record.here, "labels": dict(record.labels), "title": record.title}
        with self._database.transaction():
            self._database.rows(
                "REPLACE INTO conversations VALUES (?, ?, ?)", (record.id, time.time(), json.dumps(told))
            )
            for row in rows:
                self._database.rows(
                    "REPLACE INTO messages VALUES (?, ?, ?, ?, ?, ?)",
                    (record.id, row.node, row.parent, json.dumps(list(row.awaits)), row.message, row.results),
                )

    def load(self, conversation: str) -> tuple[ConversationRecord, list[MessageRow]]:
        found = self._database.rows("SELECT id, updated, data FROM conversations WHERE id = ?", (conversation,))
        if not found:
            known = [record.id for record in self.all()]
            raise LedgerError(
                f"there is no conversation {conversation!r} in the ledger", subject=conversation, near=known[:5]
            )
        rows = self._database.rows(
            "SELECT node, parent, awaits, message, results FROM messages WHERE conversation = ? ORDER BY node",
            (conversation,),
        )
        return _record(found[0]), [MessageRow(n, p, json.loads(a), m, r) for n, p, a, m, r in rows]

    def all(self) -> list[ConversationRecord]:
        rows = self._database.rows("SELECT id, updated, data FROM conversations ORDER BY updated DESC")
        return [_record(row) for row in rows]

    def forget(self, conversation: str) -> None:
        with self._database.transaction():
            self._database.rows("DELETE FROM conversations WHERE id = ?", (conversation,))
            self._database.rows("DELETE FROM messages WHERE conversation = ?", (conversation,))


def _record(row: tuple[Any, ...]) -> ConversationRecord:
    id_, updated, data = row
    return ConversationRecord(id_, updated=updated, **json.loads(data))
