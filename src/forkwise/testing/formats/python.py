"""The summaries that pytest and unittest print at the end of a run, used if there is no JUnit report."""

from __future__ import annotations

import re
from collections import Counter

from forkwise.testing.report import Tally
from forkwise.text.clean import sections

__all__ = ["read_pytest", "read_unittest"]

_DURATION = re.compile(r"\d+\.\d+s(?: \(.{1,40}\))?$")
_COUNT = re.compile(r"(\d{1,9}) ([a-z ]+)$")
_MAX_COUNTS = 20
_SHORT_SUMMARY = re.compile(r"=+ short test summary info =+$")
_SHORT_FAILURE = re.compile(r"(?:SUB)?(FAILED|ERROR)\S* (.+)$")

_RAN = re.compile(r"^Ran (\d{1,9}) tests? in .*\n\n(?:OK|FAILED|NO TESTS RAN)(?: \((.*)\))?$", re.MULTILINE)
_FAILURE = re.compile(r"(FAIL|ERROR|UNEXPECTED SUCCESS): (.+)$")
_AFTER_FAILURE = re.compile(r"={70}$|Ran \d")


def read_pytest(text: str) -> Tally | None:
    r"""Add up pytest's summary lines; None if there is none.

    >>> read_pytest("=== 1 failed, 2 passed, 1 xfailed in 0.12s ===\n")
    Tally(source='pytest summary', passed=2, failed=1, errors=0, skipped=1, failures=[], doubts=[])
    """
    tally = Tally("pytest summary")
    is_found = in_short_summary = False
    for line in text.split("\n"):
        counts = _parse_summary(line)
        if counts is not None:
            is_found, in_short_summary = True, False
            tally.passed += counts["passed"] + counts["xpassed"]
            tally.failed += counts["failed"]
            tally.errors += counts["error"] + counts["errors"]
            tally.skipped += counts["skipped"] + counts["xfailed"]
        elif _SHORT_SUMMARY.match(line):
            in_short_summary = True
        elif in_short_summary and (failure := _SHORT_FAILURE.match(line)):
            name, _, message = failure[2].partition(" - ")
            tally.show(name, message, "error" if failure[1] == "ERROR" else "failed")
    return tally if is_found else None


def _parse_summary(line: str) -> Counter[str] | None:
    """Parse the counts of one summary line; None for any other line."""
    counts, _, duration = line.strip("= ").rpartition(" in ")
    if not _DURATION.match(duration):
        return None
    if counts == "no tests ran":
        return Counter()
    found = [_COUNT.match(count) for count in counts.split(", ", _MAX_COUNTS)]
    if not all(found):
        return None
    return Counter({match[2]: int(match[1]) for match in found if match})


def read_unittest(text: str) -> Tally | None:
    r"""Add up unittest's summaries; None if there is none.

    >>> read_unittest("Ran 3 tests in 0.001s\n\nFAILED (failures=1, skipped=1)\n")
    Tally(source='unittest summary', passed=1, failed=1, errors=0, skipped=1, failures=[], doubts=[])
    """
    tally = Tally("unittest summary")
    summaries = _RAN.findall(text)
    for ran, details in summaries:
        pairs = (detail.partition("=") for detail in details.split(", "))
        counts = Counter({name: int(count[:9]) for name, _, count in pairs if count.isdecimal()})
        failed = counts["failures"] + counts["unexpected successes"]
        skipped = counts["skipped"] + counts["expected failures"]
        tally.failed += failed
        tally.errors += counts["errors"]
        tally.skipped += skipped
        # Subtests and class fixtures fail separately, so there can be more failures than tests.
        tally.passed += max(int(ran) - failed - counts["errors"] - skipped, 0)
    for heading, body in sections(text, _FAILURE, _AFTER_FAILURE) if summaries else ():
        tally.show(heading[2], body.strip("-\n"), "error" if heading[1] == "ERROR" else "failed")
    return tally if summaries else None
