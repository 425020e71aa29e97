"""CrossTests: score attempts by the tests that the other attempts of their group added.

Every test file comes from an attempt, so it is as trustworthy as that attempt. It runs in the sandbox of the tests, on
a scratch branch of the attempt that it judges, with the base's graders; it counts only if others confirm it, and all
tests of one attempt together have the weight of one vote.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from forkwise.concurrency import run_in_thread
from forkwise.errors import BranchingError
from forkwise.files.file_tree import FileTree
from forkwise.fork.evaluation import Evaluation, Evaluator
from forkwise.fork.evaluators.tests import Tests

if TYPE_CHECKING:
    from forkwise.files.branch import Branch, Parent
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.fork import Fork
    from forkwise.testing.report import TestReport

__all__ = ["CrossTests"]

_TEST_NAMES = ("test_*.py", "*_test.py", "*.test.*", "*.spec.*", "*_test.go", "*.rs", "*.t")
_MAX_FILE = 256 << 10  # bytes
_MAX_TESTS = 500  # of one attempt


@dataclass(frozen=True, slots=True)
class _Contribution:
    """The test files that an attempt added, and their results: the tests that passed, by attempt; None if in doubt."""

    author: Attempt
    base: frozenset[str]
    passed: Mapping[Attempt, frozenset[str]]

    def list_valid(self) -> list[str]:
        """List the valid tests, as CrossTests defines them."""
        names = sorted({name for passed in self.passed.values() for name in passed})[:_MAX_TESTS]
        return [name for name in names if self._is_valid(name)]

    def _is_valid(self, name: str) -> bool:
        passing = [attempt for attempt, passed in self.passed.items() if name in passed]
        is_confirmed = any(attempt is not self.author for attempt in passing)
        return is_confirmed and (name not in self.base or 2 * len(passing) > len(self.passed))


class CrossTests(Evaluator):
    """Scores each success by the share of the other attempts' tests that it passes. For a list, after ``Tests``.

    Test files that an attempt added run on every success of the group. A test is valid if it fails on the base or
    passes on the majority of the successes, and in either case passes on at least one that is not its author's: an
    attempt could otherwise add tests that only its own solution passes. The score is the mean over the other attempts
    with valid tests, however many tests each added. If only one attempt has valid tests, they count for that attempt
    too, because others confirm them.

    ``tests`` says how tests are run; only their files are taken from attempts, no ``conftest.py`` and no configuration.
    At most ``max_files`` files of each attempt run, for ``timeout`` seconds in each run and ``total_timeout`` seconds
    in all. Tests of an attempt that did not run on all successes in time count for nothing. Scores are compared for
    attempts that run side by side; an attempt alone has none.
    """

    criteria = ("tests of other attempts",)

    def __init__(
        self, tests: Tests | None = None, *, max_files: int = 10, timeout: float = 60.0, total_timeout: float = 600.0
    ) -> None:
        if max_files < 1 or not timeout > 0 or not total_timeout > 0:
            raise ValueError("max_files must be at least 1, timeout and total_timeout above 0 seconds")
        given = tests or Tests()
        self._tests = Tests(
            given.command,
            timeout=timeout if given.timeout is None else min(given.timeout, timeout),
            confinement=given.confinement,
            sealed=True,
            seal=given.seal,
            baseline=False,
        )
        self._max_files = max_files
        self._total_timeout = total_timeout

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        return Evaluation((0.0,))

    async def compare(self, attempts: Sequence[Attempt]) -> Mapping[Attempt, tuple[float, ...]]:
        judged = [a for a in attempts if a.branch is not None and a.state in ("succeeded", "failed")]
        successes = [attempt for attempt in judged if attempt.success]
        if len(successes) < 2:
            return {}
        base = _find_outermost(judged[0]).parent
        deadline = time.monotonic() + self._total_timeout
        known = _find_known(judged[0])
        contributions = []
        for author in judged:
            files = await run_in_thread(self._read_tests, author.own_branch, base)
            if not files:
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(max(deadline - time.monotonic(), 0)):
                    contributions.append(await self._run(author, files, successes, base, known))
        return _score(contributions, successes)

    async def _run(
        self,
        author: Attempt,
        files: Mapping[str, bytes],
        successes: Sequence[Attempt],
        base: Parent,
        known: frozenset[str],
    ) -> _Contribution:
        """Run the tests of one attempt on the base and on all successes."""
        passed = {}
        before = _passed(await self._tests.run_foreign(base, base, files), known)
        for attempt in successes:
            passed[attempt] = _passed(await self._tests.run_foreign(attempt.own_branch, base, files), known)
        return _Contribution(author, before, passed)

    def _read_tests(self, branch: Branch, base: Parent) -> dict[str, bytes]:
        """Read the test files that a branch added: small regular files with names of tests."""
        found: dict[str, bytes] = {}
        with suppress(BranchingError, OSError):
            tree = FileTree(os.fspath(branch.path), os.fspath(branch.workspace.path))
            for path in self._tests.find_added(branch, base):
                name = path.rpartition("/")[2]
                entry = tree.entry(path)
                if entry is None or entry.st_size > _MAX_FILE or len(found) == self._max_files:
                    continue
                content = tree.content(path) if any(fnmatchcase(name, pattern) for pattern in _TEST_NAMES) else None
                if content is not None:
                    found[path] = content
        return found


def _find_outermost(attempt: Attempt) -> Fork:
    fork = attempt.fork
    while fork.is_inner and fork.inside is not None:
        fork = fork.inside.fork
    return fork


def _find_known(attempt: Attempt) -> frozenset[str]:
    """Return the tests of the base: a runner that cannot run files alone reports them as well."""
    return frozenset(name for one in _find_outermost(attempt).baselines.values() for name in one.outcomes)


_ALL = "all tests"  # of a runner that does not name them


def _passed(report: TestReport, known: frozenset[str]) -> frozenset[str]:
    """Return the added tests that passed; without names, all of them together if nothing failed."""
    if report.doubt is not None:
        return frozenset()
    if not report.outcomes:
        return frozenset([_ALL] if report.is_pass else [])
    return frozenset(name for name, outcome in report.outcomes.items() if outcome == "passed" and name not in known)


def _score(contributions: Sequence[_Contribution], successes: Sequence[Attempt]) -> dict[Attempt, tuple[float, ...]]:
    valid = [(one, names) for one in contributions if (names := one.list_valid())]
    scores: dict[Attempt, tuple[float, ...]] = {}
    for attempt in successes:
        judges = [(one, names) for one, names in valid if one.author is not attempt] or valid
        votes = [len(one.passed[attempt].intersection(names)) / len(names) for one, names in judges]
        scores[attempt] = (sum(votes) / len(votes) if votes else 0.0,)
    return scores
