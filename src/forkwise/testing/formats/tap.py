"""TAP, the Test Anything Protocol, versions 12 to 14.

Only unindented test points are counted: by the protocol, a subtest is summarised by its parent's test point. If that
one failed, the lines of the subtest are shown with it.
"""

from __future__ import annotations

import re

from forkwise.testing.report import Tally

__all__ = ["read_tap"]

_VERSION = re.compile(r"TAP version \d+\s*$")
_PLAN = re.compile(r"1\.\.(\d{1,9})\s*(?:#.*)?$")
_POINT = re.compile(r"(not )?ok\b(?: +(\d{1,9})\b)?(?: *-)?(.*)$")
_BAIL_OUT = re.compile(r"Bail out!(.*)$", re.IGNORECASE)
_SUBTEST = re.compile(r" {0,4}# Subtest")
_UNESCAPED_HASH = re.compile(r"(?<!\\)#")


def read_tap(text: str) -> Tally | None:
    r"""Count the test points; None if the text is not TAP.

    >>> read_tap("1..2\nok 1 - adds\nnot ok 2 - subtracts # TODO\n")
    Tally(source='tap', passed=1, failed=0, errors=0, skipped=1, failures=[], doubts=[])
    """
    reader = _TapReader()
    for line in text.split("\n"):
        reader.add(line)
    return reader.finish()


class _TapReader:
    """The state after each line, with the lines that belong to the current test point."""

    def __init__(self) -> None:
        self.tally = Tally("tap")
        self.is_tap = False
        self.points = 0
        self.planned: int | None = None
        self.bailed_out: str | None = None
        self.failing: str | None = None
        self.lines: list[str] = []
        self.in_subtest = False

    def add(self, line: str) -> None:
        if _VERSION.match(line):
            self.is_tap = True
        elif plan := _PLAN.match(line):
            self.planned = (self.planned or 0) + int(plan[1])
        elif reason := _BAIL_OUT.match(line):
            self.bailed_out = reason[1].strip()
        elif point := _POINT.match(line):
            self._add_point(point)
        elif _SUBTEST.match(line) and not self.in_subtest:
            # The lines of a subtest precede its test point; all other lines follow theirs.
            self._show_failing()
            self.in_subtest = True
        else:
            self.lines.append(line)

    def finish(self) -> Tally | None:
        self._show_failing()
        if not self.is_tap and (self.planned is None or not self.points):
            return None
        if self.bailed_out is not None:
            self.tally.fail("Bail out!", self.bailed_out, "error")
        elif self.planned is None:
            self.tally.doubts.append("the TAP stream has no plan")
        elif self.planned != self.points:
            self.tally.doubts.append(f"the TAP plan has {self.planned} tests, and {self.points} reported")
        return self.tally

    def _add_point(self, point: re.Match[str]) -> None:
        if not self.in_subtest:
            self._show_failing()
        self.in_subtest = False
        self.points += 1
        name, *rest = _UNESCAPED_HASH.split(point[3], maxsplit=1)
        directive = "".join(rest).strip().lower()
        is_failing = bool(point[1])
        if (directive.startswith("todo") and is_failing) or (directive.startswith("skip") and not is_failing):
            self.tally.skipped += 1
        elif is_failing:
            self.failing = name.strip() or f"test {self.points}"
            self.tally.failed += 1
        else:
            self.tally.passed += 1

    def _show_failing(self) -> None:
        if self.failing is not None:
            self.tally.show(self.failing, "\n".join(self.lines))
        self.failing = None
        self.lines.clear()
