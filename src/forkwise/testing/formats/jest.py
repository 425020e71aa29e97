"""The reports of jest and vitest: the similar JSON of ``--json`` and ``--reporter=json``, and the printed summaries.

A test file that could not be loaded counts as one error, because its tests are not known.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from forkwise.testing.report import Outcome, Tally
from forkwise.text.clean import sections

__all__ = ["read_jest", "read_jest_json", "read_vitest"]

_OUTCOMES: dict[str, Outcome] = {"passed": "passed", "failed": "failed"}
_COUNT = re.compile(r"(\d{1,9}) ([a-z]+)")

_JEST_TESTS = re.compile(r"^Tests: +(\d.*)$", re.MULTILINE)
_JEST_NONE = re.compile(r"^No tests found", re.MULTILINE)
_JEST_HEADING = re.compile(r"FAIL (?P<file>.+)$|  ● (?P<test>.+)$")
_JEST_AFTER_FAILURE = re.compile(r"Test Suites: |PASS ")
_JEST_NOT_LOADED = "Test suite failed to run"

_VITEST_TESTS = re.compile(r"^ +Tests  +(\d.*|no tests)$", re.MULTILINE)
_VITEST_NONE = re.compile(r"^No test files found", re.MULTILINE)
_VITEST_ERRORS = re.compile(r"^ +Errors  +(\d{1,9}) error|^⎯+ Failed Suites (\d{1,9}) ⎯+$", re.MULTILINE)
_VITEST_FAILURE = re.compile(r" FAIL  (.+)$")
_VITEST_AFTER_FAILURE = re.compile(r"⎯")


def read_jest_json(text: str) -> Tally | None:
    """Count the tests of a JSON report on a single line; None if there is none."""
    for line in text.split("\n"):
        if line.startswith("{") and '"testResults"' in line:
            try:
                report = json.loads(line)
            except (ValueError, RecursionError):
                continue
            match report:
                case {"testResults": list(files)}:
                    return _tally_files(files)
    return None


def _tally_files(files: list[Any]) -> Tally:
    tally = Tally("jest")
    names: Counter[str] = Counter()
    for file in files:
        match file:
            case {"status": "failed", "name": str(name), "assertionResults": []}:
                tally.fail(name, str(file.get("message", "")), "error")
                tally.outcomes[name] = "error"
            case {"assertionResults": list(tests)}:
                for test in tests:
                    _count(test, tally)
                    if found := _name(file, test):
                        names[found] += 1
                        key = found if names[found] == 1 else f"{found} ({names[found]})"
                        tally.outcomes[key] = _OUTCOMES.get(test["status"], "skipped")
    return tally


def _name(file: dict[str, Any], test: Any) -> str | None:
    match test:
        case {"status": str(), "fullName": str(name)}:
            return f"{file.get('name', '')} {name}"
    return None


def _count(test: Any, tally: Tally) -> None:
    match test:
        case {"status": "passed"}:
            tally.passed += 1
        case {"status": "failed", "fullName": str(name), "failureMessages": list(messages)}:
            tally.fail(name, "\n".join(map(str, messages)))
        case {"status": "failed"}:
            tally.fail("a test without a name", "")
        case {"status": str()}:
            tally.skipped += 1


def read_jest(text: str) -> Tally | None:
    r"""Add up jest's summaries; None if there is none.

    >>> read_jest("Tests:       1 skipped, 2 passed, 3 total\n")
    Tally(source='jest', passed=2, failed=0, errors=0, skipped=1, failures=[], doubts=[])
    """
    summaries = _JEST_TESTS.findall(text)
    if not summaries and not _JEST_NONE.search(text):
        return None
    tally = _add_summaries(Tally("jest"), summaries)
    # With many files, jest prints all failures twice: the dict keeps each once.
    for (file, test), body in dict(_find_jest_failures(text)).items():
        if test == _JEST_NOT_LOADED:
            tally.fail(file, body, "error")
        else:
            tally.show(test, body)
    return tally


def _find_jest_failures(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield the file and name of each failed test, with its output."""
    file = ""
    for heading, body in sections(text, _JEST_HEADING, _JEST_AFTER_FAILURE):
        if heading["file"]:
            file = heading["file"]
        elif heading["test"] != "Console":
            yield (file, heading["test"]), body


def read_vitest(text: str) -> Tally | None:
    r"""Add up vitest's summaries; None if there is none.

    >>> read_vitest("      Tests  1 failed | 2 passed | 1 todo (4)\n")
    Tally(source='vitest', passed=2, failed=1, errors=0, skipped=1, failures=[], doubts=[])
    """
    summaries = _VITEST_TESTS.findall(text)
    if not summaries and not _VITEST_NONE.search(text):
        return None
    tally = _add_summaries(Tally("vitest"), summaries)
    tally.errors = sum(int(count) for pair in _VITEST_ERRORS.findall(text) for count in pair if count)
    for heading, body in sections(text, _VITEST_FAILURE, _VITEST_AFTER_FAILURE):
        tally.show(heading[1], body, "failed" if " > " in heading[1] else "error")
    return tally


def _add_summaries(tally: Tally, summaries: list[str]) -> Tally:
    for summary in summaries:
        counts = Counter({word: int(count) for count, word in _COUNT.findall(summary)})
        tally.passed += counts["passed"]
        tally.failed += counts["failed"]
        tally.skipped += counts["skipped"] + counts["todo"]
    return tally
