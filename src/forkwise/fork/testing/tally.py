"""Tally: what a reader counts while it goes through a report, kept within bounds whatever the report holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from forkwise.fork.testing.plain import clipped, plain
from forkwise.fork.testing.report import FailureKind, Source, TestFailure

__all__ = ["Tally"]

_MAX_FAILURES = 50
_MAX_NAME = 300
_MAX_MESSAGE = 4000


@dataclass(slots=True)
class Tally:
    """Counts and failures so far, and what is odd about them."""

    source: Source
    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    failures: list[TestFailure] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    @property
    def failing(self) -> int:
        """How many tests failed or erred."""
        return self.failed + self.errors

    def fail(self, name: str, message: str, kind: FailureKind = "failed") -> None:
        """Count a test that failed, and show it."""
        if kind == "error":
            self.errors += 1
        else:
            self.failed += 1
        self.show(name, message, kind)

    def show(self, name: str, message: str, kind: FailureKind = "failed") -> None:
        """Keep the name and the output of a test that failed and is counted already."""
        if len(self.failures) < _MAX_FAILURES:
            name, message = (plain(text).strip() for text in (name, message))
            self.failures.append(TestFailure(clipped(name, _MAX_NAME), clipped(message, _MAX_MESSAGE), kind))
