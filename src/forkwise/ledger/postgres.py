"""The ledger in a PostgreSQL database, which several machines can share.

All ledgers of a database share the tables of its schema ``forkwise``. Each ledger is a *project*, and its rows carry
that name; row level security keeps the projects of different roles apart. Writers of one project take turns, so its
events are visible in the order of their numbers. Every change is announced with NOTIFY, on a channel of its project, as
the fork and the kind of the event. All times that are compared are the server's.

An event takes one round trip if this process has read or written its record before: a single statement, a transaction
by itself, adds the event if the record is still the same. If the record has changed or is not known, the event is added
in a transaction that reads the record first, which takes two.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import select
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from forkwise.errors import LedgerError
from forkwise.ledger.change_watch import AnnouncedWatch, ChangeWatch
from forkwise.ledger.sql_ledger import Dialect, SqlDatabase, SqlLedger
from forkwise.linux.process_id import ProcessId

if TYPE_CHECKING:
    from forkwise.ledger.records import AttemptRecord, Event, ForkRecord

__all__ = ["SCRIPTS", "PostgresDatabase", "PostgresLedger"]

_TABLES = ("events", "forks", "attempts", "progress", "conversations", "messages", "leases")

#: The migrations, from each version of the tables to the next. A released one is never changed.
SCRIPTS = (
    """
    CREATE TABLE events (
        project text NOT NULL DEFAULT current_setting('forkwise.project'),
        seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at double precision NOT NULL, fork text NOT NULL,
        attempt text, kind text NOT NULL, data text NOT NULL
    );
    CREATE INDEX events_of_project ON events (project, seq);
    CREATE INDEX events_of_fork ON events (project, fork, seq);
    CREATE TABLE forks (
        project text NOT NULL DEFAULT current_setting('forkwise.project'),
        seq bigint PRIMARY KEY, id text NOT NULL, state text NOT NULL, parent text, "commit" bigint, undone bigint,
        data text NOT NULL, UNIQUE (project, id)
    );
    CREATE INDEX forks_by_state ON forks (project, state);
    CREATE INDEX forks_in_attempt ON forks (project, parent) WHERE parent IS NOT NULL;
    CREATE TABLE attempts (
        project text NOT NULL DEFAULT current_setting('forkwise.project'),
        seq bigint PRIMARY KEY, id text NOT NULL, fork text NOT NULL, key text NOT NULL, round bigint NOT NULL,
        state text NOT NULL, score double precision, data text NOT NULL,
        UNIQUE (project, id), UNIQUE (project, fork, key, round)
    );
    CREATE TABLE progress (
        project text NOT NULL DEFAULT current_setting('forkwise.project'),
        attempt text NOT NULL, data text NOT NULL, PRIMARY KEY (project, attempt)
    );
    CREATE TABLE conversations (
        project text NOT NULL DEFAULT current_setting('forkwise.project'),
        id text NOT NULL, updated double precision NOT NULL, data text NOT NULL, PRIMARY KEY (project, id)
    );
    CREATE TABLE messages (
        project text NOT NULL DEFAULT current_setting('forkwise.project'),
        conversation text NOT NULL, node bigint NOT NULL, parent bigint NOT NULL, awaits text NOT NULL,
        message text NOT NULL, results text, PRIMARY KEY (project, conversation, node)
    );
    CREATE TABLE leases (
        project text NOT NULL DEFAULT current_setting('forkwise.project'),
        owner text NOT NULL, until timestamptz NOT NULL, PRIMARY KEY (project, owner)
    );
    CREATE TABLE access (project text NOT NULL, role name NOT NULL, PRIMARY KEY (project, role));
    CREATE FUNCTION may_use(wanted text, who name) RETURNS boolean STABLE SECURITY DEFINER
        SET search_path = forkwise, pg_temp LANGUAGE sql AS $$
        SELECT NOT EXISTS (SELECT FROM access WHERE project = wanted)
            OR EXISTS (SELECT FROM access WHERE project = wanted AND pg_has_role(who, role, 'member'))
    $$;
    """
    + "\n".join(
        f"""
    ALTER TABLE {table} ENABLE ROW LEVEL SECURITY;
    ALTER TABLE {table} FORCE ROW LEVEL SECURITY;
    CREATE POLICY own_project ON {table} USING (
        project = current_setting('forkwise.project', true) AND (SELECT may_use(project, current_user))
    );
    """
        for table in _TABLES
    ),
)
logging.getLogger("psycopg").addHandler(logging.NullHandler())  # it logs what is also raised, by default to stderr

_OWN = "project = current_setting('forkwise.project')"
_DIALECT = Dialect(
    own=f"{_OWN} AND",
    key="project, ",
    no_limit=None,
    label="first.data",
    last_event="lastval()",
    casts={
        **dict.fromkeys(("commit", "undone", "round"), "?::bigint"),
        "score": "?::double precision",
    },
)
_ADD_EVENT = "WITH added AS (INSERT INTO events (at, fork, attempt, kind, data) VALUES (?, ?, ?, ?, ?) RETURNING seq)"
_CHECKPOINT = "(SELECT checkpoint_lsn::text FROM pg_control_checkpoint())"
_LOCK_SPACE = 0x666B77  # for advisory locks: other programs use other numbers
_SESSION_SPACE = 0x666B78  # for the lock that each connection holds until it ends
_TAKE_TURN = f"SELECT pg_advisory_xact_lock({_LOCK_SPACE}, hashtext(current_setting('forkwise.project')))"
_MOST_RECENT = 1000
_LONGEST_RECENT = 1 << 16  # because the statement that changes a record sends it to the server again
_CONNECT_TIMEOUT_S = 10
_LOCK_TIMEOUT_S = 60
_PATIENCE_S = 30.0  # to wait for a server that is being restarted
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
#: Settings of libpq for a connection that only receives: without them, a vanished server is noticed only after hours.
_LISTENER_SETTINGS = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3"}
_LEASE_S = 60
_RENEWAL_S = 15.0
_MARGIN_S = 5.0  # a lease counts as expired this much early


class PostgresLedger(SqlLedger):
    """The ledger of one project in a PostgreSQL database.

    ``url`` is a connection string of libpq, such as ``postgresql://host/database``. ``directory`` is on this machine:
    it holds the output of attempts and what they changed. Processes of several machines can share the ledger. The owner
    of a running fork holds a lease: if it is not renewed for a minute, the fork counts as interrupted on the other
    machines.
    """

    def __init__(self, url: str, directory: str | os.PathLike[str], project: str) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self._postgres = PostgresDatabase(url, project)
        super().__init__(directory, self._postgres, _DIALECT)
        if os.environ.get("FORKWISE_LEDGER_STORE"):
            from forkwise.ledger.stored_files import open_stored_files  # noqa: PLC0415 - needs the extra snapshots

            self.stored_files = open_stored_files(self.directory, self._postgres.find_identity())
        self._lease: _Lease | None = None
        self._own_forks: set[str] = set()  # those that this process has begun or adopted
        #: The documents of forks and attempts, with the progress of these, as a transaction here read or wrote them.
        self._recent: dict[str, tuple[str, object]] = {}

    def close(self) -> None:
        if self._lease is not None:
            self._lease.close()
            self._lease = None
        super().close()

    def watch_changes(self, fork: str | None = None, kinds: Collection[str] = ()) -> ChangeWatch:
        return self._postgres.listener.watch(fork, kinds)

    def _append(self, fork: str, attempt: str | None, kind: str, /, **data: Any) -> None:
        owner = data.get("owner")
        is_own = owner == ProcessId.current().dump()
        if not is_own and fork in self._own_forks and self._lease is not None and self._lease.has_expired:
            self._require_ownership(fork)
        super()._append(fork, attempt, kind, **data)
        self._postgres.announce(fork, kind)
        if is_own:
            self._own_forks.add(fork)
            if self._lease is None:
                self._lease = _Lease(self._postgres)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        is_outermost = not self._is_writing
        with super()._transaction():
            yield
            if is_outermost:
                for name in [*self._known][-_MOST_RECENT:]:
                    self._keep_recent(name, *self._known[name])

    def _keep_recent(self, name: str, document: str, progress: object) -> None:
        self._recent.pop(name, None)  # the last one used is the last one
        if len(document) <= _LONGEST_RECENT:
            self._recent[name] = (document, progress)
        while len(self._recent) > _MOST_RECENT:
            del self._recent[next(iter(self._recent))]

    def _change_fork(self, fork: str, kind: str, change: Callable[[ForkRecord], dict[str, Any]]) -> None:
        if not self._change_recent("forks", fork, kind, lambda data, _: change(self._load_fork(data))):
            super()._change_fork(fork, kind, change)

    def _change_attempt(self, attempt: str, kind: str, change: Callable[[AttemptRecord], dict[str, Any]]) -> None:
        if not self._change_recent("attempts", attempt, kind, lambda *known: change(self._load_attempt(*known))):
            super()._change_attempt(attempt, kind, change)

    def _change_recent(self, table: str, name: str, kind: str, change: Callable[[str, object], dict[str, Any]]) -> bool:
        """Add an event in one statement, and return True; if the record is not known or was changed, return False.

        The statement may have to wait for its turn. Afterwards it compares the record as it is then and, for a fork of
        this process, the lease: no other process can have adopted the fork while the lease lasts.
        """
        with self._database.lock:
            if self._is_writing or name not in self._recent:
                return False
            before, progress = self._recent.pop(name)
            fork = name.partition(".")[0]
            lease = self._lease if fork in self._own_forks else None
            if lease is not None and lease.has_expired:
                return False
            try:
                data = change(before, progress)
                document = self._merge_fields(table, before, data)
            except (LedgerError, ValueError):  # it may be another record by now, for which the rules are different
                return False
            event = (time.time(), fork, None if table == "forks" else name, kind, self._encode_data(name, kind, data))
            text = self._encode_data(name, kind, document)
            has_state = table == "attempts" and "state" in data
            values = [
                *(text if column == "data" else document.get(column) for column in _CHANGED[table]),
                *(name, before, *[lease and lease.owner] * 2),
                *([name, progress, name] if has_state else []),
                *event,
                *(self._postgres.channel, f"{fork} {kind}"),
            ]
            # A statement sees what was committed when it began: progress could be noted while it waits for its turn.
            turn = _TAKE_TURN if has_state else None
            is_added = self._postgres.write_at_once(_CHANGES[table, has_state], values, (_FIND_EVENT, event), turn)
            if is_added:
                self._keep_recent(name, text, None if has_state else progress)
            return is_added

    def _require_ownership(self, fork: str) -> None:
        """Raise LedgerError if another process adopted a fork of this one, whose lease had expired."""
        record = self._find_fork(fork)
        if record is not None and record.owner != ProcessId.current() and record.stored == "running":
            raise LedgerError(
                f"fork {fork} was taken over by process {record.owner.label}, because this process did not renew its "
                f"lease for {_LEASE_S} s: it runs there now, and what this process does for it is not recorded",
                subject=fork,
            )

    def _add_event(self, event: Event, document: str) -> None:
        table, values = self._merge_record(event, is_new=event.kind in ("begun", "added"))
        statement = f"{_ADD_EVENT} {self._format_upsert(table, 'SELECT seq, {} FROM added')}"
        self._database.rows(statement, (event.at, event.fork, event.attempt, event.kind, document, *values))

    def _read_label(self, found: Any) -> str | None:
        with suppress(ValueError, RecursionError):
            document = json.loads(found or "null")
            label = document.get("label") if isinstance(document, dict) else None
            return label if isinstance(label, str) else None
        return None

    def _load_fork(self, data: object) -> ForkRecord:
        record = super()._load_fork(data)
        if record.stored == "running" and record.owner.is_elsewhere and not self._has_lease(record.owner):
            return replace(record, owner=ProcessId.nobody())
        return record

    def _has_lease(self, owner: ProcessId) -> bool:
        query = f"SELECT 1 FROM leases WHERE {_OWN} AND owner = ? AND until > now()"
        return bool(self._database.rows(query, (_describe_owner(owner),)))


def _describe_owner(owner: ProcessId) -> str:
    return json.dumps(owner.dump())


def _format_change(table: str, *, has_state: bool) -> str:
    """Return a statement that adds an event and changes its record, if that is still the same.

    It returns a row if it did. Its first step waits for the turn of this writer, before the event gets its number.
    """
    columns = ", ".join(f'"{name}" = %s' for name in _CHANGED[table])
    lease = f"SELECT until FROM leases WHERE {_OWN} AND owner = %s"
    same_progress = gone = ""
    if has_state:
        same_progress = f"AND (SELECT data FROM progress WHERE {_OWN} AND attempt = %s) IS NOT DISTINCT FROM %s"
        gone = f"gone AS (DELETE FROM progress WHERE {_OWN} AND attempt = %s AND EXISTS (SELECT FROM changed)),"
    return f"""
        WITH locked AS MATERIALIZED ({_TAKE_TURN}),
        turn AS MATERIALIZED (SELECT clock_timestamp() AS at FROM locked),
        changed AS (
            UPDATE {table} SET {columns} FROM turn
            WHERE {_OWN} AND id = %s AND data = %s AND (%s::text IS NULL OR ({lease}) > turn.at) {same_progress}
            RETURNING id
        ),
        {gone}
        added AS (
            INSERT INTO events (at, fork, attempt, kind, data) SELECT %s, %s, %s, %s, %s FROM changed RETURNING seq
        )
        SELECT seq, pg_notify(%s, %s) FROM added
    """


_CHANGED = {"forks": ("state", "commit", "undone", "data"), "attempts": ("state", "score", "data")}
_CHANGES = {
    (table, has_state): _format_change(table, has_state=has_state)
    for table, has_state in (("forks", False), ("attempts", False), ("attempts", True))
}
_FIND_EVENT = (
    f"SELECT 1 FROM events WHERE {_OWN} AND at = ? AND fork = ? AND attempt IS NOT DISTINCT FROM ? AND kind = ? "
    "AND data = ?"
)


class _Lease:
    """Shows other machines that a process on this one is alive: a thread renews the lease until ``close``."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._is_over = threading.Event()
        self.owner = _describe_owner(ProcessId.current())
        self._pid = os.getpid()
        self._renewed_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._has_expired = False
        self._renew()
        self._thread = threading.Thread(target=self._run, name="forkwise-lease", daemon=True)
        self._thread.start()

    @property
    def has_expired(self) -> bool:
        """Whether other processes may have found the lease expired at any time, and adopted forks of this process.

        It goes by this machine's clock, which also runs while the machine is suspended.
        """
        return self._has_expired or self._find_age() > _LEASE_S - _MARGIN_S

    def close(self) -> None:
        """End the lease."""
        self._is_over.set()
        if os.getpid() == self._pid:
            self._thread.join()

    def _find_age(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) - self._renewed_at

    def _run(self) -> None:
        while not self._is_over.wait(_RENEWAL_S):
            with suppress(LedgerError):  # the server is away: the next renewal tries again
                self._renew()

    def _renew(self) -> None:
        started = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._database.rows(
            f"INSERT INTO leases (owner, until) VALUES (?, now() + interval '{_LEASE_S} s') "
            "ON CONFLICT (project, owner) DO UPDATE SET until = excluded.until",
            (self.owner,),
        )
        self._has_expired = self._has_expired or self._find_age() > _LEASE_S - _MARGIN_S
        self._renewed_at = started


class _Transaction:
    """A transaction: its pipeline, and its number on the server, by which its fate can be looked up later."""

    def __init__(self) -> None:
        self.pipeline: AbstractContextManager[psycopg.Pipeline] | None = None
        self.number: psycopg.Cursor[tuple[Any, ...]] | None = None
        self.is_new = True  # nothing was read or written yet

    def end(self) -> None:
        """Wait for the answers to all statements. Raises psycopg.Error if one of them failed."""
        pipeline, self.pipeline = self.pipeline, None
        if pipeline is not None:
            pipeline.__exit__(None, None, None)


class PostgresDatabase(SqlDatabase):
    """A connection for the rows of one project. After a restart of the server, it connects again by itself."""

    def __init__(self, url: str, project: str) -> None:
        self.url = url
        self.project = project
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._transaction: _Transaction | None = None
        self._session = 0  # the number of the advisory lock that the connection holds
        self._news: set[tuple[str, str]] = set()
        self.channel = f"forkwise_{hashlib.sha256(project.encode(errors='surrogatepass')).hexdigest()[:32]}"
        self.listener = _Listener(self)
        super().__init__()
        self.rows("SELECT 1")

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.lock:
            statement = sql.replace("?", "%s").encode()
            has_rows = sql.lstrip().startswith("SELECT")
            until = time.monotonic() + _PATIENCE_S
            pause = _FIRST_PAUSE_S
            while True:
                try:
                    cursor = self._connect().execute(statement, values)
                    rows = cursor.fetchall() if has_rows else []
                except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                    # A statement outside a transaction, or the first one in it, can be repeated: it only reads, or
                    # writes the same again.
                    is_new = self._transaction is None or self._transaction.is_new
                    if not self._is_lost() or not is_new or time.monotonic() > until:
                        raise self._explain(error) from error
                    self._drop_connection()
                    time.sleep(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_S)
                except (psycopg.Error, UnicodeError) as error:
                    raise self._explain(error) from error
                else:
                    if self._transaction is not None:
                        self._transaction.is_new = False
                    return rows

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.lock:
            if self._transaction is not None:
                raise LedgerError(f"the ledger {self._place} cannot be used: a transaction is in progress already")
            self._news.clear()
            self._transaction = _Transaction()
            try:
                yield
                self._commit(self._transaction)
            except BaseException as error:
                self._roll_back(is_sound=isinstance(error, Exception))
                raise
            finally:
                self._transaction = None

    def write_at_once(
        self, statement: str, values: Sequence[Any], evidence: tuple[str, Sequence[Any]], before: str | None = None
    ) -> bool:
        """Run a statement that is a transaction by itself, in one round trip; return whether it returned a row.

        ``before`` is a statement to run first in that transaction. If the connection is lost meanwhile, the result is
        whether the query ``evidence`` finds a row, when the server has ended its work for that connection.
        """
        with self.lock:
            if self._is_lost():
                return False  # a transaction connects again
            connection = self._connect()
            try:
                if before is None:
                    return bool(connection.execute(statement.encode(), values).fetchall())
                with connection.pipeline():
                    connection.execute(before.encode())
                    cursor = connection.execute(statement.encode(), values)
                return bool(cursor.fetchall())
            except (psycopg.Error, UnicodeError) as error:
                if not self._is_lost():
                    raise self._explain(error) from error
            except BaseException:  # an interrupt: the answer may be in transit
                self._drop_connection()
                raise
            session = self._session
            self._drop_connection()
            self._end_session(session)
            return bool(self.rows(*evidence))

    def _end_session(self, session: int) -> None:
        """Wait until the server has ended its work for a connection that was lost, which it may not have noticed."""
        end = (
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
            "AND (classid, objid, objsubid) = (?::oid, ?::oid, 2)"
        )
        self.rows(end, (_SESSION_SPACE, session))
        self.rows("SELECT pg_advisory_xact_lock(?, ?)", (_SESSION_SPACE, session))

    def find_identity(self) -> str:
        """Return a text that identifies this project in this database among all others."""
        [found] = self.rows("SELECT system_identifier::text, current_database() FROM pg_control_system()")
        return "\n".join([*map(str, found), self.project])

    def announce(self, fork: str, kind: str) -> None:
        """Notify other processes of an event once the transaction is committed."""
        self._news.add((fork, kind))

    def open_listener(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Open a connection that receives the announcements of the project."""
        connection = self._open(_LISTENER_SETTINGS)
        try:
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self.channel)))
        except BaseException:
            connection.close()
            raise
        return connection

    def disconnect(self) -> None:
        self._drop_connection()
        self.listener.stop()

    def _drop_connection(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
        self._connection = None
        if self._transaction is not None:  # it is begun again with the next connection
            self._transaction.pipeline = self._transaction.number = None

    def _begin(self, connection: psycopg.Connection[tuple[Any, ...]], transaction: _Transaction) -> None:
        """Begin a transaction that no other writer of the project interrupts.

        Its statements are sent in a pipeline: the server answers all of them with the next one that returns rows.
        """
        transaction.pipeline = connection.pipeline()
        transaction.pipeline.__enter__()
        connection.execute("BEGIN")
        transaction.number = connection.execute(f"{_TAKE_TURN}, pg_current_xact_id()::text, {_CHECKPOINT}".encode())

    def _commit(self, transaction: _Transaction) -> None:
        """Commit; if the connection is lost meanwhile, find out whether the transaction was committed."""
        if transaction.is_new:
            return  # nothing was read or written
        number = None
        try:
            connection = self._connect()
            number = transaction.number.fetchone() if transaction.number is not None else None
            for fork, kind in sorted(self._news):
                connection.execute("SELECT pg_notify(%s, %s)", (self.channel, f"{fork} {kind}"))
            connection.execute("COMMIT")
            transaction.end()
        except psycopg.Error as error:
            if not self._is_lost():
                raise self._explain(error) from error
            self._drop_connection()
            self._transaction = None
            if number is None or not self._is_committed(*map(str, number[1:])):
                raise self._explain(error) from error

    def _is_committed(self, number: str, checkpoint: str) -> bool:
        """Return whether a transaction whose connection was lost was committed; wait until that is decided.

        After a crash the server may give a transaction's number to another one. A crash ends with a checkpoint, so if
        there was one since the transaction began, it does not count as committed.
        """
        # The server may be working on it still; it holds the project's lock until then.
        self.rows(_TAKE_TURN)
        found = self.rows(f"SELECT pg_xact_status(?::text::xid8), {_CHECKPOINT}", (number,))
        return found == [("committed", checkpoint)]

    def _roll_back(self, *, is_sound: bool) -> None:
        """Undo the transaction; close the connection if it was interrupted and may still be waiting for an answer."""
        transaction, self._transaction = self._transaction, None
        if transaction is None or self._connection is None:
            return
        try:
            if not is_sound or self._is_lost():
                self._drop_connection()
                return
            with suppress(psycopg.Error):  # the error that is being handled
                transaction.end()
            self._connection.execute("ROLLBACK")
        except psycopg.Error:
            self._drop_connection()

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self.is_closed:
            raise LedgerError(f"the ledger {self._place} is closed")
        if self._connection is None:
            connection = self._open()
            try:
                self._session = secrets.randbits(31)
                connection.execute("SELECT pg_advisory_lock(%s, %s)", (_SESSION_SPACE, self._session))
                _migrate(connection, self._place)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        if self._transaction is not None and self._transaction.pipeline is None:
            if not self._transaction.is_new:
                raise LedgerError(f"the ledger {self._place} cannot be used: the connection was closed meanwhile")
            self._begin(self._connection, self._transaction)
        return self._connection

    def _open(self, defaults: Mapping[str, str] = MappingProxyType({})) -> psycopg.Connection[tuple[Any, ...]]:
        given = conninfo_to_dict(self.url)
        settings = {"connect_timeout": str(_CONNECT_TIMEOUT_S), "application_name": "forkwise", **defaults, **given}
        connection = psycopg.connect(make_conninfo("", **settings), autocommit=True)
        connection.execute(
            "SELECT set_config('forkwise.project', %s, false), set_config('search_path', 'forkwise', false), "
            "set_config('lock_timeout', %s, false)",
            (self.project, f"{_LOCK_TIMEOUT_S}s"),
        )
        return connection

    def _is_lost(self) -> bool:
        return self._connection is None or self._connection.closed or self._connection.broken

    @property
    def _place(self) -> str:
        """The database without the password and the user."""
        given = conninfo_to_dict(self.url)
        port = f":{given['port']}" if given.get("port") else ""
        return f"postgresql://{given.get('host', '')}{port}/{given.get('dbname', '')}"

    def _explain(self, error: Exception) -> LedgerError:
        reason = str(error).strip().partition("\n")[0]
        if password := urlsplit(self.url).password if "://" in self.url else None:
            reason = reason.replace(password, "***")
        return LedgerError(f"the ledger {self._place} cannot be used: {reason}")


class _Listener:
    """Receives the announcements of a database for all its watches, in a thread that runs while there are watches."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._watches: set[AnnouncedWatch] = set()
        self._thread: threading.Thread | None = None
        self._end_fd = -1  # closed to end the thread
        self._ending: list[threading.Thread] = []

    def watch(self, fork: str | None, kinds: Collection[str]) -> AnnouncedWatch:
        """Return a watch for events; it is served until it is closed."""
        watch = AnnouncedWatch(fork, kinds, self._start, self._forget)
        with self._lock:
            self._watches.add(watch)
        self._start()
        return watch

    def stop(self) -> None:
        """End the thread and its connection. All waits end; the next one starts another thread."""
        self._end_thread()
        while self._ending:
            self._ending.pop().join()
        self._announce()

    def _end_thread(self) -> None:
        with self._lock:
            if self._thread is not None:
                os.close(self._end_fd)
                self._ending = [thread for thread in [*self._ending, self._thread] if thread.is_alive()]
                self._thread = None

    def _start(self) -> None:
        with self._lock:
            if self._thread is not None or self._database.is_closed:
                return
            end_fd, self._end_fd = os.pipe2(os.O_CLOEXEC)
            self._thread = threading.Thread(target=self._run, args=(end_fd,), name="forkwise-listener", daemon=True)
            self._thread.start()

    def _forget(self, watch: AnnouncedWatch) -> None:
        with self._lock:
            self._watches.discard(watch)
            is_unused = not self._watches
        if is_unused:
            self._end_thread()

    def _announce(self, fork: str | None = None, kind: str | None = None) -> None:
        with self._lock:
            watches = tuple(self._watches)
        for watch in watches:
            watch.announce(fork, kind)

    def _run(self, end_fd: int) -> None:
        pause = _FIRST_PAUSE_S
        try:
            while True:
                with suppress(psycopg.Error), self._database.open_listener() as connection:
                    pause = _FIRST_PAUSE_S
                    self._announce()  # something may have changed before this
                    if self._receive(connection, end_fd):
                        return
                if select.select([end_fd], [], [], pause)[0]:
                    return
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        finally:
            os.close(end_fd)

    def _receive(self, connection: psycopg.Connection[tuple[Any, ...]], end_fd: int) -> bool:
        """Pass announcements on until the connection fails, which raises psycopg.Error, or ``stop`` is called."""
        while True:
            ready = select.select([connection.fileno(), end_fd], [], [])[0]
            if end_fd in ready:
                return True
            connection.pgconn.consume_input()
            while (notice := connection.pgconn.notifies()) is not None:
                fork, _, kind = notice.extra.decode(errors="replace").partition(" ")
                self._announce(fork, kind)


def _migrate(connection: psycopg.Connection[tuple[Any, ...]], place: str) -> None:
    """Bring the schema, which may be missing, to the version of the tables that this forkwise knows."""
    if _read_version(connection, place) == len(SCRIPTS):
        return
    with connection.transaction():
        connection.execute(sql.SQL("SELECT pg_advisory_xact_lock({}, 0)").format(_LOCK_SPACE))
        connection.execute("CREATE SCHEMA IF NOT EXISTS forkwise")
        connection.execute("CREATE TABLE IF NOT EXISTS forkwise.version (number integer NOT NULL)")
        for version in range(_read_version(connection, place), len(SCRIPTS)):
            connection.execute(SCRIPTS[version].encode())
            connection.execute("DELETE FROM forkwise.version")
            connection.execute("INSERT INTO forkwise.version VALUES (%s)", (version + 1,))


def _read_version(connection: psycopg.Connection[tuple[Any, ...]], place: str) -> int:
    [(is_there,)] = connection.execute("SELECT to_regclass('forkwise.version') IS NOT NULL").fetchall()
    found = connection.execute("SELECT number FROM forkwise.version").fetchall() if is_there else []
    version: int = found[0][0] if found else 0
    if version > len(SCRIPTS):
        raise LedgerError(
            f"the ledger {place} was written by a newer forkwise (its tables have version {version}, this forkwise "
            f"knows {len(SCRIPTS)}): install a newer forkwise"
        )
    return version
