"""A report as a value: what counts as a pass, the feedback for the next attempt, and its JSON."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkwise.testing import TestFailure, TestReport

text = st.text(st.characters(codec="utf-8"), max_size=20)
failures = st.builds(TestFailure, text, text, st.sampled_from(["failed", "error"]))
count = st.integers(0, 9)
reports = st.builds(
    TestReport,
    passed=count,
    failed=count,
    errors=count,
    skipped=count,
    failures=st.lists(failures, max_size=3).map(tuple),
    source=st.sampled_from(["junit", "tap", "exit code"]),
    exit_code=st.integers(-64, 255),
    duration=st.floats(0, 1e6),
    output=text,
    doubt=st.none() | text,
    flaky=st.lists(text, max_size=2).map(tuple),
    runs=st.integers(1, 5),
)


def passing(**changes: object) -> TestReport:
    values: dict[str, object] = {"passed": 2, "source": "junit", "exit_code": 0}
    return TestReport(**(values | changes))  # type: ignore[arg-type]


def test_all_that_ran_passed() -> None:
    report = passing(skipped=1)
    assert report.is_pass
    assert report.is_signal
    assert report.ratio == 1.0
    assert report.total == 3


@pytest.mark.parametrize(
    "changes",
    [{"failed": 1}, {"errors": 1}, {"exit_code": 1}, {"passed": 0}, {"passed": 0, "skipped": 3}, {"doubt": "why"}],
)
def test_anything_less_is_no_pass(changes: dict[str, object]) -> None:
    assert not passing(**changes).is_pass


@pytest.mark.parametrize("changes", [{"passed": 0}, {"passed": 0, "skipped": 3}])
def test_where_nothing_ran_there_is_no_signal_and_no_ratio(changes: dict[str, object]) -> None:
    report = passing(**changes)
    assert not report.is_signal
    assert report.ratio is None


def test_the_ratio_leaves_skipped_tests_out() -> None:
    assert passing(passed=1, failed=2, errors=1, skipped=9).ratio == 0.25


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"passed": 12, "failed": 1}, "12 passed, 1 failed"),
        ({"errors": 2}, "2 passed, 2 errors"),
        ({"passed": 0}, "no tests ran"),
        ({"passed": 0, "skipped": 3}, "no tests ran, 3 skipped"),
        ({"passed": 0, "failed": 1, "source": "exit code", "exit_code": 2}, "exit code 2"),
    ],
)
def test_summary(changes: dict[str, object], line: str) -> None:
    assert passing(**changes).summary == line


def test_feedback_tells_what_failed_and_why_and_how_much_more_there_is() -> None:
    shown = tuple(TestFailure(f"test_{n}", f"reason {n}") for n in range(12))
    result = passing(failed=20, failures=shown, doubt="odd", flaky=("test_3",), runs=3, output="noise").feedback()
    assert "FAILED test_0\nreason 0" in result
    assert "Doubtful: odd." in result
    assert "and 10 more that failed" in result
    assert "Flaky, failed in some of 3 runs: test_3" in result
    assert "noise" not in result


def test_feedback_shows_the_output_where_nothing_else_says_why() -> None:
    assert "no such file" in passing(passed=0, exit_code=4, output="no such file").feedback()
    assert "noise" not in passing(output="noise").feedback()


def test_feedback_shows_of_a_long_message_its_beginning_and_its_end() -> None:
    message = "first line\n" + "middle\n" * 5000 + "last line"
    result = passing(failed=1, failures=(TestFailure("a", message),)).feedback()
    assert "first line" in result
    assert "last line" in result


@given(reports, st.integers(0, 300))
def test_feedback_keeps_its_limit(report: TestReport, limit: int) -> None:
    assert len(report.feedback(limit)) <= limit


@given(reports)
def test_a_report_comes_back_from_json(report: TestReport) -> None:
    assert TestReport.from_json(json.loads(json.dumps(report.as_json()))) == report


def test_a_report_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        passing().passed = 3  # type: ignore[misc]
