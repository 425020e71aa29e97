"""Attempt: one run of one candidate in one branch, from the moment it is thought of to what became of it."""

from __future__ import annotations

import os
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkwise.files.branch import Branch
from forkwise.fork.candidate import Candidate
from forkwise.fork.telling import error_as_data
from forkwise.fork.testing.report import TestReport
from forkwise.fork.within import Within
from forkwise.ledger.record import AttemptRecord, AttemptState

if TYPE_CHECKING:
    from forkwise.fork.fork import Fork

__all__ = ["Attempt", "current_attempt"]

_current: ContextVar[Attempt | None] = ContextVar("forkwise_attempt", default=None)


class Attempt:
    """A candidate in a branch. All that is known of it is in the ledger too.

    ``index`` is the candidate's number among its siblings, ``feedback`` what earlier ones taught, ``seen_at`` the
    directory it works in. When it is over,
    ``success``, ``scores`` (compared one after the other), ``reason``, ``tests``, ``value`` and ``error`` say what came
    of it; ``branch`` is there until the fork is resolved.
    """

    def __init__(self, fork: Fork, record: AttemptRecord, candidate: Candidate, feedback: str | None = None) -> None:
        self.fork = fork
        self.id = record.id
        self.key = record.key
        self.index = record.index
        self.candidate = candidate
        self.feedback = feedback
        self.branch: Branch | None = None
        self.seen_at: Path | None = None
        self.state: AttemptState = "pending"
        self.scores: tuple[float, ...] = ()
        self.reason: str | None = None
        self.said: str | None = None
        self.tests: TestReport | None = None
        self.value: Any = None
        self.error: BaseException | None = None
        self.wall: float | None = None
        self.told: dict[str, Any] = {}  # what else the ledger is told of its end
        self.within = Within()
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"<Attempt {self.id} {self.candidate.label!r}: {self.state}>"

    @property
    def success(self) -> bool:
        """Whether it ended well."""
        return self.state == "succeeded"

    @property
    def score(self) -> float:
        """How good it is, at first sight; 0 where it failed."""
        return self.scores[0] if self.scores else 0.0

    @property
    def place(self) -> Branch:
        """Its branch, which it has as soon as it runs."""
        if self.branch is None:
            raise RuntimeError(f"attempt {self.id} has no branch: it never came to run")
        return self.branch

    def recall(self, record: AttemptRecord, branch: Branch | None) -> None:
        """Take over what the ledger knows of it, from the process that ran it; its branch, where that is left."""
        self.branch = branch
        self.state = record.state
        self.scores = tuple(record.scores or (() if record.score is None else (record.score,)))
        self.reason = record.reason
        self.tests = None if record.tests is None else TestReport.from_json(record.tests)
        self.value = record.value
        self.wall = record.wall

    def begin(self) -> None:
        """Make it the attempt that whatever runs from here is part of."""
        _current.set(self)

    def write_end(self) -> None:
        """Write down what came of it; what never came to run was cancelled. Of what is left to somebody else to go on
        with nothing is written."""
        if self.fork.is_left and self.state in ("pending", "running", "cancelled"):
            return
        if self.state == "pending" or self.state == "running":
            self.state, self.reason = "cancelled", self.reason or "it was not run to its end"
        error = None if self.error is None else error_as_data(self.error)
        self.fork.ledger.end_attempt(self.id, self.state, reason=self.reason, error=error, **self.told)


def current_attempt() -> Attempt | None:
    """The attempt as a part of which the caller runs, if it does, in the process that runs it."""
    attempt = _current.get()
    return attempt if attempt is not None and attempt._process == os.getpid() else None
