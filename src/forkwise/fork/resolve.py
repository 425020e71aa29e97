"""Overriding: a person decides otherwise after a fork was decided and committed, for one of the branches that lost.

The losers are set aside for that, as long as the process lives. What is meant is in the ledger before the winner's
commit is undone: after a kill the fork is one that was decided and not committed, and is carried out as such.
"""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from forkwise.errors import (
    BranchingError,
    BranchNotFoundError,
    BranchStaleError,
    CommitError,
    ConflictError,
    ForkResolvedError,
    ForkwiseWarning,
    LedgerError,
)
from forkwise.files.branch import Branch
from forkwise.files.file_tree import FileTree
from forkwise.files.shelf import ShelvedBranch, shelve
from forkwise.files.store.changes import Commit, Conflict, ConflictPolicy, OnConflict
from forkwise.files.undo import commits_to_undo
from forkwise.files.workspace import Workspace
from forkwise.fork.attempt import Attempt
from forkwise.fork.stored_fork import StoredFork, branch_gone_error, reconcile
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.records import AttemptRecord
from forkwise.ledger.sqlite import open_ledger

__all__ = [
    "Landed",
    "bring_back",
    "carry_out",
    "commit_resolved",
    "commit_winner",
    "conclude",
    "land",
    "pick",
    "replace_winner",
    "shelve_losers",
]


def commit_winner(branch: Branch, on_conflict: OnConflict, *, trust: bool = False) -> Commit:
    """Commit a branch, rebased onto what its parent is now where that was committed to.

    A path that both changed is a conflict, as it is where anybody else changed it: raised, unless ``on_conflict``
    decides. The branch then holds both changes where text could be merged, and its own where not.
    """
    while True:
        try:
            return branch.commit(on_conflict=on_conflict, trust=trust)
        except BranchStaleError:
            done = branch.rebase()
        if done.merged and on_conflict == "refuse":
            raise ConflictError(
                f"{branch.branch_path} was not committed, nothing was changed: others committed to "
                f"{', '.join(done.merged[:5])} meanwhile. The branch holds both changes now; look at it and commit it, "
                "or say on_conflict='merge' beforehand",
                branch=branch.name,
                conflicts=[Conflict(path, "changed", "committed to by others") for path in done.merged],
            )


@dataclass(frozen=True, slots=True)
class Landed:
    """A winner that was committed, whatever others did meanwhile: the conflicts that the policy decided, and the branch
    in which the winner's version of those is kept, where the parent's stayed."""

    commit: Commit
    conflicts: tuple[Conflict, ...] = ()
    kept: Branch | None = None


def land(branch: Branch, policy: ConflictPolicy = "keep_newer") -> Landed:
    """Commit a branch, all of it or nothing, with every conflict decided by a policy and none of the versions lost.

    What the winner's version takes the place of is in the commit's undo record. Where the parent's stays, the winner's
    is kept as a branch of the workspace, for somebody to look at, to commit or to abort.
    """
    while True:
        try:
            try:
                return Landed(branch.commit())
            except ConflictError as error:
                return _land_over(branch, policy, error.conflicts)
        except BranchStaleError:
            branch.rebase(merge=False)


def _land_over(branch: Branch, policy: ConflictPolicy, conflicts: Sequence[Conflict]) -> Landed:
    if policy == "last_write_wins":
        commit = branch.commit(on_conflict="ours")
        return Landed(commit, commit.conflicts)
    kept = _keep_versions(branch, [c.path for c in conflicts if c.kind != "metadata"])
    try:
        commit = branch.commit(on_conflict="theirs")
    except BaseException:
        if kept is not None:
            kept.abort()
        raise
    return Landed(commit, commit.conflicts, kept)


def _keep_versions(branch: Branch, paths: Sequence[str]) -> Branch | None:
    if not paths:
        return None
    kept = branch.workspace.branch(f"{branch.name[:150]}-conflicts-{secrets.token_hex(2)}", None, None)
    try:
        ours, theirs = (FileTree(os.fspath(b.path), os.fspath(b.workspace.path)) for b in (branch, kept))
        for path in paths:
            theirs.copy_from(ours, path)
        return kept.keep()
    except BaseException:
        kept.abort()
        raise


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
            return commit_resolved(ledger, workspace, attempt, on_conflict=on_conflict, trust=trust, keep=keep).commit
        chain = _chain(ledger, ledger.attempt(attempt) if "." in attempt else _favourite(ledger, attempt))
        innermost, fork = (StoredFork(ledger, workspace, one.fork) for one in (chain[0], chain[-1]))
        if fork.record.is_over:
            _decide(fork, chain[-1], {})
        else:
            _check(innermost, chain[0], force=force)
            # From the inside out: what is decided inside counts for nothing until the outermost is decided.
            detail = {"keep": keep} if chain[0].state == "succeeded" else {"keep": keep, "force": True}
            for one in chain:
                _decide(StoredFork(ledger, workspace, one.fork), one, detail)
        return carry_out(fork, on_conflict=on_conflict, trust=trust, keep=keep)


def commit_resolved(
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
    remains = StoredFork(ledger, workspace, fork)
    record = remains.record
    if record.stored != "resolved" or record.commit is not None:
        how = record.state if record.commit is None else f"committed as {record.commit} already"
        raise ForkResolvedError(f"fork {record.id} has nothing to be committed: it is {how}", fork=record.id)
    return conclude(remains, keep=keep, policy=policy, on_conflict=on_conflict, trust=trust)


def carry_out(fork: StoredFork, *, on_conflict: OnConflict, trust: bool, keep: bool) -> Commit:
    """Commit what a fork was resolved for, and let the rest of it go."""
    return conclude(fork, keep=keep, on_conflict=on_conflict, trust=trust).commit


def conclude(
    fork: StoredFork,
    *,
    keep: bool = False,
    policy: ConflictPolicy | None = None,
    on_conflict: OnConflict = "refuse",
    trust: bool = False,
) -> Landed:
    """The same, and with a ``policy`` conflicts are decided and none of the versions is lost, see ``land``."""
    fork.wait_until_idle()
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


def _take_back(fork: StoredFork) -> None:
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
    fork: StoredFork, name: str | None, policy: ConflictPolicy | None, on_conflict: OnConflict, trust: bool
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


def _fold(fork: StoredFork, winner: str, branch: Branch, on_conflict: OnConflict, trust: bool) -> None:
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


def _decide(fork: StoredFork, attempt: AttemptRecord, detail: Mapping[str, Any]) -> None:
    """Decide a fork for an attempt, if it was not before; raises ForkResolvedError where it was decided otherwise."""
    if fork.ledger.resolve(fork.id, how="pick", winner=attempt.id, detail=detail):
        return
    record = fork.record
    if record.stored == "resolved" and record.commit is None and record.winner == attempt.id:
        return
    how = record.state if record.commit is None else f"committed as {record.commit}"
    whom = f" (for {record.winner})" if record.winner else ""
    raise ForkResolvedError(f"fork {record.id} was {how}{whom} already, and is decided only once", fork=record.id)


def _check(fork: StoredFork, attempt: AttemptRecord, *, force: bool) -> None:
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
        raise branch_gone_error(attempt)


def shelve_losers(attempts: Iterable[Attempt]) -> dict[str, ShelvedBranch]:
    """Set the branches of attempts aside that are over; gives them by the attempts' ids."""
    kept = {}
    for attempt in attempts:
        if attempt.branch is not None:
            try:
                kept[attempt.id] = shelve(attempt.branch)
            except BranchingError as error:
                warnings.warn(f"{attempt.id} cannot be decided for later: {error}", ForkwiseWarning, stacklevel=2)
    return kept


def bring_back(workspace: Workspace, fork: str, loser: ShelvedBranch) -> Branch:
    """Have the branch of a loser back, if all in the workspace stands as its fork's outcome left it; CommitError where
    more was committed since."""
    with open_ledger(workspace) as ledger:
        commit = ledger.fork(fork).commit
    if commit is None or commits_to_undo(workspace.history(), commit):
        raise CommitError(
            f"fork {fork} cannot be decided otherwise: {workspace.path} was committed to since its outcome went in as "
            f"commit {commit}, or that was undone. Undo what came after it first"
        )
    return loser.unshelve()


def replace_winner(workspace: Workspace, fork: str, attempt: str, policy: ConflictPolicy) -> Landed:
    """Undo what a fork committed, and commit the branch of another attempt, which was brought back, instead.

    CommitError, with nothing changed, where somebody changed since what is to be undone.
    """
    with open_ledger(workspace) as ledger:
        ledger.override(fork, attempt)
        return conclude(StoredFork(ledger, workspace, fork), policy=policy)
