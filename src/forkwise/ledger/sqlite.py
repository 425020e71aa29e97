"""Which ledger is a workspace's: the one that lies in its state directory, beside its branches and its history."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

from forkwise.errors import LedgerError
from forkwise.files.workspace import Workspace
from forkwise.ledger.database import Database, SqliteConversations
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.records import AttemptRecord, AttemptState, Event, ForkRecord, ForkState, Summary

__all__ = [
    "SqliteLedger",
    "open_ledger",
]


_FORK_FIELDS = {*ForkRecord.__slots__, "state"}
_ATTEMPT_FIELDS = {*AttemptRecord.__slots__}
_STATES: tuple[AttemptState, ...] = ("pending", "running", "succeeded", "failed", "cancelled")

_PUT_FORK = """
    INSERT INTO forks (seq, id, state, parent, "commit", undone, data) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE
    SET state = excluded.state, "commit" = excluded."commit", undone = excluded.undone, data = excluded.data
"""
_PUT_ATTEMPT = """
    INSERT INTO attempts (seq, id, fork, key, round, state, score, data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET state = excluded.state, score = excluded.score, data = excluded.data
"""
_ATTEMPTS = "SELECT attempts.data, progress.data FROM attempts LEFT JOIN progress ON progress.attempt = attempts.id"
_SUMMARIES = f"""
    SELECT newest.data, {", ".join(f"sum(attempts.state = '{state}')" for state in _STATES)}, max(attempts.score),
        (SELECT data FROM attempts WHERE attempts.fork = newest.id ORDER BY seq LIMIT 1)
    FROM (SELECT seq, id, data FROM forks WHERE parent IS NULL OR NOT ? ORDER BY seq DESC LIMIT ?) AS newest
    LEFT JOIN attempts ON attempts.fork = newest.id
    GROUP BY newest.seq ORDER BY newest.seq DESC
"""
_encode = json.JSONEncoder(separators=(",", ":")).encode


class SqliteLedger(Ledger):
    """A ledger in ``ledger.db`` of a directory, which is made where it is missing."""

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
        given = {"files": files, "last_line": last_line, "output_bytes": output_bytes}
        with self._transaction():
            record = self.attempt(attempt)
            if record.state == "running":
                seen = {name: getattr(record, name) if told is None else told for name, told in given.items()}
                self._database.rows("REPLACE INTO progress VALUES (?, ?)", (record.id, _encode(seen)))

    def forks(
        self, *, limit: int | None = None, state: ForkState | Literal["interrupted"] | None = None
    ) -> list[ForkRecord]:
        if state is None:
            return self._forks("ORDER BY seq DESC LIMIT ?", _limit(limit))
        stored = "running" if state == "interrupted" else state
        found = self._forks("WHERE state = ? ORDER BY seq DESC", stored)
        return [record for record in found if record.state == state][:limit]

    def attempts(self, fork: str) -> list[AttemptRecord]:
        return self._attempts("WHERE fork = ? ORDER BY seq", self.fork(fork).id)

    def children(self, attempt: str) -> list[ForkRecord]:
        return self._forks("WHERE parent = ? ORDER BY seq", self.attempt(attempt).id)

    def events(self, *, after: int = 0, fork: str | None = None, limit: int | None = None) -> list[Event]:
        if fork is None:
            return self._events("WHERE seq > ? ORDER BY seq LIMIT ?", after, _limit(limit))
        return self._events("WHERE fork = ? AND seq > ? ORDER BY seq LIMIT ?", self.fork(fork).id, after, _limit(limit))

    def summaries(self, limit: int | None = None, *, outermost: bool = False) -> list[Summary]:
        return [
            Summary(
                ForkRecord.load(json.loads(data)),
                {state: count for state, count in zip(_STATES, counts, strict=True) if count},
                best,
                json.loads(first)["label"] if first else None,
            )
            for data, *counts, best, first in self._database.rows(_SUMMARIES, (outermost, _limit(limit)))
        ]

    def rebuild(self) -> None:
        with self._transaction():
            self._database.rows("DELETE FROM forks")
            self._database.rows("DELETE FROM attempts")
            for event in self.events():
                self._apply(event)

    def close(self) -> None:
        self._database.close()

    def _transaction(self) -> AbstractContextManager[None]:
        return self._database.transaction()

    def _append(self, fork: str, attempt: str | None, kind: str, /, **data: Any) -> None:
        at = time.time()
        try:
            told = _encode(data)
        except (TypeError, ValueError) as error:
            about = attempt or fork
            raise LedgerError(f"what {about} {kind} with cannot be written down: {error}", subject=about) from error
        columns = (at, fork, attempt, kind, told)
        self._database.rows("INSERT INTO events (at, fork, attempt, kind, data) VALUES (?, ?, ?, ?, ?)", columns)
        [(seq,)] = self._database.rows("SELECT last_insert_rowid()")
        self._apply(Event(seq, at, fork, attempt, kind, data))
        if attempt is not None and "state" in data:
            self._database.rows("DELETE FROM progress WHERE attempt = ?", (attempt,))

    def _apply(self, event: Event) -> None:
        """Let a record be what it was, but for the fields that an event sets."""
        if event.attempt is None:
            rows = self._database.rows("SELECT data FROM forks WHERE id = ?", (event.fork,))
            fork = _merged(rows, event.data, _FORK_FIELDS)
            columns = [fork.get(name) for name in ("id", "state", "parent", "commit", "undone")]
            self._database.rows(_PUT_FORK, (event.seq, *columns, _encode(fork)))
        else:
            rows = self._database.rows("SELECT data FROM attempts WHERE id = ?", (event.attempt,))
            attempt = _merged(rows, event.data, _ATTEMPT_FIELDS)
            columns = [attempt.get(name) for name in ("id", "fork", "key", "round", "state", "score")]
            self._database.rows(_PUT_ATTEMPT, (event.seq, *columns, _encode(attempt)))

    def _fork(self, fork: str) -> ForkRecord | None:
        return next(iter(self._forks("WHERE id = ?", fork)), None)

    def _attempt(self, attempt: str) -> AttemptRecord | None:
        return next(iter(self._attempts("WHERE id = ?", attempt)), None)

    def _fork_ids(self) -> list[str]:
        return [name for (name,) in self._database.rows("SELECT id FROM forks")]

    def _forks_about(self, commit: int) -> list[ForkRecord]:
        return self._forks('WHERE "commit" = ? OR undone = ? ORDER BY seq DESC', commit, commit)

    def _has_place(self, fork: str, key: str, round: int) -> bool:  # noqa: A002
        which = "SELECT 1 FROM attempts WHERE fork = ? AND key = ? AND round = ?"
        return bool(self._database.rows(which, (fork, key, round)))

    def _number_of_attempts(self, fork: str) -> int:
        [(number,)] = self._database.rows("SELECT count(*) FROM attempts WHERE fork = ?", (fork,))
        return int(number)

    def _forget(self, forks: Sequence[str]) -> None:
        with self._transaction():
            for fork in forks:
                for table, column in (("events", "fork"), ("attempts", "fork"), ("forks", "id")):
                    self._database.rows(f"DELETE FROM {table} WHERE {column} = ?", (fork,))

    def _forks(self, which: str, *values: object) -> list[ForkRecord]:
        rows = self._database.rows(f"SELECT data FROM forks {which}", values)
        return [ForkRecord.load(json.loads(data)) for (data,) in rows]

    def _attempts(self, which: str, *values: object) -> list[AttemptRecord]:
        rows = self._database.rows(f"{_ATTEMPTS} {which}", values)
        return [AttemptRecord.load({**json.loads(data), **json.loads(progress or "{}")}) for data, progress in rows]

    def _events(self, which: str, *values: object) -> list[Event]:
        rows = self._database.rows(f"SELECT seq, at, fork, attempt, kind, data FROM events {which}", values)
        return [Event(seq, at, fork, attempt, kind, json.loads(data)) for seq, at, fork, attempt, kind, data in rows]


def _limit(limit: int | None) -> int:
    return -1 if limit is None else limit


def _merged(rows: Sequence[tuple[Any, ...]], told: dict[str, Any], fields: set[str]) -> dict[str, Any]:
    """A document, which there may be none of yet, with the fields of it that were told."""
    document: dict[str, Any] = json.loads(rows[0][0]) if rows else {}
    return {**document, **{name: value for name, value in told.items() if name in fields}}


def open_ledger(workspace: Workspace) -> Ledger:
    """The ledger of a workspace."""
    return SqliteLedger(workspace.state / "ledger")
