"""Evidence: what a runner reports about each test from inside its own process, through the programs in ``injected``.

A record is one line of JSON with the run's ``token``, the number of the ``process``, and its ``kind``:

- ``start`` and ``end``: of a process that runs tests; ``end`` has the ``exit`` code that it will have.
- ``session``: whether a plugin ``reruns`` failed tests, so that a test may have several outcomes.
- ``test``: the ``outcome`` of the test ``id`` and, if it failed, a ``message``; ``setup`` if it starts again.
- ``canary``: the ``outcome`` of a test of known outcome, and the ``expected`` one.
- ``plugin``: a plugin's ``name`` and ``origin``; ``patched``: the ``name`` of what the tests' process replaced.
- ``body``: a checksum of the code that ran as the test ``id``; ``other`` if that is not from the test's own file.
- ``flipped``: the ``id`` of a test that raised, but that a hook reported as passed.

The tests' process is not trusted: it can write anything, but it cannot take back what was written.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from forkwise.testing.report import Outcome, Source, Tally
from forkwise.text.phrases import join_first

__all__ = ["Injection", "RunEvidence", "read_evidence"]

_CHANNEL = "evidence_channel"
_VARIABLE = "FORKWISE_EVIDENCE"
_MAX_RECORDS = 1_000_000
_MAX_SUSPECTS = 200
_SHOWN = 3

# Which outcome of a test counts if there are several, such as those of its subtests or of its teardown.
_WEIGHT: dict[str, int] = {"passed": 0, "skipped": 1, "failed": 2, "error": 3}

_PAST = {"error": "had an error"}
"""Outcomes that are not verbs in the past, as they read after a subject."""


@dataclass(frozen=True, slots=True)
class Injection:
    """A program to run tests with, and its settings, for one run.

    ``files`` are to be written into ``directory``, which the tests can read but not write; ``fifo`` is where the
    records go. Names and token are random, so that nothing in the workspace can replace or imitate them.
    """

    directory: str
    fifo: str
    suspects: Collection[str] = ()
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def plugin(self) -> str:
        """The name of the pytest plugin."""
        return f"fw{self.token}_pytest"

    @property
    def unittest_main(self) -> str:
        """The path of the program that replaces ``-m unittest``."""
        return f"{self.directory}/fw{self.token}_unittest.py"

    def files(self) -> dict[str, str]:
        """Return the content of the files by name."""
        channel = f"fw{self.token}_channel"
        sources = {
            channel: _CHANNEL,
            self.plugin: "pytest_plugin",
            f"fw{self.token}_unittest": "unittest_main",
        }
        package = resources.files("forkwise.testing") / "injected"
        return {
            f"{name}.py": (package / f"{source}.py").read_text("utf-8").replace(_CHANNEL, channel)
            for name, source in sources.items()
        }

    def environment(self, environ: Mapping[str, str], addopts: str) -> dict[str, str]:
        """Return the variables that a command needs, given those it has and the options for pytest.

        The runner restores ``PYTEST_ADDOPTS``, so that a pytest which the tests start does not report as well.
        """
        settings = {
            "token": self.token,
            "fifo": self.fifo,
            "suspects": sorted(self.suspects)[:_MAX_SUSPECTS],
            "restored": {"PYTEST_ADDOPTS": environ.get("PYTEST_ADDOPTS")},
        }
        paths = [self.directory, *filter(None, [environ.get("PYTHONPATH")])]
        return {
            _VARIABLE: json.dumps(settings),
            "PYTHONPATH": ":".join(paths),
            "PYTEST_ADDOPTS": f"{addopts} -p {self.plugin} --continue-on-collection-errors".strip(),
        }


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """What the records of a run say.

    ``outcomes`` has each test's outcome, ``messages`` the messages of those that failed. ``plugins`` and ``patched``
    are what the run loaded and replaced, ``bodies`` checksums of what ran as a test: compare them with those of the
    base. ``contradictions`` are reasons not to believe the run, ``has_canary`` says whether a test of known outcome
    failed as it should.
    """

    outcomes: Mapping[str, Outcome]
    messages: Mapping[str, str]
    plugins: Mapping[str, str]
    patched: frozenset[str]
    contradictions: tuple[str, ...]
    has_canary: bool
    is_complete: bool
    bodies: Mapping[str, str] = field(default_factory=dict)

    def tally(self, source: Source) -> Tally:
        """Count the outcomes."""
        tally = Tally(source)
        for name, outcome in self.outcomes.items():
            if outcome == "passed":
                tally.passed += 1
            elif outcome == "skipped":
                tally.skipped += 1
            else:
                tally.fail(name, self.messages.get(name, ""), outcome)
        tally.outcomes = dict(self.outcomes)
        return tally


def read_evidence(data: bytes, token: str) -> RunEvidence | None:
    r"""Read the records of a run; None if no runner sent any.

    >>> start, end = b'{"token":"t","process":1,"kind":"start"}\n', b'{"token":"t","process":1,"kind":"end","exit":0}\n'
    >>> test = b'{"token":"t","process":1,"kind":"test","id":"a","outcome":"passed"}\n'
    >>> read_evidence(start + test + end, "t").outcomes
    {'a': 'passed'}
    >>> read_evidence(start + test, "t").is_complete
    False
    """
    collector = _Collector()
    for record in _parse(data, token):
        collector.add(record)
    if not collector.running and not collector.ended:
        return None
    return collector.finish()


def _parse(data: bytes, token: str) -> Iterator[Mapping[str, Any]]:
    for line in data.split(b"\n", _MAX_RECORDS)[:_MAX_RECORDS]:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict) and record.get("token") == token:
            yield record


class _Collector:
    """Collects records, which may contain anything."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.ended: set[int] = set()
        self._outcomes: dict[str, Outcome] = {}
        self._messages: dict[str, str] = {}
        self._plugins: dict[str, str] = {}
        self._patched: set[str] = set()
        self._wrong_canaries: list[str] = []
        self._flipped: list[str] = []
        self._bodies: dict[str, str] = {}
        self._again: list[str] = []
        self._has_canary = self._reruns = False

    def add(self, record: Mapping[str, Any]) -> None:
        """Add one record; a malformed one is ignored, and is then missing from the evidence."""
        match record:
            case {"kind": "start", "process": int(process)}:
                self.running.add(process)
            case {"kind": "end", "process": int(process)}:
                self.ended.add(process)
            case {"kind": "session", "reruns": bool(reruns)}:
                self._reruns = self._reruns or reruns
            case {"kind": "setup", "id": str(name)}:
                self._start_test(name)
            case {"kind": "test", "id": str(name), "outcome": "passed" | "failed" | "error" | "skipped" as outcome}:
                self._add_outcome(name, outcome, str(record.get("message", "")))
            case {"kind": "canary", "id": str(name), "expected": str(expected), "outcome": str(outcome)}:
                self._has_canary = self._has_canary or outcome == "failed" == expected
                if outcome not in (expected, "skipped"):
                    must = "fail" if expected == "failed" else "pass"
                    self._wrong_canaries.append(f"a test that must {must} {_PAST.get(outcome, outcome)}")
            case {"kind": "plugin", "name": str(name), "origin": str(origin)}:
                self._plugins[name] = origin
            case {"kind": "patched", "name": str(name)}:
                self._patched.add(name)
            case {"kind": "body", "id": str(name), "body": str(body)}:
                self._bodies[name] = body if self._bodies.get(name, body) == body else "changed"
            case {"kind": "flipped", "id": str(name)}:
                self._flipped.append(name)

    def _start_test(self, name: str) -> None:
        if name not in self._outcomes:
            return
        if self._reruns:
            del self._outcomes[name]
        else:
            self._again.append(name)

    def _add_outcome(self, name: str, outcome: Outcome, message: str) -> None:
        before = self._outcomes.get(name)
        if before is None or _WEIGHT[outcome] > _WEIGHT[before]:
            self._outcomes[name] = outcome
            self._messages[name] = message

    def finish(self) -> RunEvidence:
        """Return what was collected."""
        contradictions = list(dict.fromkeys(self._wrong_canaries))
        if self._flipped:
            contradictions.append(f"{join_first(self._flipped, _SHOWN)} raised, and was reported as passed")
        if self._again:
            contradictions.append(f"{join_first(self._again, _SHOWN)} was reported more than once")
        return RunEvidence(
            outcomes=self._outcomes,
            messages=self._messages,
            plugins=self._plugins,
            patched=frozenset(self._patched),
            contradictions=tuple(contradictions),
            has_canary=self._has_canary,
            is_complete=self.running <= self.ended,
            bodies=self._bodies,
        )
