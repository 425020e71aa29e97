"""The current state is what the events add up to, after any sequence of changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forkwise import LedgerError
from forkwise.ledger.ledger import Ledger
from forkwise.linux.process_id import ProcessId
from tests.counts import examples
from tests.ledger.conftest import Build
from tests.ledger.ledger_scenes import attempt_in, fork_in, picture
from tests.ledger.test_rules import DEAD

Deed = Callable[[Ledger, str, str, int], object]

#: Changes of a fork and an attempt, with a number; the rules refuse many of them most of the time.
DEEDS: dict[str, Deed] = {
    "begin": lambda ledger, fork, attempt, n: fork_in(
        ledger, owner=DEAD if n % 2 else ProcessId.current(), generation=n
    ),
    "begin inside": lambda ledger, fork, attempt, n: fork_in(ledger, parent=attempt, spec={"n": n}),
    "adopt": lambda ledger, fork, attempt, n: ledger.adopt_fork(fork),
    "add": lambda ledger, fork, attempt, n: attempt_in(ledger, fork, str(n), started=False, round=n % 2),
    "start": lambda ledger, fork, attempt, n: ledger.start_attempt(attempt),
    "note": lambda ledger, fork, attempt, n: ledger.note_progress(attempt, files=n, last_line=f"line {n}"),
    "succeed": lambda ledger, fork, attempt, n: ledger.end_attempt(attempt, "succeeded", value={"n": n}, exit_code=0),
    "fail": lambda ledger, fork, attempt, n: ledger.end_attempt(attempt, "failed", reason=f"{n}\udcff", wall=n / 3),
    "cancel": lambda ledger, fork, attempt, n: ledger.end_attempt(attempt, "cancelled", output_bytes=n),
    "test": lambda ledger, fork, attempt, n: ledger.record_tests(attempt, {"passed": n}),
    "score": lambda ledger, fork, attempt, n: ledger.record_score(
        attempt, n / 3, [n, float("-inf")] if n % 2 else None
    ),
    "charge": lambda ledger, fork, attempt, n: ledger.record_cost(attempt, {"usd": n / 7}),
    "judge": lambda ledger, fork, attempt, n: ledger.record_verdict(fork, {"confidence": n / 9}),
    "wait": lambda ledger, fork, attempt, n: ledger.await_pick(fork),
    "resolve": lambda ledger, fork, attempt, n: ledger.resolve(fork, how="pick", winner=attempt if n % 2 else None),
    "abort": lambda ledger, fork, attempt, n: ledger.abort_fork(fork, str(n)),
    "abandon": lambda ledger, fork, attempt, n: ledger.abandon_fork(fork, str(n)),
    "commit": lambda ledger, fork, attempt, n: ledger.record_commit(fork, n, ["a"]),
    "undo": lambda ledger, fork, attempt, n: ledger.record_undo(n, n + 1, "/project"),
    "prune": lambda ledger, fork, attempt, n: ledger.prune(keep=n),
}


def do(ledger: Ledger, deed: str, which: int, number: int) -> None:
    """Apply one change to one of the forks and attempts."""
    forks = ledger.forks()
    attempts = [a.id for f in forks for a in ledger.attempts(f.id)]
    fork = forks[which % len(forks)].id if forks else "nobody"
    attempt = attempts[which % len(attempts)] if attempts else "nobody.1"
    with suppress(LedgerError):
        DEEDS[deed](ledger, fork, attempt, number)


steps = st.lists(
    st.tuples(
        st.sampled_from(["begin", "add", "add", "start", "start", "note", *DEEDS]), st.integers(0, 5), st.integers(0, 5)
    ),
    min_size=10,
    max_size=60,
)


@pytest.fixture(scope="session")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    return lambda: tmp_path_factory.mktemp("room")


@given(steps=steps)
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_everything_can_be_rebuilt_from_the_events(
    build_ledger: Build,
    forget_rows: Callable[[Ledger], None],
    rooms: Callable[[], Path],
    steps: list[tuple[str, int, int]],
) -> None:
    with build_ledger(rooms()) as ledger:
        for step in steps:
            do(ledger, *step)
        before = picture(ledger)
        forget_rows(ledger)
        assert picture(ledger) == [[], [], []]
        ledger.rebuild()
        assert picture(ledger) == before
        happened = Counter((e.attempt or e.fork, e.kind) for e in ledger.events())
        for about, kind in happened:
            if kind == "ended":
                assert happened[about, "ended"] == 1
            if kind in ("resolved", "aborted"):
                assert happened[about, "resolved"] + happened[about, "aborted"] == 1


def test_a_rebuild_repairs_what_another_hand_did(ledger: Ledger, forget_rows: Callable[[Ledger], None]) -> None:
    attempt = attempt_in(ledger, fork_in(ledger).id)
    ledger.note_progress(attempt.id, files=3)
    before = picture(ledger)
    forget_rows(ledger)
    fork_in(ledger)
    ledger.rebuild()
    assert [part[1:] for part in picture(ledger)] == before
