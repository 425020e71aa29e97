"""Several runs of one suite as one report: what a flaky test says is decided by the majority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from forkwise.fork.testing.report import TestFailure, TestReport

__all__ = ["combine"]


def combine(reports: Sequence[TestReport]) -> TestReport:
    """One report of all runs of the same suite.

    A test passes if it passed in more than half of the runs: repeating is there to see through noise, and a rule that
    one failure decides would make it louder. ``flaky`` names the tests that failed in some runs and not in all,
    whatever was decided. Failures are told apart by name, so those that a run does not name count as failing. A doubt
    about one run is a doubt about all, and so is a run without a test among others that had some.

    >>> good = TestReport(passed=2, source="junit", exit_code=0)
    >>> bad = TestReport(passed=1, failed=1, failures=(TestFailure("a"),), source="junit", exit_code=1)
    >>> combine([good, bad, good]).is_pass, combine([good, bad, good]).flaky
    (True, ('a',))
    >>> combine([good, bad]).summary
    '1 passed, 1 failed; 1 flaky in 2 runs'
    """
    if not reports:
        raise ValueError("there is no report to combine")
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
        # Where every run had another failure, and none has a majority, no run stands for what was decided.
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
