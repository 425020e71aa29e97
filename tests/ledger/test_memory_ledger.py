"""The ledger in memory keeps the rules of the one on disk: the same calls leave the same records."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from forkwise.errors import ForkNotFoundError, LedgerError
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.memory_ledger import MemoryLedger
from forkwise.ledger.sqlite import SqliteLedger

_VARYING = ("id", "fork", "parent", "started", "ended", "winner", "resolution", "branch")


def _play(ledger: Ledger) -> list[Any]:
    """Go through the life of a fork with a fork inside an attempt. Return all records without ids and times."""
    outer = ledger.begin_fork("live", workspace="/project", spec={"a": 1})
    first, second = (ledger.add_attempt(outer.id, str(n), index=n, label=f"l{n}", branch="b") for n in range(2))
    ledger.start_attempt(first.id)
    inner = ledger.begin_fork("live", workspace="/project", spec={}, parent=first.id)
    assert [fork.id for fork in ledger.children(first.id)] == [inner.id]
    ledger.abort_fork(inner.id, "not needed")
    ledger.record_cost(first.id, {"usd": 0.5})
    ledger.record_tests(first.id, {"passed": 3})
    ledger.record_score(first.id, 2.0, [2.0, 1.0])
    ledger.end_attempt(first.id, "succeeded", value="x", wall=1.5)
    ledger.end_attempt(second.id, "cancelled", reason="another attempt won")
    ledger.record_verdict(outer.id, {"winner": first.id[-1]})
    assert ledger.resolve(outer.id, how="pick", winner=first.id)
    assert not ledger.resolve(outer.id, how="pick")
    with pytest.raises(LedgerError):
        ledger.end_attempt(first.id, "failed")
    with pytest.raises(LedgerError):
        ledger.add_attempt(outer.id, "2", index=2, label="late", branch="b")
    with pytest.raises(ForkNotFoundError):
        ledger.fork("zzzzzz")
    assert ledger.fork(outer.id[:5]).id == outer.id
    assert [summary.fork.id for summary in ledger.summaries(outermost=True)] == [outer.id]
    [summary] = ledger.summaries(1, outermost=True)
    records = [*ledger.forks(), *ledger.attempts(outer.id)]
    plain = [{k: v for k, v in asdict(record).items() if k not in _VARYING} for record in records]
    return [plain, summary.attempts, summary.best, summary.label, [len(ledger.forks(state="resolved"))]]


def test_the_same_calls_leave_the_same_records(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path) as on_disk, MemoryLedger() as in_memory:
        assert _play(in_memory) == _play(on_disk)


def test_forks_are_pruned_from_memory() -> None:
    ledger = MemoryLedger()
    for _ in range(3):
        fork = ledger.begin_fork("live", workspace="", spec={})
        ledger.abort_fork(fork.id, "over")
    assert len(ledger.prune(keep=1)) == 2
    assert [one.id for one in ledger.forks()] == [fork.id]
    with pytest.raises(LedgerError, match="in memory"):
        ledger.conversations.load("any")
    assert ledger.conversations.all() == ledger.events() == []
