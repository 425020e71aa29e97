"""Reading a ledger."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from forkwise import LedgerError
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.sqlite import Database, SqliteLedger
from forkwise.linux.process_id import ProcessId
from tests.ledger.conftest import Open
from tests.ledger.ledger_scenes import attempt_in, fork_in, picture
from tests.ledger.test_rules import DEAD


@pytest.fixture
def named(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Return a ledger with the forks abc222, abd222 and xyz222."""
    letters = "abcdefghjkmnopqrstuvwxyz23456789"
    drawn = iter(bytes(letters.index(c) for c in name) for name in ("abc222", "abd222", "xyz222"))
    with monkeypatch.context() as patch:
        patch.setattr("forkwise.ledger.ledger.os.urandom", lambda _: next(drawn))
        for _ in range(3):
            fork_in(ledger)
    return ledger


def test_a_beginning_that_no_other_shares_is_enough(named: Ledger) -> None:
    attempt_in(named, "x")
    assert named.fork("x").id == named.fork("xyz222").id == "xyz222"
    assert named.attempt("xy.1").id == "xyz222.1"
    assert [a.id for a in named.attempts("xy")] == ["xyz222.1"]
    named.end_attempt("xy.1", "succeeded")
    assert named.resolve("x", how="pick", winner="x.1")
    assert named.fork("xyz222").winner == "xyz222.1"


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ("ab", ("abc222", "abd222")),
        ("xyz223", ("xyz222",)),
        ("222222", ("xyz222", "abd222", "abc222")),
        ("", ()),
        ("%", ()),
    ],
)
def test_an_unknown_fork_is_named_with_what_may_have_been_meant(named: Ledger, asked: str, near: tuple[str]) -> None:
    with pytest.raises(LedgerError) as raised:
        named.fork(asked)
    assert raised.value.subject == asked
    assert raised.value.near == near
    assert all(name in str(raised.value) for name in (repr(asked), *near))


def test_an_unknown_attempt_is_named_with_its_siblings(named: Ledger) -> None:
    attempt_in(named, "xyz222")
    for asked in ("xyz222.2", "xyz222", "x."):
        with pytest.raises(LedgerError) as raised:
            named.attempt(asked)
        assert (raised.value.subject, raised.value.near) == (asked, ("xyz222.1",))
    with pytest.raises(LedgerError, match="no fork 'nobody'"):
        named.attempt("nobody.1")


def test_every_operation_on_an_unknown_fork_raises(ledger: Ledger) -> None:
    known = fork_in(ledger)
    before = picture(ledger), ledger.events()
    for asked in (
        lambda: ledger.adopt_fork("nobody"),
        lambda: ledger.record_verdict("nobody", {}),
        lambda: ledger.await_pick("nobody"),
        lambda: ledger.resolve("nobody", how="pick"),
        lambda: ledger.resolve(known.id, how="pick", winner="nobody.1"),
        lambda: ledger.abort_fork("nobody", "why"),
        lambda: ledger.record_commit("nobody", 1),
        lambda: ledger.attempts("nobody"),
        lambda: ledger.events(fork="nobody"),
        lambda: attempt_in(ledger, "nobody"),
        lambda: ledger.start_attempt("nobody.1"),
        lambda: ledger.end_attempt("nobody.1", "failed"),
        lambda: ledger.note_progress("nobody.1", files=1),
        lambda: ledger.record_tests("nobody.1", {}),
        lambda: ledger.record_score("nobody.1", 1.0),
        lambda: ledger.record_cost("nobody.1", {}),
        lambda: ledger.children("nobody.1"),
        lambda: fork_in(ledger, parent="nobody.1"),
    ):
        with pytest.raises(LedgerError, match="'nobody'"):
            asked()
    assert (picture(ledger), ledger.events()) == before


def test_forks_are_listed_newest_first(ledger: Ledger) -> None:
    made = [fork_in(ledger).id for _ in range(5)]
    assert [f.id for f in ledger.forks()] == made[::-1]
    assert [f.id for f in ledger.forks(limit=2)] == made[:2:-1]
    assert ledger.forks(limit=0) == []


def test_forks_are_listed_by_state(ledger: Ledger) -> None:
    ids = {}
    for state in ("running", "interrupted", "open", "resolved", "aborted") * 2:
        fork = fork_in(ledger, owner=DEAD if state == "interrupted" else ProcessId.current())
        ids.setdefault(state, []).insert(0, fork.id)
        if state == "open":
            ledger.await_pick(fork.id)
        elif state == "resolved":
            ledger.resolve(fork.id, how="pick")
        elif state == "aborted":
            ledger.abort_fork(fork.id, "why")
    for state, expected in ids.items():
        assert [f.id for f in ledger.forks(state=state)] == expected
        assert [f.id for f in ledger.forks(state=state, limit=1)] == expected[:1]


def test_forks_inside_an_attempt(ledger: Ledger) -> None:
    outer = attempt_in(ledger, fork_in(ledger).id)
    other = attempt_in(ledger, outer.fork, "other")
    inner = [fork_in(ledger, parent=outer.id, generation=1) for _ in range(2)]
    assert ledger.children(outer.id) == inner
    assert ledger.children(other.id) == []
    assert {(f.parent, f.generation) for f in inner} == {(outer.id, 1)}


def test_events_are_returned_once_in_order(ledger: Ledger, open_ledger: Open) -> None:
    """A reader that passes the last number it saw gets every later event, whichever process wrote it."""
    one, two = fork_in(ledger), fork_in(ledger)
    reader = open_ledger()
    seen = reader.events()
    assert [(e.fork, e.attempt, e.kind) for e in seen] == [(one.id, None, "begun"), (two.id, None, "begun")]
    assert reader.events(after=seen[-1].seq) == []
    attempt = attempt_in(ledger, two.id)
    ledger.record_cost(attempt.id, {"usd": 1})
    following = reader.events(after=seen[-1].seq)
    assert [(e.fork, e.attempt, e.kind) for e in following] == [
        (two.id, attempt.id, kind) for kind in ("added", "started", "charged")
    ]
    assert following[-1].data == {"cost": {"usd": 1}}
    assert reader.events(fork=two.id, after=seen[0].seq, limit=2) == [seen[1], following[0]]
    assert reader.events(fork=one.id) == seen[:1]
    assert reader.events(limit=1) == seen[:1]


def test_summaries_count_attempts_and_know_the_best_score(ledger: Ledger) -> None:
    empty, full = fork_in(ledger), fork_in(ledger)
    attempts = [attempt_in(ledger, full.id, key, started=key != "d") for key in "abcde"]
    ledger.end_attempt(attempts[0].id, "succeeded")
    ledger.end_attempt(attempts[1].id, "succeeded")
    ledger.end_attempt(attempts[2].id, "failed")
    for attempt, score in zip(attempts, (-3.0, -1.5, -2.0), strict=False):
        ledger.record_score(attempt.id, score)
    first, second = ledger.summaries()
    assert (first.fork, second.fork) == (full, empty)
    assert first.attempts == {"succeeded": 2, "failed": 1, "running": 1, "pending": 1}
    assert (first.best, second.attempts, second.best) == (-1.5, {}, None)
    assert (first.label, second.label) == ("label of a", None)
    assert ledger.summaries(1) == [first]


def test_summaries_of_the_outermost_only(ledger: Ledger) -> None:
    outer = attempt_in(ledger, fork_in(ledger).id)
    inner = fork_in(ledger, parent=outer.id)
    assert [s.fork.id for s in ledger.summaries()] == [inner.id, outer.fork]
    assert [s.fork.id for s in ledger.summaries(1, outermost=True)] == [outer.fork]


def test_a_list_costs_one_statement_however_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SqliteLedger(tmp_path) as ledger:
        for _ in range(5):
            attempt_in(ledger, fork_in(ledger).id)
        asked: list[str] = []
        rows = Database.rows

        def counted(self: Database, sql: str, values: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
            asked.append(sql)
            return rows(self, sql, values)

        monkeypatch.setattr(Database, "rows", counted)
        assert len(ledger.summaries()) == 5
        assert len(asked) == 1


def test_a_list_reads_each_attempt_once_and_sorts_nothing(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path) as ledger:
        for _ in range(5):
            fork = fork_in(ledger)
            for key in "abcd":
                attempt_in(ledger, fork.id, key)
        asked: list[str] = []
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Database, "rows", lambda _, sql, values: asked.append(sql) or [])
                ledger.summaries(3)
            steps = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {asked[0]}", (False, 3))]
    assert not [step for step in steps if "TEMP B-TREE" in step], steps
    assert [step for step in steps if "attempts USING COVERING INDEX" in step], steps
    assert len([step for step in steps if step.startswith(("SCAN forks", "SEARCH"))]) == 3, steps


def test_a_list_is_newest_first_and_stops_at_its_limit(ledger: Ledger) -> None:
    forks = [fork_in(ledger) for _ in range(4)]
    for fork in reversed(forks):
        attempt_in(ledger, fork.id, fork.id)
    listed = ledger.summaries(3)
    assert [summary.fork.id for summary in listed] == [fork.id for fork in reversed(forks[1:])]
    assert [summary.label for summary in listed] == [f"label of {fork.id}" for fork in reversed(forks[1:])]


def test_a_closed_ledger_says_so(ledger: Ledger) -> None:
    with ledger:
        fork = fork_in(ledger)
    for asked in (ledger.forks, lambda: ledger.resolve(fork.id, how="pick")):
        with pytest.raises(LedgerError, match="is closed"):
            asked()
    ledger.close()


def test_records_are_there_after_reopening(open_ledger: Open) -> None:
    with open_ledger() as ledger:
        attempt_in(ledger, fork_in(ledger).id)
        before = picture(ledger)
    assert picture(open_ledger()) == before
