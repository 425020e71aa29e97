"""The ledger on a database that speaks SQL: everything that the ledgers on SQLite and on PostgreSQL have in common.

A ``Dialect`` has the few pieces of statements in which the two differ. Several ledgers share the tables of a PostgreSQL
database, so every statement there is restricted to the rows of its own ledger.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeVar

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
from forkwise.progress import report

__all__ = ["DamagedRow", "Dialect", "SqlConversations", "SqlDatabase", "SqlLedger"]

_FORK_FIELDS = {*ForkRecord.__slots__, "state"}
_ATTEMPT_FIELDS = {*AttemptRecord.__slots__}
_STATES: tuple[AttemptState, ...] = ("pending", "running", "succeeded", "failed", "faulted", "cancelled")
#: The columns of a record, beside its number and its document; those of them that events change.
_COLUMNS = {
    "forks": ("id", "state", "parent", "commit", "undone"),
    "attempts": ("id", "fork", "key", "round", "state", "score"),
}
_CHANGED = ("state", "commit", "undone", "score", "data")
_INSERT_EVENT = "INSERT INTO events (at, fork, attempt, kind, data) VALUES (?, ?, ?, ?, ?)"
_encode = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True)
class Dialect:
    """The pieces of statements that differ between databases.

    ``own`` restricts a statement to the rows of this ledger, and ends with ``AND`` unless it is empty; ``key`` are the
    columns that come first in every unique key, with a comma. ``label`` is an expression for the label of an attempt
    ``first``, ``last_event`` one for the number of the event that was added last. ``casts`` are the placeholders of
    columns whose type the database does not infer.
    """

    own: str
    key: str
    no_limit: int | None
    label: str
    last_event: str
    casts: Mapping[str, str]

    def limit(self, limit: int | None) -> int | None:
        """Return a value for ``LIMIT``."""
        return self.no_limit if limit is None else limit

    def own_rows(self, *tables: str) -> str:
        """Return the restriction of a statement on several tables; it ends with ``AND`` unless it is empty."""
        return "".join(f"{table}.{self.own} " for table in tables) if self.own else ""


class SqlDatabase(ABC):
    """A connection to a database. Threads may share it.

    A connection must not be used across fork(2), so it is closed before a fork, and the next statement opens another.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.is_closed = False
        with _guard:
            _databases.add(self)

    @abstractmethod
    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, whose values are written as ``?``, and return all its rows. Raises LedgerError."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Make the block atomic, and keep other threads and processes from writing to this ledger meanwhile."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close the connection; the next statement opens another."""

    def close(self) -> None:
        """Close the database for good."""
        with self.lock:
            self.is_closed = True
            self.disconnect()


_databases: weakref.WeakSet[SqlDatabase] = weakref.WeakSet()
_guard = threading.Lock()


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


class SqlLedger(Ledger):
    """A ledger in the tables of a database. ``directory``, for files beside it, is created if it is missing."""

    def __init__(self, directory: str | os.PathLike[str], database: SqlDatabase, dialect: Dialect) -> None:
        super().__init__(directory)
        self._database = database
        self._dialect = dialect
        self._own = dialect.own
        self._writer: int | None = None  # the thread whose transaction is open
        #: The forks and attempts that this transaction has read or written; nobody else writes meanwhile.
        self._known: dict[str, tuple[str, object]] = {}
        #: The keys and rounds of attempts, by fork, once that transaction adds a second attempt to the fork.
        self._keys: dict[str, set[tuple[Any, Any]]] = {}
        self._asked: set[str] = set()
        self.conversations: SqlConversations = SqlConversations(database, dialect)

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
                text = _encode({name: getattr(record, name) if new is None else new for name, new in news.items()})
                self._database.rows(
                    "INSERT INTO progress (attempt, data) VALUES (?, ?) "
                    f"ON CONFLICT ({self._dialect.key}attempt) DO UPDATE SET data = excluded.data",
                    (record.id, text),
                )
                self._known[record.id] = (self._known[record.id][0], text)

    def forks(
        self, *, limit: int | None = None, state: ForkState | Literal["interrupted"] | None = None
    ) -> list[ForkRecord]:
        if state is None:
            return self._forks("true ORDER BY seq DESC LIMIT ?", self._dialect.limit(limit))
        stored = "running" if state == "interrupted" else state
        found = self._forks("state = ? ORDER BY seq DESC", stored)
        return [record for record in found if record.state == state][:limit]

    def attempts(self, fork: str) -> list[AttemptRecord]:
        return self._attempts("fork = ? ORDER BY seq", self.fork(fork).id)

    def children(self, attempt: str) -> list[ForkRecord]:
        return self._forks("parent = ? ORDER BY seq", self.attempt(attempt).id)

    def events(self, *, after: int = 0, fork: str | None = None, limit: int | None = None) -> list[Event]:
        if fork is None:
            return self._events("seq > ? ORDER BY seq LIMIT ?", after, self._dialect.limit(limit))
        return self._events(
            "fork = ? AND seq > ? ORDER BY seq LIMIT ?", self.fork(fork).id, after, self._dialect.limit(limit)
        )

    def last_event(self) -> int:
        [(found,)] = self._database.rows(f"SELECT max(seq) FROM events WHERE {self._own} true")
        return int(found or 0)

    def summaries(self, limit: int | None = None, *, outermost: bool = False) -> list[Summary]:
        found = []
        counts_by_state = ", ".join(f"count(CASE attempts.state WHEN '{state}' THEN 1 END)" for state in _STATES)
        query = f"""
            SELECT listed.*, {self._dialect.label}
            FROM (
                SELECT min(attempts.seq) AS first, forks.seq, forks.id, forks.data,
                    max(CASE attempts.state WHEN 'succeeded' THEN attempts.score END), {counts_by_state}
                FROM forks LEFT JOIN attempts ON {self._dialect.own_rows("attempts")} attempts.fork = forks.id
                WHERE {self._dialect.own_rows("forks")} (forks.parent IS NULL OR NOT ?)
                GROUP BY forks.seq ORDER BY forks.seq DESC LIMIT ?
            ) AS listed
            LEFT JOIN attempts AS first ON first.seq = listed.first
        """
        rows = self._database.rows(query, (outermost, self._dialect.limit(limit)))
        rows.sort(key=lambda row: row[1], reverse=True)  # the outer rows of a join have no order
        for _, _, name, data, best, *counts, label in rows:
            with _damage_left_out(f"fork {name}"):
                fork = self._load_fork(data)
                attempts = {state: count for state, count in zip(_STATES, counts, strict=True) if count}
                found.append(Summary(fork, attempts, best, self._read_label(label)))
        return found

    def _read_label(self, found: Any) -> str | None:
        """Return the label from what the dialect's expression for it returned."""
        return found if isinstance(found, str) else None

    def rebuild(self) -> None:
        with self._transaction():
            self._database.rows(f"DELETE FROM forks WHERE {self._own} true")
            self._database.rows(f"DELETE FROM attempts WHERE {self._own} true")
            self._forget_known()
            with report("Rebuilding the ledger from its events") as work:
                for event in self.events():
                    self._apply(event)
                    work.done += 1

    def copy_from(self, source: SqlLedger) -> int:
        """Copy all events and conversations of another ledger into this one, and return how many were copied.

        This ledger has to be empty. Afterwards the contents of both are compared. Raises LedgerError, and leaves
        nothing behind, if they differ or a fork still runs.
        """
        if running := source.forks(state="running"):
            raise LedgerError(
                f"fork {running[0].id} still runs: its events cannot be copied yet", subject=running[0].id
            )
        with self._transaction(), report("Copying the ledger") as work:
            if self.forks(limit=1) or self.conversations.all():
                raise LedgerError("the ledger to copy into is not empty: nothing was copied")
            events = source.events()
            for event in events:
                self._add_event(event, _encode(event.data))
                work.done += 1
            conversations = self.conversations.copy_from(source.conversations)
            if self._describe() != source._describe():
                raise LedgerError("the copy differs from the ledger: nothing was copied")
        return len(events) + conversations

    def _describe(self) -> list[Any]:
        """Return everything that the ledger returns, apart from the numbers of events."""
        forks = self.forks()
        talks = [self.conversations.load(record.id) for record in self.conversations.all()]
        events = [replace(event, seq=0) for event in self.events()]
        return [
            forks,
            [self.attempts(fork.id) for fork in forks],
            events,
            [(replace(r, updated=0), m) for r, m in talks],
        ]

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._is_writing:  # inside ``batch``
            yield
            return
        with self._database.transaction():
            self._writer = threading.get_ident()
            try:
                yield
            finally:
                self._writer = None
                self._forget_known()

    def _forget_known(self) -> None:
        self._known.clear()
        self._keys.clear()
        self._asked.clear()

    @property
    def _is_writing(self) -> bool:
        """Whether the calling thread has the transaction that is open."""
        return self._writer == threading.get_ident()

    def _append(self, fork: str, attempt: str | None, kind: str, /, **data: Any) -> None:
        document = self._encode_data(attempt or fork, kind, data)
        self._add_event(Event(0, time.time(), fork, attempt, kind, data), document)
        if attempt is not None and "state" in data and kind != "added":
            self._database.rows(f"DELETE FROM progress WHERE {self._own} attempt = ?", (attempt,))
            self._known[attempt] = (self._known[attempt][0], None)

    def _encode_data(self, subject: str, kind: str, data: Mapping[str, Any]) -> str:
        try:
            return _encode(data)
        except (TypeError, ValueError) as error:
            raise LedgerError(
                f"event {kind!r} of {subject} cannot be stored as JSON: {error}", subject=subject
            ) from error

    def _add_event(self, event: Event, document: str) -> None:
        """Add an event, whose data is ``document``, and set its fields on its record."""
        self._database.rows(_INSERT_EVENT, (event.at, event.fork, event.attempt, event.kind, document))
        table, values = self._merge_record(event, is_new=event.kind in ("begun", "added"))
        self._database.rows(self._format_upsert(table, f"VALUES ({self._dialect.last_event}, {{}})"), values)

    def _apply(self, event: Event) -> None:
        """Set the fields of a stored event on its record; the other fields stay. A new record gets its number."""
        table, values = self._merge_record(event, is_new=False)
        self._database.rows(self._format_upsert(table, "VALUES (?, {})"), (event.seq, *values))

    def _merge_record(self, event: Event, *, is_new: bool) -> tuple[str, list[Any]]:
        """Return the table of an event's record, and the values of its columns, apart from the number."""
        table, name = ("forks", event.fork) if event.attempt is None else ("attempts", event.attempt)
        before, progress = self._known.get(name, (None, None))
        rows: list[tuple[Any, ...]] = [(before,)] if before is not None else []
        if before is None and not is_new:
            rows = self._database.rows(f"SELECT data FROM {table} WHERE {self._own} id = ?", (name,))
        document = self._merge_fields(table, rows[0][0] if rows else "{}", event.data)
        text = _encode(document)
        self._known[name] = (text, progress)
        if table == "attempts" and event.fork in self._keys:
            self._keys[event.fork].add((document.get("key"), document.get("round")))
        return table, [*(document.get(column) for column in _COLUMNS[table]), text]

    def _merge_fields(self, table: str, before: object, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stored document of a record, updated with the values in ``data`` that are fields of it."""
        fields = _FORK_FIELDS if table == "forks" else _ATTEMPT_FIELDS
        return {**_load_object(before), **{name: value for name, value in data.items() if name in fields}}

    def _format_upsert(self, table: str, source: str) -> str:
        """Return a statement that adds or changes a record; ``source`` has its values, with braces for all but seq."""
        columns = [*_COLUMNS[table], "data"]
        names = ", ".join(f'"{name}"' for name in columns)
        changed = ", ".join(f'"{name}" = excluded."{name}"' for name in columns if name in _CHANGED)
        values = ", ".join(self._dialect.casts.get(name, "?") for name in columns)
        return (
            f"INSERT INTO {table} (seq, {names}) {source.format(values)} "
            f"ON CONFLICT ({self._dialect.key}id) DO UPDATE SET {changed}"
        )

    def _load_fork(self, data: object) -> ForkRecord:
        """Build the record of a fork from its stored document. Raises ValueError if that is damaged."""
        return _load_fork(data)

    def _load_attempt(self, data: object, progress: object) -> AttemptRecord:
        return _load_attempt(data, progress)

    def _find_fork(self, fork: str) -> ForkRecord | None:
        rows = self._find_known(fork)
        for data, _ in rows or self._database.rows(f"SELECT data, NULL FROM forks WHERE {self._own} id = ?", (fork,)):
            with _damage_raised("fork", fork):
                record = self._load_fork(data)
                self._keep_known(fork, data, None)
                return record
        return None

    def _find_attempt(self, attempt: str) -> AttemptRecord | None:
        rows = self._find_known(attempt)
        for data, progress in rows or [row[1:] for row in self._select_attempts("attempts.id = ?", attempt)]:
            with _damage_raised("attempt", attempt):
                record = self._load_attempt(data, progress)
                self._keep_known(attempt, data, progress)
                return record
        return None

    def _find_known(self, name: str) -> list[tuple[str, object]]:
        return [self._known[name]] if self._is_writing and name in self._known else []

    def _keep_known(self, name: str, data: object, progress: object) -> None:
        if self._is_writing and isinstance(data, str):
            self._known[name] = (data, progress)

    def _list_fork_ids(self) -> list[str]:
        return [name for (name,) in self._database.rows(f"SELECT id FROM forks WHERE {self._own} true")]

    def _find_forks_by_commit(self, commit: int) -> list[ForkRecord]:
        return self._forks('("commit" = ? OR undone = ?) ORDER BY seq DESC', commit, commit)

    def _has_attempt(self, fork: str, key: str, round: int) -> bool:  # noqa: A002
        if self._is_writing and fork not in self._keys and fork in self._asked:
            query = f"SELECT key, round FROM attempts WHERE {self._own} fork = ?"
            self._keys[fork] = {(row[0], row[1]) for row in self._database.rows(query, (fork,))}
        if self._is_writing and fork in self._keys:
            return (key, round) in self._keys[fork]
        self._asked.update([fork] if self._is_writing else [])
        query = f"SELECT 1 FROM attempts WHERE {self._own} fork = ? AND key = ? AND round = ?"
        return bool(self._database.rows(query, (fork, key, round)))

    def _count_attempts(self, fork: str) -> int:
        [(number,)] = self._database.rows(f"SELECT count(*) FROM attempts WHERE {self._own} fork = ?", (fork,))
        return int(number)

    def _delete_forks(self, forks: Sequence[str]) -> None:
        with self._transaction():
            for fork in forks:
                for table, column in (("events", "fork"), ("attempts", "fork"), ("forks", "id")):
                    self._database.rows(f"DELETE FROM {table} WHERE {self._own} {column} = ?", (fork,))
            self._forget_known()

    def _forks(self, condition: str, *values: object) -> list[ForkRecord]:
        found = []
        for name, data in self._database.rows(f"SELECT id, data FROM forks WHERE {self._own} {condition}", values):
            with _damage_left_out(f"fork {name}"):
                found.append(self._load_fork(data))
        return found

    def _select_attempts(self, condition: str, *values: object) -> list[tuple[Any, ...]]:
        return self._database.rows(
            "SELECT attempts.id, attempts.data, progress.data FROM attempts "
            f"LEFT JOIN progress ON {self._dialect.own_rows('progress')} progress.attempt = attempts.id "
            f"WHERE {self._dialect.own_rows('attempts')} {condition}",
            values,
        )

    def _attempts(self, condition: str, *values: object) -> list[AttemptRecord]:
        found = []
        for name, data, progress in self._select_attempts(condition, *values):
            with _damage_left_out(f"attempt {name}"):
                found.append(self._load_attempt(data, progress))
        return found

    def _events(self, condition: str, *values: object) -> list[Event]:
        found = []
        query = f"SELECT seq, at, fork, attempt, kind, data FROM events WHERE {self._own} {condition}"
        for seq, at, fork, attempt, kind, data in self._database.rows(query, values):
            with _damage_left_out(f"event {seq} of fork {fork}"):
                found.append(Event(seq, at, fork, attempt, kind, _load_object(data)))
        return found

    def find_damage(self) -> list[DamagedRow]:
        """List the rows that cannot be read; each of them is left out of every other answer."""
        loaders = (
            ("events", "seq", _load_object),
            ("forks", "id", _load_fork),
            ("attempts", "id", _load_attempt),
            ("conversations", "id", _load_conversation_data),
        )
        found = []
        for table, key, load in loaders:
            for name, data in self._database.rows(f"SELECT {key}, data FROM {table} WHERE {self._own} true"):
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
            copies = self._database.rows(f"SELECT * FROM {row.table} WHERE {self._own} {key} = ?", (row.name,))
            with open(self.directory / "damaged.jsonl", "a", encoding="utf-8") as file:
                file.writelines(json.dumps([row.table, *copy], default=repr) + "\n" for copy in copies)
            self._database.rows(f"DELETE FROM {row.table} WHERE {self._own} {key} = ?", (row.name,))
            self._forget_known()
            if row.table in ("forks", "attempts"):
                fork, _, attempt = row.name.partition(".")
                for event in self._events("fork = ? ORDER BY seq", fork):
                    if event.attempt == (row.name if attempt else None):
                        self._apply(event)
                if not any(left[:2] == row[:2] for left in self.find_damage()):
                    return "rebuilt from its events"
                self._database.rows(f"DELETE FROM {row.table} WHERE {self._own} {key} = ?", (row.name,))
        return "moved to damaged.jsonl in the ledger's directory"


class DamagedRow(NamedTuple):
    """A row of the ledger that cannot be read: its table, its id, and the reason."""

    table: str
    name: str
    reason: str


class _DamagedRowError(ValueError):
    """A row does not hold a valid record."""


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


class SqlConversations(Conversations):
    """Conversations in the tables of a ledger's database."""

    def __init__(self, database: SqlDatabase, dialect: Dialect) -> None:
        self._database = database
        self._own = dialect.own
        self._key = dialect.key

    def save(self, record: ConversationRecord, rows: Sequence[MessageRow]) -> None:
        with self._database.transaction():
            self._save(record, rows, time.time())

    def copy_from(self, source: Conversations) -> int:
        """Save all conversations of another store, inside a transaction of the caller; return how many there are."""
        records = source.all()
        for record in records:
            self._save(record, source.load(record.id)[1], record.updated)
        return len(records)

    def _save(self, record: ConversationRecord, rows: Sequence[MessageRow], updated: float) -> None:
        data = {"here": record.here, "labels": dict(record.labels), "title": record.title}
        self._database.rows(
            "INSERT INTO conversations (id, updated, data) VALUES (?, ?, ?) "
            f"ON CONFLICT ({self._key}id) DO UPDATE SET updated = excluded.updated, data = excluded.data",
            (record.id, updated, json.dumps(data)),
        )
        for row in rows:
            self._database.rows(
                "INSERT INTO messages (conversation, node, parent, awaits, message, results) "
                "VALUES (?, ?, ?, ?, ?, ?) "
                f"ON CONFLICT ({self._key}conversation, node) DO UPDATE SET parent = excluded.parent, "
                "awaits = excluded.awaits, message = excluded.message, results = excluded.results",
                (record.id, row.node, row.parent, json.dumps(list(row.awaits)), row.message, row.results),
            )

    def load(self, conversation: str) -> tuple[ConversationRecord, list[MessageRow]]:
        query = f"SELECT id, updated, data FROM conversations WHERE {self._own} id = ?"
        found = self._database.rows(query, (conversation,)) if conversation.isascii() else []
        if not found:
            known = [record.id for record in self.all()]
            raise LedgerError(
                f"there is no conversation {conversation!r} in the ledger", subject=conversation, near=known[:5]
            )
        rows = self._database.rows(
            "SELECT node, parent, awaits, message, results FROM messages "
            f"WHERE {self._own} conversation = ? ORDER BY node",
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
        rows = self._database.rows(
            f"SELECT id, updated, data FROM conversations WHERE {self._own} true ORDER BY updated DESC"
        )
        found = []
        for row in rows:
            with _damage_left_out(f"conversation {row[0]}"):
                found.append(_load_conversation(row))
        return found

    def forget(self, conversation: str) -> None:
        with self._database.transaction():
            self._database.rows(f"DELETE FROM conversations WHERE {self._own} id = ?", (conversation,))
            self._database.rows(f"DELETE FROM messages WHERE {self._own} conversation = ?", (conversation,))


def _load_conversation(row: tuple[Any, ...]) -> ConversationRecord:
    id_, updated, data = row
    return replace(_load_conversation_data(data), id=id_, updated=updated)
