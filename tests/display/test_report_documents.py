"""The documents of a report: Markdown, JUnit, JSON, and the directory that they are written to."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from defusedxml import ElementTree
from junitparser import JUnitXml

from forkwise.display.attempt_report import read_report
from forkwise.display.report_documents import (
    SUMMARY_LIMIT,
    ReportDirectory,
    append_summary,
    build_junit,
    build_record,
    build_summary,
)
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.sqlite import SqliteLedger
from forkwise.ledger.stored_outcomes import save_outcomes
from forkwise.testing.report import TestFailure, TestReport
from tests.display.hostile import CORPUS, MARKER, hostile_fork


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SqliteLedger, str]]:
    with hostile_fork(tmp_path_factory.mktemp("hostile")) as found:
        yield found


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with SqliteLedger(tmp_path / "ledger") as made:
        yield made


def add_fork(ledger: Ledger, report: TestReport | None, *, state: str = "succeeded") -> str:
    fork = ledger.begin_fork("best-of", workspace="/project", spec={"goal": "fix it"})
    attempt = ledger.add_attempt(fork.id, "0", index=0, label="make", branch="b")
    ledger.start_attempt(attempt.id)
    if report is not None:
        ledger.record_tests(attempt.id, report.as_json())
        save_outcomes(ledger.directory, attempt.id, report.outcomes)
    ledger.end_attempt(attempt.id, state, reason=None if state == "succeeded" else "exit code 1")
    if state == "succeeded":
        ledger.resolve(fork.id, how="best score", winner=attempt.id)
    else:
        ledger.abort_fork(fork.id, "no attempt succeeded")
    return fork.id


def test_a_hostile_summary_is_text(hostile: tuple[SqliteLedger, str]) -> None:
    summary = build_summary(read_report(*hostile))
    assert len(summary.encode()) < SUMMARY_LIMIT
    prose, opening, diff = summary.partition("<details><summary>Diff of ")
    assert opening
    assert set(re.findall(r"<[^>]*>?", prose)) <= {"<code>", "</code>"}
    assert not re.search(r"[\[\]@`#!]", re.sub(r"(?m)^## |&#\d+;", "", prose))
    assert "www." not in prose
    table = [line for line in prose.splitlines() if line.startswith("|")]
    assert len(table) == len(CORPUS) + 2
    assert len({line.count("|") for line in table}) == 1
    assert not [c for c in summary if not c.isprintable() and c not in "\n\t"]
    # The fence is longer than any in the diff, so that the diff cannot end it.
    fence = re.search(r"^(`+)diff$", diff, re.MULTILINE)
    assert fence is not None
    inside = diff[fence.end() : diff.rindex(fence[1])]
    assert fence[1] not in inside
    assert MARKER in inside


def test_a_hostile_junit_is_well_formed(hostile: tuple[SqliteLedger, str], tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(build_junit(read_report(*hostile)))
    root = ElementTree.parse(path).getroot()
    assert {element.tag for element in root.iter()} == {"testsuites", "testsuite", "testcase", "failure"}
    assert JUnitXml.fromfile(str(path)).failures == 1


def test_a_hostile_record_is_json(hostile: tuple[SqliteLedger, str]) -> None:
    record = json.loads(json.dumps(build_record(read_report(*hostile), version="1.0")))
    assert [attempt["id"].rpartition(".")[2] for attempt in record["attempts"]] == [
        str(number + 1) for number in range(len(CORPUS))
    ]
    assert record["winner"] == record["best"] == record["attempts"][0]["id"]
    assert record["attempts"][1]["tests"]["is_tampered"] is True


def test_junit_lists_every_test_of_the_winner(ledger: Ledger, tmp_path: Path) -> None:
    report = TestReport(
        passed=2,
        failed=1,
        skipped=1,
        source="pytest",
        exit_code=1,
        duration=1.5,
        failures=(TestFailure("tests.test_a::TestA::test_two", "assert 1 == 2\nmore"),),
        outcomes={
            "tests/test_a.py::TestA::test_one": "passed",
            "tests/test_a.py::TestA::test_two": "failed",
            "tests/test_b.py::test_three[x]": "skipped",
            "plain": "passed",
        },
    )
    fork = add_fork(ledger, report)
    path = tmp_path / "junit.xml"
    path.write_text(build_junit(read_report(ledger, fork)))
    [suite] = JUnitXml.fromfile(str(path))
    assert (suite.tests, suite.failures, suite.skipped, suite.time) == (4, 1, 1, 1.5)
    cases = {(case.classname, case.name): case for case in suite}
    assert set(cases) == {
        ("tests.test_a.TestA", "test_one"),
        ("tests.test_a.TestA", "test_two"),
        ("tests.test_b", "test_three[x]"),
        ("", "plain"),
    }
    [failure] = cases["tests.test_a.TestA", "test_two"].result
    assert (failure.message, failure.text) == ("assert 1 == 2", "assert 1 == 2\nmore")
    assert 'file="tests/test_b.py"' in path.read_text()


@pytest.mark.parametrize(
    ("report", "state", "expected"),
    [
        (None, "succeeded", (1, 0)),
        (None, "failed", (1, 1)),
        (TestReport(passed=1, source="exit code", exit_code=0), "succeeded", (1, 0)),
        (TestReport(passed=3, source="pytest summary", exit_code=0), "succeeded", (1, 0)),
    ],
)
def test_junit_without_names(
    ledger: Ledger, tmp_path: Path, report: TestReport | None, state: str, expected: tuple[int, int]
) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(build_junit(read_report(ledger, add_fork(ledger, report, state=state))))
    found = JUnitXml.fromfile(str(path))
    assert (found.tests, found.failures) == expected


def test_a_link_in_place_of_a_document_is_replaced(ledger: Ledger, tmp_path: Path) -> None:
    target, victim = tmp_path / "out", tmp_path / "victim"
    victim.write_text("untouched")
    fork = add_fork(ledger, None)
    with ReportDirectory(target) as directory:
        (target / "index.html").symlink_to(victim)
        directory.write(ledger, fork, version="1.0")
    assert victim.read_text() == "untouched"
    assert not (target / "index.html").is_symlink()
    assert sorted(os.listdir(target)) == ["index.html", "junit.xml", "report.json", "summary.md"]


def test_a_directory_that_became_a_link_is_not_followed(ledger: Ledger, tmp_path: Path) -> None:
    target, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    elsewhere.mkdir()
    fork = add_fork(ledger, None)
    with ReportDirectory(target) as directory:
        target.rename(tmp_path / "moved")
        target.symlink_to(elsewhere)
        with pytest.raises(OSError, match="removed or replaced"):
            directory.write(ledger, fork, version="1.0")
    assert not os.listdir(elsewhere)
    assert not os.listdir(tmp_path / "moved")  # which can be part of an undo record


def test_the_summary_of_a_job_stays_below_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "summary"
    path.write_bytes(b"x" * (SUMMARY_LIMIT - 10))
    assert not append_summary("0123456789", str(path))
    assert append_summary("012345678", str(path))
    assert path.stat().st_size < SUMMARY_LIMIT


def test_output_of_a_hundred_megabytes_costs_little(ledger: Ledger) -> None:
    from forkwise.ledger.logs import AttemptLog

    fork = add_fork(ledger, None)
    with AttemptLog(ledger.directory, f"{fork}.1", cap=1 << 20) as log:
        for _ in range(100):
            log.write("stdout", b"\x1b[31m<b>" * (1 << 17))
    [attempt] = read_report(ledger, fork).attempts
    assert len(attempt.read_output()) <= 64 << 10
    assert "\x1b" not in attempt.read_output()
