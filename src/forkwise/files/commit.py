"""Commit of a branch: check it against its parent under the lock, resolve conflicts, plan the steps, run them.

The steps are applied by the journal, through ``store.transaction``; a commit is complete or did not happen.
"""

from __future__ import annotations

import os
import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from forkwise.errors import BranchError, BranchingError, BranchStaleError, CommitError, ConflictError, ForkwiseWarning
from forkwise.files.executable_config import check_executable_config
from forkwise.files.store.branch_info import BranchInfo, is_serving
from forkwise.files.store.commit_plan import (
    Plan,
    find_conflicts,
    list_data_edits,
    plan_directory,
    plan_layer,
    unresolved,
)
from forkwise.files.store.overlayfs import (
    LayerDirectories,
    drop_mark_files,
    inherit_origins,
    list_marks,
    mark_opaque,
    read_marks,
    unmark,
    unmark_origins,
)
from forkwise.files.store.pool import pool_paused
from forkwise.files.store.record import RECORD_DIRECTORY, Record
from forkwise.files.store.state import locked
from forkwise.files.store.state_root import is_state_path, list_known_roots
from forkwise.files.store.transaction import Transaction, as_commit_error
from forkwise.files.store.trash import deferred, discard, run_later
from forkwise.files.versions import Versions, find_executables, find_ignored
from forkwise.git.repository_change import RepositoryMerge, find_repository_paths
from forkwise.linux.directory_user import find_directory_user
from forkwise.linux.process_id import boot_id
from forkwise.linux.syscalls import filesystem_magic
from forkwise.text.phrases import join_first

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.store.changes import Commit, Conflict, OnConflict
    from forkwise.files.store.scan import Entry, Scan
    from forkwise.git.ignore_rules import Ignore

__all__ = ["KEPT", "check_committable", "check_reserved", "check_trust", "commit_branch"]

#: The number of commits that can be undone; the content that older ones replaced is dropped.
KEPT = 100

_OVERLAYFS = 0x794C7630
_TRIES = 3  # in case other processes change files while the commit runs
_CHOICES = ("refuse", "ours", "theirs", "merge")


def commit_branch(
    branch: Branch,
    *,
    on_conflict: OnConflict,
    durable: bool,
    trust: bool,
    rebased: bool = False,
    allow_executable_config: bool = False,
    ignore: Ignore | None = None,
) -> Commit:
    """Apply a branch's layer to its parent. If it raises, neither the parent nor the branch has changed."""
    if on_conflict not in _CHOICES:
        raise ValueError(f"on_conflict takes one of {', '.join(_CHOICES)}, not {on_conflict!r}")
    failed = f"{branch.branch_path} was not committed"
    with pool_paused(), deferred(), as_commit_error(failed), locked(branch.state_dir.state):
        for tries_left in reversed(range(_TRIES)):
            try:
                record = _try_commit(
                    branch,
                    on_conflict,
                    durable=durable,
                    trust=trust,
                    rebased=rebased,
                    allow=allow_executable_config,
                    ignore=ignore if branch.parent is branch.workspace else None,
                )
                break
            except _RepositoryMovedError:
                if not tries_left:
                    raise CommitError(
                        f"{failed}, nothing was changed: a git command changed the repository at every try. Wait until "
                        "it has ended, and commit again",
                        branch=branch.name,
                    ) from None
            except _InterferenceError as error:
                # On the next try, the other process's change is an ordinary conflict.
                if on_conflict == "refuse" or not tries_left:
                    raise error.conflict from None
        try:
            _clean_up(branch, record)
        except (OSError, BranchingError) as error:
            # The commit is done: an exception would say that it failed.
            warnings.warn(
                f"{branch.branch_path} was committed, but cleaning up failed: {error}", ForkwiseWarning, stacklevel=4
            )
    if record.skipped:
        warnings.warn(
            f"{branch.branch_path}: FIFOs, sockets and devices are not committed: {', '.join(record.skipped)}",
            ForkwiseWarning,
            stacklevel=4,
        )
    return record.commit()


class _RepositoryMovedError(Exception):
    """A git command changed the repository after its merge was worked out; nothing was changed by the commit."""


class _InterferenceError(Exception):
    """Another process changed files while the commit ran; the commit was rolled back."""

    def __init__(self, conflict: ConflictError) -> None:
        super().__init__(str(conflict))
        self.conflict = conflict


def _try_commit(
    branch: Branch,
    on_conflict: OnConflict,
    *,
    durable: bool,
    trust: bool,
    rebased: bool,
    allow: bool,
    ignore: Ignore | None,
) -> Record:
    branch._recover()
    info = BranchInfo.load(branch.home)
    check_committable(
        branch, info, branch.state_dir.names(), "rebase() rebases it onto the current state, abort() drops it"
    )
    _check_root(branch, info)
    view, held = branch.view_kind, -1
    is_still = _stop_writes(branch)
    try:
        whole = branch._scan()
        ignored = find_ignored(branch, whole, ignore)
        merge = _merge_repositories(branch, info, whole, on_conflict)
        executors = _check_executables(branch, whole.without(ignored), allow=allow)
        ignored |= merge.left
        scan = whole.without(ignored)
        if not trust:
            check_trust(branch, info, scan)
        _check_mounts(branch, whole)
        _check_databases(branch, scan)
        check_reserved(branch, [e.path for e in scan.entries] + [t.path for t in scan.touched if t.is_changed])
        resolution = _Resolution(branch, info, scan, on_conflict, rebased=rebased)
        resolution.leave(whole, ignored)
        # Not above another layer: that layer is about to change, and must not be mounted then.
        if is_still and not branch._commits_into_layer:
            is_still, held = view.hide_frozen(branch.home)
        else:
            is_still = view.hide(branch.home) and is_still
        branch.parent._before_commit()
    except BaseException:
        _close(held)
        if not branch.is_frozen:
            view.thaw(branch.home, branch.parent.lowers)
        raise
    try:
        checks = rebased or on_conflict != "ours"
        record = _run_commit(branch, info, resolution, executors, merge, moves=is_still, durable=durable, checks=checks)
    except BaseException as error:
        _close(held)  # now, because the view may be mounted again
        if isinstance(error, ConflictError):
            raise _InterferenceError(error) from error
        raise
    run_later(lambda: _close(held))
    return record


def _merge_repositories(branch: Branch, info: BranchInfo, scan: Scan, on_conflict: OnConflict) -> RepositoryMerge:
    """Work out how to merge the branch's work in git repositories. A commit into another branch takes it as files.

    Taking files loses nothing, because a branch does not change while it has branches of its own, except by a rebase.
    """
    directories = [touched.path for touched in scan.touched]
    target = branch.workspace.target
    found = find_repository_paths(target, [*(e.path for e in scan.entries), *directories])
    is_nested = branch.parent is not branch.workspace
    if not found or (is_nested and (not info.unmerged or on_conflict not in ("ours", "theirs"))):
        return RepositoryMerge()
    from forkwise.git.repository_merge import keep_references, merge_repositories  # noqa: PLC0415 - loaded on use

    forked = info.forked_at_earliest
    label = re.sub(r"[^A-Za-z0-9_-]+", "-", branch.name).strip("-") or "branch"

    def is_unchanged(entry: Entry) -> bool:
        # A rebase resets the time of the fork, so after one this is unknown.
        is_older = entry.old is not None and scan.rolled_back.ctime(entry.old) < forked
        return is_older and not entry.appeared and not info.rebased

    if is_nested:
        return keep_references(
            target,
            scan.entries,
            lambda: Versions.of(branch),
            label=label,
            conflicts=[conflict.path for conflict in unresolved(info, scan)],
            are_old_lost=on_conflict == "ours",
        )
    merge = merge_repositories(
        target,
        scan.entries,
        lambda: Versions.of(branch),
        label=label,
        scratch=branch.home,
        is_unchanged=is_unchanged,
        forked_ns=None if info.rebased else forked,
        conflicts=[c.path for c in (*unresolved(info, scan), *find_conflicts(scan, forked))],
    )
    if merge.left:
        merge.left |= found & set(directories)
    return merge


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


def _clean_up(branch: Branch, record: Record) -> None:
    """Drop what the committed branch no longer needs, and the undo content of the commit that has become too old."""
    if branch.view_kind.whole:
        # Its files were copied into the parent: nothing refers to the tree any more.
        home = f"{branch.parent.state_dir.history(record.number)}/home"
        branch.view_kind.release(home)
        discard(branch.parent.state_dir, home)
    # A committed branch is neither restored to an earlier copy, nor merged again, nor used to run a command.
    for name in ("copies", "bases", "paths"):
        unused = f"{branch.parent.state_dir.history(record.number)}/home/{name}"
        if os.path.isdir(unused):
            discard(branch.parent.state_dir, unused)
    branch.parent._after_child_removed()
    # Drop the content kept for undo by the commit that has just become too old.
    old = branch.parent.state_dir.history(record.number - KEPT)
    if record.number > KEPT and os.path.isdir(old):
        discard(branch.parent.state_dir, old)


def check_committable(branch: Branch, info: BranchInfo, open_branches: Sequence[str], remedy: str) -> None:
    """Raise BranchError if it has open branches, BranchStaleError with a ``remedy`` if a sibling was committed."""
    if open_branches:
        raise BranchError(
            f"{branch.branch_path} has branches of its own that are still open: {', '.join(open_branches)}; "
            "commit or abort those first",
            branch=branch.name,
        )
    if info.generation != branch.parent.state_dir.head:
        raise BranchStaleError(
            f"{branch.branch_path} is stale: another branch was committed to {branch.parent.branch_path} since the "
            f"fork; {remedy}",
            branch=branch.name,
        )


def _check_root(branch: Branch, info: BranchInfo) -> None:
    """Raise CommitError if the workspace's path no longer leads to the directory that the branch was forked from."""
    if info.root is not None and not info.root.is_at(branch.parent.target):
        if not os.path.lexists(branch.parent.target):
            raise CommitError(
                f"{branch.branch_path} was not committed: {branch.parent.target}: No such file or directory; it was "
                "moved or deleted since the fork. Move it back and commit again, or abort the branch",
                branch=branch.name,
            )
        raise CommitError(
            f"{branch.branch_path} was not committed, nothing was changed: {branch.parent.target} is not the directory "
            "that the branch was forked from; another one was moved or created there since. Move the original back, or "
            "apply what branch diff prints and abort the branch",
            branch=branch.name,
        )


def _stop_writes(branch: Branch) -> bool:
    """Make the branch read-only. Return False if a process may still write, so that files must be copied, not moved."""
    if branch.view_kind.whole:
        return False
    try:
        branch.view_kind.freeze(branch.home, branch.parent.lowers)
    except BranchError:
        return False
    return True


def check_trust(branch: Branch, info: BranchInfo, scan: Scan) -> None:
    """Raise CommitError if the machine was restarted while the branch held changes that were not synced.

    Layers are written without syncs (overlayfs ``volatile``), so a power failure can leave files incomplete.
    """
    if info.boot == boot_id():
        return
    torn = [e.path for e in scan.entries if e.new is not None and e.new.st_ctime_ns >= info.synced]
    if torn:
        raise CommitError(
            f"the machine was restarted while {branch.branch_path} held unsynced changes: if it lost power, "
            f"files may be incomplete ({join_first(torn, 5)}). "
            "Check them, then commit with trust=True (--trust); keep() syncs a branch",
            branch=branch.name,
            paths=torn,
        )


def _check_executables(branch: Branch, scan: Scan, *, allow: bool) -> dict[str, str]:
    """Return the executable configuration in a branch. Raises ExecutableConfigError if the commit has to be refused.

    A commit into another branch is not refused: that branch becomes one to which a confined program has written.
    """
    was_confined = branch.is_confined
    executors = find_executables(branch, scan, thorough=was_confined)
    if was_confined and branch.parent is not branch.workspace:
        cast("Branch", branch.parent).mark_confined()  # before the commit: a kill in between must not lose the mark
    elif not allow:
        check_executable_config(branch, executors)
    return executors


def _check_databases(branch: Branch, scan: Scan) -> None:
    """Raise CommitError if the branch changed a data directory on which a server runs, in it or in the parent."""
    changed = {data for path in scan.list_data_paths() if (data := scan.find_data(path)) is not None}
    for data in sorted(changed):
        user = find_directory_user(os.path.join(scan.parent, data))
        if user is not None:
            raise CommitError(
                f"{branch.branch_path} was not committed, nothing was changed: {user} uses {data}, which the branch "
                "changed. Stop it, and commit again",
                branch=branch.name,
                paths=[data],
            )
    if changed and is_serving(branch.home):
        raise CommitError(
            f"{branch.branch_path} was not committed, nothing was changed: servers still run in it, on "
            f"{', '.join(sorted(changed))}. End the command that has started them, and commit again",
            branch=branch.name,
            paths=sorted(changed),
        )


def _check_mounts(branch: Branch, scan: Scan) -> None:
    """Raise CommitError if the branch changed paths at or below a mount point of the parent."""
    if scan.mounted and not branch._commits_into_layer:
        raise CommitError(
            f"{branch.branch_path} was not committed, nothing was changed: another filesystem is mounted at "
            f"{', '.join(sorted(scan.mounted))} in the parent, and the branch changed the directory below it. "
            "Unmount it, or remove those files from the branch",
            branch=branch.name,
            paths=sorted(scan.mounted),
        )


def check_reserved(branch: Branch, paths: Sequence[str]) -> None:
    """Raise CommitError if a branch changed a directory in which forkwise keeps, or would look for, state.

    A program in the branch could otherwise write records for a workspace inside this one.
    """
    roots = _roots_inside(branch.workspace.target, *map(os.environ.get, ("FORKWISE_STATE", "XDG_STATE_HOME", "HOME")))
    found = [path for path in paths if is_state_path(path) or any(f"{path}/".startswith(root) for root in roots)]
    if found:
        raise CommitError(
            f"{branch.branch_path} was not committed, nothing was changed: it has changes in directories that are "
            f"reserved for forkwise's own state: {join_first(found, 5)}. Remove them "
            "from the branch",
            branch=branch.name,
            paths=found,
        )


@lru_cache(maxsize=16)
def _roots_inside(workspace: str, *_environment: str | None) -> list[str]:
    """List the state roots inside a workspace, as paths relative to it that end with a slash."""
    top = f"{workspace.rstrip('/')}/"
    return [f"{root.removeprefix(top)}/" for root in list_known_roots() if root.startswith(top)]


def _check_mixture(branch: Branch, info: BranchInfo, scan: Scan, found: Sequence[Conflict]) -> None:
    """Raise ConflictError if a data directory would become a mixture of the branch's files and the parent's.

    A branch holds only the files that it changed. If the parent changed others since the fork, the directory as the
    branch's server left it no longer exists anywhere.
    """
    paths = scan.list_data_paths()
    for conflict in found:
        if conflict.path not in scan.data:
            continue
        theirs = set(list_data_edits(scan, conflict.path, info.forked_at_earliest))
        if conflict.kind == "unmerged" or not theirs <= paths:
            raise ConflictError(
                f"{branch.branch_path} was not committed, nothing was changed: {conflict}. Its files cannot be taken "
                "either, because the parent changed others of the same database beneath them: choose "
                "on_conflict='theirs', which keeps the parent's database and commits the rest",
                branch=branch.name,
                conflicts=[conflict],
            )


class _Resolution:
    """The conflicts of a commit and how each is resolved: ``dropped`` paths keep the parent's version."""

    def __init__(
        self, branch: Branch, info: BranchInfo, scan: Scan, on_conflict: OnConflict, *, rebased: bool = False
    ) -> None:
        self.scan = scan
        self.dropped: set[str] = set()
        self.merged: dict[str, bytes] = {}
        self.conflicts: list[Conflict] = []
        entries = {e.path: e for e in scan.entries}
        new = [] if branch._commits_into_layer else find_conflicts(scan, info.forked_at_earliest)
        if rebased and new:
            self._merge(branch, info, new, entries, "refuse")  # raises, unless both sides made the same change
            new = []
        found = [*unresolved(info, scan), *new]
        if not found:
            return
        if on_conflict == "ours":
            self.conflicts = found
            _check_mixture(branch, info, scan, found)
        elif on_conflict == "theirs":
            self.conflicts = found
            clashing = {c.path for c in found}
            self.dropped |= clashing
            self.dropped |= {path for path in scan.list_data_paths() if scan.find_data(path) in clashing}
        else:
            self._merge(branch, info, found, entries, on_conflict)

    def leave(self, whole: Scan, ignored: set[str]) -> None:
        """Leave ignored paths as the parent has them; ``plan_directory`` needs ``whole``, the scan with these paths."""
        if ignored:
            self.scan = replace(whole, touched=self.scan.touched, specials=self.scan.specials)
            self.dropped |= ignored

    def _merge(
        self,
        branch: Branch,
        info: BranchInfo,
        found: list[Conflict],
        entries: dict[str, Entry],
        on_conflict: OnConflict,
    ) -> None:
        from forkwise.files.rebase import merge_conflicts  # noqa: PLC0415 - rarely needed

        with Versions.of(branch) as versions:
            same = [c for c in found if c.path in entries and versions.is_same(entries[c.path])]
            self.dropped |= {c.path for c in same}
            left = [c for c in found if c not in same]
            if on_conflict == "merge":
                self.conflicts = left
                self.merged, left = merge_conflicts(left, entries, versions, branch, info)
        if left:
            shown = join_first(left, 5, "; ")
            raise ConflictError(
                f"{branch.branch_path} was not committed, nothing was changed: {shown}. "
                "Choose on_conflict='ours', 'theirs' or 'merge'",
                branch=branch.name,
                conflicts=left,
            )


def _run_commit(
    branch: Branch,
    info: BranchInfo,
    resolution: _Resolution,
    executors: dict[str, str],
    merge: RepositoryMerge,
    *,
    moves: bool,
    durable: bool,
    checks: bool,
) -> Record:
    """Plan the commit and run it as a transaction.

    ``moves`` allows moving files out of the layer. With ``checks``, a change that another process makes meanwhile is a
    conflict.
    """
    parent, scan, prefixes = branch.parent, resolution.scan, branch.view_kind.mark_prefixes
    prepared = f"{branch.home}/{RECORD_DIRECTORY}"
    with Transaction(
        parent.state_dir,
        parent.target,
        branch.branch_path,
        prepared_directory=prepared,
        number=info.generation + 1,  # the head's, see ``check_committable``
    ) as transaction:
        if branch._commits_into_layer:
            plan = plan_layer(
                branch.target,
                parent.target,
                resolution.dropped,
                marks_origins=not branch.view_kind.mark_files,
                mark_prefixes=prefixes,
            )
            plan.left = resolution.dropped
            foreign = [*plan.foreign, *scan.moved]
            marked = list_marks(branch.target, [*plan.opaque, *foreign, *plan.heirs])
        else:
            moves = moves and not branch.view_kind.whole and transaction.stage is None
            plan = plan_directory(
                scan,
                forked=info.forked_at_earliest,
                moves=moves,
                renames_directories=filesystem_magic(parent.target) != _OVERLAYFS,
                dropped=resolution.dropped,
                merged=resolution.merged,
            )
            drop_mark_files(branch.target, scan.mark_files)
            transaction.fill(plan, branch.target, resolution.merged)
            marked = scan.marked if moves else []
        record = _record(branch, resolution, plan, transaction, durable)
        record.root = info.root
        record.executable_config = [(p, executor) for p, executor in executors.items() if p not in resolution.dropped]
        record.repository, record.sentences = merge.done, merge.sentences
        if merge.contents:
            runs, removed = transaction.fill_contents(merge.contents)
            record.runs += runs
            plan.removed += removed
            transaction.lock(merge.locks)
            if not merge.is_current(parent.target):
                raise _RepositoryMovedError
        with LayerDirectories(branch.target) as directories:
            record.marks = read_marks(directories, marked)

            def strip() -> None:
                if branch._commits_into_layer:
                    mark_opaque(branch.target, plan.opaque, prefixes)
                    unmark_origins(branch.target, foreign, prefixes)
                    inherit_origins(branch.target, parent.target, plan.heirs, prefixes)
                else:
                    unmark(directories, marked)

            transaction.run(record, branch.target, strip, plan.removed if checks else ())
    return record


def _record(branch: Branch, resolution: _Resolution, plan: Plan, transaction: Transaction, durable: bool) -> Record:
    number = transaction.number
    record = Record(
        number=number,
        kind="commit",
        branch=branch.branch_path,
        at=time.time(),
        durable=durable,
        layer=f"history/{number}/home/layer",
        side=f"history/{number}",
        home=branch.name,
        stage=transaction.stage,
        runs=plan.runs,
        metas=plan.metas,
        skipped=[] if branch._commits_into_layer else sorted(resolution.scan.specials),
        conflicts=resolution.conflicts,
    )
    lists = {"added": record.added, "changed": record.changed, "deleted": record.deleted}
    for entry in resolution.scan.entries:
        path = entry.path
        if path not in plan.left:
            lists[entry.kind].append(path)
    record.changed += [
        t.path or "." for t in resolution.scan.touched if t.is_changed and (t.path or ".") not in resolution.dropped
    ]
    for paths in lists.values():
        paths.sort()
    left = plan.left | resolution.dropped
    inside = [resolution.scan.find_data(path) for path in resolution.scan.list_data_paths() if path not in left]
    record.data = sorted({data for data in inside if data is not None})
    return record
