"""The events of ``go test -json``.

Subtests and their parent tests are all counted, as gotestsum does. A package that fails although none of its tests did
(it does not build, or panics before the first test) is an error.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from forkwise.testing.report import Outcome, Tally

__all__ = ["read_go"]

_OUTCOMES: dict[str, Outcome] = {"pass": "passed", "fail": "failed", "skip": "skipped"}


def read_go(text: str) -> Tally | None:
    """Count the tests that ended; None if the text has no events of go."""
    reader = _EventReader()
    for event in _parse_events(text):
        reader.add(event)
    return reader.finish() if reader.has_started else None


def _parse_events(text: str) -> Iterator[Any]:
    for line in text.split("\n"):
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                continue  # other output between the events


class _EventReader:
    """The state of the packages and tests of a run, updated by each event."""

    def __init__(self) -> None:
        self.tally = Tally("go test -json")
        self.has_started = False
        self.unfinished: dict[tuple[str, str], None] = {}
        self.with_failed_test: set[str] = set()
        self.output: defaultdict[tuple[str, str], list[str]] = defaultdict(list)

    def add(self, event: Any) -> None:
        match event:
            case {"Action": "build-output", "ImportPath": str(build), "Output": str(line)}:
                self.output[build, ""].append(line)
            case {"Action": "output", "Package": str(package), "Output": str(line)}:
                self.output[package, self._test_name(event)].append(line)
            case {"Action": "start" | "run", "Package": str(package)}:
                self.has_started = True
                self.unfinished[package, self._test_name(event)] = None
            case {"Action": "pass" | "fail" | "skip" as action, "Package": str(package), "Test": str(test)}:
                self._end_test(package, test, action)
            case {"Action": "pass" | "fail" | "skip" as action, "Package": str(package)}:
                self._end_package(package, action, event.get("FailedBuild"))

    def finish(self) -> Tally:
        for package, test in self.unfinished:
            self._add_error(f"{package} {test}".strip(), "It did not end.")
        return self.tally

    @staticmethod
    def _test_name(event: dict[str, Any]) -> str:
        test = event.get("Test")
        return test if isinstance(test, str) else ""

    def _end_test(self, package: str, test: str, action: str) -> None:
        self.has_started = True
        self.unfinished.pop((package, test), None)
        output = "".join(self.output.pop((package, test), []))
        name = f"{package} {test}"
        self.tally.outcomes[name] = _OUTCOMES[action]
        if action == "pass":
            self.tally.passed += 1
        elif action == "skip":
            self.tally.skipped += 1
        else:
            self.with_failed_test.add(package)
            self.tally.fail(name, output)

    def _end_package(self, package: str, action: str, failed_build: object) -> None:
        self.has_started = True
        self.unfinished.pop((package, ""), None)
        if action == "fail" and package not in self.with_failed_test:
            output = self.output[str(failed_build), ""] + self.output[package, ""]
            self._add_error(package, "".join(output))

    def _add_error(self, name: str, message: str) -> None:
        self.tally.outcomes[name] = "error"
        self.tally.fail(name, message, "error")
