"""Hostile reports and output: a sandbox tries to harm the process that parses them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkwise.testing import TestReport, read_report
from tests.testing.sample import sample

HINTS = [None, "pytest", "unittest", "cargo", "go", "jest", "vitest", "tap", "nothing known"]

# Ten entities, each ten times the one before: 10 GB once they are expanded.
LAUGHS = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "ha" * 5}">' for n in range(10))
BOMB = f"<!DOCTYPE testsuite [{LAUGHS}]><testsuite><testcase name='&e9;'/></testsuite>"
OUTSIDE = '<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/passwd">]><testsuite><testcase name="&e;"/></testsuite>'

UNREADABLE = {
    "billion laughs": BOMB.encode(),
    "billion laughs in UTF-16": BOMB.encode("utf-16"),
    "file from outside": OUTSIDE.encode(),
    "document type alone": b'<!DOCTYPE testsuite SYSTEM "http://x/"><testsuite><testcase/></testsuite>',
    "too large": b"<testsuite>" + b" " * 100_000_000 + b"<testcase/></testsuite>",
    "too deep": b"<testsuite>" * 100_000 + b"</testsuite>" * 100_000,
    "too many": b"<testsuite>" + b"<a/>" * 300_000 + b"</testsuite>",
    "truncated": sample("surefire-junit.xml")[:-100],
    "empty": b"",
    "not XML": b"\x7fELF\x00",
    "another root": b"<html><testcase/></html>",
    "unknown encoding": b'<?xml version="1.0" encoding="klingon"?><testsuite><testcase/></testsuite>',
    "wide encoding": b'<?xml version="1.0" encoding="utf-7"?><testsuite><testcase/></testsuite>',
    "not its encoding": b'<?xml version="1.0" encoding="utf-8"?><testsuite><testcase name="\xff"/></testsuite>',
}


@pytest.mark.parametrize("junit", UNREADABLE.values(), ids=UNREADABLE)
def test_an_unreadable_report_is_a_doubt_and_never_a_pass(junit: bytes) -> None:
    report = read_report(b"2 passed in 0.01s\n", junit, 0, "pytest")
    assert (report.source, report.passed) == ("pytest summary", 2)
    assert report.doubt
    assert report.doubt.startswith("the JUnit report could not be read: ")
    assert not report.is_pass


def test_no_external_entity_is_read() -> None:
    assert "root:" not in str(read_report(b"", OUTSIDE.encode(), 0).as_json())


PRINTED = {
    "newlines": b"\n" * 4_000_000,
    "escape codes": b"\x1b[" * 500_000 + b"\x1b]" * 500_000,
    "brackets": b'{"testResults":' + b"[" * 500_000,
    "events that are none": b'{"Action":"pass","Package":7}\n{"Action":[]}\n[]\n{}\n' * 1000,
    "counts": b"1 a, " * 1_000_000 + b"1 passed in 0.1s",
    "digits": b"9" * 1_000_000 + b" passed in 0.1s\n1.." + b"9" * 10_000 + b"\nok 1\n",
    "rules": b"=" * 1_000_000 + b" short test summary info " + b"=" * 1_000_000,
    "not UTF-8": b"caf\xe9 \xff\xfe\x00",
}


@pytest.mark.timeout(120)  # a pattern that backtracks takes hours
@pytest.mark.parametrize("printed", PRINTED.values(), ids=PRINTED)
def test_no_output_takes_long_or_is_taken_for_a_report(printed: bytes) -> None:
    report = read_report(printed, None, 1)
    assert (report.source, report.failed) == ("exit code", 1)


def test_a_number_of_any_length_is_no_count() -> None:
    report = read_report(b"Ran 2 tests in 1s\n\nFAILED (failures=" + b"9" * 10_000 + b")\n", None, 1, "unittest")
    assert report.failed < 10**9


def test_output_that_is_not_utf8_does_not_hide_the_report() -> None:
    report = read_report(b"caf\xe9\xff\n2 passed in 0.01s\n", None, 0)
    assert report.is_pass
    assert report.output.startswith("caf\ufffd")


def test_a_failed_test_counts_though_it_has_no_name() -> None:
    printed = b'{"testResults": [{"assertionResults": [{"status": "failed"}, {"status": 3}, 4]}, 5]}'
    assert read_report(printed, None, 1, "jest").summary == "1 failed"


def test_half_a_character_in_json_is_not_kept() -> None:
    test = '{"status": "failed", "fullName": "\\ud800", "failureMessages": ["\\udfff\\u0000"]}'
    printed = f'{{"testResults": [{{"assertionResults": [{test}]}}]}}'.encode()
    report = read_report(printed, None, 1, "jest")
    assert [(failure.name, failure.message) for failure in report.failures] == [("?", "?")]


def check(report: TestReport) -> None:
    """Check the invariants of every report."""
    assert min(report.passed, report.failed, report.errors, report.skipped) >= 0
    assert not (report.is_pass and (report.doubt or report.failing or report.exit_code))
    # No character that a file or a database would refuse.
    assert "\0" not in json.dumps(report.as_json(), ensure_ascii=False).encode().decode()
    assert TestReport.from_json(json.loads(json.dumps(report.as_json()))) == report


WORDS = [
    *(b"\n", b" ", b"    ", b"=" * 70, b"-" * 70, b"ok 1", b"not ok 2", b"1..2", b"# SKIP", b"# TODO x", b"Bail out!"),
    *(b"TAP version 14", b"# Subtest: a", b"3 passed", b", 1 failed", b" in 0.12s", b"Ran 3 tests in 0.1s\n\n", b"OK"),
    *(
        b"FAILED (failures=1)",
        b"running 3 tests\n",
        b"test result: ok. ",
        b"1 passed; 2 failed; 3 ignored; 0 measured;",
    ),
    *(b"---- a stdout ----", b"failures:", b"Tests:  ", b"Test Suites: ", b"FAIL a", "  ● a".encode(), b" FAIL  a > b"),
    *(b'{"Action":"run","Package":"p","Test":"t"}', b'{"Action":"fail","Package":"p"}', b'{"Action":"pass",'),
    *(
        b'{"testResults":[{"status":"failed","name":"a","assertionResults":[]}]}',
        b'"Package":"p","Test":"t"}',
        b"\x1b[",
    ),
]
TAGS = [
    *(
        b"<testsuites>",
        b"</testsuites>",
        b"<testsuite>",
        b"</testsuite>",
        b"<testcase>",
        b"</testcase>",
        b"<testcase/>",
    ),
    *(b'<testcase name="a" classname="b" time="x">', b"<failure>", b"</failure>", b"<error/>", b"<skipped/>", b"text"),
    *(b"<![CDATA[", b"]]>", b"<!--", b"-->", b"&lt;", b"&nothing;", b'<?xml version="1.0"?>', b"<system-out>", b"\xff"),
]

anything = st.binary(max_size=200)
output = anything | st.lists(st.sampled_from(WORDS) | st.just(b"\n"), max_size=30).map(b"".join)
well_formed = st.recursive(
    st.sampled_from([b"<testcase/>", b"<testcase><error/></testcase>", b"<testcase><failure>x</failure></testcase>"]),
    lambda inner: st.lists(inner, max_size=4).map(lambda parts: b"<testsuite>" + b"".join(parts) + b"</testsuite>"),
)
junit = st.none() | anything | st.lists(st.sampled_from(TAGS), max_size=20).map(b"".join) | well_formed


@given(output, junit, st.integers(-64, 255), st.sampled_from(HINTS))
def test_no_bytes_make_it_raise(output: bytes, junit: bytes | None, exit_code: int, hint: str | None) -> None:
    check(read_report(output, junit, exit_code, hint))


@given(st.sampled_from(["go-failing.jsonl", "vitest-tap.txt", "jest-failing.txt", "cargo-failing.txt"]), st.data())
def test_no_damage_to_a_real_report_makes_it_raise(name: str, data: st.DataObject) -> None:
    whole = sample(name)
    start, stop = sorted(data.draw(st.tuples(st.integers(0, len(whole)), st.integers(0, len(whole)))))
    check(read_report(whole[:start] + data.draw(anything) + whole[stop:], None, 1))


@given(well_formed)
def test_every_case_of_a_junit_report_is_counted(junit: bytes) -> None:
    report = read_report(b"", b"<testsuites>" + junit + b"</testsuites>", 1)
    assert report.source == "junit"
    assert report.total == junit.count(b"<testcase")
    assert report.failing == junit.count(b"<error") + junit.count(b"<failure") == len(report.failures)
