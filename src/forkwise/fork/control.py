"""Cross-process control of a fork: its owner polls the ledger for requests that other processes post.

Also the operations of those other processes: abort an attempt or a fork, and clean up after forks that are over.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkwise.errors import BranchError, BranchNotFoundError, ForkResolvedError
from forkwise.files.gc import Collected, collect
from forkwise.files.store.branch_info import BranchInfo
from forkwise.files.workspace import Workspace
from forkwise.fork.agent_paths.logins import take_logins
from forkwise.fork.stored_fork import PATIENCE, StoredFork, is_scratch, reconcile
from forkwise.ledger.disk_use import measure_disk_use
from forkwise.ledger.sqlite import open_ledger

if TYPE_CHECKING:
    from forkwise.config.gc_limits import GcLimits
    from forkwise.files.branch import Branch
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import ForkRecord

__all__ = [
    "CleanupReport",
    "abort_attempt",
    "abort_fork",
    "clean_up",
    "collect_by_limits",
]


_WAIT_INTERVAL = 0.05
_COLLECT_INTERVAL = 86400.0  # between two automatic collections
_STAMP = "collected"  # in the state directory: the time of the last automatic collection


def abort_attempt(
    workspace: Workspace | str | os.PathLike[str], attempt: str, reason: str = "aborted by the user"
) -> tuple[str, ...]:
    """End one attempt and the forks inside it, in whichever process it runs; its siblings continue.

    Waits for the process that runs the fork to end the attempt. If that process was killed, the attempt is recorded as
    cancelled, and resuming the fork does not run it again. Returns the branches that this call dropped. Raises
    LedgerError if the attempt is over already.
    """
    workspace = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
    with open_ledger(workspace) as ledger:
        record = ledger.attempt(attempt)
        fork = StoredFork(ledger, workspace, record.fork)
        if fork.record.is_over:
            raise ForkResolvedError(f"fork {fork.id} is {fork.record.state}: no attempt of it runs", fork=fork.id)
        ledger.ask_to_end(record.id, reason)
        _wait_for_end(ledger, fork, record.id)
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


def _wait_for_end(ledger: Ledger, fork: StoredFork, attempt: str) -> None:
    """Wait until an attempt is over, or the process that ran it has died."""
    deadline = time.monotonic() + PATIENCE
    with ledger.watch_changes(fork.id) as watch:
        while not ledger.attempt(attempt).is_over and fork.record.owner.alive:
            if time.monotonic() > deadline:
                raise BranchError(
                    f"attempt {attempt} was not ended within {PATIENCE:g} s by process {fork.record.owner.label}, "
                    "which runs it: try again later, or abort the fork"
                )
            watch.wait(_WAIT_INTERVAL, 1.0)


_OUTER_FORK_OVER = "the fork around it is over"


def abort_fork(
    workspace: Workspace | str | os.PathLike[str], fork: str, reason: str = "aborted by hand", *, lost: bool = False
) -> tuple[str, ...]:
    """Abort a fork of any process, and drop all of its branches. Returns the branches that this call dropped.

    Waits for the process that runs the fork to end its attempts, on another machine too unless ``lost`` says that the
    machine will not return. A fork that was decided but never committed is aborted as well; one that was committed
    raises ForkResolvedError: use ``undo``. Aborting an aborted fork again drops any branches that remain.
    """
    workspace = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
    with open_ledger(workspace) as ledger:
        stored = StoredFork(ledger, workspace, fork)
        stored.require_outermost()
        reconcile(ledger, workspace)
        if stored.record.stored == "resolved":
            return _abandon_resolved(stored, reason)
        ledger.abort_fork(stored.id, reason, {"keep": False})
        stored.abort_inside(reason)
        stored.wait_until_idle(lost=lost)
        return tuple(stored.drop())


def _abandon_resolved(fork: StoredFork, reason: str) -> tuple[str, ...]:
    """Abort a fork that was decided but not committed.

    Another process may be committing it: the branch is then either committed or dropped, whichever comes first.
    """
    is_uncommitted = fork.record.commit is None
    dropped = tuple(fork.drop()) if is_uncommitted else ()
    replaced = (fork.record.resolution or {}).get("replaces") if is_uncommitted else None
    if replaced is not None and not any(commit.undoes == replaced for commit in fork.workspace.history()):
        fork.ledger.reinstate(fork.id)  # an override was recorded, but the winner's commit is not undone
    reconcile(fork.ledger, fork.workspace)
    record = fork.record
    if record.commit is not None:
        remedy = f"it was undone by {record.undone}" if record.undone else f"forkwise undo {record.commit} reverts it"
        raise ForkResolvedError(
            f"fork {fork.id} was committed as {record.commit}, and cannot be aborted; {remedy}", fork=fork.id
        )
    fork.ledger.abandon_fork(fork.id, reason)
    return dropped


@dataclass(frozen=True, slots=True)
class CleanupReport:
    """The result of a clean-up.

    ``collected`` lists the removed branches and commits, ``aborted`` the interrupted forks that were aborted,
    ``forgotten`` the forks removed from the ledger. ``unfinished`` forks, interrupted or decided but not committed,
    can be resumed or aborted.
    """

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
    fork_age: float | None = 0.0,
    old_commits: Collection[int] | None = None,
    dry_run: bool = False,
) -> CleanupReport:
    """Remove what dead processes left behind, and all but the newest ``keep_forks`` forks from the ledger.

    Forks that ended within the last ``fork_age`` seconds stay too; None keeps all forks. If ``old_commits`` is given,
    the undo records of exactly these commits are removed, whatever ``keep`` says.

    Removes the branches of forks that are over, and those that tests and judges ran in. Branches of unfinished forks
    stay; ``force`` aborts the interrupted ones. For the other arguments see ``Workspace.gc``.
    """
    workspace = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
    with open_ledger(workspace) as ledger:
        if not dry_run:
            reconcile(ledger, workspace)
        families = _Families(ledger, workspace)
        interrupted = [fork for fork in families.roots() if force and fork.state == "interrupted"]
        if not dry_run:
            for fork in interrupted:
                ledger.abort_fork(fork.id, "interrupted, and removed with force", {"keep": False})
            families.record_ends()
            for fork in interrupted:
                StoredFork(ledger, workspace, fork.id).wait_until_idle()
        aborted = tuple(fork.id for fork in interrupted)
        wanted = families.wanted(aborted)
        if not dry_run:
            _take_abandoned_logins(workspace)
        collected = collect(workspace, force=force, keep=keep, dry_run=dry_run, wanted=wanted, old_commits=old_commits)
        forgotten = [] if fork_age is None else ledger.prune(keep=keep_forks, older_than=fork_age, dry_run=dry_run)
        unfinished = [fork for fork in families.unfinished() if fork.id not in aborted]
    return CleanupReport(collected, aborted, tuple(forgotten), tuple(unfinished))


def collect_by_limits(workspace: Workspace, limits: GcLimits, *, now: float | None = None) -> CleanupReport | None:
    """Collect garbage if limits are set and the last automatic collection was a day ago; otherwise return None.

    Nothing that is in use is removed: no branch of a running process, none that is kept or has uncommitted changes, no
    undo record since an open branch was forked, and, to free space, nothing younger than ``limits.min_age``.
    """
    if not limits.are_set or type(workspace) is not Workspace:  # a mount with branches of its own keeps no undo records
        return None
    now = time.time() if now is None else now
    stamp = f"{workspace.state_dir.state}/{_STAMP}"
    try:
        if 0 <= now - os.stat(stamp).st_mtime < _COLLECT_INTERVAL:
            return None
    except FileNotFoundError:
        os.close(os.open(stamp, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    os.utime(stamp, (now, now))
    ages = {number: now - _find_time(workspace, number) for number in workspace.state_dir.numbers()}
    generations = [BranchInfo.load(branch.home).generation for branch in workspace.children()]
    last_free = min(generations, default=workspace.state_dir.head)
    ages = {number: age for number, age in ages.items() if number <= last_free}
    old = {number for number, age in ages.items() if limits.max_age is not None and age > limits.max_age}
    keep_forks_s = limits.max_age
    if limits.max_size is not None:
        use = measure_disk_use(workspace)
        left = use.total - use.kinds["trash"] - sum(use.undo.get(number, 0) for number in old)
        for number in sorted(ages):
            if left <= limits.max_size:
                break
            if number not in old and ages[number] > limits.min_age:
                old.add(number)
                left -= use.undo.get(number, 0)
        if left > limits.max_size:
            keep_forks_s = limits.min_age if keep_forks_s is None else min(limits.min_age, keep_forks_s)
    return clean_up(workspace, keep_forks=0, fork_age=keep_forks_s, old_commits=old)


def _find_time(workspace: Workspace, number: int) -> float:
    """Return when a commit was made, or the largest time if its record was removed meanwhile."""
    try:
        return os.stat(workspace.state_dir.history(number)).st_mtime
    except FileNotFoundError:
        return float("inf")


def _take_abandoned_logins(workspace: Workspace) -> None:
    """Take over the logins that attempts refreshed before their process was killed."""
    for branch in workspace.branches():
        with suppress(BranchNotFoundError):
            if not branch.owner_alive:
                take_logins(branch)


class _Families:
    """All forks of a workspace, grouped by the outermost fork that contains them."""

    def __init__(self, ledger: Ledger, workspace: Workspace) -> None:
        self.ledger = ledger
        self.workspace = workspace
        self.forks = {fork.id: fork for fork in reversed(ledger.forks())}

    def root(self, fork: ForkRecord) -> ForkRecord:
        """Return the outermost fork that contains ``fork``."""
        while fork.parent is not None and (outer := self.forks.get(fork.parent.partition(".")[0])):
            fork = outer
        return fork

    def roots(self) -> Iterator[ForkRecord]:
        return (fork for fork in self.forks.values() if fork.parent is None)

    def record_ends(self) -> None:
        """Record forks that can no longer be decided as aborted, and reload all forks."""
        for fork in self.forks.values():
            if fork.parent is not None and not fork.is_over and self.ledger.fork(self.root(fork).id).is_over:
                self.ledger.abort_fork(fork.id, _OUTER_FORK_OVER)
            elif fork.parent is None and self._is_lost(fork):
                self.ledger.abandon_fork(fork.id, "the branch of its winner no longer exists")
        self.forks = {fork.id: fork for fork in reversed(self.ledger.forks())}

    def unfinished(self) -> Iterator[ForkRecord]:
        """List the forks that the user has to resume or abort."""
        return (f for f in self.roots() if f.state == "interrupted" or (_is_uncommitted(f) and not f.owner.alive))

    def wanted(self, aborted: tuple[str, ...]) -> Mapping[str, bool]:
        """Map the path of each fork's and scratch branch to whether it must be kept. Other branches are left out."""
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
        """Return whether ``branch`` is, or is inside, the winner's branch of a fork that is not committed yet."""
        name = StoredFork(self.ledger, self.workspace, fork.id).outcome() if _is_uncommitted(fork) else None
        return name is not None and f"{branch.branch_path}/".startswith(f"{fork.origin}/{name}/")

    def _is_lost(self, fork: ForkRecord) -> bool:
        """Return whether the winner's branch no longer exists and no live process is committing it."""
        if not _is_uncommitted(fork) or fork.owner.alive:
            return False
        stored = StoredFork(self.ledger, self.workspace, fork.id)
        name = stored.outcome()
        return name is None or stored.branch(name) is None


def _is_uncommitted(fork: ForkRecord) -> bool:
    return fork.stored == "resolved" and fork.commit is None
