"""Several runs of one suite: the majority decides, and flaky tests are named."""

from __future__ import annotations

import pytest

from forkwise.testing import TestFailure, TestReport, combine

SIZE = 5


def run(*failing: str, errors: int = 0, doubt: str | None = None, unnamed: int = 0) -> TestReport:
    """Build the report of a suite of five tests in which these failed, the first of them as errors."""
    kinds = ["error"] * errors + ["failed"] * (len(failing) - errors)
    failures = tuple(TestFailure(name, "why", kind) for name, kind in zip(failing, kinds, strict=True))  # type: ignore[arg-type]
    failed = len(failing) - errors + unnamed
    return TestReport(
        passed=SIZE - failed - errors,
        failed=failed,
        errors=errors,
        skipped=1,
        failures=failures,
        source="junit",
        exit_code=1 if failed + errors else 0,
        duration=1.5,
        doubt=doubt,
    )


NOTHING = TestReport(source="junit", exit_code=5)


@pytest.mark.parametrize(
    ("runs", "failing", "flaky"),
    [
        ([run(), run(), run()], [], []),
        ([run("a"), run("a"), run("a")], ["a"], []),
        ([run("a"), run(), run()], [], ["a"]),
        ([run("a"), run("a"), run()], ["a"], ["a"]),
        ([run("a"), run()], ["a"], ["a"]),
        ([run("a"), run("b"), run("c")], [], ["a", "b", "c"]),
        ([run("a", "b"), run("b"), run("c", "b")], ["b"], ["a", "c"]),
    ],
)
def test_the_majority_decides_and_a_draw_is_a_failure(
    runs: list[TestReport], failing: list[str], flaky: list[str]
) -> None:
    report = combine(runs)
    assert [failure.name for failure in report.failures] == failing
    assert list(report.flaky) == flaky
    assert (report.passed, report.failed, report.skipped) == (SIZE - len(failing), len(failing), 1)
    assert report.is_pass == (not failing)
    assert (report.exit_code != 0) == bool(failing)


def test_errors_stay_errors() -> None:
    report = combine([run("a", "b", errors=1)] * 3)
    assert (report.passed, report.failed, report.errors) == (3, 1, 1)


def test_a_doubt_about_one_run_is_a_doubt_about_all() -> None:
    report = combine([run(), run(doubt="odd"), run(doubt="odd")])
    assert report.doubt == "odd"
    assert not report.is_pass


def test_a_run_without_tests_among_others_is_a_doubt() -> None:
    assert combine([run(), NOTHING, run()]).doubt == "in 1 of 3 runs no test ran"


def test_runs_without_tests_are_no_signal() -> None:
    report = combine([NOTHING, NOTHING])
    assert not report.is_signal
    assert (report.doubt, report.exit_code) == (None, 5)


def test_failures_without_a_name_fail() -> None:
    report = combine([run("a", unnamed=2), run("a"), run("a")])
    assert (report.passed, report.failed) == (2, 3)


def test_the_time_of_all_runs_is_added_up() -> None:
    report = combine([run(), run()])
    assert (report.duration, report.runs) == (3.0, 2)


def test_one_run_is_its_own_report() -> None:
    assert combine([run("a")]) == run("a")


def test_no_run_is_no_report() -> None:
    with pytest.raises(ValueError, match="empty list of reports"):
        combine([])
