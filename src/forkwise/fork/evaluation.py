"""Evaluation: score an attempt that succeeded, by functions, the size of its diff, or the project's tests.

What an evaluator runs, it runs on a scratch branch of the attempt's branch, which is dropped afterwards, so that caches
and reports are not committed (except on DaxFS, see ``scratch``). The evaluators that run the project's tests are in
``evaluators``.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkwise.concurrency import finish, run_in_thread, run_sync, try_call
from forkwise.errors import BranchingError, CommitError
from forkwise.files.branch import Branch
from forkwise.files.file_tree import FileTree
from forkwise.fork.candidate import describe_error, describe_value, to_bool, to_score
from forkwise.linux.trees import list_above
from forkwise.servers.data_branch import hold_data, record_data

if TYPE_CHECKING:
    from forkwise.files.branch import Parent
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.fork import Fork
    from forkwise.testing.report import TestReport

__all__ = [
    "DEFAULT_CRITERION",
    "Evaluate",
    "Evaluation",
    "Evaluator",
    "OwnScore",
    "Retest",
    "SmallerDiff",
    "drop_ignored",
    "evaluator",
    "keep_ignored",
    "list_ignored",
    "scratch",
]


_RETURNED_FALSE = "its evaluation returned False"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An evaluator's result: scores, compared in order, and whether the attempt may win at all."""

    scores: tuple[float, ...] = ()
    success: bool = True
    reason: str | None = None
    tests: TestReport | None = None


DEFAULT_CRITERION = "best score"


class Evaluator(ABC):
    """Scores attempts. It must not change an attempt's branch.

    ``criteria`` names its scores, in their order. The ledger records the one that decided between attempts.
    """

    criteria: tuple[str, ...] = (DEFAULT_CRITERION,)

    async def prepare(self, fork: Fork) -> None:
        """Get ready before the first attempt of an outermost fork starts. An exception here ends the fork at once."""
        return

    @abstractmethod
    async def evaluate(self, attempt: Attempt) -> Evaluation:
        """Evaluate an attempt that succeeded."""

    async def compare(self, attempts: Sequence[Attempt]) -> Mapping[Attempt, tuple[float, ...]]:
        """Return the scores that can be known only when all ``attempts`` of a group have ended; by default none.

        They replace those that ``evaluate`` returned.
        """
        return {}

    @property
    def portable(self) -> tuple[Evaluator, ...]:
        """The evaluators in it that can judge an attempt on another machine, where it ran."""
        return ()

    @property
    def has_tests(self) -> bool:
        """Whether ``retest`` tests anything, so that a winner is tested again if its parent changed meanwhile."""
        return False

    @property
    def test_scores(self) -> int:
        """How many of the first scores come from tests, and so may not be overruled by a judge."""
        return len(self.criteria) if self.has_tests else 0

    async def retest(self, branch: Branch) -> Evaluation:
        """Test the files of a branch that was rebased onto its parent's present state; only ``success`` counts."""
        return Evaluation()


#: The ``evaluate`` argument of patterns: an evaluator, a function from the directory to a score, or several in order.
Evaluate = Evaluator | Callable[[Path], Any] | Sequence[Evaluator | Callable[[Path], Any]]


def evaluator(evaluate: Evaluate) -> Evaluator:
    """Build an evaluator from the ``evaluate`` argument of a pattern."""
    if isinstance(evaluate, Evaluator):
        return evaluate
    if callable(evaluate):
        return _FunctionEvaluator(evaluate)
    if isinstance(evaluate, list | tuple) and evaluate:
        return _EvaluatorSequence([evaluator(one) for one in evaluate])
    raise TypeError(f"an evaluator is a function, Tests(...), or a list of them, not {evaluate!r}")


class OwnScore(Evaluator):
    """The attempt's own score, to be followed by other evaluators in a list."""

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        return Evaluation(attempt.scores)


class SmallerDiff(Evaluator):
    """Prefers attempts that add and remove fewer lines. A binary file counts as one line.

    The lines of the attempts that an attempt builds on count as well, so that attempts of several levels can be
    compared.
    """

    criteria = ("smallest diff",)

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        lines = 0
        level: Attempt | None = attempt
        while level is not None and level.branch is not None:
            lines += _lines_changed(await run_in_thread(level.branch.diff))
            level = level.fork.inside if level.fork.is_inner else None
        return Evaluation((-float(lines),))


def _lines_changed(diff: str) -> int:
    """Count the changed lines in hunks, not the ``---`` and ``+++`` of headers. A file without hunks counts as one."""
    changed, in_hunk = 0, False
    for line in diff.split("\n"):
        if line.startswith(("diff ", "@@ ")):
            in_hunk = line.startswith("@@ ")
        elif line.startswith(("+", "-") if in_hunk else ("Binary files ", "Files ")):
            changed += 1
    return changed


class _FunctionEvaluator(Evaluator):
    def __init__(self, function: Callable[[Path], Any]) -> None:
        self._function = function

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        return await self.retest(attempt.own_branch)

    @property
    def has_tests(self) -> bool:
        return True

    async def retest(self, branch: Branch) -> Evaluation:
        path = await run_in_thread(lambda: branch.path)
        return _to_evaluation((await try_call(self._function, path)).get())


class _EvaluatorSequence(Evaluator):
    """Evaluators in order; the first that rejects the attempt is the last that runs."""

    def __init__(self, evaluators: Sequence[Evaluator]) -> None:
        self._evaluators = evaluators
        self._test_scores = sum(one.test_scores for one in takewhile(lambda one: one.has_tests, evaluators))
        self.criteria = tuple(criterion for one in evaluators for criterion in one.criteria)

    @property
    def test_scores(self) -> int:
        return self._test_scores

    @property
    def portable(self) -> tuple[Evaluator, ...]:
        return self._evaluators[0].portable if self._evaluators else ()

    async def prepare(self, fork: Fork) -> None:
        for one in self._evaluators:
            await one.prepare(fork)

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        scores: tuple[float, ...] = ()
        tests = None
        for one in self._evaluators:
            evaluation = await one.evaluate(attempt)
            scores += evaluation.scores
            tests = evaluation.tests or tests
            if not evaluation.success:
                return Evaluation(scores, False, evaluation.reason, tests)
            if len(evaluation.scores) != len(one.criteria):
                self.criteria = ()  # it cannot be known which evaluator a score came from
        return Evaluation(scores, tests=tests)

    async def compare(self, attempts: Sequence[Attempt]) -> Mapping[Attempt, tuple[float, ...]]:
        scores: dict[Attempt, tuple[float, ...]] = {}
        counts = [len(one.criteria) for one in self._evaluators]
        for position, one in enumerate(self._evaluators):
            start, stop = sum(counts[:position]), sum(counts[: position + 1])
            for attempt, own in (await one.compare(attempts)).items():
                known = scores.get(attempt, attempt.scores)
                if len(known) >= sum(counts):  # otherwise it is not known which evaluator a score came from
                    scores[attempt] = (*known[:start], *own, *known[stop:])
        return scores

    @property
    def has_tests(self) -> bool:
        return any(one.has_tests for one in self._evaluators)

    async def retest(self, branch: Branch) -> Evaluation:
        tests = None
        for one in self._evaluators:
            evaluation = await one.retest(branch)
            tests = evaluation.tests or tests
            if not evaluation.success:
                return replace(evaluation, tests=tests)
        return Evaluation(tests=tests)


def _to_evaluation(value: Any) -> Evaluation:
    """Convert the return value of an evaluator function: a score, True or False, or a pair of both."""
    if isinstance(value, Evaluation):
        return value
    if isinstance(value, tuple | list) and len(value) == 2:
        success, score = to_bool(value[0]), to_score(value[1])
        is_valid = success is not None and score is not None
    else:
        success, score = to_bool(value), to_score(value)
        is_valid = success is not None or score is not None
    if not is_valid:
        return Evaluation(
            success=False, reason=f"its evaluation returned {describe_value(value)}, which is not a score"
        )
    scores = (float(success is True) if score is None else score,)
    return Evaluation(scores, success is not False, _RETURNED_FALSE if success is False else None)


class Retest:
    """The tests that a winner has to pass again; ``loop`` runs them, by default a new event loop."""

    def __init__(self, evaluator: Evaluator, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._evaluator = evaluator
        self._loop = loop
        self._task: asyncio.Task[Evaluation] | None = None
        self._is_cancelled = False

    def run(self, branch: Branch, replaced: Sequence[str]) -> Evaluation:
        """Test a branch in which the paths ``replaced`` are those of its parent, and block until that is done."""
        try:
            return run_sync(self._test(branch, replaced), self._loop, alone=self._loop is None)
        except asyncio.CancelledError:
            raise CommitError(
                f"{branch.branch_path} was not committed: its retest was cancelled", branch=branch.name
            ) from None

    def cancel(self) -> None:
        """Cancel the tests, also those that start later. Called on the event loop that runs them."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _test(self, branch: Branch, replaced: Sequence[str]) -> Evaluation:
        self._task = asyncio.create_task(self._test_with(branch, replaced))
        if self._is_cancelled:
            self._task.cancel()
        return await self._task

    async def _test_with(self, branch: Branch, replaced: Sequence[str]) -> Evaluation:
        try:
            if not replaced:
                return await self._evaluator.retest(branch)
            async with scratch(branch) as test_branch:
                await run_in_thread(_copy_from_parent, branch, test_branch, replaced)
                return await self._evaluator.retest(test_branch)
        except (BranchingError, OSError) as error:
            raise CommitError(
                f"{branch.branch_path} was not committed, nothing was changed: it could not be tested again: {error}",
                branch=branch.name,
            ) from error
        except Exception as error:  # noqa: BLE001 - of a function that evaluates, such as a failed assertion
            return Evaluation(success=False, reason=describe_error(error))


def _copy_from_parent(branch: Branch, test_branch: Branch, paths: Sequence[str]) -> None:
    """Replace ``paths`` with the versions of the branch's parent."""
    parent, apparent_root = branch.parent, os.fspath(branch.workspace.path)
    directory = parent.path if isinstance(parent, Branch) else parent.workspace.path
    theirs, ours = (FileTree(os.fspath(path), apparent_root) for path in (directory, test_branch.path))
    for path in paths:
        ours.copy_from(theirs, path)


_keeps_ignored: ContextVar[bool] = ContextVar("forkwise_keeps_ignored", default=False)


@contextmanager
def keep_ignored() -> Iterator[None]:
    """Let ``scratch`` keep the ignored files of attempts while the block runs."""
    token = _keeps_ignored.set(True)
    try:
        yield
    finally:
        _keeps_ignored.reset(token)


def list_ignored(branch: Branch) -> list[str]:
    """List the changed paths that the commit of an attempt to the workspace will leave out.

    The changes of the branches around it count too. For a directory that is left out, only its own path is listed.
    """
    from forkwise.files.versions import list_ignored_tops  # noqa: PLC0415 - only the end of an attempt needs it

    chain: list[Branch] = []
    above: Parent = branch
    while isinstance(above, Branch):
        chain.append(above)
        above = above.parent
    outermost = chain[-1]
    if outermost.view_kind.native or not outermost.ignore:
        return []
    found: set[str] = set()
    for one in chain:
        with one._lock():
            found.update(list_ignored_tops(one, one._scan(), outermost.ignore))
    return sorted(path for path in found if not any(above in found for above in list_above(path)))


def drop_ignored(scratch_branch: Branch) -> list[str]:
    """Reset paths that the attempt's commit will leave out to the workspace's version in a scratch branch; return them.

    So the tests see exactly what will be committed. The branch must not have been shown yet: in a layered view this
    changes its layer, where hiding a directory that the workspace lacks takes one operation, whatever it holds.
    """
    if not isinstance(scratch_branch.parent, Branch):
        return []
    paths = list_ignored(scratch_branch.parent)
    if paths and not scratch_branch.put_back(paths):
        root = os.fspath(scratch_branch.workspace.path)
        base, ours = FileTree(root, root), FileTree(os.fspath(scratch_branch.path), root)
        for path in paths:
            try:
                ours.copy_from(base, path)
            except OSError as error:
                if error.errno != errno.ELOOP:  # a symbolic link of the workspace is above it: it has no such path
                    raise
    return paths


@asynccontextmanager
async def scratch(parent: Parent) -> AsyncIterator[Branch]:
    """Create a branch for the block, and drop it afterwards.

    It has the workspace's version of ignored files, see ``drop_ignored``, unless ``keep_ignored`` says otherwise. On
    DaxFS, where that would end the branch around it as well, the block gets ``parent`` itself.
    """
    if isinstance(parent, Branch) and parent.view_kind.ends_chain:
        yield parent
        return
    creation = run_in_thread(_make_scratch, parent)
    try:
        branch = await asyncio.shield(creation)
        if not _keeps_ignored.get():
            await run_in_thread(drop_ignored, branch)
        yield branch
    finally:
        branch = await finish(creation)  # even if cancelled: otherwise the branch would leak
        await finish(run_in_thread(branch.abort))


def _make_scratch(parent: Parent) -> Branch:
    name = f"scratch-{secrets.token_hex(6)}"
    if isinstance(parent, Branch):
        return parent.branch(name, None, None)
    with hold_data(parent) as data:
        branch = parent.branch(name, None, None)
    if data.still:
        record_data(branch, data)
    return branch
