"""The tables of a ledger in SQLite, and how those of an older forkwise become those of this one.

A row holds its record as one JSON document, beside the columns that are searched by. So a field can be added without
touching a table, and text of any bytes (a path that is not UTF-8) survives.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import closing

from forkwise.errors import LedgerError
from forkwise.files import ends

__all__ = ["SCRIPTS", "prepare"]

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
    directory = ends.descriptor(lambda: os.open(place, flags))
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        database.execute("PRAGMA journal_mode = WAL")
        for version in range(_version(database, path), len(SCRIPTS)):
            script = f"BEGIN IMMEDIATE; {SCRIPTS[version]}; PRAGMA user_version = {version + 1}; COMMIT"
            database.executescript(script)
    finally:
        fcntl.flock(directory, fcntl.LOCK_UN)  # a child forked meanwhile holds a copy of the descriptor
        ends.close(directory)


def _version(database: sqlite3.Connection, path: str) -> int:
    with closing(database.execute("PRAGMA user_version")) as rows:
        version: int = rows.fetchone()[0]
    if version > len(SCRIPTS):
        raise LedgerError(
            f"the ledger {path} was written by a newer forkwise (version {version} of its tables, this one knows "
            f"{len(SCRIPTS)}): install a newer forkwise"
        )
    return version
