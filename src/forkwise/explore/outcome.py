"""What a pattern gives back: one result for each candidate, and which of them was committed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forkwise.files.commit import Commit
from forkwise.fork.attempt import Attempt
from forkwise.fork.testing.report import TestReport

__all__ = ["SpeculationOutcome", "SpeculationResult"]


@dataclass(frozen=True, slots=True)
class SpeculationResult:
    """One candidate's outcome.

    ``branch_path`` is the directory it worked in, which is gone once the pattern is over. ``reason`` says why it
    failed, ``exception`` what it raised. ``attempt`` is its name in the ledger, where its output is.
    """

    branch_index: int
    success: bool
    score: float = 0.0
    return_value: Any = None
    exception: BaseException | None = None
    branch_path: Path | None = None
    reason: str | None = None
    tests: TestReport | None = None
    wall: float | None = None
    attempt: str | None = None

    @classmethod
    def of(cls, attempt: Attempt) -> SpeculationResult:
        """The result of an attempt."""
        return cls(
            attempt.index,
            attempt.success,
            attempt.score,
            attempt.value,
            attempt.error,
            attempt.seen_at,
            attempt.reason,
            attempt.tests,
            attempt.wall,
            attempt.id,
        )


@dataclass(frozen=True, slots=True)
class SpeculationOutcome:
    """What came of a pattern: who won and whether that was committed. ``fork`` is its name in the ledger."""

    winner: SpeculationResult | None = None
    all_results: list[SpeculationResult] = field(default_factory=list)
    committed: bool = False
    commit: Commit | None = None
    fork: str | None = None

    @classmethod
    def of(
        cls, winner: Attempt | None, attempts: Iterable[Attempt], commit: Commit | None, fork: str
    ) -> SpeculationOutcome:
        """The outcome of attempts, in the order in which they were made."""
        results = {a.id: SpeculationResult.of(a) for a in attempts}
        won = None if winner is None else results.get(winner.id) or SpeculationResult.of(winner)
        return cls(won, list(results.values()), commit is not None, commit, fork)
