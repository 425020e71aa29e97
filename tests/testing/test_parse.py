"""Reports from a JUnit file, the output and the exit code, and contradictions between them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from forkwise.testing import read_report

GOOD = b'<testsuite><testcase name="a"/><testcase name="b"/></testsuite>'
BAD = b'<testsuite><testcase name="a"/><testcase name="b"><failure/></testcase></testsuite>'
EMPTY = b"<testsuites><testsuite/></testsuites>"


@pytest.mark.parametrize(
    ("junit", "exit_code", "doubt"),
    [
        (GOOD, 0, None),
        (BAD, 1, None),
        (EMPTY, 0, None),
        (EMPTY, 5, None),
        (BAD, 0, "the command exited with 0, and its report shows 1 failing"),
        (GOOD, 1, "the command exited with 1, and its report shows no failure"),
        (GOOD, -9, "the command exited with -9, and its report shows no failure"),
        (EMPTY, 4, "the command exited with 4 before a test ran"),
    ],
)
def test_the_exit_code_and_the_report_have_to_agree(junit: bytes, exit_code: int, doubt: str | None) -> None:
    report = read_report(b"", junit, exit_code)
    assert report.doubt == doubt
    assert report.is_pass == (junit == GOOD and exit_code == 0)


def test_a_report_file_takes_precedence_over_output() -> None:
    report = read_report(b"9 passed in 0.01s\n", GOOD, 0)
    assert (report.source, report.passed) == ("junit", 2)


@pytest.mark.parametrize(("junit", "printed"), [(GOOD, b"1 failed in 0.1s\n"), (BAD, b"2 passed in 0.1s\n")])
def test_report_file_and_output_must_agree_on_failures(junit: bytes, printed: bytes) -> None:
    report = read_report(printed, junit, 0 if junit == GOOD else 1, "pytest")
    assert report.doubt == "the output and the JUnit report disagree on whether a test failed"
    assert not report.is_pass


def test_with_only_an_exit_code_one_of_one_passed_or_failed() -> None:
    good, bad = read_report(b"fine", None, 0), read_report(b"the door is open", None, 2)
    assert (good.passed, good.total, good.is_pass, good.doubt) == (1, 1, True, None)
    assert (bad.failed, bad.total, bad.is_pass, bad.doubt) == (1, 1, False, None)
    assert "the door is open" in bad.feedback()


@pytest.mark.parametrize("exit_code", [126, 127])
def test_a_command_that_cannot_be_run_is_no_signal(exit_code: int) -> None:
    report = read_report(b"sh: 1: pytest: not found\n", None, exit_code, "pytest")
    assert not report.is_signal
    assert report.doubt == f"the command could not be run (exit code {exit_code})"


@pytest.mark.parametrize(("exit_code", "counts"), [(0, (0, 1)), (1, (1, 0))])
def test_a_report_that_was_expected_and_is_missing_is_in_doubt(exit_code: int, counts: tuple[int, int]) -> None:
    report = read_report(b"bye\n", None, exit_code, "pytest")
    assert report.doubt == "pytest gave no report"
    assert (report.failed, report.errors) == counts


def test_a_hint_leaves_other_formats_out() -> None:
    assert read_report(b"9 passed in 0.01s\n", None, 0, "cargo").source == "exit code"


def test_the_end_of_the_output_is_kept() -> None:
    report = read_report(b"beginning\n" + b"middle\n" * 9000 + b"end\n", None, 1, duration=2.5)
    assert report.output.startswith("beginning")
    assert report.output.endswith("end")
    assert len(report.output) <= 4000
    assert report.duration == 2.5


def test_truncated_output_is_a_doubt() -> None:
    printed = b"1 failed in 0.1s\n" + b"\n" * 300_000 + b"2 passed in 0.1s\n"
    report = read_report(printed, None, 0)
    assert report.passed == 2
    assert report.doubt == "of 300034 bytes of output, only the last 250015 were read"
    assert read_report(printed, GOOD, 0).doubt is None


def test_of_many_failures_the_first_are_named_and_all_are_counted() -> None:
    junit = b"<testsuite>" + b'<testcase name="a"><failure>why</failure></testcase>' * 500 + b"</testsuite>"
    report = read_report(b"", junit, 1)
    assert report.failed == 500
    assert len(report.failures) == 50


def test_a_name_and_a_message_are_cut_to_size() -> None:
    junit = b'<testsuite><testcase name="%s"><failure>%s</failure></testcase></testsuite>' % (b"n" * 999, b"m" * 99_999)
    (failure,) = read_report(b"", junit, 1).failures
    assert len(failure.name) <= 300
    assert len(failure.message) <= 4000


def test_the_import_does_not_load_what_reads_xml() -> None:
    code = "import json, sys, forkwise.testing; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
    assert not {"junitparser", "defusedxml", "xml.etree.ElementTree", "pydantic"} & set(loaded)
