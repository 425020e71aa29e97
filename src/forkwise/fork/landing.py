"""Landing: how a winner is committed although somebody else was committed to its parent meanwhile.

Two explorations of one workspace do not stand in each other's way as long as their winners touch different paths.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from forkwise.errors import BranchStaleError, ConflictError
from forkwise.files.addressed import AddressedTree
from forkwise.files.branch import Branch
from forkwise.files.commit import Commit
from forkwise.files.conflict import Conflict, OnConflict

__all__ = ["ConflictPolicy", "Landed", "commit_winner", "land"]

#: Whose a path is that a winner and somebody else changed: what is newer in the parent stays, or the winner's takes it.
ConflictPolicy = Literal["keep_newer", "last_write_wins"]


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
        ours, theirs = (AddressedTree(os.fspath(b.path), os.fspath(b.workspace.path)) for b in (branch, kept))
        for path in paths:
            theirs.take(ours, path)
        return kept.keep()
    except BaseException:
        kept.abort()
        raise
