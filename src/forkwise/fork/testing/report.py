"""TestReport: what the tests of one attempt said, as a value that is judged, shown and kept.

A report is the word of the code that was tested. So nothing in it counts as a pass by default: tests must have run,
none may have failed, the exit code must agree, and there must be no doubt. That finds out what broke and what lies
clumsily; against code that forges its report and its exit code alike, only tests that it cannot change help.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from forkwise.fork.testing.plain import clipped

__all__ = ["FailureKind", "Source", "TestFailure", "TestReport"]

FailureKind = Literal["failed", "error"]

#: What the counts were read from.
Source = Literal[
    "junit", "tap", "go test -json", "cargo", "jest", "vitest", "pytest summary", "unittest summary", "exit code"
]

_SHOWN_IN_FEEDBACK = 10


@dataclass(frozen=True, slots=True)
class TestFailure:
    """One test that failed, or that could not be run to its end (``kind`` is "error"), with what it printed."""

    __test__: ClassVar[bool] = False

    name: str
    message: str = ""
    kind: FailureKind = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TestReport:
    """How many tests passed, failed, erred or were skipped, and which failed.

    ``failures`` names the first of them, with their output cut to size. ``output`` is the end of all that the command
    printed. ``doubt`` says why the report is not to be believed as it stands; a report in doubt is never a pass.
    ``flaky`` names tests that failed in some of several ``runs`` and not in all.

    >>> report = TestReport(passed=11, failed=1, source="junit", exit_code=1)
    >>> report.summary, report.is_pass, report.total
    ('11 passed, 1 failed', False, 12)
    """

    __test__: ClassVar[bool] = False

    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    failures: tuple[TestFailure, ...] = ()
    source: Source
    exit_code: int
    duration: float = 0.0
    output: str = ""
    doubt: str | None = None
    flaky: tuple[str, ...] = ()
    runs: int = 1

    @property
    def failing(self) -> int:
        """How many tests failed or erred."""
        return self.failed + self.errors

    @property
    def ran(self) -> int:
        """How many tests ran: all but the skipped ones."""
        return self.passed + self.failing

    @property
    def total(self) -> int:
        """How many tests there are, the skipped ones with them."""
        return self.ran + self.skipped

    @property
    def ratio(self) -> float | None:
        """The share of the tests that ran and passed; None where none ran."""
        return self.passed / self.ran if self.ran else None

    @property
    def is_signal(self) -> bool:
        """Whether any test ran. Where none did, the report speaks neither for the attempt nor against it."""
        return self.ran > 0

    @property
    def is_pass(self) -> bool:
        """Whether tests ran, all that ran passed, the command exited with 0, and nothing is in doubt."""
        return self.passed > 0 and not self.failing and self.exit_code == 0 and self.doubt is None

    @property
    def summary(self) -> str:
        """One line for people.

        >>> TestReport(passed=2, errors=1, skipped=1, source="tap", exit_code=1, flaky=("a",), runs=3).summary
        '2 passed, 1 error, 1 skipped; 1 flaky in 3 runs'
        """
        if self.source == "exit code":
            line = f"exit code {self.exit_code}"
        else:
            error = "error" if self.errors == 1 else "errors"
            words = {"passed": self.passed, "failed": self.failed, error: self.errors, "skipped": self.skipped}
            counts = [f"{count} {word}" for word, count in words.items() if count]
            line = ", ".join(counts if self.ran else ["no tests ran", *counts])
        return f"{line}; {len(self.flaky)} flaky in {self.runs} runs" if self.flaky else line

    def feedback(self, limit: int = 6000) -> str:
        """What the next attempt should know, in at most ``limit`` characters: the failing tests with their output.

        >>> failure = TestFailure("tests.test_sum::test_adds", "assert 4 == 5")
        >>> print(TestReport(passed=3, failed=1, failures=(failure,), source="junit", exit_code=1).feedback())
        3 passed, 1 failed
        <BLANKLINE>
        FAILED tests.test_sum::test_adds
        assert 4 == 5
        """
        parts = [self.summary]
        if self.doubt:
            parts.append(f"Doubtful: {self.doubt}.")
        shown = self.failures[:_SHOWN_IN_FEEDBACK]
        share = limit // (len(shown) + 1)
        for failure in shown:
            heading = "ERROR" if failure.kind == "error" else "FAILED"
            parts.append(f"{heading} {failure.name}\n{clipped(failure.message, share)}".rstrip())
        if self.failing > len(shown) > 0:
            parts.append(f"and {self.failing - len(shown)} more that failed")
        if self.flaky:
            parts.append(f"Flaky, failed in some of {self.runs} runs: {', '.join(self.flaky)}")
        if self.output and not self.is_pass and not any(failure.message for failure in shown):
            parts.append(f"The output ends with:\n{clipped(self.output, share)}")
        return clipped("\n\n".join(parts), limit)

    def as_json(self) -> dict[str, Any]:
        """The report in the types of JSON; ``from_json`` gives it back."""
        return asdict(self) | {"failures": [asdict(failure) for failure in self.failures], "flaky": list(self.flaky)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TestReport:
        """The report that ``as_json`` was made of."""
        failures = tuple(TestFailure(**failure) for failure in data["failures"])
        return cls(**{**data, "failures": failures, "flaky": tuple(data["flaky"])})
