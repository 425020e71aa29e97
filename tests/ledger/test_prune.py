"""Deleting old forks."""

from __future__ import annotations

import pytest

from forkwise import LedgerError
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.logs import AttemptLog, read_log
from tests.ledger.ledger_scenes import attempt_in, fork_in


def resolved(ledger: Ledger, **options: object) -> str:
    """Return a fork that is over, with an attempt that printed something."""
    fork = fork_in(ledger, **options).id
    attempt = attempt_in(ledger, fork)
    with AttemptLog(ledger.directory, attempt.id) as output:
        output.write("stderr", b"said\n")
    ledger.resolve(fork, how="pick")
    return fork


def test_a_forgotten_fork_leaves_nothing(ledger: Ledger) -> None:
    gone, kept = resolved(ledger), resolved(ledger)
    last = ledger.events()[-1].seq
    assert ledger.prune(keep=1) == [gone]
    assert [f.id for f in ledger.forks()] == [kept]
    assert {e.fork for e in ledger.events()} == {kept}
    assert len(ledger.summaries()) == 1
    with pytest.raises(LedgerError):
        ledger.fork(gone)
    assert {p.name.partition(".")[0] for p in (ledger.directory / "output").iterdir()} == {kept}
    assert read_log(ledger.directory, f"{kept}.1") == b"said\n"
    assert ledger.prune(keep=0) == [kept]
    fork_in(ledger)
    assert ledger.events()[0].seq > last, "the number of an event is never reused"


def test_a_dry_run_forgets_nothing(ledger: Ledger) -> None:
    fork = resolved(ledger)
    assert ledger.prune(keep=0, dry_run=True) == [fork]
    assert [f.id for f in ledger.forks()] == [fork]
    assert read_log(ledger.directory, f"{fork}.1") == b"said\n"


def test_unfinished_forks_stay(ledger: Ledger) -> None:
    running, waiting, aborted = fork_in(ledger).id, fork_in(ledger).id, fork_in(ledger).id
    ledger.await_pick(waiting)
    ledger.abort_fork(aborted, "why")
    assert ledger.prune(keep=0) == [aborted]
    assert {f.id for f in ledger.forks()} == {running, waiting}


def test_recent_forks_stay(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("forkwise.ledger.ledger.time.time", lambda: 1000.0)
        old = resolved(ledger)
    young = resolved(ledger)
    assert ledger.prune(keep=0, older_than=3600) == [old]
    assert [f.id for f in ledger.forks()] == [young]


def test_a_family_goes_together(ledger: Ledger) -> None:
    outer = resolved(ledger)
    inner = resolved(ledger, parent=f"{outer}.1")
    innermost = fork_in(ledger, parent=f"{inner}.1").id
    other = resolved(ledger)
    assert ledger.prune(keep=0) == [other]
    ledger.abort_fork(innermost, "why")
    assert ledger.prune(keep=1) == []
    assert ledger.prune(keep=0) == [outer, inner, innermost]
    assert ledger.forks() == []
