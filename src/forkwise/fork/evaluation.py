"""Tests: an evaluator that runs a project's own tests on what an attempt made of it.

They run in a sandbox on a branch of the attempt's branch, which is dropped afterwards: caches and reports that a test
run leaves are no part of what is committed.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import join
from typing import Any, ClassVar

from forkwise.concurrency import finish, run_in_thread, try_call
from forkwise.errors import ProcessBranchError
from forkwise.files.branch import Branch, Parent
from forkwise.fork.attempt import Attempt, exchange, read_left, span
from forkwise.fork.candidate import describe_value, to_bool, to_score
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.run import arun_in_branch
from forkwise.testing.command import TestCommand, find_test_command, for_command
from forkwise.testing.parse import read_report
from forkwise.testing.report import TestReport, combine

__all__ = [
    "Evaluate",
    "Evaluation",
    "Evaluator",
    "OwnScore",
    "SmallerDiff",
    "Tests",
    "evaluator",
    "is_scratch",
    "scratch",
]


_NOT = "its evaluation returned False"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an evaluator says: scores, the first of which counts first, and whether the attempt may win at all."""

    scores: tuple[float, ...] = ()
    success: bool = True
    reason: str | None = None
    tests: TestReport | None = None


class Evaluator(ABC):
    """Something that says how good an attempt is. It must not change the attempt's branch."""

    @abstractmethod
    async def evaluate(self, attempt: Attempt) -> Evaluation:
        """Evaluate an attempt that ended well."""


#: What patterns take: an evaluator, a function of the directory that gives a score, or several, the first first.
Evaluate = Evaluator | Callable[[Path], Any] | Sequence[Evaluator | Callable[[Path], Any]]


def evaluator(what: Evaluate) -> Evaluator:
    """An evaluator from what a caller gave."""
    if isinstance(what, Evaluator):
        return what
    if callable(what):
        return _ByFunction(what)
    if isinstance(what, list | tuple) and what:
        return _InOrder([evaluator(one) for one in what])
    raise TypeError(f"an evaluator is a function, Tests(...), or a list of such, not {what!r}")


class OwnScore(Evaluator):
    """What an attempt says of itself; for who wants to weigh other things after that."""

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        return Evaluation(attempt.scores)


class SmallerDiff(Evaluator):
    """The fewer lines an attempt added and removed, the better. What is not text counts as one line."""

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        diff = await run_in_thread(attempt.place.diff)
        return Evaluation((-float(_lines_changed(diff)),))


def _lines_changed(diff: str) -> int:
    """Lines of hunks: the head of a file looks like some. A file that is not shown counts as one."""
    changed, in_hunk = 0, False
    for line in diff.split("\n"):
        if line.startswith(("diff ", " ")):
            in_hunk = line.startswith(" ")
        elif line.startswith(("+", "-") if in_hunk else ("Binary files ", "Files ")):
            changed += 1
    return changed


class _ByFunction(Evaluator):
    def __init__(self, function: Callable[[Path], Any]) -> None:
        self._function = function

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        path = await run_in_thread(lambda: attempt.place.path)
        return _read((await try_call(self._function, path)).get())


class _InOrder(Evaluator):
    """Several, each asked only where those before had nothing against the attempt."""

    def __init__(self, several: Sequence[Evaluator]) -> None:
        self._several = several

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        scores: tuple[float, ...] = ()
        tests = None
        for one in self._several:
            said = await one.evaluate(attempt)
            scores += said.scores
            tests = said.tests or tests
            if not said.success:
                return Evaluation(scores, False, said.reason, tests)
        return Evaluation(scores, tests=tests)


def _read(value: Any) -> Evaluation:
    """A score, a verdict, or both."""
    if isinstance(value, Evaluation):
        return value
    if isinstance(value, tuple | list) and len(value) == 2:
        success, score = to_bool(value[0]), to_score(value[1])
        is_plain = success is not None and score is not None
    else:
        success, score = to_bool(value), to_score(value)
        is_plain = success is not None or score is not None
    if not is_plain:
        return Evaluation(success=False, reason=f"its evaluation returned {describe_value(value)}, which is no score")
    scores = (float(success is True) if score is None else score,)
    return Evaluation(scores, success is not False, _NOT if success is False else None)


_NAME = re.compile(r"scratch-[0-9a-f]{12}")


@asynccontextmanager
async def scratch(parent: Parent) -> AsyncIterator[Branch]:
    """A new branch, dropped when the block ends."""
    making = run_in_thread(parent.branch, f"scratch-{secrets.token_hex(6)}", None, None)
    try:
        yield await asyncio.shield(making)
    finally:
        branch = await finish(making)  # cancelled or not: else it would be nobody's
        await finish(run_in_thread(branch.abort))


def is_scratch(branch: Branch) -> bool:
    """Whether a branch was made for that."""
    return _NAME.fullmatch(branch.name) is not None


_LARGEST_REPORT = 32 << 20
_OUTPUT = 16 << 20  # bytes of what the tests print that are looked at, the last ones


class Tests(Evaluator):
    """Runs a test command in an attempt's sandbox, and scores the attempt by the share of tests that passed.

    ``command`` is a shell line or a list of words; without one it is found where the project makes it plain, and
    ``TestCommand.how_found`` says how. An attempt passes where tests ran and all of them passed: none collected is no
    pass. ``repeat`` runs the tests several times, for suites that are flaky. ``timeout`` is for each run.
    """

    __test__: ClassVar[bool] = False

    def __init__(
        self,
        command: str | Sequence[str] | None = None,
        *,
        timeout: float | None = None,
        repeat: int = 1,
        confinement: str | Confinement = "standard",
    ) -> None:
        if repeat < 1:
            raise ValueError(f"tests are run at least once, not {repeat} times")
        self.command = join(command) if command is not None and not isinstance(command, str) else command
        self.timeout = timeout
        self.repeat = repeat
        self.confinement = Confinement.preset(confinement)

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        with span("test", attempt=attempt.id) as made:
            report = await self.test(attempt.place)
            made.set_attribute("forkwise.tests", report.summary)
        reason = None if report.is_pass else f"tests: {report.doubt or report.summary}"
        return Evaluation((report.ratio or 0.0,), report.is_pass, reason, report)

    async def test(self, branch: Branch) -> TestReport:
        """Run the tests on what a branch holds."""
        return combine([await self._run_once(branch) for _ in range(self.repeat)])

    def find(self, directory: str | os.PathLike[str], junit: str | None = None) -> TestCommand | None:
        """The command that is run for what a directory holds."""
        if self.command is None:
            return find_test_command(directory, junit=junit, environ=os.environ)
        return for_command(self.command, junit=junit, environ=os.environ)

    async def _run_once(self, branch: Branch) -> TestReport:
        async with scratch(branch) as ground:
            place = exchange(ground)
            command = await run_in_thread(lambda: self.find(ground.path, f"{place}/junit.xml"))
            if command is None:
                doubt = "no test command was given, and none is plain from the project"
                return TestReport(source="exit code", exit_code=0, doubt=doubt)
            return await self._run(ground, command, place)

    async def _run(self, ground: Branch, command: TestCommand, place: str) -> TestReport:
        printed = _Last(_OUTPUT)
        try:
            done = await arun_in_branch(
                ground,
                command.argv,
                confinement=replace(self.confinement, writable=(*self.confinement.writable, place)),
                timeout=self.timeout,
                capture=False,
                on_output=lambda _stream, piece: printed.add(piece),
                env={**os.environ, **command.env},
            )
        except ProcessBranchError as error:
            return TestReport(source="exit code", exit_code=1, failed=1, doubt=str(error))
        junit = None if command.junit is None else read_left(command.junit, _LARGEST_REPORT)
        report = read_report(printed.content, junit, done.returncode, command.framework, duration=done.wall)
        if done.ending == "exit":
            return report
        return replace(report, doubt=f"the tests did not come to their end: {done.limit or ''} {done.ending}".strip())


class _Last:
    """The last bytes of what comes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pieces: deque[bytes] = deque()
        self._size = 0

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        while self._size - len(self._pieces[0]) >= self._most:
            self._size -= len(self._pieces.popleft())

    @property
    def content(self) -> bytes:
        return b"".join(self._pieces)
