"""The output of ``cargo test``: one block for each test binary, and one for the examples in the documentation."""

from __future__ import annotations

import re

from forkwise.testing.report import Tally
from forkwise.text.clean import sections

__all__ = ["read_cargo"]

_RUNNING = re.compile(r"^running \d+ tests?$", re.MULTILINE)
_RESULT = re.compile(
    r"^test result: \w+\. (\d{1,9}) passed; (\d{1,9}) failed; (\d{1,9}) ignored; \d{1,9} measured;", re.MULTILINE
)
_FAILURE = re.compile(r"---- (.+) stdout ----$")
_AFTER_FAILURES = re.compile(r"failures:$|test result: ")


def read_cargo(text: str) -> Tally | None:
    r"""Add up the results of all binaries; None if no binary ran.

    >>> read_cargo("running 1 test\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n")
    Tally(source='cargo', passed=1, failed=0, errors=0, skipped=0, failures=[], doubts=[])
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
    return tally
