"""Stored fork: a fork as the ledger and the workspace have it, for processes that do not run it.

``load_side`` and ``compare_sides`` read what attempts and commits changed, also after their branches are gone.

This module also reconciles the two: a commit or undo changes the workspace first and is recorded in the ledger
afterwards. ``reconcile`` records what a kill in between left out; it finds a fork's branches by their names, which
start with its id.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forkwise.errors import BranchError, BranchNotFoundError, CommitError, ForkwiseWarning, LedgerError
from forkwise.files.branch import Branch
from forkwise.files.old_versions import commit_files, version_at
from forkwise.files.store.branch_info import BranchInfo
from forkwise.files.store.changes import Delta
from forkwise.files.undo import history
from forkwise.files.versions import changed_files, diff_between
from forkwise.ledger.sqlite import open_ledger
from forkwise.ledger.stored_changes import StoredChanges, load_changes
from forkwise.text.diff import FileDiff

if TYPE_CHECKING:
    from forkwise.files.store.changes import Commit
    from forkwise.files.workspace import Workspace
    from forkwise.git.repository_change import RepositoryChange
    from forkwise.ledger.change_watch import ChangeWatch
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import AttemptRecord, ForkRecord

__all__ = [
    "PATIENCE",
    "ComparedSide",
    "StoredFork",
    "branch_gone_error",
    "branch_of",
    "compare_sides",
    "forks_of",
    "is_scratch",
    "load_side",
    "reconcile",
    "record_branch_commit",
    "undo",
    "warn_if_unrecorded",
]


PATIENCE = 60.0
"""Seconds to wait for another process to end its attempts after a request in the ledger."""

_POLL_INTERVAL = 0.05


_SCRATCH_NAME = re.compile(r"scratch-[0-9a-f]{12}")


def is_scratch(branch: Branch) -> bool:
    """Return whether a branch was created by ``forkwise.fork.evaluation.scratch``, for tests or a judge."""
    return _SCRATCH_NAME.fullmatch(branch.name) is not None


class StoredFork:
    """One fork: its ledger records and its branches. Forks inside its attempts are separate stored forks."""

    def __init__(self, ledger: Ledger, workspace: Workspace, fork: str) -> None:
        self.ledger = ledger
        self.workspace = workspace
        self.id = ledger.fork(fork).id

    @property
    def record(self) -> ForkRecord:
        """The fork's current ledger record."""
        return self.ledger.fork(self.id)

    @property
    def attempts(self) -> list[AttemptRecord]:
        """The fork's own attempts, without those of forks inside them."""
        return self.ledger.attempts(self.id)

    def require_outermost(self) -> None:
        """Raise LedgerError for a fork inside an attempt: only the outermost fork can be resumed or aborted."""
        if parent := self.record.parent:
            outer = parent.partition(".")[0]
            raise LedgerError(f"fork {self.id} is inside attempt {parent}: name fork {outer} instead", subject=self.id)

    def inside(self, attempt: str | None = None) -> Iterator[StoredFork]:
        """Yield the forks inside ``attempt``, or inside all of its attempts."""
        for name in [attempt] if attempt else [a.id for a in self.attempts]:
            for record in self.ledger.children(name):
                yield StoredFork(self.ledger, self.workspace, record.id)

    # Its branches

    @property
    def origin(self) -> Workspace | Branch:
        """The parent of the fork's branches."""
        origin = self.record.origin
        return self.workspace if origin == self.workspace.branch_path else self.workspace.open(origin)

    def branches(self) -> list[Branch]:
        """List the fork's branches that still exist."""
        with suppress(BranchNotFoundError):
            return [branch for branch in self.origin.children() if branch.name.startswith(f"{self.id}-")]
        return []

    def branch(self, name: str) -> Branch | None:
        """Open one of the fork's branches; None if it no longer exists."""
        with suppress(BranchNotFoundError):
            return Branch.open(self.origin, name)
        return None

    def outcome(self) -> str | None:
        """Return the name of the branch that the fork was resolved with: an attempt's, or a combination's."""
        record = self.record
        if record.winner is not None:
            return self.ledger.attempt(record.winner).branch
        name = (record.resolution or {}).get("branch")
        return name if isinstance(name, str) else None

    def find_commit(self, name: str) -> Commit | None:
        """Find the commit of a branch into the fork's parent; None if it was not committed."""
        with suppress(BranchNotFoundError):
            origin = self.origin
            path = f"{origin.branch_path}/{name}"
            return next((c for c in history(origin) if c.kind == "commit" and c.branch == path), None)
        return None

    def drop(self, *, keep: bool = False, exclude: Branch | None = None) -> list[str]:
        """Drop the fork's branches, or keep them; return their paths. The branch ``exclude`` stays as it is."""
        done = []
        for branch in self.branches():
            if exclude is not None and branch.branch_path == exclude.branch_path:
                continue
            with suppress(BranchNotFoundError):
                if keep:
                    branch.keep()
                else:
                    branch.abort()
                done.append(branch.branch_path)
        return done

    # Other processes

    def abort_inside(self, reason: str, attempt: str | None = None) -> None:
        """Abort the undecided forks inside ``attempt``, or inside all of its attempts."""
        for fork in self.inside(attempt):
            self.ledger.abort_fork(fork.id, reason)
            fork.abort_inside(reason)

    def wait_until_idle(self, *, lost: bool = False) -> None:
        """Wait until no attempt of the fork runs or is tested any more.

        The process that runs the fork reads in the ledger that it was decided. If that process was killed, its
        unfinished attempts are recorded as cancelled. ``lost`` says that a process on another machine is dead; for
        processes of this machine that is detected. Raises BranchError after ``PATIENCE`` seconds.
        """
        with self.ledger.watch_changes() as watch:
            self._wait_until_idle(watch, lost)
        for name in self._find_unfinished():
            with suppress(LedgerError):  # recorded in the meantime
                self.ledger.end_attempt(name, "cancelled", reason="its process was killed")

    def _wait_until_idle(self, watch: ChangeWatch, lost: bool) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._is_owner_running(lost) and (running := self._find_unfinished() or self._find_retested()):
            if time.monotonic() > deadline:
                owner = self.record.owner
                remedy = (
                    "abort it with lost=True (--lost) if that machine is gone"
                    if owner.is_elsewhere
                    else "end that process, then try again"
                )
                raise BranchError(
                    f"fork {self.id} was decided, but process {owner.label} still runs {', '.join(running)}: {remedy}"
                )
            watch.wait(_POLL_INTERVAL, 1.0)

    def _is_owner_running(self, lost: bool) -> bool:
        owner = self.record.owner
        return owner.alive and not (lost and owner.is_elsewhere)

    def _find_unfinished(self) -> list[str]:
        own = [attempt.id for attempt in self.attempts if not attempt.is_over]
        return own + [name for fork in self.inside() for name in fork._find_unfinished()]

    def _find_retested(self) -> list[str]:
        """Return the attempts that were over and are being tested again, by a process that lives."""
        found = []
        for attempt in self.attempts:
            branch = self.branch(attempt.branch)
            with suppress(BranchNotFoundError):  # the tests have ended
                children = [] if branch is None else branch.children()
                found += [attempt.id for child in children if is_scratch(child) and child.owner_alive]
        return found


def branch_of(ledger: Ledger, workspace: Workspace, name: str) -> Branch:
    """Open a branch by the id of its attempt, or by its own name or path."""
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
    """Build the error for an attempt whose branch no longer exists."""
    return BranchNotFoundError(
        f"attempt {attempt.id} no longer has a branch: it was committed, or dropped when its fork was decided",
        branch=attempt.branch,
    )


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One side of a comparison: what a branch, an attempt or a commit changed, and on top of what.

    ``origin`` and ``generation`` name the state of the files that it started from. ``stored`` is the ledger's copy,
    None if the changes were read from the branch or from the undo records.
    """

    origin: str
    name: str
    generation: int
    files: Sequence[FileDiff]
    executable_config: tuple[tuple[str, str], ...] = ()
    stored: StoredChanges | None = None
    repository: tuple[RepositoryChange, ...] = ()


def load_side(ledger: Ledger, workspace: Workspace, name: str) -> ComparedSide:
    """Find what a branch, an attempt or a commit changed: by a name, an attempt's id or a commit's number.

    An attempt without a branch is read from the ledger. Raises BranchNotFoundError or CommitError if there is nothing
    to read.
    """
    try:
        branch = branch_of(ledger, workspace, name)
    except BranchNotFoundError:
        if name.isdecimal():
            return _load_commit(ledger, workspace, int(name))
        if "." not in name:
            raise
        attempt = ledger.attempt(name)
        fork = ledger.fork(attempt.fork)
        return _load_stored(ledger, fork, attempt, fork.generation)
    delta = Delta(()) if branch.view_kind.native else branch.delta()
    generation = 0 if branch.view_kind.native else BranchInfo.load(branch.home).generation
    return ComparedSide(
        branch.parent.branch_path,
        branch.branch_path,
        generation,
        changed_files(branch),
        delta.executable_config,
        repository=delta.repository,
    )


def _load_stored(ledger: Ledger, fork: ForkRecord, attempt: AttemptRecord, generation: int) -> ComparedSide:
    stored = load_changes(ledger.fetch_files(attempt.id), attempt.id)
    if stored is None:
        error = branch_gone_error(attempt)
        error.add_note(f"What {attempt.id} changed is not in the ledger: it never ran, or an older forkwise ran it.")
        raise error
    name = f"{fork.origin}/{attempt.branch}"
    delta = stored.delta
    return ComparedSide(
        fork.origin, name, generation, stored.files, delta.executable_config, stored, repository=delta.repository
    )


def _load_commit(ledger: Ledger, workspace: Workspace, number: int) -> ComparedSide:
    """Find what a commit changed: from the stored changes of its attempt, or else from undo records and files."""
    commit = next((one for one in workspace.history() if one.id == number), None)
    if commit is None:
        committed = [fork for fork in ledger.forks() if fork.commit == number]
        fork = next((fork for fork in committed if fork.parent is None and fork.origin == workspace.branch_path), None)
    else:
        fork = forks_of(ledger, [commit]).get(number)
    side = None
    if fork is not None and fork.winner is not None:
        with suppress(BranchNotFoundError):
            side = _load_stored(ledger, fork, ledger.attempt(fork.winner), number - 1)
    if side is not None and commit is not None and commit.kind == "undo":
        side = replace(side, files=[FileDiff(file.path, file.new, file.old) for file in side.files])
    is_exact = commit is None or (
        not commit.conflicts and side is not None and {f.path for f in side.files} <= {*commit.paths}
    )
    if side is None or not is_exact:
        try:
            name = workspace.branch_path if commit is None else commit.branch
            side = ComparedSide(workspace.branch_path, name, number - 1, commit_files(workspace, number))
        except CommitError:
            if side is None:
                raise
    return replace(side, name=f"commit {number}")


def compare_sides(workspace: Workspace, first: ComparedSide, second: ComparedSide) -> Iterator[FileDiff]:
    """Yield the differences between the results of two sides, sorted by path.

    Raises BranchError if the files that they started from cannot be compared, and CommitError if those are not known.
    """
    if (first.origin, first.generation) == (second.origin, second.generation):
        yield from diff_between(first.files, second.files)
        return
    if {first.origin, second.origin} != {workspace.branch_path}:
        raise BranchError(f"{first.name} and {second.name} have different parents: only siblings can be compared")
    changed = [{file.path: file for file in side.files} for side in (first, second)]
    for path in sorted({*changed[0], *changed[1]}):
        old, new = (
            files[path].new if path in files else version_at(workspace, side.generation, path)
            for files, side in zip(changed, (first, second), strict=True)
        )
        yield FileDiff(path, old, new)


def forks_of(ledger: Ledger, commits: Iterable[Commit]) -> dict[int, ForkRecord]:
    """Map the numbers of ``commits`` to the forks they came from; an undo maps to the fork of the undone commit."""
    forks = {fork.id: fork for fork in ledger.forks()}
    found: dict[int, ForkRecord] = {}
    for commit in commits:
        origin, _, name = commit.branch.rpartition("/")
        fork = forks.get(name.partition("-")[0])
        if fork is not None and fork.origin == origin:
            found[commit.id] = fork
    return found


def undo(workspace: Workspace, number: int | None = None) -> Commit:
    """Undo a commit, as ``Workspace.undo`` does, and record it in the ledger.

    If the ledger cannot be used, the undo is done nevertheless, with a warning: the files are what counts.
    """
    commit = workspace.undo(number)
    with warn_if_unrecorded(f"commit {commit.undoes} was undone as {commit.id}"), open_ledger(workspace) as ledger:
        reconcile(ledger, workspace)
    return commit


@contextmanager
def warn_if_unrecorded(done: str) -> Iterator[None]:
    """Warn, instead of raising, if the block cannot record in the ledger what was ``done`` to the files.

    An exception would suggest that it was not done. The workspace's history has it, and ``reconcile`` records it later.
    """
    try:
        yield
    except (LedgerError, OSError, ValueError, TypeError, KeyError) as error:  # the last three: a damaged row
        warnings.warn(
            f"{done}, but the ledger could not be updated: {str(error) or type(error).__name__}. Once the ledger can "
            "be used again, forkwise gc updates it",
            ForkwiseWarning,
            stacklevel=4,
        )


def record_branch_commit(workspace: Workspace, commit: Commit) -> None:
    """Record in the ledger that the branch of a decided fork was committed by its name; warn if that fails."""
    name = commit.branch.rpartition("/")[2]
    if "-" not in name or not (workspace.state / "ledger").is_dir():
        return  # no branch of a fork
    with warn_if_unrecorded(f"{commit.branch} was committed as {commit.id}"), open_ledger(workspace) as ledger:
        reconcile(ledger, workspace)


def reconcile(ledger: Ledger, workspace: Workspace) -> None:
    """Record the commits and undos of a workspace that are missing in the ledger."""
    for fork in ledger.forks(state="resolved"):
        if fork.commit is None:
            stored = StoredFork(ledger, workspace, fork.id)
            name = stored.outcome()
            if name is not None and (commit := stored.find_commit(name)):
                ledger.record_commit(fork.id, commit.id, commit.paths)
    for commit in reversed(workspace.history()):
        if commit.undoes is not None:
            ledger.record_undo(commit.undoes, commit.id, str(workspace.path))
