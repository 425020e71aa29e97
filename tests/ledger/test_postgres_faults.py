"""A ledger in PostgreSQL while the disk is full, the network slow or cut, the server killed, and its owner late."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from forkwise import LedgerError
from forkwise.ledger import postgres as module
from forkwise.ledger.postgres import PostgresLedger
from forkwise.linux.process_id import ProcessId
from tests.counts import rounds
from tests.ledger.ledger_scenes import Child, attempt_in, fork_in, picture
from tests.ledger.postgres_server import PostgresServer
from tests.ledger.slow_proxy import SlowProxy

pytestmark = pytest.mark.integration


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def open_at(stack: ExitStack, url: str, directory: Path) -> PostgresLedger:
    return stack.enter_context(PostgresLedger(url, directory / "ledger", directory.name))


@pytest.fixture
def cut(
    postgres: PostgresServer, tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> tuple[SlowProxy, PostgresLedger, PostgresLedger]:
    """A proxy that can cut connections, a ledger behind it, and the same ledger without it."""
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.001)
    proxy = stack.enter_context(SlowProxy(postgres.directory))
    return proxy, open_at(stack, proxy.url, tmp_path), open_at(stack, postgres.url, tmp_path)


def assert_whole(ledger: PostgresLedger) -> None:
    """Check that the records are what the events add up to."""
    before = picture(ledger)
    ledger.rebuild()
    assert picture(ledger) == before


def test_a_full_disk_loses_nothing_that_was_recorded(tmp_path: Path, stack: ExitStack) -> None:
    server = PostgresServer("120m")
    stack.callback(server.close)
    ledger = open_at(stack, server.url, tmp_path)
    fork = fork_in(ledger).id
    filler = server.directory / "filler"
    free = os.statvfs(server.directory)
    with open(filler, "wb") as file:
        file.write(bytes((free.f_bavail - 800) * free.f_bsize))
    recorded: list[str] = []

    def fill() -> None:
        for number in range(2000):
            label = os.urandom(8000).hex()
            recorded.append(attempt_in(ledger, fork, str(number), index=number, started=False, label=label).id)

    with pytest.raises(LedgerError, match="cannot be used"):
        fill()
    filler.unlink()
    server.stop(signal.SIGKILL)  # one that could not write its log has ended by itself
    server.start()
    assert recorded
    assert [attempt.id for attempt in ledger.attempts(fork)] == recorded
    assert_whole(ledger)
    attempt_in(ledger, fork, "afterwards", index=5000)


def test_a_slow_network_answers_once_for_an_event(postgres: PostgresServer, tmp_path: Path, stack: ExitStack) -> None:
    proxy = stack.enter_context(SlowProxy(postgres.directory, 0.005))
    ledger = open_at(stack, proxy.url, tmp_path)
    fork = fork_in(ledger).id
    attempt = attempt_in(ledger, fork).id

    def count_turns(change: Callable[..., object], *arguments: object) -> int:
        before = proxy.turns
        change(*arguments)
        return proxy.turns - before

    # On a busy machine, an answer may come in two parts.
    assert min(count_turns(ledger.record_score, attempt, float(score)) for score in range(5)) == 1
    assert min(count_turns(ledger.record_verdict, fork, {"turn": turn}) for turn in range(5)) == 1
    others = [attempt_in(ledger, fork, str(n), index=n, started=False).id for n in range(10, 15)]
    assert min(count_turns(ledger.start_attempt, other) for other in others) == 1
    for other in others:
        ledger.note_progress(other, files=2, last_line="hello")
    assert min(count_turns(ledger.end_attempt, other, "failed") for other in others) == 1
    assert {(a.state, a.files, a.last_line) for a in ledger.attempts(fork)[1:]} == {("failed", 2, "hello")}
    with ledger.batch():
        names = [attempt_in(ledger, fork, str(n), index=n, started=False).id for n in range(1, 4)]
        before = proxy.turns
        for name in names:
            for score in range(20):
                ledger.record_score(name, float(score))
        assert proxy.turns == before, "nothing waits for an answer"
    assert [a.score for a in ledger.attempts(fork)] == [4.0, *[None] * 5, 19.0, 19.0, 19.0]
    assert_whole(ledger)


def test_a_connection_that_is_cut_anywhere(cut: tuple[SlowProxy, PostgresLedger, PostgresLedger]) -> None:
    """What was recorded is there, what was refused is not, and there is nothing in between."""
    proxy, ledger, direct = cut
    fork = fork_in(ledger).id
    recorded: list[str] = []
    refused = 0
    for number in range(1, rounds(20, 60), rounds(2, 1)):
        proxy.cut_after = 1 + number % 10
        try:
            recorded.append(attempt_in(ledger, fork, str(number), index=number, started=False).id)
        except LedgerError:
            refused += 1
        proxy.cut_after = None
        assert [attempt.id for attempt in direct.attempts(fork)] == recorded
    assert recorded
    assert refused
    assert_whole(direct)


def test_a_connection_that_is_cut_under_single_events(cut: tuple[SlowProxy, PostgresLedger, PostgresLedger]) -> None:
    """Each event that was recorded is there, once."""
    proxy, ledger, direct = cut
    fork = fork_in(ledger).id
    attempt = attempt_in(ledger, fork).id
    recorded: list[float] = []
    for number in range(1, rounds(20, 60), rounds(2, 1)):
        proxy.cut_after = 1 + number % 4
        with suppress(LedgerError):
            ledger.record_score(attempt, float(number))
            recorded.append(float(number))
        proxy.cut_after = None
        ledger.record_cost(attempt, {"usd": number})
        assert [event.data["score"] for event in direct.events(fork=fork) if event.kind == "scored"] == recorded
    assert recorded
    assert_whole(direct)


@pytest.mark.crash
def test_a_server_that_is_killed_under_writers(tmp_path: Path, stack: ExitStack) -> None:
    """Everything that a writer was told to be recorded is there after each recovery."""
    server = PostgresServer()
    stack.callback(server.close)
    ledger = open_at(stack, server.url, tmp_path)
    fork = fork_in(ledger).id

    def work(writer: int, write_end: int) -> None:
        mine = PostgresLedger(server.url, tmp_path / "ledger", tmp_path.name)
        for number in range(100_000):
            with suppress(LedgerError):  # the transaction was interrupted, and is rolled back
                attempt = attempt_in(mine, fork, f"{writer}-{number}", index=0, started=False).id
                os.write(write_end, f"{attempt}\n".encode())
                mine.record_score(attempt, 1.0)
                os.write(write_end, f"{attempt} scored\n".encode())

    reader, write_end = os.pipe()
    with open(reader) as lines:
        children = [Child(lambda writer=writer: work(writer, write_end)) for writer in range(2)]
        recorded = []
        for _ in range(rounds(2, 20)):
            recorded += [lines.readline().strip() for _ in range(20)]
            server.stop(signal.SIGKILL)
            server.start()
        recorded += [lines.readline().strip() for _ in range(20)]
        for child in children:
            child.kill()
        os.close(write_end)
        recorded += lines.read().splitlines()
    attempts = ledger.attempts(fork)
    found = {attempt.id for attempt in attempts} | {f"{one.id} scored" for one in attempts if one.score == 1.0}
    scored = [event.attempt for event in ledger.events(fork=fork) if event.kind == "scored"]
    assert len(scored) == len(set(scored))
    assert set(recorded) <= found
    assert len(recorded) == len(set(recorded))
    assert_whole(ledger)


def test_an_owner_that_comes_back_too_late_records_nothing(
    postgres: PostgresServer, tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, other = (open_at(stack, postgres.url, tmp_path) for _ in range(2))
    fork = fork_in(late).id
    attempt = attempt_in(late, fork).id
    kept = fork_in(late).id
    away = replace(ProcessId.current(), boot="another", machine="elsewhere", host="elsewhere")
    lease = "INSERT INTO leases (owner, until) VALUES (?, now() + interval '600 s')"
    other._database.rows(lease, (module._describe_owner(away),))
    with other._transaction():
        other._append(fork, None, "adopted", owner=away.dump())
    monkeypatch.setattr(module, "_MARGIN_S", module._LEASE_S + 1)  # as if the lease had not been renewed for a minute
    before = other.events()
    for change in (
        lambda: late.end_attempt(attempt, "succeeded"),
        lambda: late.abort_fork(fork, "its process ends"),
        lambda: late.resolve(fork, how="pick", winner=attempt),
        lambda: late.release_fork(fork),
    ):
        with pytest.raises(LedgerError, match=r"taken over by process .* on elsewhere"):
            change()
    assert other.events() == before
    late.record_verdict(kept, {"confidence": 1})
    assert other.attempt(attempt).state == "running"
    other.end_attempt(attempt, "succeeded")
