"""Choosing: a fork decided for some of what its attempts changed, path by path and hunk by hunk.

In two steps, because a person looks in between: what was chosen is prepared as a branch, with its diff and what the
tests say of it, and then that is committed, or dropped.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from forkwise.concurrency import finish, finish_then_cancel, run_in_thread
from forkwise.errors import ForkResolvedError, LedgerError
from forkwise.files.branch import Branch
from forkwise.files.combine import Combination, combine
from forkwise.files.path_merge import Clash
from forkwise.files.selection import AlignedPath, Choice, align_branches, select
from forkwise.files.store.changes import Commit, ConflictPolicy, OnConflict
from forkwise.files.workspace import Workspace
from forkwise.fork.evaluation import Tests
from forkwise.fork.resolve import Landed, conclude
from forkwise.fork.stored_fork import StoredFork, branch_gone_error
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.records import AttemptRecord
from forkwise.ledger.sqlite import open_ledger
from forkwise.linux.process_id import ProcessId
from forkwise.testing.report import TestReport

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
    """What came of combining attempts: which paths were ``merged`` from several, from which attempt each other one was
    ``taken``, the ``conflicts`` that nobody decided, what the ``tests`` said (None: there were none, or it did not come
    to that), and the ``commit``, which is None where there was something against it; ``landed`` is how it got there."""

    fork: str
    attempts: tuple[str, ...]
    merged: tuple[str, ...]
    taken: Mapping[str, str]
    conflicts: tuple[Clash, ...]
    tests: TestReport | None
    commit: Commit | None
    landed: Landed | None = None


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
) -> Combined:
    """Decide a fork for the changes of several of its attempts together, and commit those.

    Changes of different lines and paths go together. Where attempts clash, ``prefer`` says by path whose version it is
    to be, and ``favour`` names attempts that win any clash they are part of, the first first. What is left is among the
    ``conflicts``, and nothing is committed then. Nor is it where ``tests``, which run on the combination, do not pass;
    without tests only attempts that succeeded are combined. ``force`` commits all the same: in a clash the first of
    ``attempts`` wins. ``partial`` takes attempts that were stopped or failed for what they are. With a ``policy``
    branches whose parent was committed to meanwhile are rebased first, and none of the versions is lost where what is
    combined meets what others changed. Unless it is committed, the fork is as undecided as before.

    A fork that was made inside an attempt is decided by the process that runs it, and by no other.
    """
    where = workspace if isinstance(workspace, Workspace) else await run_in_thread(Workspace, workspace)
    with open_ledger(where) as ledger:
        records = {record.id: record for record in map(ledger.attempt, attempts)}
        fork = _fork_of(ledger, where, records)
        _check(records, is_judged=force or partial or tests is not None)
        names = {record.branch: record.id for record in records.values()}
        decided = {path: ledger.attempt(name).branch for path, name in (prefer or {}).items()}
        favourites = [ledger.attempt(name).branch for name in [*favour, *(records if force else ())]]
        branches = [_branch(fork, record) for record in records.values()]
        if policy is not None:
            await run_in_thread(_bring_up_to_date, branches)
        async with _combination(fork, branches, decided, favourites) as made:
            report = None if tests is None or not made.clean else await tests.test(made.branch)
            landed = None
            if made.clean and (force or report is None or report.is_pass):
                detail = {
                    "attempts": list(records),
                    "branch": made.branch.name,
                    "keep": keep,
                    "tests": None if report is None else report.as_json(),
                }
                if not ledger.resolve(fork.id, how="combination", detail=detail):
                    raise ForkResolvedError(f"fork {fork.id} was decided meanwhile", fork=fork.id)
                landed = await run_in_thread(conclude, fork, keep=keep, policy=policy, on_conflict=on_conflict)
    return Combined(
        fork.id,
        tuple(records),
        made.merged,
        {path: names[name] for path, name in made.taken.items()},
        tuple(_told(clash, names) for clash in made.conflicts),
        report,
        None if landed is None else landed.commit,
        landed,
    )


def _told(clash: Clash, names: Mapping[str, str]) -> Clash:
    """A clash of branches as one of the attempts they are."""
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    detail = re.sub(pattern, lambda found: names[found[0]], clash.detail)
    return replace(clash, branches=tuple(names[name] for name in clash.branches), detail=detail)


def _fork_of(ledger: Ledger, workspace: Workspace, attempts: Mapping[str, AttemptRecord]) -> StoredFork:
    """The fork that all of the attempts are of, if it can still be decided."""
    forks = {attempt.fork for attempt in attempts.values()}
    if len(attempts) < 2 or len(forks) > 1:
        told = f"{', '.join(attempts)} are not" if len(attempts) > 1 else f"{', '.join(attempts) or 'nothing'} is not"
        raise LedgerError(f"several attempts of one fork are combined; {told}")
    fork = StoredFork(ledger, workspace, forks.pop())
    record = fork.record
    if record.owner != ProcessId.current():
        fork.require_outermost()
    if record.is_over:
        raise ForkResolvedError(f"fork {record.id} is {record.state}, and is decided only once", fork=record.id)
    return fork


def _check(attempts: Mapping[str, AttemptRecord], *, is_judged: bool) -> None:
    """Raise LedgerError unless attempts are worth combining. What failed alone may pass together, if tests say so."""
    if going := [name for name, attempt in attempts.items() if not attempt.is_over]:
        raise LedgerError(f"{', '.join(going)} did not come to an end, and cannot be combined", subject=going[0])
    if not is_judged and (bad := [name for name, attempt in attempts.items() if attempt.state != "succeeded"]):
        raise LedgerError(
            f"{', '.join(bad)} did not succeed, and there are no tests to judge the combination by: name some, or use "
            "force=True (--test, --force)",
            subject=bad[0],
        )


def _branch(fork: StoredFork, attempt: AttemptRecord) -> Branch:
    found = fork.branch(attempt.branch)
    if found is None:
        raise branch_gone_error(attempt)
    return found


def _bring_up_to_date(branches: Sequence[Branch]) -> None:
    """Rebase those whose parent was committed to meanwhile."""
    for branch in branches:
        if branch.status == "stale":
            branch.rebase()


@asynccontextmanager
async def _combination(
    fork: StoredFork, branches: Sequence[Branch], prefer: Mapping[str, str], favour: Sequence[str]
) -> AsyncIterator[Combination]:
    """The branches combined in a new one, which goes in the end unless the fork was decided for it."""
    made = await run_in_thread(_combine, fork, branches, dict(prefer), favour)
    try:
        yield made
    finally:
        if fork.outcome() != made.branch.name:
            await run_in_thread(made.branch.abort)


def _combine(
    fork: StoredFork, branches: Sequence[Branch], prefer: dict[str, str], favour: Sequence[str]
) -> Combination:
    """Combine, and again with what the favourites decide, until there is no clash that they are part of."""
    name = f"{fork.id}-combination"
    if (left := fork.branch(name)) is not None and not left.owner_alive:
        left.abort()
    while True:
        made = combine(fork.origin, branches, name, prefer=prefer)
        said = {c.path: next((b for b in favour if b in c.branches), None) for c in made.conflicts}
        news = {path: who for path, who in said.items() if who is not None and path not in prefer}
        if not news:
            return made
        made.branch.abort()
        prefer |= news


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was chosen of some attempts of a fork, in a branch of its own: how it differs from the parent, and what the
    tests say of it (None: there are none). ``commit_choice`` commits it; to give it up, abort the branch."""

    fork: str
    attempts: tuple[str, ...]
    branch: Branch
    diff: str
    tests: TestReport | None

    @property
    def is_good(self) -> bool:
        """Whether nothing speaks against it."""
        return self.tests is None or self.tests.is_pass


def line_up_attempts(
    workspace: Workspace | str | os.PathLike[str], fork: str, attempts: Sequence[str] | None = None
) -> list[AlignedPath]:
    """What attempts of a fork changed, each called by its id: those that are named, or all that are over and whose
    branches are there. What can be chosen from it is told to ``prepare_choice``."""
    where = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
    with open_ledger(where) as ledger:
        remains = _undecided(ledger, where, fork)
        return align_branches(remains.origin, _branches(remains, attempts))


async def prepare_choice(
    workspace: Workspace | str | os.PathLike[str], fork: str, choice: Mapping[str, Choice], *, tests: Tests | None
) -> Prepared:
    """Make a branch of what was chosen, by path: an attempt's version, or hunks of any of them; and test it.

    Nothing is decided by that. BranchError where it cannot be had, such as because what was chosen overlaps. Cancelled,
    it leaves nothing.
    """
    where = workspace if isinstance(workspace, Workspace) else await run_in_thread(Workspace, workspace)
    with open_ledger(where) as ledger:
        remains = _undecided(ledger, where, fork)
        attempts = _chosen(choice)
        making = run_in_thread(_make, remains, attempts, choice)
        try:
            made = await finish_then_cancel(making)
            report = None if tests is None else await tests.test(made)
            return Prepared(remains.id, attempts, made, await run_in_thread(made.diff), report)
        except BaseException:
            if making.exception() is None:
                await finish(run_in_thread(making.result().abort))
            raise


def commit_choice(
    prepared: Prepared,
    *,
    on_conflict: OnConflict = "refuse",
    policy: ConflictPolicy | None = None,
    keep: bool = False,
) -> Commit:
    """Decide the fork for what was prepared, commit that, and drop all attempts (``keep``: keep them).

    Raises ForkResolvedError where the fork was decided meanwhile. After a ConflictError the fork is decided and nothing
    is committed: called again with an ``on_conflict`` that decides, this commits it. With a ``policy`` conflicts are
    decided at once, and none of the versions is lost.
    """
    where = prepared.branch.workspace
    with open_ledger(where) as ledger:
        remains = StoredFork(ledger, where, prepared.fork)
        detail = {
            "attempts": list(prepared.attempts),
            "branch": prepared.branch.name,
            "keep": keep,
            "tests": None if prepared.tests is None else prepared.tests.as_json(),
        }
        is_new = ledger.resolve(remains.id, how="choice", detail=detail)
        if not is_new and (remains.outcome() != prepared.branch.name or remains.record.commit is not None):
            raise ForkResolvedError(f"fork {remains.id} was decided meanwhile", fork=remains.id)
        return conclude(remains, keep=keep, policy=policy, on_conflict=on_conflict).commit


def _undecided(ledger: Ledger, workspace: Workspace, fork: str) -> StoredFork:
    remains = StoredFork(ledger, workspace, fork)
    remains.require_outermost()
    record = remains.record
    if record.is_over:
        raise ForkResolvedError(f"fork {record.id} is {record.state}, and is decided only once", fork=record.id)
    return remains


def _branches(fork: StoredFork, attempts: Sequence[str] | None) -> dict[str, Branch]:
    wanted = None if attempts is None else {fork.ledger.attempt(name).id for name in attempts}
    found = {}
    for attempt in fork.attempts:
        if attempt.is_over and (wanted is None or attempt.id in wanted):
            branch = fork.branch(attempt.branch)
            if branch is not None:
                found[attempt.id] = branch
    if missing := (wanted or set()) - set(found):
        raise LedgerError(f"{', '.join(sorted(missing))}: still at it, or gone", subject=min(missing))
    if not found:
        raise LedgerError(f"no attempt of fork {fork.id} is over and has a branch", subject=fork.id)
    return found


def _chosen(choice: Mapping[str, Choice]) -> tuple[str, ...]:
    """The attempts that a choice is made from. A hunk that several made alike is any of theirs: the first counts."""
    names = set()
    for chosen in choice.values():
        names |= {chosen} if isinstance(chosen, str) else {hunk.versions[0] for hunk in chosen}
    if not names:
        raise LedgerError("nothing was chosen of any attempt")
    return tuple(sorted(names))


def _make(fork: StoredFork, attempts: Sequence[str], choice: Mapping[str, Choice]) -> Branch:
    name = f"{fork.id}-choice"
    if (left := fork.branch(name)) is not None and not left.owner_alive:
        left.abort()
    return select(fork.origin, _branches(fork, attempts), name, choice)
