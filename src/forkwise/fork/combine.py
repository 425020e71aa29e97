"""Combine: resolve a fork with changes of several of its attempts.

``combine_attempts`` merges whole attempts and commits the result. A choice by path or hunk takes two steps, because the
user reviews it in between: ``prepare_choice`` builds and tests a branch, and ``commit_choice`` commits it.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from forkwise.concurrency import finish, finish_then_cancel, run_in_thread
from forkwise.errors import ForkResolvedError, LedgerError, RetestError
from forkwise.files.combine import Combination, combine
from forkwise.files.selection import AlignedPath, Choice, Selection, align_branches, build_selection
from forkwise.files.workspace import Workspace
from forkwise.fork.land import Landed, check_executables
from forkwise.fork.resolve import conclude
from forkwise.fork.stored_fork import StoredFork, branch_gone_error
from forkwise.ledger.sqlite import open_ledger
from forkwise.linux.process_id import ProcessId
from forkwise.testing.report import TestReport

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.path_merge import Clash
    from forkwise.files.store.changes import Commit, ConflictPolicy, OnConflict
    from forkwise.fork.evaluators.tests import Tests
    from forkwise.git.repository_change import RepositoryChange
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import AttemptRecord

__all__ = [
    "Combined",
    "Prepared",
    "combine_attempts",
    "commit_choice",
    "line_up_attempts",
    "prepare_choice",
]


@dataclass(frozen=True, slots=True)
class Combined:
    """The result of combining attempts.

    ``merged`` are the paths merged from several attempts; ``taken`` maps each other path to its attempt. ``conflicts``
    are those left undecided. ``left_repositories`` has, by attempt, the work in git repositories that is not taken: it
    is taken only from an attempt that contributed all files. ``tests`` is the report of the tests, None if they did not
    run. ``commit`` is None if the combination was not committed; ``landed`` has the details of the commit.
    """

    fork: str
    attempts: tuple[str, ...]
    merged: tuple[str, ...]
    taken: Mapping[str, str]
    conflicts: tuple[Clash, ...]
    tests: TestReport | None
    commit: Commit | None
    landed: Landed | None = None
    left_repositories: Mapping[str, tuple[RepositoryChange, ...]] = field(default_factory=dict)


async def combine_attempts(
    workspace: Workspace | str | os.PathLike[str],
    attempts: Sequence[str],
    *,
    tests: Tests | None,
    prefer: Mapping[str, str] | None = None,
    favour: Sequence[str] = (),
    on_conflict: OnConflict = "refuse",
    keep: bool = False,
    force: bool = False,
    partial: bool = False,
    policy: ConflictPolicy | None = None,
    retest: bool = True,
    allow_executable_config: bool | None = None,
) -> Combined:
    """Resolve a fork by merging several of its attempts, and commit the result.

    Changes to different paths and lines are merged. If attempts conflict, ``prefer`` names the attempt to use for a
    path, and ``favour`` lists attempts that win their conflicts, in order of precedence. Nothing is committed if
    ``conflicts`` remain, or if ``tests``, which run on the combination, do not pass; without tests, every attempt must
    have succeeded. ``force`` commits regardless: the first of ``attempts`` wins a conflict. ``partial`` accepts
    attempts that failed or were stopped. With a ``policy``, stale branches are rebased first, and a conflict with
    other commits loses neither version. If nothing is committed, the fork stays undecided.

    If the workspace changes while the combination is tested, the tests run again on the two together (``retest=False``:
    they do not); if they fail then, nothing is committed, and ``tests`` is the second report.

    Raises ExecutableConfigError, with the fork undecided, as ``Branch.commit`` does.

    Only the process that runs a fork inside an attempt can resolve it.
    """
    workspace = workspace if isinstance(workspace, Workspace) else await run_in_thread(Workspace, workspace)
    with open_ledger(workspace) as ledger:
        records = {record.id: record for record in map(ledger.attempt, attempts)}
        fork = _load_common_fork(ledger, workspace, records)
        _require_combinable(records, has_judge=force or partial or tests is not None)
        names = {record.branch: record.id for record in records.values()}
        decided = {path: ledger.attempt(name).branch for path, name in (prefer or {}).items()}
        favoured = [ledger.attempt(name).branch for name in [*favour, *(records if force else ())]]
        branches = [_open_branch(fork, record) for record in records.values()]
        if policy is not None:
            await run_in_thread(_rebase_stale, branches)
        async with _open_combination(fork, branches, decided, favoured) as made:
            report = None if tests is None or not made.clean else await tests.test(made.branch)
            landed = None
            if made.clean and (force or report is None or report.is_pass):
                await run_in_thread(check_executables, made.branch, allow_executable_config)
                detail = {
                    "attempts": list(records),
                    "branch": made.branch.name,
                    "keep": keep,
                    "tests": None if report is None else report.as_json(),
                }
                if not ledger.resolve(fork.id, how="combination", detail=detail):
                    raise ForkResolvedError(f"fork {fork.id} was decided in the meantime", fork=fork.id)
                again = tests if retest and not force else None
                try:
                    landed = await run_in_thread(
                        conclude,
                        fork,
                        keep=keep,
                        policy=policy,
                        on_conflict=on_conflict,
                        tests=again,
                        allow_executable_config=allow_executable_config,
                    )
                except RetestError as error:
                    report = None if error.tests is None else TestReport.from_json(error.tests)
                    report = None if report is None else replace(report, doubt=report.doubt or error.reason)
    return Combined(
        fork.id,
        tuple(records),
        made.merged,
        {path: names[name] for path, name in made.taken.items()},
        tuple(_name_attempts(clash, names) for clash in made.conflicts),
        report,
        None if landed is None else landed.commit,
        landed,
        {names[name]: found for name, found in made.left_repositories.items()},
    )


def _name_attempts(clash: Clash, names: Mapping[str, str]) -> Clash:
    """Replace the names of branches in ``clash`` with the ids of their attempts."""
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    detail = re.sub(pattern, lambda found: names[found[0]], clash.detail)
    return replace(clash, branches=tuple(names[name] for name in clash.branches), detail=detail)


def _load_common_fork(ledger: Ledger, workspace: Workspace, attempts: Mapping[str, AttemptRecord]) -> StoredFork:
    """Load the fork that all attempts belong to. Raises LedgerError or ForkResolvedError if it cannot be resolved."""
    forks = {attempt.fork for attempt in attempts.values()}
    if len(attempts) < 2:
        raise LedgerError(f"cannot combine {', '.join(attempts) or 'nothing'}: name at least two attempts of one fork")
    if len(forks) > 1:
        raise LedgerError(f"cannot combine {', '.join(attempts)}: name attempts of one fork")
    fork = StoredFork(ledger, workspace, forks.pop())
    record = fork.record
    if record.owner != ProcessId.current():
        fork.require_outermost()
    if record.is_over:
        raise ForkResolvedError(f"fork {record.id} is {record.state}; a fork is decided only once", fork=record.id)
    return fork


def _require_combinable(attempts: Mapping[str, AttemptRecord], *, has_judge: bool) -> None:
    """Raise LedgerError unless the attempts can be combined. Attempts that failed alone may pass tests together."""
    if unfinished := [name for name, attempt in attempts.items() if not attempt.is_over]:
        raise LedgerError(f"{', '.join(unfinished)} did not finish, and cannot be combined", subject=unfinished[0])
    if not has_judge and (failed := [name for name, attempt in attempts.items() if attempt.state != "succeeded"]):
        raise LedgerError(
            f"{', '.join(failed)} did not succeed, and there are no tests to judge the combination: give a test "
            "command (--test), or use force=True (--force)",
            subject=failed[0],
        )


def _open_branch(fork: StoredFork, attempt: AttemptRecord) -> Branch:
    found = fork.branch(attempt.branch)
    if found is None:
        raise branch_gone_error(attempt)
    return found


def _rebase_stale(branches: Sequence[Branch]) -> None:
    """Rebase the branches whose parent has newer commits."""
    for branch in branches:
        if branch.status == "stale":
            branch.rebase()


@asynccontextmanager
async def _open_combination(
    fork: StoredFork, branches: Sequence[Branch], prefer: Mapping[str, str], favour: Sequence[str]
) -> AsyncIterator[Combination]:
    """Yield the branches combined in a new branch; drop it at the end unless the fork was resolved with it."""
    made = await run_in_thread(_combine, fork, branches, dict(prefer), favour)
    try:
        yield made
    finally:
        if fork.outcome() != made.branch.name:
            await run_in_thread(made.branch.abort)


def _combine(
    fork: StoredFork, branches: Sequence[Branch], prefer: dict[str, str], favour: Sequence[str]
) -> Combination:
    """Combine repeatedly, deciding conflicts for the branches in ``favour``, until none of them is in a conflict."""
    name = f"{fork.id}-combination"
    if (left := fork.branch(name)) is not None and not left.owner_alive:
        left.abort()
    while True:
        made = combine(fork.origin, branches, name, prefer=prefer)
        winners = {c.path: next((b for b in favour if b in c.branches), None) for c in made.conflicts}
        decided = {path: branch for path, branch in winners.items() if branch is not None and path not in prefer}
        if not decided:
            return made
        made.branch.abort()
        prefer |= decided


@dataclass(frozen=True, slots=True)
class Prepared:
    """A choice of changes from attempts of a fork, in a new branch.

    ``diff`` is the difference to the parent, ``tests`` the report of the tests (None without tests), which
    ``evaluator`` runs again if the workspace changes before the commit. ``left_repositories`` is that of ``Combined``.
    ``commit_choice`` commits it; to discard it, abort ``branch``.
    """

    fork: str
    attempts: tuple[str, ...]
    branch: Branch
    diff: str
    tests: TestReport | None
    evaluator: Tests | None = None
    left_repositories: Mapping[str, tuple[RepositoryChange, ...]] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        """Whether the tests passed, or there are none."""
        return self.tests is None or self.tests.is_pass


def line_up_attempts(
    workspace: Workspace | str | os.PathLike[str], fork: str, attempts: Sequence[str] | None = None
) -> list[AlignedPath]:
    """Align the changes of a fork's attempts, by path, with each version named by its attempt's id.

    ``attempts`` defaults to all that are over and still have a branch. ``prepare_choice`` takes a choice from the
    result.
    """
    workspace = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
    with open_ledger(workspace) as ledger:
        stored = _load_undecided(ledger, workspace, fork)
        return align_branches(stored.origin, _find_branches(stored, attempts))


async def prepare_choice(
    workspace: Workspace | str | os.PathLike[str], fork: str, choice: Mapping[str, Choice], *, tests: Tests | None
) -> Prepared:
    """Build and test a branch from a choice: by path, an attempt's version or hunks of several.

    The fork stays undecided. Raises BranchError if the choice cannot be applied, for example because its hunks overlap.
    Cancellation drops the branch.
    """
    workspace = workspace if isinstance(workspace, Workspace) else await run_in_thread(Workspace, workspace)
    with open_ledger(workspace) as ledger:
        stored = _load_undecided(ledger, workspace, fork)
        attempts = _chosen_attempts(choice)
        creation = run_in_thread(_build_choice, stored, attempts, choice)
        try:
            made = await finish_then_cancel(creation)
            branch = made.branch
            report = None if tests is None else await tests.test(branch)
            diff = await run_in_thread(branch.diff)
            return Prepared(stored.id, attempts, branch, diff, report, tests, made.left_repositories)
        except BaseException:
            if creation.exception() is None:
                await finish(run_in_thread(creation.result().branch.abort))
            raise


def commit_choice(
    prepared: Prepared,
    *,
    on_conflict: OnConflict = "refuse",
    policy: ConflictPolicy | None = None,
    keep: bool = False,
    retest: bool = True,
    allow_executable_config: bool | None = None,
) -> Commit:
    """Resolve the fork with a prepared choice, commit it, and drop all attempts (``keep``: keep them).

    Raises ForkResolvedError if the fork was decided in the meantime. After a ConflictError the fork is resolved but
    nothing is committed; a second call with an ``on_conflict`` that decides commits it. A ``policy`` decides conflicts
    without losing either version.

    If the choice passed its tests and the workspace changed since, it is rebased and has to pass them again, unless
    ``retest=False``: RetestError if it fails, and the fork stays undecided. The same holds for ExecutableConfigError,
    which is raised as by ``Branch.commit``.
    """
    workspace = prepared.branch.workspace
    check_executables(prepared.branch, allow_executable_config)
    with open_ledger(workspace) as ledger:
        stored = StoredFork(ledger, workspace, prepared.fork)
        detail = {
            "attempts": list(prepared.attempts),
            "branch": prepared.branch.name,
            "keep": keep,
            "tests": None if prepared.tests is None else prepared.tests.as_json(),
        }
        is_new = ledger.resolve(stored.id, how="choice", detail=detail)
        if not is_new and (stored.outcome() != prepared.branch.name or stored.record.commit is not None):
            raise ForkResolvedError(f"fork {stored.id} was decided in the meantime", fork=stored.id)
        tests = prepared.evaluator if retest else None
        return conclude(
            stored,
            keep=keep,
            policy=policy,
            on_conflict=on_conflict,
            tests=tests,
            allow_executable_config=allow_executable_config,
        ).commit


def _load_undecided(ledger: Ledger, workspace: Workspace, fork: str) -> StoredFork:
    stored = StoredFork(ledger, workspace, fork)
    stored.require_outermost()
    record = stored.record
    if record.is_over:
        raise ForkResolvedError(f"fork {record.id} is {record.state}; a fork is decided only once", fork=record.id)
    return stored


def _find_branches(fork: StoredFork, attempts: Sequence[str] | None) -> dict[str, Branch]:
    wanted = None if attempts is None else {fork.ledger.attempt(name).id for name in attempts}
    found = {}
    for attempt in fork.attempts:
        if attempt.is_over and (wanted is None or attempt.id in wanted):
            branch = fork.branch(attempt.branch)
            if branch is not None:
                found[attempt.id] = branch
    if missing := (wanted or set()) - set(found):
        raise LedgerError(
            f"{', '.join(sorted(missing))}: still running, or its branch was dropped", subject=min(missing)
        )
    if not found:
        raise LedgerError(f"fork {fork.id} has no finished attempt with a branch", subject=fork.id)
    return found


def _chosen_attempts(choice: Mapping[str, Choice]) -> tuple[str, ...]:
    """List the attempts that a choice uses. A hunk that several attempts made counts for the first of them."""
    names = set()
    for chosen in choice.values():
        names |= {chosen} if isinstance(chosen, str) else {hunk.versions[0] for hunk in chosen}
    if not names:
        raise LedgerError("the choice is empty: choose a version or hunk of at least one attempt")
    return tuple(sorted(names))


def _build_choice(fork: StoredFork, attempts: Sequence[str], choice: Mapping[str, Choice]) -> Selection:
    name = f"{fork.id}-choice"
    if (left := fork.branch(name)) is not None and not left.owner_alive:
        left.abort()
    return build_selection(fork.origin, _find_branches(fork, attempts), name, choice)
