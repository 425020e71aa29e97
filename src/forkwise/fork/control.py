"""Clearing: forks given up from outside, and what is left of those that are over taken away."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkwise.errors import BranchError, BranchNotFoundError, ForkResolvedError, LedgerError
from forkwise.files.branch import Branch
from forkwise.files.gc import Collected, collect
from forkwise.files.workspace import Workspace
from forkwise.fork.evaluation import is_scratch
from forkwise.fork.stored_fork import PATIENCE, StoredFork, reconcile
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.records import ForkRecord
from forkwise.ledger.sqlite import open_ledger

if TYPE_CHECKING:
    from forkwise.fork.fork import Fork

__all__ = [
    "CleanupReport",
    "abort_attempt",
    "abort_fork",
    "clean_up",
    "is_decided",
    "poll_requests",
]


_PACE = 0.25  # seconds between two looks at what others want
_WAITING = 0.05


async def poll_requests(fork: Fork) -> None:
    """End all attempts of a fork as soon as somebody else decides it, and each one that somebody asks to be ended."""
    unwanted: dict[str, str] = {}
    seen = 0
    while True:
        await asyncio.sleep(_PACE)
        if fork.is_over:
            return
        if is_decided(fork):
            await fork.stop_decided_elsewhere()
            return
        with suppress(LedgerError):  # it cannot be asked now: the next look will tell
            for event in fork.ledger.events(after=seen, fork=fork.id):
                seen = event.seq
                if event.kind == "unwanted" and event.attempt is not None:
                    unwanted[event.attempt] = event.data["unwanted"]
        going = [attempt for attempt in fork.attempts if attempt.id in unwanted]
        await asyncio.gather(*(fork.cancel([attempt], unwanted[attempt.id]) for attempt in going))


def is_decided(fork: Fork) -> bool:
    """Whether somebody has decided a fork."""
    with suppress(LedgerError):  # it cannot be asked now: whoever has to write to it will say so
        return fork.ledger.fork(fork.id).is_over
    return False


def abort_attempt(
    workspace: Workspace | str | os.PathLike[str], attempt: str, reason: str = "ended by hand"
) -> tuple[str, ...]:
    """End one attempt, with all that it started, whoever runs its fork; the others go on. Gives the branches that were
    dropped here.

    It is ended by the process that runs the fork, which is waited for. Where that was killed it is written down as
    cancelled, and resuming the fork does not run it again. LedgerError where it is over already.
    """
    workspace = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
    with open_ledger(workspace) as ledger:
        record = ledger.attempt(attempt)
        fork = StoredFork(ledger, workspace, record.fork)
        if fork.record.is_over:
            raise ForkResolvedError(f"fork {fork.id} is {fork.record.state}: nothing of it runs", fork=fork.id)
        ledger.ask_to_end(record.id, reason)
        _await_end(ledger, fork, record.id)
        if ledger.attempt(record.id).is_over:
            return ()
        fork.abort_inside(reason, record.id)
        ledger.end_attempt(record.id, "cancelled", reason=reason)
        branch = fork.branch(record.branch)
        if branch is None:
            return ()
        with suppress(BranchNotFoundError):
            branch.abort()
        return (branch.branch_path,)


def _await_end(ledger: Ledger, fork: StoredFork, attempt: str) -> None:
    """Wait until an attempt is over, or whoever ran it is dead."""
    deadline = time.monotonic() + PATIENCE
    while not ledger.attempt(attempt).is_over and fork.record.owner.alive:
        if time.monotonic() > deadline:
            raise BranchError(
                f"attempt {attempt} is to be ended, but process {fork.record.owner.label}, which runs it, has not done "
                "so yet: look again, or abort the fork"
            )
        time.sleep(_WAITING)


_AROUND = "the fork around it is over"


def abort_fork(
    workspace: Workspace | str | os.PathLike[str], fork: str, reason: str = "aborted by hand", *, lost: bool = False
) -> tuple[str, ...]:
    """Give a fork up, whoever runs it or ran it, and drop all of its branches; gives those that were left to drop.

    One that still runs is ended by the process that runs it, which is waited for; one of another machine as well,
    unless ``lost`` says that it will not come back. One that was decided and never committed is given up as well, but
    one that was committed raises ForkResolvedError: ``undo`` takes that back. To abort what was aborted before clears
    what may be left of it.
    """
    workspace = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
    with open_ledger(workspace) as ledger:
        remains = StoredFork(ledger, workspace, fork)
        remains.require_outermost()
        reconcile(ledger, workspace)
        if remains.record.stored == "resolved":
            return _abandon(remains, reason)
        ledger.abort_fork(remains.id, reason, {"keep": False})
        remains.abort_inside(reason)
        remains.wait_until_idle(lost=lost)
        return tuple(remains.drop())


def _abandon(fork: StoredFork, reason: str) -> tuple[str, ...]:
    """Give up what was decided for and not committed. A branch is either committed or dropped, whoever is quicker."""
    is_cut = fork.record.commit is None
    dropped = tuple(fork.drop()) if is_cut else ()
    replaced = (fork.record.resolution or {}).get("replaces") if is_cut else None
    if replaced is not None and not any(commit.undoes == replaced for commit in fork.workspace.history()):
        fork.ledger.reinstate(fork.id)  # it was to be overridden, and nothing was undone for it yet
    reconcile(fork.ledger, fork.workspace)
    record = fork.record
    if record.commit is not None:
        undone = f"; it was undone by {record.undone}" if record.undone else f": undo {record.commit} takes it back"
        raise ForkResolvedError(
            f"fork {fork.id} was committed as {record.commit}, and cannot be aborted{undone}", fork=fork.id
        )
    fork.ledger.abandon_fork(fork.id, reason)
    return dropped


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """What a clean-up did: what was ``collected`` of branches and commits, which forks were ``aborted`` because they
    were interrupted, which the ledger has ``forgotten``, and which are ``unfinished``: interrupted, or decided and not
    committed. Those can be resumed or aborted."""

    collected: Collected
    aborted: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    unfinished: tuple[ForkRecord, ...] = ()


def clean_up(
    workspace: Workspace | str | os.PathLike[str],
    *,
    force: bool = False,
    keep: int = 50,
    keep_forks: int = 1000,
    dry_run: bool = False,
) -> CleanupReport:
    """Remove what dead processes left, of forks too, and all but the newest ``keep_forks`` forks from the ledger.

    The branches of forks that are over go, and so do those that tests and judges ran in. What belongs to an unfinished
    fork stays, unless ``force`` gives those up that were interrupted. For the rest see ``Workspace.gc``.
    """
    workspace = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
    with open_ledger(workspace) as ledger:
        if not dry_run:
            reconcile(ledger, workspace)
        families = _Families(ledger, workspace)
        given_up = [fork for fork in families.roots() if force and fork.state == "interrupted"]
        if not dry_run:
            for fork in given_up:
                ledger.abort_fork(fork.id, "interrupted, and cleared by force", {"keep": False})
            families.settle()
            for fork in given_up:
                StoredFork(ledger, workspace, fork.id).wait_until_idle()
        aborted = tuple(fork.id for fork in given_up)
        wanted = families.wanted(aborted)
        collected = collect(workspace, force=force, keep=keep, dry_run=dry_run, wanted=wanted)
        forgotten = ledger.prune(keep=keep_forks, dry_run=dry_run)
        unfinished = [fork for fork in families.unfinished() if fork.id not in aborted]
    return CleanupReport(collected, aborted, tuple(forgotten), tuple(unfinished))


class _Families:
    """All forks of a workspace, each outermost one with those made inside its attempts."""

    def __init__(self, ledger: Ledger, workspace: Workspace) -> None:
        self.ledger = ledger
        self.workspace = workspace
        self.forks = {fork.id: fork for fork in reversed(ledger.forks())}

    def root(self, fork: ForkRecord) -> ForkRecord:
        """The outermost fork of a family."""
        while fork.parent is not None and (around := self.forks.get(fork.parent.partition(".")[0])):
            fork = around
        return fork

    def roots(self) -> Iterator[ForkRecord]:
        return (fork for fork in self.forks.values() if fork.parent is None)

    def settle(self) -> None:
        """Write down what became of forks that nobody will decide any more, and see what is so then."""
        for fork in self.forks.values():
            if fork.parent is not None and not fork.is_over and self.ledger.fork(self.root(fork).id).is_over:
                self.ledger.abort_fork(fork.id, _AROUND)
            elif fork.parent is None and self._is_lost(fork):
                self.ledger.abandon_fork(fork.id, "the branch it was decided for is gone")
        self.forks = {fork.id: fork for fork in reversed(self.ledger.forks())}

    def unfinished(self) -> Iterator[ForkRecord]:
        """Those that somebody has to resume or to abort."""
        return (f for f in self.roots() if f.state == "interrupted" or (_is_uncommitted(f) and not f.owner.alive))

    def wanted(self, aborted: tuple[str, ...]) -> Mapping[str, bool]:
        """Whether anybody wants the branches of forks, by their paths; those that are no fork's are not in it."""
        found = {}
        for branch in self.workspace.branches():
            fork = self.forks.get(branch.name.partition("-")[0])
            if fork is not None and fork.origin == branch.parent.branch_path:
                found[branch.branch_path] = self._is_wanted(branch, self.root(fork), aborted)
            elif is_scratch(branch):
                found[branch.branch_path] = branch.owner_alive
        return found

    def _is_wanted(self, branch: Branch, fork: ForkRecord, aborted: tuple[str, ...]) -> bool:
        if fork.id in aborted:
            return False
        if fork.state in ("running", "interrupted") or self._is_outcome(branch, fork):
            return True
        is_kept = branch.kept and (not fork.is_over or (fork.resolution or {}).get("keep") is not False)
        return is_kept or (branch.owner_alive and not branch.kept)

    def _is_outcome(self, branch: Branch, fork: ForkRecord) -> bool:
        """Whether it is, or is inside, what a fork was decided for and what is still to be committed."""
        name = StoredFork(self.ledger, self.workspace, fork.id).outcome() if _is_uncommitted(fork) else None
        return name is not None and f"{branch.branch_path}/".startswith(f"{fork.origin}/{name}/")

    def _is_lost(self, fork: ForkRecord) -> bool:
        """Whether what a fork was decided for can be committed no more, and nobody is about to."""
        if not _is_uncommitted(fork) or fork.owner.alive:
            return False
        remains = StoredFork(self.ledger, self.workspace, fork.id)
        name = remains.outcome()
        return name is None or remains.branch(name) is None


def _is_uncommitted(fork: ForkRecord) -> bool:
    return fork.stored == "resolved" and fork.commit is None
