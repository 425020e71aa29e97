"""The ledger on SQLite: the tables and their migrations, and the connection."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from forkwise.errors import LedgerError
from forkwise.ledger.sql_ledger import Dialect, SqlDatabase, SqlLedger
from forkwise.linux import fds

if TYPE_CHECKING:
    from forkwise.files.workspace import Workspace
    from forkwise.ledger.ledger import Ledger

__all__ = ["SCRIPTS", "Database", "SqliteLedger", "open_ledger", "open_ledger_of_state", "open_postgres"]

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
_DIALECT = Dialect(
    own="",
    key="",
    no_limit=-1,
    label="iif(json_valid(first.data), json_extract(first.data, '$.label'), NULL)",
    last_event="last_insert_rowid()",
    casts={},
)


def open_ledger(workspace: Workspace) -> Ledger:
    """Open the ledger of a workspace: in the database that $FORKWISE_LEDGER names, or else in its state directory."""
    return open_ledger_of_state(str(workspace.state))


def open_ledger_of_state(state: str) -> Ledger:
    """Open the ledger of the workspace that has a state directory, as ``open_ledger`` does."""
    url = os.environ.get("FORKWISE_LEDGER", "")
    return open_postgres(url, state) if url else SqliteLedger(f"{state}/ledger")


def open_postgres(url: str, state: str, project: str = "", *, subject: str = "FORKWISE_LEDGER") -> SqlLedger:
    """Open the ledger of a workspace in a PostgreSQL database. ``subject`` names the source of ``url`` in messages.

    Its project is ``project``, else $FORKWISE_PROJECT, else the name of the state directory.
    """
    if not url.startswith(("postgresql://", "postgres://")):
        raise LedgerError(
            f"{subject} does not name a ledger that forkwise knows: it has to be the URL of a PostgreSQL database, "
            "such as postgresql://host/database"
        )
    try:
        from forkwise.ledger.postgres import PostgresLedger  # noqa: PLC0415 - most ledgers are on SQLite
    except ModuleNotFoundError as error:
        raise LedgerError(
            f"{subject} names a PostgreSQL database, which needs psycopg: pip install 'forkwise[postgres]'"
        ) from error
    name = project or os.environ.get("FORKWISE_PROJECT") or os.path.basename(state)
    try:
        return PostgresLedger(url, f"{state}/ledger", name)
    except ModuleNotFoundError as error:
        raise LedgerError(
            "FORKWISE_LEDGER_STORE needs the extra snapshots: pip install 'forkwise[snapshots]'"
        ) from error


class SqliteLedger(SqlLedger):
    """A ledger in ``ledger.db`` of a directory, which is created if it is missing."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        super().__init__(directory, Database(os.path.join(directory, "ledger.db")), _DIALECT)


class Database(SqlDatabase):
    """A SQLite database in WAL mode: readers never wait, writers take turns."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        super().__init__()
        self.rows("SELECT 1")

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.lock:
            try:
                return self._connect().execute(sql, values).fetchall()
            except sqlite3.OperationalError as error:
                raise LedgerError(f"the ledger {self.path} cannot be used: {error}") from error
            except sqlite3.Error as error:  # the file is damaged, or something else
                remedy = "see forkwise doctor --repair"
                raise LedgerError(f"the ledger {self.path} cannot be used: {error}; {remedy}") from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
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
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connect(self) -> sqlite3.Connection:
        if self.is_closed:
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


def _migrate(database: sqlite3.Connection, path: str) -> None:
    """Bring a database, which may be new, to the version of the tables that this forkwise knows."""
    if _read_version(database, path) == len(SCRIPTS):
        return
    # If two connections switch a new file to WAL at the same time, one fails with SQLITE_BUSY: take turns.
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
