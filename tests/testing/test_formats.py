"""Each format, as its tools really write it, parsed into a report."""

from __future__ import annotations

import pytest

from forkwise.testing import TestReport, read_report
from tests.testing.sample import sample

Counts = tuple[int, int, int, int]


def counts(report: TestReport) -> Counts:
    return report.passed, report.failed, report.errors, report.skipped


def names(report: TestReport) -> list[str]:
    return [failure.name for failure in report.failures]


def message(report: TestReport, name: str) -> str:
    return next(failure.message for failure in report.failures if failure.name == name)


PRINTED = [
    ("cargo-failing.txt", "cargo", 101, "cargo", (3, 1, 0, 1), ["tests::adds_wrongly"]),
    ("cargo-passing.txt", "cargo", 0, "cargo", (4, 0, 0, 1), []),
    (
        "go-failing.jsonl",
        "go",
        1,
        "go test -json",
        (2, 3, 1, 1),
        [
            "example.com/adder TestAdd/wrong",
            "example.com/adder TestAdd",
            "example.com/adder/broken",
            "example.com/adder/dies TestPanics",
        ],
    ),
    ("go-passing.jsonl", "go", 0, "go test -json", (1, 0, 0, 0), []),
    ("jest-failing.txt", "jest", 1, "jest", (2, 1, 1, 2), ["sum › adds wrongly", "./broken.test.js"]),
    ("jest-failing.json", "jest", 1, "jest", (2, 1, 1, 2), ["sum adds wrongly", "/project/broken.test.js"]),
    ("jest-passing.txt", "jest", 0, "jest", (1, 0, 0, 0), []),
    (
        "vitest-failing.txt",
        "vitest",
        1,
        "vitest",
        (2, 1, 1, 2),
        ["broken.test.js [ broken.test.js ]", "sum.test.js > sum > adds wrongly"],
    ),
    ("vitest-failing.json", "vitest", 1, "jest", (2, 1, 1, 2), ["/project/broken.test.js", "sum adds wrongly"]),
    ("vitest-passing.txt", "vitest", 0, "vitest", (1, 0, 0, 0), []),
    ("vitest-unhandled.txt", "vitest", 1, "vitest", (1, 0, 1, 0), []),
    ("vitest-tap.txt", "tap", 1, "tap", (1, 2, 0, 0), ["broken.test.js", "sum.test.js"]),
    ("node-tap.txt", "tap", 1, "tap", (1, 1, 0, 2), ["sum"]),
    ("perl-tap.txt", "tap", 1, "tap", (1, 1, 0, 2), ["adds wrongly"]),
    ("tap14-bail-out.txt", "tap", 1, "tap", (2, 1, 1, 1), ["sum", "Bail out!"]),
]


@pytest.mark.parametrize("is_hinted", [True, False], ids=["hinted", "by itself"])
@pytest.mark.parametrize(("name", "hint", "exit_code", "source", "expected", "failing"), PRINTED, ids=str)
def test_printed_reports(
    name: str, hint: str, exit_code: int, source: str, expected: Counts, failing: list[str], is_hinted: bool
) -> None:
    report = read_report(sample(name), None, exit_code, hint if is_hinted else None)
    assert report.source == source
    assert counts(report) == expected
    assert names(report) == failing
    assert report.doubt is None
    assert report.is_pass == (exit_code == 0)


@pytest.mark.parametrize(
    ("name", "failing", "said"),
    [
        ("cargo-failing.txt", "tests::adds_wrongly", "assertion `left == right` failed: two and two"),
        ("go-failing.jsonl", "example.com/adder TestAdd/wrong", "Add(2, 2) = 4, want 5"),
        ("go-failing.jsonl", "example.com/adder/broken", "undefined: nothing"),
        ("go-failing.jsonl", "example.com/adder/dies TestPanics", "panic: oh no"),
        ("jest-failing.txt", "sum › adds wrongly", "Expected: 5"),
        ("jest-failing.txt", "./broken.test.js", "Cannot find module './nothing'"),
        ("jest-failing.json", "sum adds wrongly", "Received: 4"),
        ("vitest-failing.txt", "sum.test.js > sum > adds wrongly", "AssertionError: expected 4 to be 5"),
        ("node-tap.txt", "sum", "error: '4 == 5'"),
        ("node-tap.txt", "sum", "ok 1 - adds"),
        ("vitest-tap.txt", "sum.test.js", "expected 4 to be 5"),
        ("perl-tap.txt", "adds wrongly", "expected: '5'"),
        ("tap14-bail-out.txt", "Bail out!", "the database is gone"),
    ],
)
def test_a_failure_says_why(name: str, failing: str, said: str) -> None:
    assert said in message(read_report(sample(name), None, 1), failing)


def test_the_lines_of_another_test_point_are_not_shown_with_a_failing_one() -> None:
    report = read_report(sample("node-tap.txt"), None, 1)
    assert "1 == 2" not in message(report, "sum")


def test_the_colours_of_a_terminal_are_gone() -> None:
    assert b"\x1b[" in sample("vitest-failing.txt")
    report = read_report(sample("vitest-failing.txt"), None, 1)
    assert "\x1b" not in report.feedback() + report.output


@pytest.mark.parametrize(
    ("name", "expected", "failing"),
    [
        ("gotestsum-junit.xml", (2, 2, 0, 1), ["TestMain", "example.com/adder::TestAdd/wrong"]),
        ("surefire-junit.xml", (2, 1, 1, 1), ["SumTest::addsWrongly", "SumTest::dies"]),
        ("jest-junit.xml", (3, 1, 0, 1), ["sum adds wrongly"]),
        ("vitest-junit.xml", (2, 2, 0, 2), ["broken.test.js", "sum.test.js::sum > adds wrongly"]),
        ("node-junit.xml", (2, 1, 0, 2), ["test::adds wrongly"]),
    ],
)
def test_junit(name: str, expected: Counts, failing: list[str]) -> None:
    report = read_report(b"", sample(name), 1)
    assert report.source == "junit"
    assert counts(report) == expected
    assert names(report) == failing
    assert report.doubt is None


def test_what_a_junit_case_printed_is_shown_with_its_failure() -> None:
    report = read_report(b"", sample("surefire-junit.xml"), 1)
    assert message(report, "SumTest::addsWrongly").endswith("(SumTest.java:8)\nadding")


def test_the_attributes_of_a_junit_suite_are_not_believed() -> None:
    junit = b'<testsuite tests="9" failures="0" errors="x"><testcase><failure/></testcase></testsuite>'
    assert counts(read_report(b"", junit, 1)) == (0, 1, 0, 0)


def test_junit_suites_within_suites_are_counted() -> None:
    inner = b'<testsuite><testcase name="a"/></testsuite>'
    report = read_report(
        b"", b"<testsuites><testsuite>" + inner * 2 + b'<testcase name="b"/></testsuite></testsuites>', 0
    )
    assert report.is_pass
    assert report.passed == 3


def test_a_skipped_test_whose_tear_down_erred_is_an_error() -> None:
    junit = b'<testsuite><testcase name="a"><skipped/><error message="x"/></testcase></testsuite>'
    assert counts(read_report(b"", junit, 1)) == (0, 0, 1, 0)


@pytest.mark.parametrize(
    ("name", "hint"), [("jest-ended-early.txt", "jest"), ("cargo-ended-early.txt", "cargo"), ("go-failing.jsonl", "go")]
)
def test_a_run_that_a_test_ended_with_exit_code_0_is_no_pass(name: str, hint: str) -> None:
    ended_early = sample(name)[:2000]
    report = read_report(ended_early, None, 0, hint)
    assert not report.is_pass
    assert report.failing
    assert report.doubt


def test_a_build_that_failed_is_a_failure_with_its_output() -> None:
    report = read_report(sample("cargo-build-error.txt"), None, 101, "cargo")
    assert (report.failed, report.source) == (1, "exit code")
    assert "unclosed delimiter" in report.feedback()


@pytest.mark.parametrize("printed", [sample("jest-none.txt"), b"No test files found, exiting with code 1\n"])
def test_a_javascript_run_without_tests_is_no_signal(printed: bytes) -> None:
    report = read_report(printed, None, 1)
    assert not report.is_signal
    assert report.summary == "no tests ran"
    assert report.doubt == "the command exited with 1 before a test ran"


def test_jest_names_a_failure_once_though_it_prints_it_twice() -> None:
    printed = sample("jest-failing.txt")
    head, summary = printed.split(b"\nTest Suites:")
    report = read_report(head + b"\nSummary of all failing tests\n" + head + b"\nTest Suites:" + summary, None, 1)
    assert counts(report) == (2, 1, 1, 2)
    assert names(report) == ["sum › adds wrongly", "./broken.test.js"]


def test_a_go_package_without_tests_is_no_signal() -> None:
    events = b'{"Action":"output","Package":"p","Output":"?  p [no test files]"}\n{"Action":"skip","Package":"p"}\n'
    report = read_report(events, None, 0, "go")
    assert (report.source, report.is_signal, report.doubt) == ("go test -json", False, None)


class TestTap:
    """Cases that the recorded streams do not have."""

    @pytest.mark.parametrize(
        ("stream", "doubt"),
        [
            (sample("perl-plan-mismatch.txt"), "the TAP plan has 3 tests, and 1 reported"),
            (b"TAP version 13\nok 1\n", "the TAP stream has no plan"),
        ],
    )
    def test_a_stream_that_does_not_keep_its_plan_is_in_doubt(self, stream: bytes, doubt: str) -> None:
        report = read_report(stream, None, 0)
        assert report.doubt == doubt
        assert not report.is_pass

    def test_a_plan_of_none_is_no_signal(self) -> None:
        report = read_report(b"TAP version 13\n1..0 # SKIP no database\n", None, 0)
        assert not report.is_signal
        assert report.doubt is None

    def test_directives(self) -> None:
        stream = (
            b"1..6\nok 1 a # SKIP\nnot ok 2 b # todo later\nok 3 c # TODO done\nnot ok 4 d # skip\nok 5 \\# SKIP\nok\n"
        )
        report = read_report(stream, None, 1)
        assert counts(report) == (3, 1, 0, 2)
        assert names(report) == ["d"]

    def test_prose_is_no_stream(self) -> None:
        assert read_report(b"ok then\nnot ok, really\n", None, 0).source == "exit code"


class TestSummaries:
    """The last lines of pytest and unittest."""

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("=== 3 passed in 0.12s ===", (3, 0, 0, 0)),
            ("12 passed in 75.31s (0:01:15)", (12, 0, 0, 0)),
            ("1 failed, 2 passed, 1 skipped, 1 deselected, 1 xfailed, 1 xpassed, 3 warnings in 0.1s", (3, 1, 0, 2)),
            ("1 passed, 2 errors in 0.10s", (1, 0, 2, 0)),
            ("1 failed, 1 passed, 4 subtests passed in 1.22s", (1, 1, 0, 0)),
            ("1 passed in 0.1s\n\n1 failed in 0.1s", (1, 1, 0, 0)),
        ],
    )
    def test_pytest(self, line: str, expected: Counts) -> None:
        report = read_report(line.encode(), None, 1, "pytest")
        assert report.source == "pytest summary"
        assert counts(report) == expected

    @pytest.mark.parametrize("line", ["3 passed", "we passed in 0.12s", "3 passed in a minute", "3 passed, in 0.1s"])
    def test_other_lines_are_not_pytests(self, line: str) -> None:
        assert read_report(line.encode(), None, 0).source == "exit code"

    def test_only_the_short_summary_of_pytest_names_failures(self) -> None:
        summary = b"== short test summary info ==\nFAILED a.py::b - assert 0\n1 failed in 0.1s\n"
        report = read_report(b"ERROR before\n" + summary + b"ERROR after\n", None, 1, "pytest")
        assert [(failure.name, failure.message) for failure in report.failures] == [("a.py::b", "assert 0")]

    @pytest.mark.parametrize(
        ("end", "expected"),
        [
            ("Ran 3 tests in 0.001s\n\nOK\n", (3, 0, 0, 0)),
            ("Ran 1 test in 0.001s\n\nOK (skipped=1)\n", (0, 0, 0, 1)),
            ("Ran 0 tests in 0.000s\n\nNO TESTS RAN\n", (0, 0, 0, 0)),
            ("Ran 4 tests in 1.0s\n\nFAILED (failures=1, errors=1, expected failures=1)\n", (1, 1, 1, 1)),
            ("Ran 1 test in 1.0s\n\nFAILED (failures=3)\n", (0, 3, 0, 0)),
        ],
    )
    def test_unittest(self, end: str, expected: Counts) -> None:
        report = read_report(end.encode(), None, 0, "unittest")
        assert report.source == "unittest summary"
        assert counts(report) == expected
