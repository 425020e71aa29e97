"""History and ledger: which commit of a workspace came from which fork, and the one brought in line with the other.

A commit or an undo happens in the workspace first and is written into the ledger afterwards. What a kill between the
two left out is found here: every branch of a fork carries the fork's id in its name.
"""

from __future__ import annotations

from collections.abc import Iterable

from forkwise.files.commit import Commit
from forkwise.files.workspace import Workspace
from forkwise.fork.remains import Remains
from forkwise.ledger.opening import open_ledger
from forkwise.ledger.protocol import Ledger
from forkwise.ledger.reading import Reading
from forkwise.ledger.record import ForkRecord

__all__ = ["forks_of", "reconcile", "undo"]


def forks_of(ledger: Reading, commits: Iterable[Commit]) -> dict[int, ForkRecord]:
    """The forks that commits into a workspace came from, by the commits' numbers; an undo comes from what it undoes."""
    forks = {fork.id: fork for fork in ledger.forks()}
    found: dict[int, ForkRecord] = {}
    for commit in commits:
        origin, _, name = commit.branch.rpartition("/")
        fork = forks.get(name.partition("-")[0])
        if fork is not None and fork.origin == origin:
            found[commit.id] = fork
    return found


def undo(workspace: Workspace, number: int | None = None) -> Commit:
    """Take back a commit, as ``Workspace.undo`` does, and write down of which fork it was."""
    commit = workspace.undo(number)
    with open_ledger(workspace) as ledger:
        reconcile(ledger, workspace)
    return commit


def reconcile(ledger: Ledger, workspace: Workspace) -> None:
    """Write into the ledger which commits and undos of a workspace have happened, where it does not know yet."""
    for fork in ledger.forks(state="resolved"):
        if fork.commit is None:
            remains = Remains(ledger, workspace, fork.id)
            name = remains.outcome()
            if name is not None and (commit := remains.committed(name)):
                ledger.record_commit(fork.id, commit.id, commit.paths)
    for commit in reversed(workspace.history()):
        if commit.undoes is not None:
            ledger.record_undo(commit.undoes, commit.id, str(workspace.path))
