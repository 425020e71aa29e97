"""How a branch is committed: checked against its parent under the lock, planned, and carried out by the journal."""

from __future__ import annotations

import os
import time
import warnings
from typing import TYPE_CHECKING

from forkwise.errors import BranchError, BranchingError, BranchStaleError, CommitError, ConflictError, ForkwiseWarning
from forkwise.files.store.branch_info import BranchInfo
from forkwise.files.store.changes import Commit, Conflict, OnConflict
from forkwise.files.store.commit_plan import Plan, find_conflicts, plan_directory, plan_layer, unresolved
from forkwise.files.store.overlayfs import (
    drop_mark_files,
    inherit_origins,
    list_marks,
    mark_opaque,
    read_marks,
    unmark,
    unmark_origins,
)
from forkwise.files.store.pool import pool_paused
from forkwise.files.store.record import ROOM, Record
from forkwise.files.store.scan import Entry, Scan
from forkwise.files.store.state import StateDir, locked
from forkwise.files.store.transaction import Transaction, as_commit_error
from forkwise.files.store.trash import deferred, discard
from forkwise.linux.process_id import boot_id
from forkwise.linux.syscalls import filesystem_magic

if TYPE_CHECKING:
    from forkwise.files.branch import Branch

__all__ = ["KEPT", "check_trust", "commit_branch"]

#: How many commits can be undone: what older ones replaced is let go.
KEPT = 100

_OVERLAYFS = 0x794C7630
_CHOICES = ("refuse", "ours", "theirs", "merge")


def commit_branch(branch: Branch, *, on_conflict: OnConflict, durable: bool, trust: bool) -> Commit:
    """Apply a branch's layer to its parent; on any error nothing was changed and the branch is as before."""
    if on_conflict not in _CHOICES:
        raise ValueError(f"on_conflict takes one of {', '.join(_CHOICES)}, not {on_conflict!r}")
    failed = f"{branch.branch_path} was not committed"
    with pool_paused(), deferred(), as_commit_error(failed), locked(branch.place.state):
        branch.recover()
        birth = BranchInfo.load(branch.home)
        _check_turn(branch, birth)
        is_still = _still(branch)
        try:
            scan = branch.scan()
            if not trust:
                check_trust(branch, birth, scan)
            _check_mounts(branch, scan)
            decision = _Decision(branch, birth, scan, on_conflict)
            is_still = branch.view_kind.hide(branch.home) and is_still
            branch.parent.before_commit()
        except BaseException:
            if not branch.is_frozen:
                branch.view_kind.thaw(branch.home, branch.parent.lowers)
            raise
        record = _carry_out(branch, birth, decision, moves=is_still, durable=durable)
        try:
            _tidy(branch, record)
        except (OSError, BranchingError) as error:
            # It has happened: an error would say that it has not.
            warnings.warn(f"{branch.branch_path} was committed, but then: {error}", ForkwiseWarning, stacklevel=4)
    if record.skipped:
        warnings.warn(
            f"{branch.branch_path}: FIFOs, sockets and devices are not committed: {', '.join(record.skipped)}",
            ForkwiseWarning,
            stacklevel=4,
        )
    return record.commit()


def _tidy(branch: Branch, record: Record) -> None:
    if branch.view_kind.whole:
        # Its files were copied aside: the tree itself has nothing more to give.
        home = f"{branch.parent.place.history(record.number)}/home"
        branch.view_kind.release(home)
        discard(branch.parent.place, home)
    copies = f"{branch.parent.place.history(record.number)}/home/copies"
    if os.path.isdir(copies):
        discard(branch.parent.place, copies)  # nobody goes back in a branch that is committed
    branch.parent.after_child_removed()
    forget_old(branch.parent.place)


def forget_old(place: StateDir) -> None:
    """Drop the content kept for undo by the commit that has just become too old."""
    old = place.history(place.head - KEPT)
    if os.path.isdir(old):
        discard(place, old)


def _check_turn(branch: Branch, birth: BranchInfo) -> None:
    if names := branch.place.names():
        raise BranchError(
            f"{branch.branch_path} has branches of its own that are still open: {', '.join(names)}; "
            "commit or abort those first",
            branch=branch.name,
        )
    if birth.generation != branch.parent.place.head:
        raise BranchStaleError(
            f"{branch.branch_path} is stale: {branch.parent.branch_path} was committed to since it was forked; "
            "rebase() brings it onto what is there now, abort() drops it",
            branch=branch.name,
        )


def _still(branch: Branch) -> bool:
    """Stop all writing to the branch; False where somebody may go on, and its files have to be copied."""
    if branch.view_kind.whole:
        return False
    try:
        branch.view_kind.freeze(branch.home, branch.parent.lowers)
    except BranchError:
        return False
    return True


def check_trust(branch: Branch, birth: BranchInfo, scan: Scan) -> None:
    """A layer is written without syncs: after the machine went down, what was not synced may be torn."""
    if birth.boot == boot_id():
        return
    torn = [e.path for e in scan.entries if e.new is not None and e.new.st_ctime_ns >= birth.synced]
    if torn:
        raise CommitError(
            f"the machine was restarted while {branch.branch_path} held unsynced changes: if it lost power, "
            f"files may be incomplete ({', '.join(torn[:5])}{', …' if len(torn) > 5 else ''}). "
            "Look at them, then commit with trust=True (--trust); keep() syncs a branch",
            branch=branch.name,
            paths=torn,
        )


def _check_mounts(branch: Branch, scan: Scan) -> None:
    if scan.mounted and not branch.commits_into_layer:
        raise CommitError(
            f"{branch.branch_path} was not committed, nothing was changed: another filesystem is mounted at "
            f"{', '.join(sorted(scan.mounted))} in the parent, and what the branch wrote there belongs beneath it. "
            "Unmount it, or take those files out of the branch",
            branch=branch.name,
            paths=sorted(scan.mounted),
        )


class _Decision:
    """What is done about each conflict."""

    def __init__(self, branch: Branch, birth: BranchInfo, scan: Scan, on_conflict: OnConflict) -> None:
        self.scan = scan
        self.dropped: set[str] = set()
        self.merged: dict[str, bytes] = {}
        self.conflicts: list[Conflict] = []
        entries = {e.path: e for e in scan.entries}
        found = unresolved(birth, scan)
        if not branch.commits_into_layer:
            found += find_conflicts(scan, birth.forked)
        if not found:
            return
        if on_conflict == "ours":
            self.conflicts = found
        elif on_conflict == "theirs":
            self.conflicts = found
            self.dropped = {c.path for c in found}
        else:
            self._merge(branch, birth, found, entries, on_conflict)

    def _merge(
        self,
        branch: Branch,
        birth: BranchInfo,
        found: list[Conflict],
        entries: dict[str, Entry],
        on_conflict: OnConflict,
    ) -> None:
        from forkwise.files.rebase import merge_conflicts  # noqa: PLC0415 - few commits need it
        from forkwise.files.versions import Versions  # noqa: PLC0415

        with Versions(branch.target, branch.parent.lowers) as versions:
            same = [c for c in found if c.path in entries and versions.is_same(entries[c.path])]
            self.dropped = {c.path for c in same}
            left = [c for c in found if c not in same]
            if on_conflict == "merge":
                self.conflicts = left
                self.merged, left = merge_conflicts(left, entries, versions, branch.parent, birth)
        if left:
            shown = "; ".join(str(c) for c in left[:5]) + ("; …" if len(left) > 5 else "")
            raise ConflictError(
                f"{branch.branch_path} was not committed, nothing was changed: {shown}. "
                "on_conflict='ours', 'theirs' or 'merge' decides",
                branch=branch.name,
                conflicts=left,
            )


def _carry_out(branch: Branch, birth: BranchInfo, decision: _Decision, *, moves: bool, durable: bool) -> Record:
    parent, scan = branch.parent, decision.scan
    room = f"{branch.home}/{ROOM}"
    with Transaction(parent.place, parent.target, branch.branch_path, room=room) as transaction:
        if branch.commits_into_layer:
            plan = plan_layer(
                branch.target,
                parent.target,
                decision.dropped,
                marks_origins=not branch.view_kind.mark_files,
            )
            plan.left = decision.dropped
            foreign = [*plan.foreign, *scan.moved]
            marked = list_marks(branch.target, [*plan.opaque, *foreign, *plan.heirs])
        else:
            moves = moves and not branch.view_kind.whole and transaction.stage is None
            plan = plan_directory(
                scan,
                forked=birth.forked,
                moves=moves,
                renames_directories=filesystem_magic(parent.target) != _OVERLAYFS,
                dropped=decision.dropped,
                merged=decision.merged,
            )
            drop_mark_files(branch.target, scan.mark_files)
            transaction.fill(plan, branch.target, decision.merged)
            marked = scan.marked if moves else []
        record = _record(branch, decision, plan, transaction, durable)
        record.marks = read_marks(branch.target, marked)

        def strip() -> None:
            if branch.commits_into_layer:
                mark_opaque(branch.target, plan.opaque)
                unmark_origins(branch.target, foreign)
                inherit_origins(branch.target, parent.target, plan.heirs)
            else:
                unmark(branch.target, marked)

        transaction.run(record, branch.target, strip)
    return record


def _record(branch: Branch, decision: _Decision, plan: Plan, transaction: Transaction, durable: bool) -> Record:
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
        skipped=[] if branch.commits_into_layer else sorted(decision.scan.specials),
        conflicts=decision.conflicts,
    )
    lists = {"added": record.added, "changed": record.changed, "deleted": record.deleted}
    for entry in decision.scan.entries:
        path = entry.path
        if path not in plan.left:
            lists[entry.kind].append(path)
    record.changed += [
        t.path or "." for t in decision.scan.touched if t.is_changed and (t.path or ".") not in decision.dropped
    ]
    for paths in lists.values():
        paths.sort()
    return record
