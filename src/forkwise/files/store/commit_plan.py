"""The plan of a commit: from the scan of a branch to the journal steps that apply it. Nothing is changed here.

There are two kinds of targets: a plain directory (a workspace, or the tree of a whole view), and another layer in
overlayfs's format (the parent of a nested branch), in which a deletion is itself an entry.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forkwise.files.store.changes import Conflict
from forkwise.files.store.interference import OldEntry
from forkwise.files.store.journal import Held, JournalStep, Meta, Run, directory_facts
from forkwise.files.store.overlayfs import OVERLAY_MARKS, is_mark, is_opaque, is_origin, is_whiteout
from forkwise.files.store.scan import Entry, Scan, Touched, user_attributes
from forkwise.linux.trees import join, open_directory, open_root, proc_path
from forkwise.text.phrases import join_first

if TYPE_CHECKING:
    from forkwise.files.store.branch_info import BranchInfo

__all__ = ["Plan", "find_conflicts", "list_data_edits", "plan_directory", "plan_layer", "unresolved"]


@dataclass(slots=True)
class Plan:
    """The steps of a commit.

    ``staged`` has the entries to copy into a slot first, by the name of the slot; ``removed`` the parent's entries that
    the steps remove; ``left`` the paths that stay as the parent has them. If a layer is folded into another: ``opaque``
    directories must hide the layers below, ``foreign`` files must lose their overlay origin, and ``heirs`` inherit the
    origin of the files that they replace.
    """

    runs: list[Run] = field(default_factory=list)
    metas: list[Meta] = field(default_factory=list)
    staged: dict[str, Entry] = field(default_factory=dict)
    removed: list[OldEntry] = field(default_factory=list)
    left: set[str] = field(default_factory=set)
    opaque: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    heirs: list[str] = field(default_factory=list)

    def add(self, directory: str, step: JournalStep) -> None:
        if not self.runs or self.runs[-1].directory != directory:
            self.runs.append(Run(directory, []))
        self.runs[-1].steps.append(step)


def find_conflicts(scan: Scan, forked: int) -> list[Conflict]:
    """Find the changed paths that the parent changed too since ``forked``, a time by the filesystem's clock."""
    conflicts = []
    for entry in scan.entries:
        old = entry.old
        if old is None:
            if entry.copied and entry.new is not None and entry.above >= forked:
                conflicts.append(Conflict(entry.path, "deleted", "changed by the branch, deleted in the parent since"))
        elif scan.rolled_back.ctime(old) >= forked or entry.appeared:
            did = "deleted" if entry.new is None else "changed"
            conflicts.append(Conflict(entry.path, "changed", f"{did} by the branch, changed in the parent since"))
    for touched in scan.touched:
        if touched.is_changed and scan.rolled_back.ctime(touched.old) >= forked:
            detail = "mode, owner or attributes changed by the branch, and in the parent since"
            conflicts.append(Conflict(touched.path or ".", "metadata", detail))
    if not scan.data:
        return conflicts
    return [c for c in conflicts if scan.find_data(c.path) is None] + _find_data_conflicts(scan, forked)


def _find_data_conflicts(scan: Scan, forked: int) -> list[Conflict]:
    """Find the data directories in which both the branch and, since ``forked``, the parent changed anything."""
    changed = [data for data in scan.data if any(scan.find_data(e.path) == data for e in scan.entries)]
    found = []
    for data in changed:
        theirs = list_data_edits(scan, data, forked)
        if theirs:
            shown = join_first(theirs, 3)
            detail = f"a server's data directory, changed by the branch and in the parent since ({shown})"
            found.append(Conflict(data, "changed", detail))
    return found


def list_data_edits(scan: Scan, data: str, forked: int) -> list[str]:
    """List the paths in a data directory that the parent changed since ``forked``."""
    found = []
    for directory, _, names in os.walk(os.path.join(scan.parent, data)):
        for path in (directory, *(os.path.join(directory, name) for name in names)):
            try:
                is_edited = scan.rolled_back.ctime(os.lstat(path)) >= forked
            except FileNotFoundError:
                is_edited = True
            if is_edited:
                found.append(os.path.relpath(path, scan.parent))
    return found


def unresolved(info: BranchInfo, scan: Scan) -> list[Conflict]:
    """Return the conflicts that a rebase could not merge and whose paths have not been changed since."""
    now = {e.path: e.new for e in scan.entries} | {t.path or ".": t.new for t in scan.touched if t.is_changed}
    data = {scan.find_data(path) for path in now}  # an edit in it does not resolve the conflict
    return [
        c
        for c in info.unmerged
        if c.path in data or (c.path in now and ((new := now[c.path]) is None or new.st_ctime_ns < info.rebased))
    ]


def plan_directory(
    scan: Scan,
    *,
    forked: int,
    moves: bool,
    renames_directories: bool = True,
    dropped: Collection[str] = (),
    merged: Collection[str] = (),
) -> Plan:
    """Plan the steps into a plain directory.

    With ``moves`` the branch's files are renamed into the target; otherwise they are copied into a slot first.
    ``dropped`` paths stay as the parent has them, ``merged`` ones come from a slot. A directory that replaces another
    is moved as a whole, unless the target cannot rename directories or a path inside it is dropped or merged; a new one
    is copied without what is dropped.
    """
    planner = _DirectoryPlanner(scan, moves, set(dropped), set(merged))
    special = _list_above(planner.dropped | planner.merged)
    split_all = not renames_directories
    is_left = is_thinned = False
    for entry in scan.entries:
        if not entry.unit:
            if is_left or (is_thinned and entry.path in planner.dropped):
                planner.plan.left.add(entry.path)
            continue
        path = entry.path
        over_directory = entry.old is not None and stat.S_ISDIR(entry.old.st_mode)
        is_split = over_directory and (split_all or path in special)
        is_thinned = not is_split and path in planner.above_dropped
        is_left = not is_split and path in planner.dropped
        if is_split:
            planner.split(entry)
        elif is_left:
            planner.plan.left.add(path)
        else:
            planner.whole(entry)
    planner.stepped = {run.directory for run in planner.plan.runs}
    for touched in scan.touched:
        planner.meta(touched, forked)
    return planner.plan


class _DirectoryPlanner:
    def __init__(self, scan: Scan, moves: bool, dropped: set[str], merged: set[str]) -> None:
        self.scan = scan
        self.moves = moves
        self.dropped = dropped
        self.merged = merged
        self.plan = Plan()
        self.slots = 0
        self.stepped: set[str] = set()
        self.inside = _list_inside(scan)
        self.above_dropped = _list_above(dropped)

    def slot(self) -> str:
        self.slots += 1
        return str(self.slots)

    def whole(self, entry: Entry) -> None:
        """Add the step that moves one entry as a whole."""
        new, old = entry.new, entry.old
        if new is None:
            if old is not None:
                step = JournalStep("take", entry.name, self.slot(), 0, old.st_ino, held=_held(None, old))
                self.add(entry, step)
            return
        slot = ""
        if (
            not self.moves
            or entry.path in self.scan.mixed
            or entry.path in self.merged
            or entry.path in self.above_dropped
        ):
            slot = self.slot()
            self.plan.staged[slot] = entry
        if old is None:
            step = JournalStep("put", entry.name, slot, new.st_ino, held=_held(new, None))
        else:
            step = JournalStep("swap", entry.name, slot, new.st_ino, old.st_ino, held=_held(new, old))
        self.add(entry, step)

    def add(self, entry: Entry, step: JournalStep) -> None:
        """Add a step, with the times of the entry that it removes from the target."""
        if entry.old is not None:
            inside = self.inside.get(entry.path, {})
            times = [self.scan.rolled_back.ctime(found) for found in (entry.old, *inside.values())]
            step.changed = 0, max(times)
            step.dated = entry.old.st_mtime_ns
            if step.code != "rmdir":
                self.plan.removed.append(OldEntry(entry.directory, step, entry.old, inside))
        self.plan.add(entry.directory, step)

    def split(self, unit: Entry) -> None:
        """Add the steps that remove or replace a directory entry by entry."""
        beneath = unit.path + "/"
        inside = sorted((e for e in self.scan.entries if e.path.startswith(beneath)), key=lambda e: e.path)
        moved: list[str] = []  # new directories, which were moved with everything inside
        left: list[str] = []  # dropped directories, which stay with everything inside
        emptied: list[Entry] = []
        for entry in [unit, *inside]:
            if any(entry.path.startswith(m) for m in moved):
                if entry.path in self.dropped:
                    self.plan.left.add(entry.path)
                continue
            if any(entry.path.startswith(m) for m in left):
                self.plan.left.add(entry.path)
                continue
            is_directory = entry.new is not None and stat.S_ISDIR(entry.new.st_mode)
            was_directory = entry.old is not None and stat.S_ISDIR(entry.old.st_mode)
            if was_directory and is_directory:
                stays = entry.path in self.dropped
                if stays:
                    self.plan.left.add(entry.path)
                self.plan.metas.append(Meta.change(entry.path, entry.old, entry.old if stays else entry.new))
            elif was_directory:
                emptied.append(entry)
            elif entry.path not in self.dropped:
                self.whole(entry)
                if is_directory:
                    moved.append(entry.path + "/")
            else:
                self.plan.left.add(entry.path)
                if is_directory:
                    left.append(entry.path + "/")
        for entry in sorted(emptied, key=lambda e: e.path.count("/"), reverse=True):
            self.plan.metas.append(Meta.change(entry.path, entry.old, entry.old))  # it stays, or is created again
            if entry.path in self.dropped or entry.path in self.above_dropped:
                self.plan.left.add(entry.path)
                continue
            self.add(entry, JournalStep("rmdir", entry.name, "", facts=directory_facts(entry.old)))
            if entry.new is not None:
                self.whole(Entry(entry.directory, entry.name, entry.new, None, False, True))

    def meta(self, touched: Touched, forked: int) -> None:
        path = touched.path
        if (path or ".") in self.dropped:
            return
        is_changed_there = self.scan.rolled_back.ctime(touched.old) >= forked
        is_dated = touched.new.st_mtime_ns != touched.old.st_mtime_ns and not is_changed_there
        if touched.is_changed or is_dated or path in self.stepped:
            meta = Meta.change(path, touched.old, touched.new, touched.old_attributes, touched.new_attributes)
            if is_changed_there:
                meta.after[3] = max(meta.before[3], meta.after[3])  # the later of two changes
            self.plan.metas.append(meta)


def _list_above(paths: Collection[str]) -> set[str]:
    """List the directories that are above some paths, without the root."""
    above: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in above:
            above.add(path)
    return above


def _list_inside(scan: Scan) -> dict[str, dict[str, os.stat_result]]:
    """List the parent's entries inside each directory that a commit removes as a whole, by relative path."""
    inside: dict[str, dict[str, os.stat_result]] = {}
    unit = ""
    for entry in scan.entries:  # the entries inside a unit are listed after it, before the next unit
        if entry.unit:
            unit = entry.path
        elif entry.old is not None:
            inside.setdefault(unit, {})[entry.path[len(unit) + 1 :]] = entry.old
    return inside


def plan_layer(
    child: str,
    parent: str,
    dropped: Collection[str] = (),
    moved: Collection[str] = (),
    *,
    marks_origins: bool = True,
    mark_prefixes: Sequence[str] = OVERLAY_MARKS,
) -> Plan:
    """Plan the steps that fold one layer into the layer below it; entries move unchanged, including whiteouts.

    ``moved`` are files whose overlay origin belongs to another name. ``marks_origins`` is True if the layer marks
    directories that have a lower directory; if not, its view never shows a whiteout as an entry.
    """
    plan = Plan(foreign=list(moved))
    roots = open_root(child), open_root(parent)
    try:
        pending = [""]
        while pending:
            path = pending.pop()
            fds = [open_directory(root, path) for root in roots]
            try:
                _fold(plan, path, fds[0], fds[1], pending, dropped, marks_origins, mark_prefixes)
            finally:
                for fd in fds:
                    os.close(fd)
    finally:
        for root in roots:
            os.close(root)
    return plan


def _fold(
    plan: Plan,
    path: str,
    ours: int,
    theirs: int,
    pending: list[str],
    dropped: Collection[str],
    marks_origins: bool,
    prefixes: Sequence[str],
) -> None:
    if (path or ".") not in dropped:
        plan.metas.append(
            Meta.change(path, os.fstat(theirs), os.fstat(ours), user_attributes(theirs), user_attributes(ours))
        )
    # In a directory without a lower directory, overlayfs would show a whiteout as a character device.
    has_nothing_below = marks_origins and path != "" and not any(is_origin(m, prefixes) for m in _marks(theirs, "."))
    with os.scandir(ours) as found:
        for item in found:
            name = item.name
            new = item.stat(follow_symlinks=False)
            is_directory = stat.S_ISDIR(new.st_mode)
            try:
                old = os.stat(name, dir_fd=theirs, follow_symlinks=False)
            except FileNotFoundError:
                if join(path, name) in dropped or (is_whiteout(new) and has_nothing_below):
                    continue
                plan.add(path, JournalStep("put", name, "", new.st_ino, held=_held(new, None)))
                continue
            if is_directory and stat.S_ISDIR(old.st_mode) and not _hides(ours, name, prefixes):
                pending.append(join(path, name))
                continue
            if join(path, name) in dropped or (is_whiteout(new) and is_whiteout(old)):
                continue
            if stat.S_ISDIR(old.st_mode) and any(d.startswith(join(path, name) + "/") for d in dropped):
                continue  # a layer's directory is replaced as a whole or not at all, and a path in it has to stay
            if is_whiteout(new) and has_nothing_below:
                slot = str(sum(len(run.steps) for run in plan.runs) + 1)
                plan.add(path, JournalStep("take", name, slot, leaves=old.st_ino, held=_held(None, old)))
                continue
            if is_directory and not stat.S_ISDIR(old.st_mode):
                # The replaced entry hid the same name in the layers below, and the directory must hide it too.
                plan.opaque.append(join(path, name))
            elif stat.S_ISREG(new.st_mode) and stat.S_ISREG(old.st_mode):
                (plan.heirs if _marks(theirs, name) else plan.foreign).append(join(path, name))
            plan.add(path, JournalStep("swap", name, "", new.st_ino, old.st_ino, held=_held(new, old)))


def _marks(fd: int, name: str) -> list[str]:
    return [a for a in os.listxattr(proc_path(fd, name), follow_symlinks=False) if is_mark(a)]


def _hides(fd: int, name: str, prefixes: Sequence[str]) -> bool:
    return is_opaque(proc_path(fd, name), _marks(fd, name), prefixes)


def _held(new: os.stat_result | None, old: os.stat_result | None) -> Held | None:
    """Return mode and mtime of the directories that a rename moves, because the rename may change them."""
    sides = [[stat.S_IMODE(e.st_mode), e.st_mtime_ns] if e and stat.S_ISDIR(e.st_mode) else None for e in (new, old)]
    return None if sides == [None, None] else (sides[0], sides[1])
