"""The content of a report on a fork and its attempts, as values read from the ledger.

The HTML page, the summary and the JUnit file are built from these values, and so are the pages of the web server.
Contents that can be large, such as diffs and output, are read on demand, one attempt at a time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from forkwise.display.board import Row, rows_of
from forkwise.display.subject import spec_record
from forkwise.errors import LedgerError
from forkwise.ledger.logs import read_log
from forkwise.ledger.stored_changes import StoredChanges, load_changes
from forkwise.ledger.stored_outcomes import load_outcomes
from forkwise.testing.report import TestReport
from forkwise.text.clean import TerminalCleaner
from forkwise.text.redaction import process_redactor, redact

if TYPE_CHECKING:
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import AttemptRecord, ForkRecord

__all__ = ["AttemptReport", "ForkReport", "TestRow", "read_report"]

_TAIL = 64 << 10  # bytes of output that are read
_MAX_ROWS = 200  # tests in the matrix

#: The outcome of a test in an attempt, compared with the base.
TestMark = Literal["fixed", "broken", "still failing", "own test fails", "passed", "failed", "skipped", "missing", ""]


@dataclass(frozen=True)
class AttemptReport:
    """One attempt: its record, its tests, and the stored part of its changes and output."""

    ledger: Ledger = field(repr=False)
    row: Row
    steps: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """The agent's steps, as stored in the ledger; empty if no agent ran, or if its output does not report steps."""

    @property
    def record(self) -> AttemptRecord:
        """The attempt as the ledger has it."""
        return self.row.attempt

    @property
    def has_steps(self) -> bool:
        """Whether it has steps worth showing, besides a note that its output cannot be parsed."""
        return any(step.get("kind") != "note" for step in self.steps)

    @property
    def label(self) -> str:
        """What the attempt ran, without known secrets."""
        return redact(self.record.label)

    @property
    def seconds(self) -> float | None:
        """How long it took, including its tests; until now if it still runs."""
        if self.record.started is None:
            return None
        return max((self.record.ended or time.time()) - self.record.started, 0.0)

    @property
    def usd(self) -> float | None:
        """What it cost, if that is known."""
        found = (self.record.cost or {}).get("usd")
        return float(found) if isinstance(found, int | float) else None

    @cached_property
    def tests(self) -> TestReport | None:
        """Its test report, if it was tested."""
        return None if self.record.tests is None else TestReport.from_json(self.record.tests)

    @cached_property
    def outcomes(self) -> Mapping[str, str]:
        """The outcome of each test by its id, as far as it was kept."""
        try:
            return load_outcomes(self.ledger.fetch_files(self.record.id), self.record.id)
        except LedgerError:
            return {}

    def read_changes(self) -> StoredChanges | None:
        """Return its changes; None if they were not stored or are damaged."""
        try:
            return load_changes(self.ledger.fetch_files(self.record.id), self.record.id)
        except LedgerError:
            return None

    def read_output(self, lines: int = 60) -> str:
        """Return the last lines of its output as plain text, without escape codes."""
        try:
            content = read_log(self.ledger.fetch_files(self.record.id), self.record.id, tail=_TAIL)
        except LedgerError:
            return ""
        text = TerminalCleaner().feed(content)
        return "\n".join(text.rstrip().split("\n")[-lines:])

    @property
    def trouble(self) -> str:
        """The reason why its test results cannot be trusted: tampering, or a doubt; empty if they can."""
        tests = self.tests
        if tests is None or tests.doubt is None:
            return ""
        return tests.doubt.removeprefix("tampered with: ") if tests.is_tampered else tests.doubt

    def mark_test(self, name: str) -> TestMark:
        """Return the outcome of a test in this attempt, compared with the base."""
        if self.tests is None:
            return ""
        if found := self._marks.get(name):
            return found
        outcome = self.outcomes.get(name)
        if outcome is None:
            return "missing" if self.outcomes else ""
        return "failed" if outcome in ("failed", "error") else "passed" if outcome == "passed" else "skipped"

    @cached_property
    def _marks(self) -> dict[str, TestMark]:
        found = None if self.tests is None else self.tests.comparison
        if found is None:
            return {}
        return {
            **dict.fromkeys(found.added_failed_ids, "own test fails"),
            **dict.fromkeys(found.still_failing_ids, "still failing"),
            **dict.fromkeys(found.broken_ids, "broken"),
            **dict.fromkeys(found.fixed_ids, "fixed"),
        }

    @property
    def notable_tests(self) -> Iterable[str]:
        """The tests that did not simply pass."""
        return (*self._marks, *(name for name, outcome in self.outcomes.items() if outcome in ("failed", "error")))


@dataclass(frozen=True, slots=True)
class TestRow:
    """A test in the matrix: its id, and its outcome in each attempt that was tested."""

    __test__ = False

    name: str
    marks: tuple[TestMark, ...]


@dataclass(frozen=True)
class ForkReport:
    """A fork, its attempts and those nested in them, and its decision."""

    fork: ForkRecord
    attempts: tuple[AttemptReport, ...]

    @property
    def goal(self) -> str:
        """The prompt or the command, without known secrets."""
        given = spec_record(self.fork).get("goal")
        first = self.attempts[0].label if self.attempts else ""
        return str(given or first or self.fork.kind)

    @property
    def chosen(self) -> AttemptReport | None:
        """The winner; the best attempt if the fork waits for a pick or ended without a commit."""
        name = self.fork.winner
        if name is None and self.fork.state in ("open", "aborted"):
            name = (self.fork.verdict or {}).get("winner")
        return next((attempt for attempt in self.attempts if attempt.record.id == name), None)

    @property
    def headline(self) -> str:
        """The decision in a few words."""
        fork, chosen = self.fork, self.chosen
        if fork.undone is not None:
            return f"{fork.winner or 'The commit'} won, and was undone"
        if fork.winner is not None:
            return f"{fork.winner} won" if fork.commit is not None or fork.parent else f"{fork.winner} was chosen"
        if fork.state == "open":
            best = "" if chosen is None else f"; {chosen.record.id} is the best"
            return f"Undecided: it waits for a pick{best}"
        if fork.state == "resolved":
            combined = ", ".join(map(str, (fork.resolution or {}).get("attempts", ())))
            return f"Combined: {combined}" if combined else "Decided without a winner"
        if fork.state == "aborted":
            return "No winner" if chosen is None else f"{chosen.record.id} was the best"
        return "Interrupted" if fork.state == "interrupted" else "Running"

    @property
    def reason(self) -> str:
        """The reason for the decision."""
        fork = self.fork
        resolution, verdict = fork.resolution or {}, fork.verdict or {}
        parts = []
        if self.chosen is not None:
            how = [str(text) for text in (verdict.get("how"), resolution.get("how")) if text]
            parts += list(dict.fromkeys(how))[:1]
        parts += [str(resolution[name]) for name in ("reason", "abandoned") if resolution.get(name)]
        if fork.commit is not None:
            undone = "" if fork.undone is None else f", undone by {fork.undone}"
            parts.append(f"committed as {fork.commit}{undone}")
        elif self.chosen is not None:
            parts.append("nothing was committed")
        return process_redactor().redact("; ".join(parts))

    @property
    def seconds(self) -> float:
        """How long it took; until now if it still runs."""
        ends = [attempt.record.ended for attempt in self.attempts if attempt.record.ended is not None]
        ended = self.fork.ended or (max(ends, default=None) if self.fork.state != "running" else None)
        return max((ended or time.time()) - self.fork.started, 0.0)

    @property
    def usd(self) -> float | None:
        """The total cost of the attempts and the judge, as far as it is known; None if nothing is known."""
        known = [attempt.usd for attempt in self.attempts if attempt.usd is not None]
        judged = ((self.fork.verdict or {}).get("usage") or {}).get("usd")
        known += [float(judged)] if isinstance(judged, int | float) else []
        return sum(known) if known else None

    @property
    def states(self) -> dict[str, int]:
        """The number of attempts in each state."""
        return dict(Counter(str(attempt.record.state) for attempt in self.attempts))

    @property
    def matches(self) -> list[dict[str, Any]]:
        """The pairs that a judge compared, as the verdict records them."""
        found = (self.fork.verdict or {}).get("matches")
        return [match for match in found if isinstance(match, dict)] if isinstance(found, list) else []

    @property
    def tested(self) -> tuple[AttemptReport, ...]:
        """The attempts that were tested."""
        return tuple(attempt for attempt in self.attempts if attempt.tests is not None)

    def build_matrix(self, limit: int = _MAX_ROWS) -> tuple[list[TestRow], int]:
        """Return the tests that did not simply pass in every attempt, and how many more there are."""
        names = list(dict.fromkeys(name for attempt in self.tested for name in attempt.notable_tests))
        rows = [TestRow(name, tuple(attempt.mark_test(name) for attempt in self.tested)) for name in names[:limit]]
        return rows, max(len(names) - limit, 0)


def read_report(ledger: Ledger, fork: str) -> ForkReport:
    """Read a fork for a report, including the forks made inside its attempts."""
    record = ledger.fork(fork)
    rows = list(rows_of(ledger, record))
    steps: dict[str, list[dict[str, Any]]] = {}
    for name in dict.fromkeys(row.attempt.fork for row in rows):
        steps |= ledger.find_all_steps(name)
    return ForkReport(record, tuple(AttemptReport(ledger, row, tuple(steps.get(row.attempt.id, ()))) for row in rows))
