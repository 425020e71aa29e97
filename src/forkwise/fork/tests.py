"""Tests: an evaluator that runs a project's own tests on what an attempt made of it.

They run in a sandbox on a branch of the attempt's branch, which is dropped afterwards: caches and reports that a test
run leaves are no part of what is committed.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from shlex import join
from typing import ClassVar

from forkwise.errors import ProcessBranchError
from forkwise.files.branch import Branch
from forkwise.fork.attempt import Attempt
from forkwise.fork.evaluation import Evaluation, Evaluator
from forkwise.fork.exchange import exchange, read_left
from forkwise.fork.scratch import scratch
from forkwise.fork.testing.command import TestCommand, for_command
from forkwise.fork.testing.finding import find_test_command
from forkwise.fork.testing.reading import read_report
from forkwise.fork.testing.repetition import combine
from forkwise.fork.testing.report import TestReport
from forkwise.fork.tracing import span
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.running import arun
from forkwise.sandbox.threads import in_thread

__all__ = ["Tests"]

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
            command = await in_thread(lambda: self.find(ground.path, f"{place}/junit.xml"))
            if command is None:
                doubt = "no test command was given, and none is plain from the project"
                return TestReport(source="exit code", exit_code=0, doubt=doubt)
            return await self._run(ground, command, place)

    async def _run(self, ground: Branch, command: TestCommand, place: str) -> TestReport:
        printed = _Last(_OUTPUT)
        try:
            done = await arun(
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
