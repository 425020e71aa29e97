"""Retest: a winner is committed only if its tests passed on exactly the files that the commit results in.

If the parent was changed since the fork, by another commit or by edits that a commit notices, the winner is rebased,
tested again, and committed only if the parent did not change meanwhile; otherwise that is repeated a few times.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from forkwise.concurrency import run_in_thread, run_sync
from forkwise.errors import BranchingError, BranchStaleError, CommitError, ConflictError, RetestError
from forkwise.files.branch import Branch
from forkwise.files.file_tree import FileTree
from forkwise.files.rebase import Standing, compare_with_parent
from forkwise.files.store.changes import Conflict
from forkwise.fork.candidate import describe_error
from forkwise.fork.evaluation import Evaluation, Evaluator, scratch
from forkwise.linux.file_write import replace_file

if TYPE_CHECKING:
    from forkwise.files.rebase import Rebase
    from forkwise.files.store.changes import Commit, OnConflict

__all__ = [
    "MAX_ROUNDS",
    "Retest",
    "build_busy_error",
    "commit_retested",
    "prepare_commit",
    "rebase_over_reverted",
    "require_accepted",
]

MAX_ROUNDS = 5
"""How often a winner is rebased and tested again before the commit fails."""

_SHOWN = 3
_FILE = "tested"  # in the branch's home: the rebase after which the tests passed


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


def commit_retested(
    branch: Branch,
    on_conflict: OnConflict,
    retest: Retest,
    *,
    trust: bool = False,
    merges: bool = True,
    allow_executable_config: bool | None = None,
) -> Commit:
    """Commit a branch after ``prepare_commit``; prepare it again if the parent changes in between.

    Raises RetestError if the tests fail, ConflictError if ``on_conflict`` does not decide, and CommitError if the
    parent changes every time. Nothing is committed then.
    """
    for _ in range(MAX_ROUNDS):
        prepare_commit(branch, on_conflict, retest, merges=merges)
        try:
            return branch.commit(
                on_conflict=on_conflict, trust=trust, rebased=True, allow_executable_config=allow_executable_config
            )
        except BranchStaleError:
            continue
        except ConflictError:
            if on_conflict == "refuse" or not compare_with_parent(branch).has_moved:
                raise
    raise build_busy_error(branch)


def prepare_commit(branch: Branch, on_conflict: OnConflict, retest: Retest, *, merges: bool = True) -> None:
    """Rebase a branch and test it again, if its parent was changed or it was rebased since its tests passed.

    ``on_conflict`` says how the commit will resolve conflicts, so that the result of that is tested. With ``merges``,
    text that commits changed as well is merged, which only ``on_conflict`` other than ``refuse`` accepts. Raises as
    ``commit_retested`` does; the branch then holds what was tested.
    """
    together: list[str] = []
    for _ in range(2 * MAX_ROUNDS + 1):  # a rebase and a test each time, and a final check
        standing = compare_with_parent(branch, scan=on_conflict != "refuse")
        if standing.has_moved:
            _rebase(branch, standing, on_conflict, merges=merges)
            together += _describe(standing)
            continue
        stamp = f"{standing.rebased} {on_conflict if standing.unresolved else ''}"
        if (standing.rebased == 0 and not standing.unresolved) or _read_stamp(branch) == stamp:
            return
        replaced = [c.path for c in standing.unresolved if c.kind != "metadata"] if on_conflict == "theirs" else []
        _require_pass(branch, retest.run(branch, replaced), together)
        _write_stamp(branch, stamp)
    raise build_busy_error(branch)


def rebase_over_reverted(branch: Branch) -> None:
    """Rebase a branch over commits that cancel each other out; its tests count, unless others edited its paths."""
    done = branch.rebase(merge=False)
    standing = compare_with_parent(branch)
    if not (done.conflicts or standing.has_moved or standing.unresolved):
        _write_stamp(branch, f"{standing.rebased} ")


def require_accepted(branch: Branch, done: Rebase, on_conflict: OnConflict) -> None:
    """Raise ConflictError if a rebase merged text and ``on_conflict`` does not accept that unseen."""
    if done.merged and on_conflict == "refuse":
        raise ConflictError(
            f"{branch.branch_path} was not committed: other commits changed {', '.join(done.merged[:5])} in the "
            "meantime. The branch now holds both changes: review and commit it, or use on_conflict='merge'",
            branch=branch.name,
            conflicts=[Conflict(path, "changed", "committed to by others") for path in done.merged],
        )


def _rebase(branch: Branch, standing: Standing, on_conflict: OnConflict, *, merges: bool) -> None:
    done = branch.rebase(merge=merges if standing.commits else on_conflict == "merge")
    require_accepted(branch, done, on_conflict)
    if done.conflicts and on_conflict in ("refuse", "merge"):
        shown = "; ".join(map(str, done.conflicts[:5]))
        raise ConflictError(
            f"{branch.branch_path} was not committed, nothing was changed: {shown}. Choose on_conflict='ours' or "
            "'theirs'",
            branch=branch.name,
            conflicts=done.conflicts,
        )


def _require_pass(branch: Branch, evaluation: Evaluation, together: Sequence[str]) -> None:
    if evaluation.success:
        return
    found = list(dict.fromkeys(together))
    others = ", ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")
    reason = f"passed alone, fails together with {others or 'what was committed since'}: {evaluation.reason}"
    raise RetestError(
        f"{branch.branch_path} was not committed, nothing was changed: it {reason}. Fix it in the branch, pick another "
        "attempt, or commit it without a retest (retest=False, --no-retest)",
        branch=branch.name,
        reason=reason,
        tests=None if evaluation.tests is None else evaluation.tests.as_json(),
    )


def _describe(standing: Standing) -> list[str]:
    """Describe what changed in the parent."""
    commits = [f"commit {number}{f' ({name})' if name else ''}" for number, name in standing.commits.items()]
    return commits + [f"edits of {conflict.path}" for conflict in standing.edited]


def build_busy_error(branch: Branch) -> CommitError:
    """Build the error for a branch whose parent changed every time the branch was tested."""
    return CommitError(
        f"{branch.branch_path} was not committed, nothing was changed: {branch.parent.branch_path} changed each of the "
        f"{MAX_ROUNDS} times that the branch was tested. Commit it once fewer commits are made, or without a retest "
        "(retest=False, --no-retest)",
        branch=branch.name,
    )


def _read_stamp(branch: Branch) -> str:
    with suppress(OSError, UnicodeDecodeError), open(f"{branch.home}/{_FILE}") as file:
        return file.read(100)
    return ""


def _write_stamp(branch: Branch, stamp: str) -> None:
    """Record that the tests passed. A lost record only costs another test."""
    replace_file(f"{branch.home}/{_FILE}", stamp, beside=f"{branch.home}/.{_FILE}")
