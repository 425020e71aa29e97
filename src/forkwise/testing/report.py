"""Test report: the counts and failures of a run, and several runs of a flaky suite combined by majority.

``Tally`` collects counts while a reader of ``formats`` parses; ``TestReport`` is the finished value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

from forkwise.text.clean import clean_text, truncate_middle

__all__ = [
    "Comparison",
    "FailureKind",
    "Outcome",
    "Source",
    "Tally",
    "TestFailure",
    "TestReport",
    "combine",
]


FailureKind = Literal["failed", "error"]
Outcome = Literal["passed", "failed", "error", "skipped"]

#: What the counts were read from.
Source = Literal[
    "pytest",
    "unittest",
    "junit",
    "tap",
    "go test -json",
    "cargo",
    "jest",
    "vitest",
    "pytest summary",
    "unittest summary",
    "exit code",
]

_SHOWN_IN_FEEDBACK = 10


@dataclass(frozen=True, slots=True)
class TestFailure:
    """One test that failed, or that could not be completed (``kind`` is "error"), with its output."""

    __test__: ClassVar[bool] = False

    name: str
    message: str = ""
    kind: FailureKind = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A report compared with that of the base, by test id. The lists hold only the first ids; the counts include all.

    ``set_apart`` are tests whose outcome on the base varied; they count for nothing. ``added`` tests are the attempt's
    own: they can only count against it. So does ``changed_graders``, 1 if the attempt changed what grades.
    """

    fixed: int = 0
    broken: int = 0
    still_failing: int = 0
    added_passed: int = 0
    added_failed: int = 0
    changed_graders: int = 0
    fixed_ids: tuple[str, ...] = ()
    broken_ids: tuple[str, ...] = ()
    still_failing_ids: tuple[str, ...] = ()
    added_failed_ids: tuple[str, ...] = ()
    set_apart: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The comparison in one line.

        >>> Comparison(fixed=1, still_failing=2).summary
        '1 fixed, 2 still failing'
        """
        counts = {
            "fixed": self.fixed,
            "broken": self.broken,
            "still failing": self.still_failing,
            "of its own tests failing": self.added_failed,
        }
        return ", ".join(f"{count} {words}" for words, count in counts.items() if count) or "nothing fixed or broken"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Comparison:
        """Build it from its part of a report's JSON."""
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items()}
        return cls(**fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class TestReport:
    """How many tests passed, failed, erred or were skipped, and which failed.

    ``failures`` has the first ones, with shortened output. ``output`` is the end of the command's output. ``doubt``
    says why the report cannot be trusted; a report in doubt is never a pass. ``flaky`` names tests that failed in some
    of several ``runs``, but not in all. ``outcomes`` has the outcome of each test by its id, where the runner reports
    them; they are not part of the JSON. ``comparison`` is that with the base's report. ``touched`` are the paths that
    the attempt changed although they grade. ``is_tampered`` says that the doubt is about manipulated results.

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
    is_tampered: bool = False
    touched: tuple[str, ...] = ()
    outcomes: Mapping[str, Outcome] = field(default_factory=dict, repr=False, compare=False)
    comparison: Comparison | None = None

    @property
    def failing(self) -> int:
        """How many tests failed or erred."""
        return self.failed + self.errors

    @property
    def ran(self) -> int:
        """How many tests ran: all except the skipped ones."""
        return self.passed + self.failing

    @property
    def total(self) -> int:
        """How many tests there are, including the skipped ones."""
        return self.ran + self.skipped

    @property
    def ratio(self) -> float | None:
        """The share of the tests that passed, of those that ran; None if none ran."""
        return self.passed / self.ran if self.ran else None

    @property
    def is_signal(self) -> bool:
        """Whether any test ran. If none did, the report says nothing about the attempt."""
        return self.ran > 0

    @property
    def is_pass(self) -> bool:
        """Whether tests ran, all that ran passed, the command exited with 0, and nothing is in doubt."""
        return self.passed > 0 and not self.failing and self.exit_code == 0 and self.doubt is None

    @property
    def summary(self) -> str:
        """The report in one line.

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
        """Format the failing tests with their output for the next attempt, in at most ``limit`` characters.

        >>> failure = TestFailure("tests.test_sum::test_adds", "assert 4 == 5")
        >>> print(TestReport(passed=3, failed=1, failures=(failure,), source="junit", exit_code=1).feedback())
        3 passed, 1 failed
        <BLANKLINE>
        FAILED tests.test_sum::test_adds
        assert 4 == 5
        """
        found = None if self.source == "exit code" else self.comparison
        parts = [self.summary if found is None else f"{self.summary}: {found.summary}"]
        if self.touched:
            parts.append(f"Changed, and not what it is judged by: {', '.join(self.touched[:_SHOWN_IN_FEEDBACK])}.")
        if found is not None and found.broken:
            parts.append(f"Broken: {', '.join(found.broken_ids[:_SHOWN_IN_FEEDBACK])}")
        if found is not None and found.added_failed:
            parts.append(f"Own tests that fail: {', '.join(found.added_failed_ids[:_SHOWN_IN_FEEDBACK])}")
        if self.doubt:
            parts.append(f"Doubtful: {self.doubt}.")
        shown = self.failures[:_SHOWN_IN_FEEDBACK]
        share = limit // (len(shown) + 1)
        for failure in shown:
            heading = "ERROR" if failure.kind == "error" else "FAILED"
            parts.append(f"{heading} {failure.name}\n{truncate_middle(failure.message, share)}".rstrip())
        if self.failing > len(shown) > 0:
            parts.append(f"and {self.failing - len(shown)} more that failed")
        if self.flaky:
            parts.append(f"Flaky, failed in some of {self.runs} runs: {', '.join(self.flaky)}")
        if self.output and not self.is_pass and not any(failure.message for failure in shown):
            parts.append(f"The output ends with:\n{truncate_middle(self.output, share)}")
        return truncate_middle("\n\n".join(parts), limit)

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON types; the inverse of ``from_json``."""
        data = asdict(replace(self, outcomes={}))
        del data["outcomes"]
        if data["comparison"] is not None:
            data["comparison"] = {n: list(v) if isinstance(v, tuple) else v for n, v in data["comparison"].items()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in data.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TestReport:
        """Build the report from ``as_json``."""
        failures = tuple(TestFailure(**failure) for failure in data["failures"])
        comparison = None if data.get("comparison") is None else Comparison.from_json(data["comparison"])
        return cls(
            **{
                **data,
                "failures": failures,
                "flaky": tuple(data["flaky"]),
                "comparison": comparison,
                "touched": tuple(data.get("touched", ())),
            }
        )


_MAX_FAILURES = 50
_MAX_NAME = 300
_MAX_MESSAGE = 4000


@dataclass(slots=True)
class Tally:
    """Counts and failures so far, and doubts about them."""

    source: Source
    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    failures: list[TestFailure] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict, repr=False)

    @property
    def failing(self) -> int:
        """How many tests failed or erred."""
        return self.failed + self.errors

    def fail(self, name: str, message: str, kind: FailureKind = "failed") -> None:
        """Count a failed test, and keep its name and output."""
        if kind == "error":
            self.errors += 1
        else:
            self.failed += 1
        self.show(name, message, kind)

    def show(self, name: str, message: str, kind: FailureKind = "failed") -> None:
        """Keep the name and output of a failed test that is counted already."""
        if len(self.failures) < _MAX_FAILURES:
            name, message = (clean_text(text).strip() for text in (name, message))
            self.failures.append(
                TestFailure(truncate_middle(name, _MAX_NAME), truncate_middle(message, _MAX_MESSAGE), kind)
            )


def combine(reports: Sequence[TestReport]) -> TestReport:
    """Combine the reports of several runs of one suite.

    A test passes if it passed in more than half of the runs: runs are repeated to filter out noise, and failing on a
    single failure would amplify it. ``flaky`` names the tests that failed in some runs but not in all, whatever the
    majority says. Failures are matched by name, so unnamed ones count as failing. A doubt about one run is a doubt
    about the combined report, and so is a run without tests among runs with tests.

    >>> good = TestReport(passed=2, source="junit", exit_code=0)
    >>> bad = TestReport(passed=1, failed=1, failures=(TestFailure("a"),), source="junit", exit_code=1)
    >>> combine([good, bad, good]).is_pass, combine([good, bad, good]).flaky
    (True, ('a',))
    >>> combine([good, bad]).summary
    '1 passed, 1 failed; 1 flaky in 2 runs'
    """
    if not reports:
        raise ValueError("cannot combine an empty list of reports")
    if len(reports) == 1:
        return reports[0]
    known: dict[str, TestFailure] = {}
    for failure in (failure for report in reports for failure in report.failures):
        known.setdefault(failure.name, failure)
    times = Counter(name for report in reports for name in {failure.name for failure in report.failures})
    failures = tuple(failure for name, failure in known.items() if 2 * times[name] >= len(reports))
    unnamed = max(0, *(report.failing - len(report.failures) for report in reports))
    errors = sum(failure.kind == "error" for failure in failures)
    failed = len(failures) - errors + unnamed
    fullest = max(reports, key=lambda report: report.total)
    alike = [report for report in reports if bool(report.failing) == bool(failed + errors)]
    return TestReport(
        passed=max(fullest.ran - failed - errors, 0),
        failed=failed,
        errors=errors,
        skipped=fullest.skipped,
        failures=failures,
        source=fullest.source,
        # If every run failed differently and no failure has a majority, no run matches the combined result.
        exit_code=alike[0].exit_code if alike else 0,
        duration=sum(report.duration for report in reports),
        output=(alike or reports)[0].output,
        doubt=_doubt(reports),
        flaky=tuple(name for name in known if times[name] < len(reports)),
        runs=len(reports),
    )


def _doubt(reports: Sequence[TestReport]) -> str | None:
    doubts = [report.doubt for report in reports if report.doubt]
    empty = sum(not report.is_signal for report in reports)
    if 0 < empty < len(reports):
        doubts.append(f"in {empty} of {len(reports)} runs no test ran")
    return "; ".join(dict.fromkeys(doubts)) or None
