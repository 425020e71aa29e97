"""Tests: the project's own tests as an evaluator, sealed against the attempts that they judge.

The tests run in a sandbox on a scratch branch of the attempt's branch. There, every file that grades is the base's, the
runner reports through a channel that the workspace cannot imitate, and the results are compared with those of the base.
"""

from __future__ import annotations

import os
import signal
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from shlex import join, quote
from typing import TYPE_CHECKING, ClassVar, Literal

from forkwise import progress
from forkwise.concurrency import run_in_thread
from forkwise.errors import BaselineError, ForkwiseWarning, NamespaceError, NodeError, ProcessBranchError
from forkwise.files.branch import Branch
from forkwise.fork.attempt import Attempt, make_exchange_directory, read_regular_file
from forkwise.fork.evaluation import Evaluation, Evaluator, scratch
from forkwise.fork.evaluators.graders import (
    EvidencePipe,
    Graders,
    find_altered,
    lay_files,
    lay_held_out,
    open_tree,
    read_laid,
)
from forkwise.fork.fault import find_fault
from forkwise.ledger.connections import open_connections
from forkwise.ledger.logs import ServerLogs
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.jail_plan import explain_private_temporary
from forkwise.sandbox.network.gateway import NetworkLog, explain_refusal, resolve_network
from forkwise.sandbox.run import arun_in_branch
from forkwise.servers.server_group import ServerOutput, serve
from forkwise.telemetry import current_span, record_evaluation, span
from forkwise.testing.baseline import Baseline, TestRun, combine_runs
from forkwise.testing.canary import can_have_canaries, place_canaries, set_canaries_apart
from forkwise.testing.command import TestCommand, find_test_command, for_command, read_recipe, resolve_script
from forkwise.testing.evidence import Injection, read_evidence
from forkwise.testing.parse import read_report
from forkwise.testing.report import Comparison, Outcome, TestReport
from forkwise.testing.seal import Seal
from forkwise.text.phrases import join_first

if TYPE_CHECKING:
    from forkwise.files.branch import Parent
    from forkwise.fork.fork import Fork
    from forkwise.sandbox.network.space import NetworkSpace
    from forkwise.sandbox.process import Finished
    from forkwise.servers.server_file import Server

__all__ = ["Requirement", "Tests"]

#: What an attempt has to reach: ``all`` tests pass, or ``progress``: some are fixed and none is broken.
Requirement = Literal["all", "progress"]

_MAX_REPORT = 32 << 20
_MAX_OUTPUT = 16 << 20  # bytes of the end of the tests' output
_MAX_ADDED = 50
_SHOWN = 5
_SHOWN_OUTPUT = 1500
_SHELL_KILLED = 128 + signal.SIGKILL  # the exit code of a shell whose command was killed
_LATE = "the tests did not finish within"


class Tests(Evaluator):
    """Runs a test command in a sandbox, and compares the results of an attempt with those of the base.

    ``command`` is a shell line or a list of words; by default it is detected from the project's files, and
    ``TestCommand.how_found`` says how. ``repeat`` runs a flaky suite several times. ``timeout`` applies to each run.

    The tests are ``sealed``: test files, their configuration and whatever else decides the outcome are taken from the
    base, not from the attempt. ``seal`` are patterns of further paths (``golden/*``), or with a leading ``!`` of paths
    that attempts may change. The files in the directory ``held_out`` are laid over all others; attempts must not see
    them. Tests that an attempt added, in new files or in those of the base, run as well, but can only count against it.

    The ``baseline`` runs the tests on the base before any attempt. BaselineError is raised if they cannot run there.
    The command runs in ``subdirectory`` of the branch or, if it is detected, in the nearest directory above that whose
    files show it.

    ``servers`` are started on the scratch branch before each run, and stopped after it. If one does not become ready,
    that is a fault, which is not counted against the attempt; on the base, it ends the fork before any attempt. They
    share a network of their own with the tests; with ``servers_use_host`` that is the host's.

    An attempt succeeds if all tests pass; with ``require="progress"`` also if it fixes some and breaks none. A run
    without tests is not a pass.
    """

    __test__: ClassVar[bool] = False

    def __init__(
        self,
        command: str | Sequence[str] | None = None,
        *,
        timeout: float | None = None,
        repeat: int = 1,
        confinement: str | Confinement = "standard",
        sealed: bool = True,
        seal: Sequence[str] = (),
        held_out: str | os.PathLike[str] | None = None,
        baseline: bool = True,
        require: Requirement = "all",
        subdirectory: str = "",
        servers: Sequence[Server] = (),
        servers_use_host: bool = False,
    ) -> None:
        if repeat < 1:
            raise ValueError(f"repeat must be at least 1, not {repeat}")
        if require not in ("all", "progress"):
            raise ValueError(f"require must be 'all' or 'progress', not {require!r}")
        if held_out is not None and not os.path.isdir(held_out):
            raise ValueError(f"there is no directory {os.fspath(held_out)} to take tests from")
        self.command = join(command) if command is not None and not isinstance(command, str) else command
        self.timeout = timeout
        self.repeat = repeat
        self.confinement = Confinement.preset(confinement)
        if confinement == "standard":
            self.confinement = replace(self.confinement, network="auto")
        self.sealed = sealed
        self.seal = tuple(seal)
        self.held_out = None if held_out is None else os.path.realpath(held_out)
        self.baseline = baseline
        self.require: Requirement = require
        self.subdirectory = subdirectory.strip("/")
        self.servers = tuple(servers)
        self.servers_use_host = servers_use_host
        self.criteria = ("fewest broken tests", "most fixed tests", "changes to tests") if baseline else ("tests",)

    async def prepare(self, fork: Fork) -> None:
        """Run the tests on the base. Raises BaselineError if attempts could not be judged by them."""
        if self.baseline:
            found = fork.baselines[self] = await self.measure(fork.parent)
            facts = {"summary": found.report.summary, "failing": list(found.failing[:_MAX_ADDED])}
            fork.ledger.record_baseline(fork.id, {**facts, "set_apart": sorted(found.unsteady)[:_MAX_ADDED]})
            if not found.report.is_pass:
                fork.has_work = True

    async def measure(self, base: Parent) -> Baseline:
        """Run the tests on the files of a workspace or branch. Raises BaselineError if they cannot run."""
        with span("baseline"), progress.report("Testing the unchanged workspace"):
            baseline = Baseline(tuple([await self._run(base, _Task(base)) for _ in range(self.repeat)]))
            baseline = await self._try_canaries(base, baseline)
        doubts = [run.report.doubt or "" for run in baseline.runs]
        problem = next((doubt for doubt in doubts if doubt.startswith(_LATE)), baseline.problem)
        if not baseline.report.is_pass:
            cause = await run_in_thread(explain_refusal, self.confinement, baseline.report.output)
            if cause and problem is None:
                warnings.warn(cause, ForkwiseWarning, stacklevel=2)
            elif cause:
                problem = f"{problem}; {cause}"
        if problem is not None:
            output = baseline.report.output
            raise BaselineError(
                f"attempts cannot be judged by these tests: on the unchanged workspace, {problem}. Correct "
                "the test command, or skip this check (--no-baseline, baseline=False)"
                + (f". The output ends with:\n{output[-_SHOWN_OUTPUT:]}" if output else "")
            )
        return baseline

    async def _try_canaries(self, base: Parent, baseline: Baseline) -> Baseline:
        """Return the baseline with evidence, if the runner has none of its own and canaries work on the base."""
        first = baseline.runs[0]
        if (
            first.evidence is not None
            or not first.report.outcomes
            or (isinstance(base, Branch) and base.view_kind.ends_chain)
        ):
            return baseline
        trial = await self._run(base, _Task(base, known=first.report.outcomes))
        if trial.evidence is None or not trial.evidence.has_canary or trial.evidence.contradictions:
            return baseline
        return Baseline(tuple(replace(run, evidence=trial.evidence) for run in baseline.runs))

    @property
    def portable(self) -> tuple[Evaluator, ...]:
        return () if self.held_out is not None else (self,)  # held-out tests stay on this machine

    async def judge_elsewhere(self, branch: Branch, baseline: Baseline | None) -> TestReport:
        """Run the tests on the machine where an attempt ran, in its branch there.

        Raises NodeError if the tests would share that machine's network.
        """
        found = await run_in_thread(resolve_network, self.confinement)
        if found.network == "host":
            raise NodeError("tests did not run on this node, where they would share its network with Ray")
        tests = copy(self)
        tests.confinement = found
        return await tests._judge(branch, branch.parent, baseline)

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        report_there = attempt.reports.pop(self, None)
        if report_there is not None:
            return self._conclude(report_there)
        fork = attempt.fork
        while fork.is_inner and fork.inside is not None:
            fork = fork.inside.fork
        with span("test", attempt=attempt.id) as test_span, progress.report(f"Testing {attempt.id}"):
            logs = ServerLogs(attempt.fork.ledger.directory, attempt.id, ".tests")
            with logs:
                report = await self._judge(
                    attempt.own_branch,
                    fork.parent,
                    fork.baselines.get(self),
                    logs.write,
                    lambda: open_connections(attempt.fork.ledger.directory, attempt.id, of_tests=True),
                )
            test_span.set_attribute("forkwise.tests", report.summary)
        return self._conclude(report)

    def _conclude(self, report: TestReport) -> Evaluation:
        """Evaluate a report, and record that in the span of the attempt."""
        found = self._evaluation(report)
        label = "pass" if found.success else "fail"
        record_evaluation(current_span(), "tests", score=report.ratio, label=label, explanation=report.summary)
        return found

    @property
    def has_tests(self) -> bool:
        return True

    async def retest(self, branch: Branch) -> Evaluation:
        return self._evaluation(await self.test(branch))

    async def test(self, branch: Branch, baseline: Baseline | None = None) -> TestReport:
        """Run the tests on the files of a branch, and compare the results with those of its parent.

        Without a ``baseline``, the parent is tested as well.
        """
        if self.baseline and baseline is None:
            with suppress(BaselineError):  # it could be tested when the fork was made, and can no longer be
                baseline = await self.measure(branch.parent)
        return await self._judge(branch, branch.parent, baseline)

    def find_added(self, branch: Branch, base: Parent) -> tuple[str, ...]:
        """Return the files that grade by themselves and that a branch added to the base, sorted."""
        command = self.find(_directory(base)) or self.find(branch.path)
        if command is None:
            return ()
        graders = Graders.find(branch, base, Seal.of_command(command, self.seal))
        return tuple(sorted(path for path in graders.added if graders.roles[path] == "whole"))

    async def run_foreign(self, files: Parent, base: Parent, tests: Mapping[str, bytes]) -> TestReport:
        """Run test files of another attempt on the files of a branch or of the base, alone if the runner can do that.

        Graders that the branch itself changed are restored first.
        """
        graders = await run_in_thread(self._find_graders, files, base) if isinstance(files, Branch) else None
        if isinstance(files, Branch) and files.view_kind.ends_chain:
            return TestReport(source="exit code", exit_code=0, doubt=f"{files.view} has no scratch branches")
        run = await self._run(files, _Task(base, graders, own=tuple(tests), foreign=tests))
        return combine_runs([run], None, os.fspath(base.workspace.path))

    def find(
        self, directory: str | os.PathLike[str], junit: str | None = None, injection: Injection | None = None
    ) -> TestCommand | None:
        """Return the test command for the project in ``directory``; None if none is given or detected."""
        below = os.path.join(directory, self.find_start(directory))
        if self.command is None:
            return find_test_command(below, junit=junit, environ=os.environ, injection=injection, top=directory)
        command = for_command(self.command, junit=junit, environ=os.environ, injection=injection)
        return resolve_script(command, below, injection)

    def find_start(self, directory: str | os.PathLike[str]) -> str:
        """Return where below ``directory`` the command runs: in the subdirectory or, if it is detected, above that."""
        start = self.subdirectory
        while self.command is None and start and find_test_command(os.path.join(directory, start)) is None:
            start = os.path.dirname(start)
        return start

    def _evaluation(self, report: TestReport) -> Evaluation:
        found = report.comparison
        if found is None:
            reason = None if report.is_pass else f"tests: {report.doubt or report.summary}"
            return Evaluation((report.ratio or 0.0,), report.is_pass, reason, report)
        scores = (1.0 - found.broken, float(found.fixed), 0.0 - found.added_failed - found.changed_graders)
        reason = self._find_failure(report, found)
        return Evaluation(scores, reason is None, reason and f"tests: {reason}", report)

    def _find_failure(self, report: TestReport, found: Comparison) -> str | None:
        """Return why an attempt does not pass; None if it does."""
        if report.doubt is not None:
            return report.doubt
        if report.source == "exit code" and report.failing:
            return report.summary
        if found.broken:
            return f"{found.summary}: {', '.join(found.broken_ids[:_SHOWN])}"
        if not found.still_failing:
            return None if report.passed or found.fixed else f"{report.summary}"
        if self.require == "progress" and found.fixed:
            return None
        return f"{report.summary}: {found.summary}"

    async def _judge(
        self,
        branch: Branch,
        base: Parent,
        baseline: Baseline | None,
        on_server_output: ServerOutput | None = None,
        network_log: NetworkLog | None = None,
    ) -> TestReport:
        graders = await run_in_thread(self._find_graders, branch, base)
        suspects = () if baseline is None else sorted({name.partition("::")[0] for name in baseline.failing})
        known = {} if baseline is None or baseline.runs[0].evidence is None else baseline.outcomes
        task = _Task(base, graders, suspects, known=known, on_server_output=on_server_output, network_log=network_log)
        runs = [await self._run(branch, task) for _ in range(self.repeat)]
        report = combine_runs(runs, baseline, os.fspath(branch.workspace.path))
        if graders is None or not graders.roles:
            return report
        report = replace(report, touched=graders.touched[:_MAX_ADDED])
        if report.comparison is not None and set(graders.touched) - set(graders.added):
            report = replace(report, comparison=replace(report.comparison, changed_graders=1))
        own = (await run_in_thread(graders.find_own_tests, branch, base))[:_MAX_ADDED]
        if own and report.comparison is not None and report.doubt is None and not branch.view_kind.ends_chain:
            run = await self._run(branch, replace(task, own=tuple(own), known={}))
            report = replace(report, comparison=_count_own(report.comparison, run, report.outcomes))
        return report

    def _find_graders(self, branch: Branch, base: Parent) -> Graders | None:
        command = self.find(_directory(base)) or self.find(branch.path)
        if not self.sealed or command is None:
            return None
        return Graders.find(branch, base, self._find_seal(command, base))

    def _find_seal(self, command: TestCommand, base: Parent) -> Seal:
        directory = _directory(base)
        return Seal.of_command(
            command, self.seal, read_recipe(command, os.path.join(directory, self.find_start(directory)))
        )

    async def _run(self, files: Parent, task: _Task) -> TestRun:
        """Run the command once, on a scratch branch of ``files``."""
        async with scratch(files) as branch:
            if branch is files and task.graders is not None and task.graders.roles:
                changed = join_first(list(task.graders.roles), _SHOWN)
                doubt = f"it changed {changed}, which cannot be put back on {branch.view}"
                return TestRun(TestReport(source="exit code", exit_code=0, doubt=doubt))
            await run_in_thread(task.lay, branch, self.held_out)
            exchange_directory = make_exchange_directory(branch)
            injection = Injection(f"{branch.home}/injected", f"{exchange_directory}/evidence", task.suspects)
            junit = f"{exchange_directory}/junit.xml"
            command = await run_in_thread(self._find_for, task.base, branch, junit, injection)
            if command is None:
                doubt = "no test command was given, and none was detected in the project"
                return TestRun(TestReport(source="exit code", exit_code=0, doubt=doubt))
            seal = await run_in_thread(self._find_seal, command, task.base)
            start = await run_in_thread(self.find_start, _directory(task.base))
            await run_in_thread(task.place_canaries, branch, command, injection.token, start)
            laid = await run_in_thread(read_laid, branch, seal)
            command = _narrow(command, task.own, start)
            run = await self._run_with_servers(branch, task, command, exchange_directory, injection, start)
            if self.sealed and branch is not files:
                altered = await run_in_thread(find_altered, branch, files, task.base, seal, laid)
                run = replace(run, altered=altered)
            if run.evidence is not None or not can_have_canaries(command.framework):
                return run
            root = os.path.join(branch.workspace.path, start).rstrip("/")
            report, evidence = set_canaries_apart(run.report, injection.token, root)
            return replace(run, report=report, evidence=evidence if task.known else None)

    def _find_for(self, base: Parent, branch: Branch, junit: str, injection: Injection) -> TestCommand | None:
        """Detect the command on the base, where no attempt can have changed it, or else on the branch."""
        return self.find(_directory(base), junit, injection) or self.find(branch.path, junit, injection)

    def _describe_lateness(self, timeout_s: float) -> str:
        """Say that the tests did not finish in time, and how to allow more time."""
        remedy = "allow them more time with --test-timeout 30m (0 for no limit), or timeout= of Tests"
        return f"{_LATE} {timeout_s:g} s; {remedy}"

    async def _run_with_servers(
        self,
        branch: Branch,
        task: _Task,
        command: TestCommand,
        exchange_directory: str,
        injection: Injection,
        start: str,
    ) -> TestRun:
        async with serve(
            self.servers,
            branch,
            confinement=self.confinement,
            uses_host_network=self.servers_use_host,
            on_output=task.on_server_output,
            network_log=task.network_log,
        ) as group:
            return await self._run_command(
                branch, command, exchange_directory, injection, start, group.space, task.network_log
            )

    async def _run_command(
        self,
        branch: Branch,
        command: TestCommand,
        exchange_directory: str,
        injection: Injection,
        start: str = "",
        space: NetworkSpace | None = None,
        network_log: NetworkLog | None = None,
    ) -> TestRun:
        printed = _TailBuffer(_MAX_OUTPUT)
        confinement = replace(
            self.confinement,
            writable=(*self.confinement.writable, exchange_directory),
            readable=(*self.confinement.readable, injection.directory),
            given={**self.confinement.given, **command.env},
        )
        with EvidencePipe(injection) as pipe:
            try:
                done = await arun_in_branch(
                    branch,
                    command.argv,
                    confinement=confinement,
                    timeout=self.timeout,
                    cwd=start or None,
                    capture=False,
                    on_output=lambda _stream, piece: printed.add(piece),
                    env=os.environ,
                    space=space,
                    network_log=network_log,
                )
            except ProcessBranchError as error:
                if find_fault(error) is not None:
                    raise
                return TestRun(TestReport(source="exit code", exit_code=1, failed=1, doubt=str(error)))
        if done.ending == "killed" and done.limit is None:
            raise NamespaceError("the sandbox of the tests was killed from outside")
        junit = None if command.junit is None else read_regular_file(command.junit, _MAX_REPORT)
        evidence = None if pipe.content is None else read_evidence(pipe.content, injection.token)
        report = read_report(
            printed.content, junit, done.returncode, command.framework, duration=done.wall, evidence=evidence
        )
        if done.ending == "timeout" and self.timeout is not None:
            report = replace(report, doubt=self._describe_lateness(self.timeout))
        elif doubt := _explain_end(done, command, report.output, self.confinement.limits.memory):
            report = replace(report, doubt=doubt)
        return TestRun(report, evidence, has_file=junit is not None)


def _explain_end(done: Finished, command: TestCommand, printed: str, memory: int | None) -> str:
    """Say what ended the tests, if their own report cannot; an empty text if they ended by themselves."""
    if done.ending == "out of memory":
        limit = "" if memory is None else f", more than their limit of {memory >> 20} MiB"
        return f"the tests were killed because they ran out of memory{limit}"
    if done.returncode in (-signal.SIGKILL, _SHELL_KILLED) and done.limit is None:
        killed = "one of their processes was killed by SIGKILL, usually because the machine ran out of memory"
        return f"the tests exited with {_SHELL_KILLED}: {killed}"
    if done.ending != "exit":
        return f"the tests did not finish: {done.limit or ''} {done.ending}".strip()
    return explain_private_temporary(command.text, printed) if done.returncode else ""


@dataclass(frozen=True, slots=True)
class _Task:
    """The inputs of a run, besides the files that are tested.

    ``own`` are added tests to run alone, ``foreign`` are those of another attempt, which are written first.
    """

    base: Parent
    graders: Graders | None = None
    suspects: Sequence[str] = ()
    own: tuple[str, ...] = ()
    foreign: Mapping[str, bytes] = field(default_factory=dict)
    known: Mapping[str, Outcome] = field(default_factory=dict)
    on_server_output: ServerOutput | None = None
    network_log: NetworkLog | None = None

    def place_canaries(self, branch: Branch, command: TestCommand, token: str, start: str) -> None:
        """Add tests of known outcome to the files of a scratch branch, beside the tests that failed before."""
        if not self.known:
            return
        files = _ScratchFiles(branch, start)
        root = os.path.join(branch.workspace.path, start).rstrip("/")
        for path, text in place_canaries(command.framework, token, self.known, root, files).items():
            files.write(path, text)

    def lay(self, branch: Branch, held_out: str | None) -> None:
        """Lay the files that grade over those of a scratch branch."""
        if self.graders is not None:
            self.graders.lay(branch, self.base, own=() if self.foreign else self.own)
        if self.foreign:
            lay_files(branch, self.foreign)
        if held_out is not None and not self.own:
            lay_held_out(branch, held_out)


class _ScratchFiles:
    """The files of a scratch branch as text, by their paths from the directory in which the tests start."""

    def __init__(self, branch: Branch, start: str) -> None:
        self._tree = open_tree(branch)
        self._start = start

    def read(self, path: str) -> str | None:
        content = self._tree.content(os.path.join(self._start, path))
        return None if content is None else content.decode("utf-8", "replace")

    def names(self, directory: str) -> list[str]:
        with suppress(OSError):
            return [path.rpartition("/")[2] for path, _ in self._tree.list_entries(self._find(directory))]
        return []

    def write(self, path: str, text: str) -> None:
        self._tree.write(os.path.join(self._start, path), text.encode())

    def _find(self, directory: str) -> str:
        return os.path.normpath(os.path.join(self._start, directory)) if self._start else directory


def _count_own(found: Comparison, run: TestRun, sealed: Mapping[str, Outcome]) -> Comparison:
    """Count the tests that an attempt added; if the runner names only failures, all failures are the attempt's own."""
    outcomes = run.report.outcomes or {failure.name: failure.kind for failure in run.report.failures}
    added = {name: outcome for name, outcome in outcomes.items() if name not in sealed}
    failed = tuple(name for name, outcome in added.items() if outcome in ("failed", "error"))
    passed = sum(outcome == "passed" for outcome in added.values())
    return replace(found, added_passed=passed, added_failed=len(failed), added_failed_ids=failed[:_MAX_ADDED])


def _narrow(command: TestCommand, paths: Sequence[str], start: str) -> TestCommand:
    """Return a command that runs only the tests in ``paths``, if there are any and that is known to be possible.

    ``start`` is the directory in which it runs.
    """
    if command.framework != "pytest" or any(sign in command.text for sign in ";|&<>"):
        return command
    tests = [path for path in paths if path.endswith(".py") and not path.endswith("conftest.py")]
    tests = [os.path.relpath(path, start or ".") for path in tests]
    return replace(command, text=f"{command.text} {' '.join(map(quote, tests))}") if tests else command


def _directory(base: Parent) -> str:
    return os.fspath(base.path if isinstance(base, Branch) else base.workspace.path)


class _TailBuffer:
    """The last ``max_bytes`` of a stream, or a little more."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pieces: deque[bytes] = deque()
        self._size = 0

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        while self._size - len(self._pieces[0]) >= self._max_bytes:
            self._size -= len(self._pieces.popleft())

    @property
    def content(self) -> bytes:
        return b"".join(self._pieces)
