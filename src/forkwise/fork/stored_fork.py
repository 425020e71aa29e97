"""History and ledger: which commit of a workspace came from which fork, and the one brought in line with the other.

A commit or an undo happens in the workspace first and is written into the ledger afterwards. What a kill between the
two left out is found here: every branch of a fork carries the fork's id in its name.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

from forkwise.errors import BranchError, BranchNotFoundError, LedgerError
from forkwise.files.branch import Branch
from forkwise.files.store.changes import Commit
from forkwise.files.undo import history
from forkwise.files.workspace import Workspace
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.records import AttemptRecord, ForkRecord
from forkwise.ledger.sqlite import open_ledger

__all__ = [
    "PATIENCE",
    "StoredFork",
    "branch_gone_error",
    "branch_of",
    "forks_of",
    "reconcile",
    "undo",
]


PATIENCE = 60.0
"""Seconds for a process to end what it runs, once it was told that this is no longer wanted."""

_PACE = 0.05


class StoredFork:
    """One fork and what is left of it. Forks made inside its attempts are Remains of their own."""

    def __init__(self, ledger: Ledger, workspace: Workspace, fork: str) -> None:
        self.ledger = ledger
        self.workspace = workspace
        self.id = ledger.fork(fork).id

    @property
    def record(self) -> ForkRecord:
        """What the ledger says of it now."""
        return self.ledger.fork(self.id)

    @property
    def attempts(self) -> list[AttemptRecord]:
        """Its own attempts, without those of the forks inside."""
        return self.ledger.attempts(self.id)

    def require_outermost(self) -> None:
        """Raise LedgerError where it is but a part of another, which is what can be gone on with or given up."""
        if parent := self.record.parent:
            outer = parent.partition(".")[0]
            raise LedgerError(f"fork {self.id} was made inside attempt {parent}: say {outer} instead", subject=self.id)

    def inside(self, attempt: str | None = None) -> Iterator[StoredFork]:
        """The forks made inside one of its attempts, or inside any."""
        for name in [attempt] if attempt else [a.id for a in self.attempts]:
            for record in self.ledger.children(name):
                yield StoredFork(self.ledger, self.workspace, record.id)

    # Its branches

    @property
    def origin(self) -> Workspace | Branch:
        """What it was made from."""
        origin = self.record.origin
        return self.workspace if origin == self.workspace.branch_path else self.workspace.open(origin)

    def branches(self) -> list[Branch]:
        """The branches it made that are still there."""
        with suppress(BranchNotFoundError):
            return [branch for branch in self.origin.children() if branch.name.startswith(f"{self.id}-")]
        return []

    def branch(self, name: str) -> Branch | None:
        """One of them, if it is still there."""
        with suppress(BranchNotFoundError):
            return Branch.open(self.origin, name)
        return None

    def outcome(self) -> str | None:
        """The name of the branch that it was resolved for: an attempt's, or a combination's."""
        record = self.record
        if record.winner is not None:
            return self.ledger.attempt(record.winner).branch
        name = (record.resolution or {}).get("branch")
        return name if isinstance(name, str) else None

    def committed(self, name: str) -> Commit | None:
        """The commit by which a branch of it went into what it was made from, if one did."""
        with suppress(BranchNotFoundError):
            origin = self.origin
            path = f"{origin.branch_path}/{name}"
            return next((c for c in history(origin) if c.kind == "commit" and c.branch == path), None)
        return None

    def drop(self, *, keep: bool = False, but: Branch | None = None) -> list[str]:
        """Have its branches vanish, or keep them for somebody to look at; gives their paths. ``but`` stays as it is."""
        done = []
        for branch in self.branches():
            if but is not None and branch.branch_path == but.branch_path:
                continue
            with suppress(BranchNotFoundError):
                if keep:
                    branch.keep()
                else:
                    branch.abort()
                done.append(branch.branch_path)
        return done

    # Whoever else is at it

    def abort_inside(self, reason: str, attempt: str | None = None) -> None:
        """Give up what was begun inside its attempts and not decided."""
        for fork in self.inside(attempt):
            self.ledger.abort_fork(fork.id, reason)
            fork.abort_inside(reason)

    def wait_until_idle(self, *, lost: bool = False) -> None:
        """Wait until nothing of it runs any more: the process that runs it sees in the ledger that it was decided. What
        was going on when that was killed is written down as cancelled. ``lost`` says that the other machine that ran it
        will not come back; of a process of this machine that is seen."""
        deadline = time.monotonic() + PATIENCE
        while self._is_run(lost) and (going := self._going()):
            if time.monotonic() > deadline:
                owner = self.record.owner
                remedy = (
                    "abort it with lost=True (--lost) if that machine is gone"
                    if owner.is_elsewhere
                    else ("end that process, then do this again")
                )
                raise BranchError(
                    f"fork {self.id} was decided, but process {owner.label} still runs {', '.join(going)}: {remedy}"
                )
            time.sleep(_PACE)
        for name in self._going():
            with suppress(LedgerError):  # it was written down meanwhile
                self.ledger.end_attempt(name, "cancelled", reason="its process was killed")

    def _is_run(self, lost: bool) -> bool:
        owner = self.record.owner
        return owner.alive and not (lost and owner.is_elsewhere)

    def _going(self) -> list[str]:
        own = [attempt.id for attempt in self.attempts if not attempt.is_over]
        return own + [name for fork in self.inside() for name in fork._going()]


def branch_of(ledger: Ledger, workspace: Workspace, name: str) -> Branch:
    """A branch by what people call it: the id of an attempt, or the branch's own name or path."""
    try:
        return workspace.open(name)
    except BranchNotFoundError:
        if "." not in name:
            raise
    attempt = ledger.attempt(name)
    found = StoredFork(ledger, workspace, attempt.fork).branch(attempt.branch)
    if found is None:
        raise branch_gone_error(attempt)
    return found


def branch_gone_error(attempt: AttemptRecord) -> BranchNotFoundError:
    """The error that says that an attempt's branch is no longer there."""
    return BranchNotFoundError(
        f"attempt {attempt.id} has no branch any more: it was committed, or dropped when its fork was decided",
        branch=attempt.branch,
    )


def forks_of(ledger: Ledger, commits: Iterable[Commit]) -> dict[int, ForkRecord]:
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
            remains = StoredFork(ledger, workspace, fork.id)
            name = remains.outcome()
            if name is not None and (commit := remains.committed(name)):
                ledger.record_commit(fork.id, commit.id, commit.paths)
    for commit in reversed(workspace.history()):
        if commit.undoes is not None:
            ledger.record_undo(commit.undoes, commit.id, str(workspace.path))
