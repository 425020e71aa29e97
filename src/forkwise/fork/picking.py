"""Picking: a fork decided by a person, after or instead of whoever was to decide it, and what was decided carried out.

The decision is in the ledger before anything is touched. So whoever comes after a kill knows what was meant, and either
finds the winner's branch and commits it, or finds the commit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from forkwise.errors import BranchingError, BranchNotFoundError, CommitError, ForkResolvedError, LedgerError
from forkwise.files.branch import Branch
from forkwise.files.commit import Commit
from forkwise.files.conflict import OnConflict
from forkwise.files.workspace import Workspace
from forkwise.fork.history import reconcile
from forkwise.fork.landing import ConflictPolicy, Landed, commit_winner, land
from forkwise.fork.remains import Remains, gone
from forkwise.ledger.opening import open_ledger
from forkwise.ledger.protocol import Ledger
from forkwise.ledger.record import AttemptRecord

__all__ = ["carry_out", "complete", "conclude", "pick"]


def pick(
    workspace: Workspace | str | os.PathLike[str],
    attempt: str,
    *,
    on_conflict: OnConflict = "refuse",
    keep: bool = False,
    trust: bool = False,
    force: bool = False,
) -> Commit:
    """Decide a fork for one of its attempts, commit what that made, and drop the others (``keep``: keep them).

    Named by its fork alone, it is the attempt that was found best. The fork may be one that waits for a pick, one that
    was interrupted, one that still runs (its other attempts are ended), or one that was decided for this attempt and
    never committed, such as because of a conflict. An attempt that did not succeed is refused unless ``force`` is
    given. ``on_conflict`` and ``trust`` are those of ``Branch.commit``.

    Raises ForkResolvedError where the fork was decided otherwise before.
    """
    workspace = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
    with open_ledger(workspace) as ledger:
        if "." not in attempt and ledger.fork(attempt).stored == "resolved":
            return complete(ledger, workspace, attempt, on_conflict=on_conflict, trust=trust, keep=keep).commit
        chain = _chain(ledger, ledger.attempt(attempt) if "." in attempt else _favourite(ledger, attempt))
        innermost, fork = (Remains(ledger, workspace, one.fork) for one in (chain[0], chain[-1]))
        if fork.record.is_over:
            _decide(fork, chain[-1], {})
        else:
            _check(innermost, chain[0], force=force)
            # From the inside out: what is decided inside counts for nothing until the outermost is decided.
            detail = {"keep": keep} if chain[0].state == "succeeded" else {"keep": keep, "force": True}
            for one in chain:
                _decide(Remains(ledger, workspace, one.fork), one, detail)
        return carry_out(fork, on_conflict=on_conflict, trust=trust, keep=keep)


def complete(
    ledger: Ledger,
    workspace: Workspace,
    fork: str,
    *,
    policy: ConflictPolicy | None = None,
    on_conflict: OnConflict = "refuse",
    trust: bool = False,
    keep: bool = False,
) -> Landed:
    """Commit what a fork was resolved for, where that did not happen: it was refused, or the process was killed."""
    remains = Remains(ledger, workspace, fork)
    record = remains.record
    if record.stored != "resolved" or record.commit is not None:
        how = record.state if record.commit is None else f"committed as {record.commit} already"
        raise ForkResolvedError(f"fork {record.id} has nothing to be committed: it is {how}", fork=record.id)
    return conclude(remains, keep=keep, policy=policy, on_conflict=on_conflict, trust=trust)


def carry_out(fork: Remains, *, on_conflict: OnConflict, trust: bool, keep: bool) -> Commit:
    """Commit what a fork was resolved for, and let the rest of it go."""
    return conclude(fork, keep=keep, on_conflict=on_conflict, trust=trust).commit


def conclude(
    fork: Remains,
    *,
    keep: bool = False,
    policy: ConflictPolicy | None = None,
    on_conflict: OnConflict = "refuse",
    trust: bool = False,
) -> Landed:
    """The same, and with a ``policy`` conflicts are decided and none of the versions is lost, see ``land``."""
    fork.come_to_rest()
    name = fork.outcome()
    commit = None if name is None else fork.committed(name)
    if commit is None:
        _take_back(fork)
        landed = _land(fork, name, policy, on_conflict, trust)
        fork.ledger.record_commit(fork.id, landed.commit.id, landed.commit.paths)
    else:
        landed = Landed(commit, commit.conflicts)
        reconcile(fork.ledger, fork.workspace)  # it may have been undone since, too
    fork.abort_inside("the fork around it was decided")
    fork.drop(keep=keep, but=landed.kept)
    return landed


def _take_back(fork: Remains) -> None:
    """Undo what a fork was decided for before somebody decided otherwise. Where that cannot be undone, it stands."""
    number = (fork.record.resolution or {}).get("replaces")
    if number is None or any(commit.undoes == number for commit in fork.workspace.history()):
        return
    try:
        fork.workspace.undo(number)
    except CommitError:
        fork.ledger.reinstate(fork.id)
        raise


def _land(
    fork: Remains, name: str | None, policy: ConflictPolicy | None, on_conflict: OnConflict, trust: bool
) -> Landed:
    branch = None if name is None else fork.branch(name)
    if branch is None:
        raise BranchNotFoundError(
            f"fork {fork.id} was decided, but the branch it was decided for is gone: {name}", branch=name
        )
    winner = fork.record.winner
    if winner is not None:
        _fold(fork, winner, branch, on_conflict, trust)
    try:
        if policy is not None:
            return land(branch, policy)
        return Landed(commit_winner(branch, on_conflict, trust=trust))
    except BranchingError:
        with suppress(BranchNotFoundError):
            branch.keep()
        raise


def _fold(fork: Remains, winner: str, branch: Branch, on_conflict: OnConflict, trust: bool) -> None:
    """Bring what was decided inside a winner into it; what was not decided goes, and so does what the dead left."""
    for inner in fork.inside(winner):
        name = inner.outcome()
        if inner.record.stored == "resolved" and name is not None and inner.branch(name) is not None:
            carry_out(inner, on_conflict=on_conflict, trust=trust, keep=False)
        else:
            fork.ledger.abort_fork(inner.id, "the fork around it was decided")
            inner.abort_inside("the fork around it was decided")
            inner.drop()
    for left in branch.children():
        if not left.kept and not left.owner_alive:
            left.abort()


def _favourite(ledger: Ledger, fork: str) -> AttemptRecord:
    """The attempt that was found best in a fork; LedgerError where none was."""
    record = ledger.fork(fork)
    name = (record.verdict or {}).get("winner")
    if isinstance(name, str):
        return ledger.attempt(name)
    near = [attempt.id for attempt in ledger.attempts(record.id)]
    raise LedgerError(
        f"fork {record.id} has no favourite: name an attempt ({', '.join(near) or 'it has none'})",
        subject=record.id,
        near=near,
    )


def _chain(ledger: Ledger, attempt: AttemptRecord) -> list[AttemptRecord]:
    """An attempt, the one inside which its fork was made, and so on to the outermost."""
    chain = [attempt]
    while parent := ledger.fork(chain[-1].fork).parent:
        chain.append(ledger.attempt(parent))
    return chain


def _decide(fork: Remains, attempt: AttemptRecord, detail: Mapping[str, Any]) -> None:
    """Decide a fork for an attempt, if it was not before; raises ForkResolvedError where it was decided otherwise."""
    if fork.ledger.resolve(fork.id, how="pick", winner=attempt.id, detail=detail):
        return
    record = fork.record
    if record.stored == "resolved" and record.commit is None and record.winner == attempt.id:
        return
    how = record.state if record.commit is None else f"committed as {record.commit}"
    whom = f" (for {record.winner})" if record.winner else ""
    raise ForkResolvedError(f"fork {record.id} was {how}{whom} already, and is decided only once", fork=record.id)


def _check(fork: Remains, attempt: AttemptRecord, *, force: bool) -> None:
    """Raise unless an attempt can be committed."""
    if fork.record.state == "running" and not attempt.is_over:
        raise LedgerError(f"attempt {attempt.id} is {attempt.state}: wait until it is over", subject=attempt.id)
    if attempt.state != "succeeded" and not force:
        why = f"{attempt.state}: {attempt.reason}" if attempt.reason else attempt.state
        raise LedgerError(
            f"attempt {attempt.id} did not succeed ({why}): force=True (--force) commits it all the same",
            subject=attempt.id,
        )
    if fork.branch(attempt.branch) is None:
        raise gone(attempt)
