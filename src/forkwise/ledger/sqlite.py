"""The ledger on SQLite.

Everything that knows SQL is here: the tables and their migrations, the connection, and the two stores on it, forks and
conversations. Another storage is a sibling module with its own ``Ledger``.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import sqlite3
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from forkwise.errors import ForkwiseWarning, LedgerError
from forkwise.ledger.ledger import Conversations, Ledger
from forkwise.ledger.records import (
    AttemptRecord,
    AttemptState,
    ConversationRecord,
    Event,
    ForkRecord,
    ForkState,
    MessageRow,
    Summary,
)
from forkwise.linux import fds
from forkwise.progress import report

if TYPE_CHECKING:
    from forkwise.files.workspace import Workspace

__all__ = [
    "SCRIPTS",
    "DamagedRow",
    "Database",
    "SqliteConversations",
    "SqliteLedger",
    "open_ledger",
]

#: The migrations, from each version of the tables to the next. A released one is never changed.
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

_BUSY_TIMEOUT_S = 60.0  # how long to wait for another writer
_FORK_FIELDS = {*ForkRecord.__slots__, "state"}
_ATTEMPT_FIELDS = {*AttemptRecord.__slots__}
_STATES: tuple[AttemptState, ...] = ("pending", "running", "succeeded", "failed", "faulted", "cancelled")

_PUT_FORK = """
    INSERT INTO forks (seq, id, state, parent, "commit", undone, data) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE
    SET state = excluded.state, "commit" = excluded."commit", undone = excluded.undone, data = excluded.data
"""
_PUT_ATTEMPT = """
    INSERT INTO attempts (seq, id, fork, key, round, state, score, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET state = excluded.state, score = excluded.score, data = excluded.data
"""
_EVENTS = "SELECT seq, at, fork, attempt, kind, data FROM events"
_ATTEMPTS = """
    SELECT attempts.id, attempts.data, progress.data
    FROM attempts LEFT JOIN progress ON progress.attempt = attempts.id
"""
_SUMMARIES = f"""
    SELECT listed.*, iif(json_valid(first.data), json_extract(first.data, '$.label'), NULL)
    FROM (
        SELECT min(attempts.seq) AS first, forks.seq, forks.id, forks.data,
            max(CASE attempts.state WHEN 'succeeded' THEN attempts.score END),
            {", ".join(f"sum(attempts.state = '{state}')" for state in _STATES)}
        FROM forks LEFT JOIN attempts ON attempts.fork = forks.id
        WHERE forks.parent IS NULL OR NOT ?
        GROUP BY forks.seq ORDER BY forks.seq DESC LIMIT ?
    ) AS listed
    LEFT JOIN attempts AS first ON first.seq = listed.first
"""
_encode = json.JSONEncoder(separators=(",", ":")).encode


def open_ledger(workspace: Workspace) -> Ledger:
    """Open the ledger of a workspace, in its state directory."""
    return SqliteLedger(workspace.state / "ledger")


class SqliteLedger(Ledger):
    """A ledger in ``ledger.db`` of a directory, which is created if it is missing."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__(directory)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._database = Database(str(self.directory / "ledger.db"))
        self.conversations = SqliteConversations(self._database)

    def note_progress(
        self,
        attempt: str,
        *,
        files: int | None = None,
        last_line: str | None = None,
        output_bytes: int | None = None,
    ) -> None:
        news = {"files": files, "last_line": last_line, "output_bytes": output_bytes}
        with self._transaction():
            record = self.attempt(attempt)
            if record.state == "running":
                progress = {name: getattr(record, name) if new is None else new for name, new in news.items()}
                self._database.rows("REPLACE INTO progress VALUES (?, ?)", (record.id, _encode(progress)))

    def forks(
        self, *, limit: int | None = None, state: ForkState | Literal["interrupted"] | None = None
    ) -> list[ForkRecord]:
        if state is None:
            return self._forks("ORDER BY seq DESC LIMIT ?", _to_sql_limit(limit))
        stored = "running" if state == "interrupted" else state
        found = self._forks("WHERE state = ? ORDER BY seq DESC", stored)
        return [record for record in found if record.state == state][:limit]

    def attempts(self, fork: str) -> list[AttemptRecord]:
        return self._attempts("WHERE fork = ? ORDER BY seq", self.fork(fork).id)

    def children(self, attempt: str) -> list[ForkRecord]:
        return self._forks("WHERE parent = ? ORDER BY seq", self.attempt(attempt).id)

    def events(self, *, after: int = 0, fork: str | None = None, limit: int | None = None) -> list[Event]:
        if fork is None:
            return self._events("WHERE seq > ? ORDER BY seq LIMIT ?", after, _to_sql_limit(limit))
        return self._events(
            "WHERE fork = ? AND seq > ? ORDER BY seq LIMIT ?", self.fork(fork).id, after, _to_sql_limit(limit)
        )

    def summaries(self, limit: int | None = None, *, outermost: bool = False) -> list[Summary]:
        found = []
        rows = self._database.rows(_SUMMARIES, (outermost, _to_sql_limit(limit)))
        rows.sort(key=lambda row: row[1], reverse=True)  # SQLite promises no order of the outer rows of a join
        for _, _, name, data, best, *counts, label in rows:
            with _damage_left_out(f"fork {name}"):
                fork = _load_fork(data)
                attempts = {state: count for state, count in zip(_STATES, counts, strict=True) if count}
                found.append(Summary(fork, attempts, best, label if isinstance(label, str) else None))
        return found

    def rebuild(self) -> None:
        with self._transaction():
            self._database.rows("DELETE FROM forks")
            self._database.rows("DELETE FROM attempts")
            with report("Rebuilding the ledger from its events") as work:
                for event in self.events():
                    self._apply(event)
                    work.done += 1

    def close(self) -> None:
        self._database.close()

    def _transaction(self) -> AbstractContextManager[None]:
        return self._database.transaction()

    def _append(self, fork: str, attempt: str | None, kind: str, /, **data: Any) -> None:
        at = time.time()
        try:
            document = _encode(data)
        except (TypeError, ValueError) as error:
            subject = attempt or fork
            raise LedgerError(
                f"event {kind!r} of {subject} cannot be stored as JSON: {error}", subject=subject
            ) from error
        columns = (at, fork, attempt, kind, document)
        self._database.rows("INSERT INTO events (at, fork, attempt, kind, data) VALUES (?, ?, ?, ?, ?)", columns)
        [(seq,)] = self._database.rows("SELECT last_insert_rowid()")
        self._apply(Event(seq, at, fork, attempt, kind, data))
        if attempt is not None and "state" in data:
            self._database.rows("DELETE FROM progress WHERE attempt = ?", (attempt,))

    def _apply(self, event: Event) -> None:
        """Set the fields of an event on its record; the other fields stay."""
        if event.attempt is None:
            rows = self._database.rows("SELECT data FROM forks WHERE id = ?", (event.fork,))
            fork = _merge_fields(rows, event.data, _FORK_FIELDS)
            columns = [fork.get(name) for name in ("id", "state", "parent", "commit", "undone")]
            self._database.rows(_PUT_FORK, (event.seq, *columns, _encode(fork)))
        else:
            rows = self._database.rows("SELECT data FROM attempts WHERE id = ?", (event.attempt,))
            attempt = _merge_fields(rows, event.data, _ATTEMPT_FIELDS)
            columns = [attempt.get(name) for name in ("id", "fork", "key", "round", "state", "score")]
            self._database.rows(_PUT_ATTEMPT, (event.seq, *columns, _encode(attempt)))

    def _find_fork(self, fork: str) -> ForkRecord | None:
        for (data,) in self._database.rows("SELECT data FROM forks WHERE id = ?", (fork,)):
            with _damage_raised("fork", fork):
                return _load_fork(data)
        return None

    def _find_attempt(self, attempt: str) -> AttemptRecord | None:
        for _, data, progress in self._database.rows(f"{_ATTEMPTS} WHERE id = ?", (attempt,)):
            with _damage_raised("attempt", attempt):
                return _load_attempt(data, progress)
        return None

    def _list_fork_ids(self) -> list[str]:
        return [name for (name,) in self._database.rows("SELECT id FROM forks")]

    def _find_forks_by_commit(self, commit: int) -> list[ForkRecord]:
        return self._forks('WHERE "commit" = ? OR undone = ? ORDER BY seq DESC', commit, commit)

    def _has_attempt(self, fork: str, key: str, round: int) -> bool:  # noqa: A002
        query = "SELECT 1 FROM attempts WHERE fork = ? AND key = ? AND round = ?"
        return bool(self._database.rows(query, (fork, key, round)))

    def _count_attempts(self, fork: str) -> int:
        [(number,)] = self._database.rows("SELECT count(*) FROM attempts WHERE fork = ?", (fork,))
        return int(number)

    def _delete_forks(self, forks: Sequence[str]) -> None:
        with self._transaction():
            for fork in forks:
                for table, column in (("events", "fork"), ("attempts", "fork"), ("forks", "id")):
                    self._database.rows(f"DELETE FROM {table} WHERE {column} = ?", (fork,))

    def _forks(self, clause: str, *values: object) -> list[ForkRecord]:
        found = []
        for name, data in self._database.rows(f"SELECT id, data FROM forks {clause}", values):
            with _damage_left_out(f"fork {name}"):
                found.append(_load_fork(data))
        return found

    def _attempts(self, clause: str, *values: object) -> list[AttemptRecord]:
        found = []
        for name, data, progress in self._database.rows(f"{_ATTEMPTS} {clause}", values):
            with _damage_left_out(f"attempt {name}"):
                found.append(_load_attempt(data, progress))
        return found

    def _events(self, clause: str, *values: object) -> list[Event]:
        found = []
        for seq, at, fork, attempt, kind, data in self._database.rows(f"{_EVENTS} {clause}", values):
            with _damage_left_out(f"event {seq} of fork {fork}"):
                found.append(Event(seq, at, fork, attempt, kind, _load_object(data)))
        return found

    def find_damage(self) -> list[DamagedRow]:
        """List the rows that cannot be read; each of them is left out of every other answer."""
        queries = (
            ("events", "SELECT seq, data FROM events", _load_object),
            ("forks", "SELECT id, data FROM forks", _load_fork),
            ("attempts", "SELECT id, data FROM attempts", _load_attempt),
            ("conversations", "SELECT id, data FROM conversations", _load_conversation_data),
        )
        found = []
        for table, query, load in queries:
            for name, data in self._database.rows(query):
                try:
                    load(data)
                except _DamagedRowError as error:
                    found.append(DamagedRow(table, str(name), str(error)))
        return found

    def repair(self, row: DamagedRow) -> str:
        """Rebuild a damaged fork or attempt from its events, or else move the row to ``damaged.jsonl``.

        Return what was done.
        """
        key = "seq" if row.table == "events" else "id"
        with self._transaction():
            copies = self._database.rows(f"SELECT * FROM {row.table} WHERE {key} = ?", (row.name,))
            with open(self.directory / "damaged.jsonl", "a", encoding="utf-8") as file:
                file.writelines(json.dumps([row.table, *copy], default=repr) + "\n" for copy in copies)
            self._database.rows(f"DELETE FROM {row.table} WHERE {key} = ?", (row.name,))
            if row.table in ("forks", "attempts"):
                fork, _, attempt = row.name.partition(".")
                for event in self._events("WHERE fork = ? ORDER BY seq", fork):
                    if event.attempt == (row.name if attempt else None):
                        self._apply(event)
                if not any(left[:2] == row[:2] for left in self.find_damage()):
                    return "rebuilt from its events"
                self._database.rows(f"DELETE FROM {row.table} WHERE {key} = ?", (row.name,))
        return "moved to damaged.jsonl in the ledger's directory"


class DamagedRow(NamedTuple):
    """A row of the ledger that cannot be read: its table, its id, and the reason."""

    table: str
    name: str
    reason: str


class _DamagedRowError(ValueError):
    """A row holds something else than the record that belongs there."""


@contextmanager
def _damage_left_out(subject: str) -> Iterator[None]:
    """Leave a damaged row out, with a warning, so that all others stay readable."""
    try:
        yield
    except _DamagedRowError as error:
        warnings.warn(
            f"{subject} in the ledger is damaged and left out: {error}; see forkwise doctor --repair",
            ForkwiseWarning,
            stacklevel=5,
        )


@contextmanager
def _damage_raised(noun: str, name: str) -> Iterator[None]:
    try:
        yield
    except _DamagedRowError as error:
        raise LedgerError(
            f"{noun} {name} in the ledger is damaged: {error}; see forkwise doctor --repair", subject=name
        ) from error


def _load_object(data: object) -> dict[str, Any]:
    try:
        document = json.loads(data if isinstance(data, str) else "")
    except (ValueError, RecursionError):
        raise _DamagedRowError("it is not JSON") from None
    if not isinstance(document, dict):
        raise _DamagedRowError("it is not an object")
    return document


def _load_fork(data: object) -> ForkRecord:
    return _build(ForkRecord.load, _load_object(data))


def _load_attempt(data: object, progress: object = None) -> AttemptRecord:
    news: dict[str, Any] = {}
    with suppress(_DamagedRowError):  # what a running attempt reported last; its next report replaces it
        news = _load_object(progress) if progress else {}
    return _build(AttemptRecord.load, {**_load_object(data), **news})


def _build(load: Callable[[dict[str, Any]], _Row], document: dict[str, Any]) -> _Row:
    """Build a record, and check the type of each field."""
    try:
        record = load(document)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise _DamagedRowError(str(error)[:200]) from None
    for name, kinds in _find_kinds(getattr(record, "__slots__", ())):
        value = getattr(record, name)
        if value is not None and (type(value) not in kinds or (type(value) is float and not math.isfinite(value))):
            raise _DamagedRowError(f"its {name} is not possible")
    return record


@lru_cache(maxsize=8)
def _find_kinds(fields: tuple[str, ...]) -> tuple[tuple[str, tuple[type, ...]], ...]:
    """Return those ``fields`` of a record whose type is checked, with the types that each may have."""
    return tuple((name, kinds) for name, kinds in _KINDS.items() if name in fields)


_Row = TypeVar("_Row")
_NUMBER = (int, float)
_KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(
        ("id", "fork", "key", "label", "branch", "workspace", "origin", "kind", "winner", "parent", "head"), (str,)
    ),
    **dict.fromkeys(
        ("stored", "reason", "ending", "last_line", "tail", "unwanted", "agent", "git", "session", "answer"), (str,)
    ),
    **dict.fromkeys(("round", "index", "generation", "commit", "undone", "exit_code", "files", "output_bytes"), (int,)),
    "variant": (int,),
    **dict.fromkeys(("started", "ended", "wall", "cpu", "memory", "score"), _NUMBER),
    **dict.fromkeys(("spec", "resolution", "verdict", "baseline", "tests", "cost", "error", "variation"), (dict,)),
    **dict.fromkeys(("command", "scores"), (list,)),
}
"""The types of a record's fields, apart from None."""


def _load_conversation_data(data: object) -> ConversationRecord:
    document = _load_object(data)
    labels = document.get("labels", {})
    is_sound = document.keys() <= {"here", "labels", "title"} and type(document.get("here", 0)) is int
    is_sound = is_sound and type(labels) is dict and all(type(node) is int for node in labels.values())
    if not is_sound or type(document.get("title", "")) is not str:
        raise _DamagedRowError("it is not a conversation")
    return ConversationRecord("", **document)


def _to_sql_limit(limit: int | None) -> int:
    return -1 if limit is None else limit


def _merge_fields(rows: Sequence[tuple[Any, ...]], data: dict[str, Any], fields: set[str]) -> dict[str, Any]:
    """Return the stored document, empty if there is none yet, updated with those of ``data`` that are fields."""
    document = _load_object(rows[0][0]) if rows else {}
    return {**document, **{name: value for name, value in data.items() if name in fields}}


class SqliteConversations(Conversations):
    """Conversations in the tables of a ledger's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, record: ConversationRecord, rows: Sequence[MessageRow]) -> None:
        data = {"here": record.here, "labels": dict(record.labels), "title": record.title}
        with self._database.transaction():
            self._database.rows(
                "REPLACE INTO conversations VALUES (?, ?, ?)", (record.id, time.time(), json.dumps(data))
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
        try:
            messages = [MessageRow(n, p, json.loads(a), m, r) for n, p, a, m, r in rows]
            return _load_conversation(found[0]), messages
        except (ValueError, TypeError, RecursionError) as error:
            raise LedgerError(
                f"the conversation {conversation!r} in the ledger is damaged: {error}; see forkwise doctor --repair",
                subject=conversation,
            ) from error

    def all(self) -> list[ConversationRecord]:
        rows = self._database.rows("SELECT id, updated, data FROM conversations ORDER BY updated DESC")
        found = []
        for row in rows:
            with _damage_left_out(f"conversation {row[0]}"):
                found.append(_load_conversation(row))
        return found

    def forget(self, conversation: str) -> None:
        with self._database.transaction():
            self._database.rows("DELETE FROM conversations WHERE id = ?", (conversation,))
            self._database.rows("DELETE FROM messages WHERE conversation = ?", (conversation,))


def _load_conversation(row: tuple[Any, ...]) -> ConversationRecord:
    id_, updated, data = row
    return replace(_load_conversation_data(data), id=id_, updated=updated)


class Database:
    """A SQLite database in WAL mode: readers never wait, writers take turns."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._closed = False
        with _guard:
            _databases.add(self)
        self.rows("SELECT 1")

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement and return all its rows."""
        with self.lock:
            try:
                return self._connect().execute(sql, values).fetchall()
            except sqlite3.Error as error:
                raise LedgerError(f"the ledger {self.path} cannot be used: {error}") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make the block atomic, and keep other threads and processes from writing meanwhile."""
        with self.lock:
            self.rows("BEGIN IMMEDIATE")
            try:
                yield
                self.rows("COMMIT")
            except BaseException:
                with suppress(LedgerError):  # SQLite has rolled it back already
                    self.rows("ROLLBACK")
                raise

    def disconnect(self) -> None:
        """Close the connection; the next statement opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Close the database for good."""
        with self.lock:
            self._closed = True
            self.disconnect()

    def _connect(self) -> sqlite3.Connection:
        if self._closed:
            raise LedgerError(f"the ledger {self.path} is closed")
        if self._connection is None:
            connection = sqlite3.connect(self.path, _BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("PRAGMA synchronous = NORMAL")
                _migrate(connection, self.path)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection


_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_guard = threading.Lock()


# A SQLite connection must not be used across fork(2): close it before, the next statement opens another.
def _before_fork() -> None:
    _guard.acquire()
    for database in _databases:
        database.lock.acquire()
        database.disconnect()


def _after_fork() -> None:
    for database in _databases:
        database.lock.release()
    _guard.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


def _migrate(database: sqlite3.Connection, path: str) -> None:
    """Bring a database, which may be new, to the version of the tables that this forkwise knows."""
    if _read_version(database, path) == len(SCRIPTS):
        return
    # Of two connections that switch a new file to WAL at the same time, one fails with SQLITE_BUSY: take turns.
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    directory = fds.track(lambda: os.open(os.path.dirname(path), flags))
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        database.execute("PRAGMA journal_mode = WAL")
        for version in range(_read_version(database, path), len(SCRIPTS)):
            script = f"BEGIN IMMEDIATE; {SCRIPTS[version]}; PRAGMA user_version = {version + 1}; COMMIT"
            database.executescript(script)
    finally:
        fcntl.flock(directory, fcntl.LOCK_UN)  # closing is not enough: a child forked meanwhile has a copy
        fds.close(directory)


def _read_version(database: sqlite3.Connection, path: str) -> int:
    with closing(database.execute("PRAGMA user_version")) as rows:
        version: int = rows.fetchone()[0]
    if version > len(SCRIPTS):
        raise LedgerError(
            f"the ledger {path} was written by a newer forkwise (its tables have version {version}, this forkwise "
            f"knows {len(SCRIPTS)}): install a newer forkwise"
        )
    return version
