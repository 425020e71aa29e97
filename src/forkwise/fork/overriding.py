"""Overriding: a person decides otherwise after a fork was decided and committed, for one of the branches that lost.

The losers are set aside for that, as long as the process lives. What is meant is in the ledger before the winner's
commit is undone: after a kill the fork is one that was decided and not committed, and is carried out as such.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from forkwise.errors import BranchingError, CommitError, ForkwiseWarning
from forkwise.files.aside import Aside, set_aside
from forkwise.files.branch import Branch
from forkwise.files.standing import to_be_undone
from forkwise.files.workspace import Workspace
from forkwise.fork.attempt import Attempt
from forkwise.fork.landing import ConflictPolicy, Landed
from forkwise.fork.picking import conclude
from forkwise.fork.remains import Remains
from forkwise.ledger.opening import open_ledger

__all__ = ["bring_back", "put_in_place", "set_losers_aside"]


def set_losers_aside(attempts: Iterable[Attempt]) -> dict[str, Aside]:
    """Set the branches of attempts aside that are over; gives them by the attempts' ids."""
    kept = {}
    for attempt in attempts:
        if attempt.branch is not None:
            try:
                kept[attempt.id] = set_aside(attempt.branch)
            except BranchingError as error:
                warnings.warn(f"{attempt.id} cannot be decided for later: {error}", ForkwiseWarning, stacklevel=2)
    return kept


def bring_back(workspace: Workspace, fork: str, loser: Aside) -> Branch:
    """Have the branch of a loser back, if all in the workspace stands as its fork's outcome left it; CommitError where
    more was committed since."""
    with open_ledger(workspace) as ledger:
        commit = ledger.fork(fork).commit
    if commit is None or to_be_undone(workspace.history(), commit):
        raise CommitError(
            f"fork {fork} cannot be decided otherwise: {workspace.path} was committed to since its outcome went in as "
            f"commit {commit}, or that was undone. Undo what came after it first"
        )
    return loser.bring_back()


def put_in_place(workspace: Workspace, fork: str, attempt: str, policy: ConflictPolicy) -> Landed:
    """Undo what a fork committed, and commit the branch of another attempt, which was brought back, instead.

    CommitError, with nothing changed, where somebody changed since what is to be undone.
    """
    with open_ledger(workspace) as ledger:
        ledger.override(fork, attempt)
        return conclude(Remains(ledger, workspace, fork), policy=policy)
