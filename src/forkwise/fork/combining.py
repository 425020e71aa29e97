"""Combining: a fork decided for several of its attempts at once: their changes together, tested, then committed."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from forkwise.errors import ForkResolvedError, LedgerError
from forkwise.files.agreement import Clash
from forkwise.files.branch import Branch
from forkwise.files.combine import Combination, combine
from forkwise.files.commit import Commit
from forkwise.files.conflict import OnConflict
from forkwise.files.owner import Owner
from forkwise.files.workspace import Workspace
from forkwise.fork.landing import ConflictPolicy, Landed
from forkwise.fork.picking import conclude
from forkwise.fork.remains import Remains, gone
from forkwise.fork.testing.report import TestReport
from forkwise.fork.tests import Tests
from forkwise.ledger.opening import open_ledger
from forkwise.ledger.protocol import Ledger
from forkwise.ledger.record import AttemptRecord
from forkwise.sandbox.threads import in_thread

__all__ = ["Combined", "combine_attempts"]


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
    where = workspace if isinstance(workspace, Workspace) else await in_thread(Workspace, workspace)
    with open_ledger(where) as ledger:
        records = {record.id: record for record in map(ledger.attempt, attempts)}
        fork = _fork_of(ledger, where, records)
        _check(records, is_judged=force or partial or tests is not None)
        names = {record.branch: record.id for record in records.values()}
        decided = {path: ledger.attempt(name).branch for path, name in (prefer or {}).items()}
        favourites = [ledger.attempt(name).branch for name in [*favour, *(records if force else ())]]
        branches = [_branch(fork, record) for record in records.values()]
        if policy is not None:
            await in_thread(_bring_up_to_date, branches)
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
                landed = await in_thread(conclude, fork, keep=keep, policy=policy, on_conflict=on_conflict)
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


def _fork_of(ledger: Ledger, workspace: Workspace, attempts: Mapping[str, AttemptRecord]) -> Remains:
    """The fork that all of the attempts are of, if it can still be decided."""
    forks = {attempt.fork for attempt in attempts.values()}
    if len(attempts) < 2 or len(forks) > 1:
        told = f"{', '.join(attempts)} are not" if len(attempts) > 1 else f"{', '.join(attempts) or 'nothing'} is not"
        raise LedgerError(f"several attempts of one fork are combined; {told}")
    fork = Remains(ledger, workspace, forks.pop())
    record = fork.record
    if record.owner != Owner.me():
        fork.must_be_outermost()
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


def _branch(fork: Remains, attempt: AttemptRecord) -> Branch:
    found = fork.branch(attempt.branch)
    if found is None:
        raise gone(attempt)
    return found


def _bring_up_to_date(branches: Sequence[Branch]) -> None:
    """Rebase those whose parent was committed to meanwhile."""
    for branch in branches:
        if branch.status == "stale":
            branch.rebase()


@asynccontextmanager
async def _combination(
    fork: Remains, branches: Sequence[Branch], prefer: Mapping[str, str], favour: Sequence[str]
) -> AsyncIterator[Combination]:
    """The branches combined in a new one, which goes in the end unless the fork was decided for it."""
    made = await in_thread(_combine, fork, branches, dict(prefer), favour)
    try:
        yield made
    finally:
        if fork.outcome() != made.branch.name:
            await in_thread(made.branch.abort)


def _combine(fork: Remains, branches: Sequence[Branch], prefer: dict[str, str], favour: Sequence[str]) -> Combination:
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
