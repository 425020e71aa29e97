"""One process's way to a SQLite database: one connection, shared by its threads, and none while it forks.

SQLite keeps what it has locked in the memory of a process. A child that inherits an open connection believes that it
holds its parent's locks, so a connection is closed before every fork, and opened again by whoever asks next.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from forkwise.errors import LedgerError
from forkwise.ledger.schema import prepare

__all__ = ["Database"]

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
