"""The output of ``cargo test``: one block for each test binary, and one for the examples in the documentation."""

from __future__ import annotations

import re

from forkwise.testing.report import Outcome, Tally
from forkwise.text.clean import sections

__all__ = ["read_cargo"]

_RUNNING = re.compile(r"^running \d+ tests?$", re.MULTILINE)
_RESULT = re.compile(
    r"^test result: \w+\. (\d{1,9}) passed; (\d{1,9}) failed; (\d{1,9}) ignored; \d{1,9} measured;", re.MULTILINE
)
_FAILURE = re.compile(r"---- (.+) stdout ----$")
_AFTER_FAILURES = re.compile(r"failures:$|test result: ")
_BINARY = re.compile(r" +(?:Running (?:unittests )?(\S+\.rs)\b|Doc-tests (\S+))")
_TEST = re.compile(r"test (.+?)(?: - should panic)? \.\.\. (ok|FAILED|ignored)\b")

_OUTCOMES: dict[str, Outcome] = {"ok": "passed", "FAILED": "failed", "ignored": "skipped"}


def read_cargo(text: str) -> Tally | None:
    r"""Add up the results of all binaries; None if no binary ran.

    The id of a test includes the source file of its binary, if cargo's lines are in the same stream as those of the
    binaries.

    >>> result = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"
    >>> tally = read_cargo(f"     Running tests/a.rs (target/a)\nrunning 1 test\ntest sums ... ok\n{result}\n")
    >>> tally.passed, tally.outcomes
    (1, {'tests/a.rs sums': 'passed'})
    """
    started = len(_RUNNING.findall(text))
    if not started:
        return None
    results = [tuple(map(int, result)) for result in _RESULT.findall(text)]
    passed, failed, ignored = (sum(counts) for counts in zip((0, 0, 0), *results, strict=True))
    tally = Tally("cargo", passed=passed, failed=failed, skipped=ignored)
    for heading, body in sections(text, _FAILURE, _AFTER_FAILURES):
        tally.show(heading[1], body)
    if started > len(results):
        tally.errors += started - len(results)
        tally.show("a test binary", "It ended without a result.", "error")
    outcomes = _find_outcomes(text)
    if len(outcomes) == passed + failed + ignored:  # otherwise a test printed lines that look like results, or into one
        tally.outcomes = outcomes
    return tally


def _find_outcomes(text: str) -> dict[str, Outcome]:
    found: dict[str, Outcome] = {}
    binary = ""
    for line in text.split("\n"):
        if heading := _BINARY.match(line):
            binary = f"{heading[1] or heading[2]} "
        elif test := _TEST.match(line):
            name = f"{binary}{test[1]}"
            found[name if name not in found else f"{name} ({len(found)})"] = _OUTCOMES[test[2]]
    return found
