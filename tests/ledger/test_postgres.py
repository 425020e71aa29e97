"""What only a ledger in PostgreSQL has: projects, roles, a server that goes away, notices, leases."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from forkwise import ForkResolvedError, LedgerError, Speculate, Workspace, abort_attempt, abort_fork
from forkwise.fork import control, stored_fork
from forkwise.fork import fork as running_fork
from forkwise.ledger import postgres as module
from forkwise.ledger.change_watch import ChangeWatch
from forkwise.ledger.postgres import PostgresLedger
from forkwise.ledger.sqlite import SqliteLedger, open_ledger, open_ledger_of_state
from forkwise.linux.process_id import ProcessId
from tests.counts import rounds
from tests.ledger.ledger_scenes import Child, attempt_in, fork_in, picture
from tests.ledger.postgres_server import PostgresServer

pytestmark = pytest.mark.integration

Open = Callable[..., PostgresLedger]
PAGE = Path(__file__).parents[2] / "docs/ledger.md"
_DEADLINE_S = 60.0
_NEVER_S = 3600.0  # longer than a test may take


@pytest.fixture
def opened(postgres: PostgresServer, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens the ledger of a project, by default one of this test."""
    with ExitStack() as stack:

        def build(project: str = tmp_path.name, url: str = postgres.url) -> PostgresLedger:
            return stack.enter_context(PostgresLedger(url, tmp_path / "ledger", project))

        yield build


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    (tmp_path / "project").mkdir()
    return Workspace(tmp_path / "project", state=tmp_path / "state")


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """Start a server that the test may stop."""
    server = PostgresServer()
    yield server
    server.close()


def start_wait(watch: ChangeWatch) -> threading.Thread:
    """Wait for an announcement in a thread."""
    thread = threading.Thread(target=watch.wait, args=(0.0, _NEVER_S), daemon=True)
    thread.start()
    return thread


def finish_wait(thread: threading.Thread) -> None:
    thread.join(_DEADLINE_S)
    assert not thread.is_alive(), "no announcement ended the wait"


def wait_for_announcement(watch: ChangeWatch) -> None:
    """Wait until a change is announced; fail if none is."""
    finish_wait(start_wait(watch))


def test_projects_do_not_see_each_other(opened: Open) -> None:
    one, other = opened("one"), opened("other")
    fork = fork_in(one)
    attempt_in(one, fork.id)
    assert other.forks() == other.summaries() == other.events() == []
    with pytest.raises(LedgerError, match="there is no fork"):
        other.fork(fork.id)
    one.prune(keep=0)
    other.rebuild()
    assert [f.id for f in one.forks()] == [fork.id]


def test_a_role_sees_the_projects_it_may_use(opened: Open, postgres: PostgresServer, tmp_path: Path) -> None:
    project = f"closed {tmp_path.name}"
    fork = fork_in(opened(project)).id
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute("CREATE ROLE team_a LOGIN; CREATE ROLE team_b LOGIN")
        [example] = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
        admin.execute(re.sub(r"'shop-[^']*'", f"'{project}'", example))
        try:
            mine = opened(project, postgres.url.replace("user=postgres", "user=team_a"))
            theirs = opened(project, postgres.url.replace("user=postgres", "user=team_b"))
            assert mine.fork(fork).id == fork
            assert theirs.forks() == theirs.events() == []
            with pytest.raises(LedgerError, match="row-level security"):
                fork_in(theirs)
            with pytest.raises(LedgerError, match="permission denied"):
                theirs._database.rows("INSERT INTO access VALUES (?, 'team_b')", (project,))
            mine.close()
            theirs.close()
        finally:
            for role in ("team_a", "team_b"):
                admin.execute(f"DROP OWNED BY {role}")
                admin.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL])
def test_a_server_that_is_restarted(number: int, own_server: PostgresServer, opened: Open) -> None:
    ledger = opened(url=own_server.url)
    fork = fork_in(ledger).id
    own_server.stop(number)
    restart = threading.Timer(0.2, own_server.start)
    restart.start()
    assert ledger.fork(fork).id == fork
    restart.join()
    own_server.stop(number)
    own_server.start()
    assert attempt_in(ledger, fork).id == f"{fork}.1"
    assert len(ledger.events()) == 3


def test_a_transaction_that_a_restart_interrupts_is_rolled_back(own_server: PostgresServer, opened: Open) -> None:
    ledger = opened(url=own_server.url)
    fork = fork_in(ledger).id
    before = picture(ledger)

    def change() -> None:
        with ledger._transaction():
            ledger._append(fork, None, "judged", verdict={"confidence": 1})
            own_server.stop()
            own_server.start()
            ledger._append(fork, None, "measured", baseline={"summary": "1 passed"})

    with pytest.raises(LedgerError, match="cannot be used"):
        change()
    assert picture(ledger) == before
    assert attempt_in(ledger, fork).id == f"{fork}.1"


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_connection_that_is_lost_with_the_commit(
    is_committed: bool, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = opened()
    fork = fork_in(ledger).id
    execute = psycopg.Connection.execute

    def lose(self: psycopg.Connection, statement: object, *values: object) -> object:
        if statement != "COMMIT":
            return execute(self, statement, *values)
        monkeypatch.undo()
        if is_committed:
            execute(self, statement, *values)
            ledger._postgres._transaction.end()
        self.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(psycopg.Connection, "execute", lose)
    if is_committed:
        assert attempt_in(ledger, fork, started=False).id == f"{fork}.1"
    else:
        with pytest.raises(LedgerError, match="closed the connection"):
            attempt_in(ledger, fork, started=False)
    assert len(ledger.attempts(fork)) == is_committed


def test_a_commit_that_the_server_still_works_on_is_waited_for(opened: Open) -> None:
    """Its connection is lost, but not its transaction, which holds the project's lock: here, another one holds it."""
    ledger = opened()
    with psycopg.connect(ledger._postgres.url) as busy:
        lock = f"SELECT pg_current_xact_id()::text, {module._CHECKPOINT}, pg_advisory_xact_lock(%s, hashtext(%s))"
        [(number, checkpoint, _)] = busy.execute(lock, (module._LOCK_SPACE, ledger._postgres.project)).fetchall()
        found: list[bool] = []
        thread = threading.Thread(target=lambda: found.append(ledger._postgres._is_committed(number, checkpoint)))
        thread.start()
        waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = %s"
        while not busy.execute(waiting, (module._LOCK_SPACE,)).fetchall():
            assert thread.is_alive()
        busy.commit()
        thread.join()
        assert found == [True]
        busy.autocommit = True
        busy.execute("CHECKPOINT")  # as after a crash, when the number may be another transaction's
        assert not ledger._postgres._is_committed(number, checkpoint)


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_connection_that_is_lost_with_an_event(
    is_committed: bool, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may not have noticed, and may have the event before it still: it is recorded once."""
    ledger = opened()
    fork = fork_in(ledger).id
    attempt = attempt_in(ledger, fork).id
    execute = psycopg.Connection.execute

    def lose(self: psycopg.Connection, statement: object, *values: object) -> object:
        if b"changed AS" not in statement:
            return execute(self, statement, *values)
        monkeypatch.undo()
        if is_committed:
            execute(self, statement, *values)
        self.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(psycopg.Connection, "execute", lose)
    ledger.record_score(attempt, 2.0)
    assert ledger.attempt(attempt).score == 2.0
    assert [event.kind for event in ledger.events(fork=fork)] == ["begun", "added", "started", "scored"]


def test_a_lost_connection_that_the_server_still_serves_is_ended(opened: Open) -> None:
    ledger = opened()
    database = ledger._postgres
    lost, session = database._connection, database._session
    lost.execute("SELECT pg_advisory_lock(0, 1)")  # held by a backend that is at work
    database._connection = None
    database._end_session(session)
    assert database.rows("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND classid = 0") == []
    with pytest.raises(psycopg.OperationalError):
        lost.execute("SELECT 1")
    lost.close()


def test_a_record_that_another_process_changed_is_read_again(opened: Open) -> None:
    one, other = opened(), opened()
    fork = fork_in(one).id
    attempt = attempt_in(one, fork, started=False).id
    one.record_score(attempt, 1.0)
    other.record_cost(attempt, {"usd": 1.0})
    one.record_score(attempt, 2.0)
    other.start_attempt(attempt)
    with pytest.raises(LedgerError, match="cannot start: it is running"):
        one.start_attempt(attempt)
    other.note_progress(attempt, files=3)
    one.end_attempt(attempt, "succeeded")
    with pytest.raises(LedgerError, match="cannot be failed: it is succeeded"):
        other.end_attempt(attempt, "failed")
    found = other.attempt(attempt)
    assert (found.score, found.cost, found.files, found.state) == (2.0, {"usd": 1.0}, 3, "succeeded")
    kinds = ["begun", "added", "scored", "charged", "scored", "started", "ended"]
    assert [event.kind for event in one.events(fork=fork)] == kinds
    one.resolve(fork, how="pick", winner=attempt)
    one.prune(keep=0)
    with pytest.raises(LedgerError, match="there is no"):
        other.record_score(attempt, 3.0)
    assert other.events() == []


def test_an_event_waits_for_its_turn(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was decided before it had its turn is decided again: here, its owner's lease expires meanwhile."""
    late, other = opened(), opened()
    fork = fork_in(late).id
    attempt = attempt_in(late, fork).id
    away = replace(ProcessId.current(), boot="another", machine="elsewhere", host="elsewhere")
    raised: list[str] = []

    def change() -> None:
        with pytest.raises(LedgerError) as error:
            late.record_score(attempt, 1.0)
        raised.append(str(error.value))

    thread = threading.Thread(target=change)
    other._database.rows(f"UPDATE leases SET until = now() WHERE {module._OWN}")
    with psycopg.connect(late._postgres.url, autocommit=True) as looking, other._transaction():
        other._append(fork, None, "adopted", owner=away.dump())
        other._database.rows("SELECT 1")  # the server has answered all of it
        thread.start()
        waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = %s"
        while not looking.execute(waiting, (module._LOCK_SPACE,)).fetchall():
            assert thread.is_alive()
        monkeypatch.setattr(module, "_MARGIN_S", module._LEASE_S + 1)  # as if it had waited for a minute
    thread.join()
    assert "taken over by process" in raised[0]
    assert [event.kind for event in late.events(fork=fork)][-1] == "adopted"


def test_writers_that_are_killed_leave_whole_changes(opened: Open, tmp_path: Path) -> None:
    ledger = opened()

    def work(write_end: int) -> None:
        mine = opened()
        while True:
            fork = fork_in(mine).id
            os.write(write_end, b".")
            attempt = attempt_in(mine, fork)
            mine.end_attempt(attempt.id, "succeeded")
            mine.resolve(fork, how="first success", winner=attempt.id)

    for round_ in range(rounds(6, 200)):
        reader, write_end = os.pipe()
        child = Child(lambda write_end=write_end: work(write_end))
        for _ in range(1 + round_ % 4):
            assert os.read(reader, 1) == b"."
        child.kill()
        os.close(reader)
        os.close(write_end)
        if round_ % 20 == 19:  # what a kill leaves half done stays so until then
            before = picture(ledger)
            ledger.rebuild()
            assert picture(ledger) == before
    assert {fork.state for fork in ledger.forks()} <= {"interrupted", "resolved"}


def test_a_change_wakes_who_waits_for_it(opened: Open) -> None:
    watching, writing, other = opened(), opened(), opened("another project")
    first, second = fork_in(writing).id, fork_in(writing).id
    with watching.watch_changes(second, ["judged"]) as watch:
        wait_for_announcement(watch)  # the listener has connected
        waiting = start_wait(watch)
        foreign = fork_in(other).id
        other.record_verdict(foreign, {})
        writing.record_verdict(first, {})
        writing.record_baseline(second, {})
        assert waiting.is_alive()
        writing.record_verdict(second, {})
        finish_wait(waiting)


def test_a_watch_survives_a_restart_of_the_server(own_server: PostgresServer, opened: Open) -> None:
    watching = opened(url=own_server.url)
    with watching.watch_changes() as watch:
        wait_for_announcement(watch)
        own_server.stop(signal.SIGKILL)
        own_server.start()
        wait_for_announcement(watch)  # connected again: there may have been changes meanwhile
        fork_in(opened(url=own_server.url))
        wait_for_announcement(watch)


def test_a_watch_continues_after_a_fork_of_the_process(opened: Open) -> None:
    watching, writing = opened(), opened()
    with watching.watch_changes() as watch:
        wait_for_announcement(watch)
        assert Child(lambda: fork_in(watching).id).result()
        wait_for_announcement(watch)
        wait_for_announcement(watch)  # a new listener has connected
        fork_in(writing)
        wait_for_announcement(watch)
    watching.close()
    assert "forkwise-listener" not in [thread.name for thread in threading.enumerate()]


def test_announcements_of_strangers_only_wake(opened: Open, postgres: PostgresServer) -> None:
    """Any role may send NOTIFY: whatever it sends, nothing is believed."""
    watching = opened()
    with watching.watch_changes("k3f9ab") as watch, psycopg.connect(postgres.url, autocommit=True) as stranger:
        wait_for_announcement(watch)
        for payload in ("", " ", "\x1b]0;x\x07", "k3f9ab", "k3f9ab aborted; DROP TABLE x", "é" * 3000):
            stranger.execute("SELECT pg_notify(%s, %s)", (watching._postgres.channel, payload))
        wait_for_announcement(watch)
    assert watching.forks() == []


@pytest.mark.parametrize("deed", ["attempt", "fork"])
def test_a_request_reaches_the_process_that_runs_the_fork(
    deed: str, workspace: Workspace, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks at intervals: the announcement is what wakes each side."""
    for name in ("_POLL_INTERVAL", "_LONGEST_INTERVAL"):
        monkeypatch.setattr(running_fork, name, _NEVER_S)
    monkeypatch.setattr(control, "_WAIT_INTERVAL", _NEVER_S)
    monkeypatch.setattr(stored_fork, "_POLL_INTERVAL", _NEVER_S)
    monkeypatch.setenv("FORKWISE_LEDGER", postgres.url)

    def abort() -> None:
        with open_ledger(workspace) as ledger, ledger.watch_changes(None, ["started"]) as watch:
            while not (forks := ledger.forks()) or not any(a.started for a in ledger.attempts(forks[0].id)):
                wait_for_announcement(watch)
            if deed == "fork":
                abort_fork(workspace, forks[0].id)
            else:
                abort_attempt(workspace, f"{forks[0].id}.1")

    thread = threading.Thread(target=abort)
    thread.start()
    explore = Speculate([["sleep", str(_NEVER_S)]])
    if deed == "fork":
        with pytest.raises(ForkResolvedError):
            explore(workspace)
    else:
        fork = explore(workspace).fork
        with open_ledger(workspace) as ledger:
            assert ledger.attempt(f"{fork}.1").state == "cancelled"
    thread.join()


def test_an_owner_elsewhere_lives_as_long_as_its_lease(opened: Open) -> None:
    ledger = opened()
    away = replace(ProcessId.current(), boot="another", machine="elsewhere", host="elsewhere")
    fork = fork_in(ledger, owner=away).id
    assert ledger.fork(fork).state == "interrupted", "it has no lease"
    lease = "INSERT INTO leases (owner, until) VALUES (?, now() + make_interval(secs => ?))"
    ledger._database.rows(lease, (module._describe_owner(away), 600))
    assert ledger.fork(fork).state == "running"
    assert not ledger.adopt_fork(fork)
    ledger._database.rows("UPDATE leases SET until = now() - interval '1 s'")
    assert ledger.adopt_fork(fork)
    assert ledger.fork(fork).owner == ProcessId.current()


def test_the_lease_of_this_process_is_renewed(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RENEWAL_S", 0.01)
    ledger = opened()
    fork_in(ledger)
    ends = "SELECT until FROM leases WHERE owner = ?"
    owner = (module._describe_owner(ProcessId.current()),)
    first = ledger._database.rows(ends, owner)
    deadline = time.monotonic() + _DEADLINE_S
    while ledger._database.rows(ends, owner) == first:
        assert time.monotonic() < deadline


def test_a_newer_version_is_refused(own_server: PostgresServer, opened: Open) -> None:
    opened(url=own_server.url)
    with psycopg.connect(own_server.url) as connection:
        connection.execute("UPDATE forkwise.version SET number = 99")
    with pytest.raises(LedgerError, match="newer forkwise"):
        opened(url=own_server.url)


def test_processes_that_open_a_new_database_at_once(own_server: PostgresServer, opened: Open) -> None:
    children = [Child(lambda: fork_in(opened(url=own_server.url)).id) for _ in range(4)]
    made = {child.result() for child in children}
    assert {fork.id for fork in opened(url=own_server.url).forks()} == made


def test_messages_do_not_show_the_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)
    url = "postgresql://somebody:s3cret-word@127.0.0.1:1/forkwise?connect_timeout=1"
    with pytest.raises(LedgerError) as caught:
        PostgresLedger(url, tmp_path, "p")
    assert "127.0.0.1" in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_ledger_is_copied_there_and_back(opened: Open, tmp_path: Path) -> None:
    shared = opened()
    with SqliteLedger(tmp_path / "here") as local, SqliteLedger(tmp_path / "back") as back:
        for number in range(3):
            fork = fork_in(local, spec={"n": number}).id
            attempt = attempt_in(local, fork)
            local.end_attempt(attempt.id, "succeeded", tail="\0\udcff")
            with pytest.raises(LedgerError, match="still runs"):
                shared.copy_from(local)
            local.resolve(fork, how="pick", winner=attempt.id)
        assert shared.copy_from(local) == 15
        assert back.copy_from(shared) == 15
        assert picture(local) == picture(shared) == picture(back)
        with pytest.raises(LedgerError, match="not empty"):
            shared.copy_from(local)
        assert len(shared.events()) == 15


def test_the_environment_names_the_ledger(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORKWISE_LEDGER", postgres.url)
    with open_ledger_of_state(str(tmp_path / "state-1")) as one, open_ledger_of_state(str(tmp_path / "state-2")) as two:
        fork = fork_in(one).id
        assert two.forks() == []
    monkeypatch.setenv("FORKWISE_PROJECT", "state-1")
    with open_ledger_of_state(str(tmp_path / "elsewhere")) as same:
        assert [record.id for record in same.forks()] == [fork]
    monkeypatch.setenv("FORKWISE_LEDGER", "mysql://x")
    with pytest.raises(LedgerError, match="PostgreSQL"):
        open_ledger_of_state(str(tmp_path))
