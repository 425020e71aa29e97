"""From what a layer says to the steps that carry it into its parent: pure decisions, nothing is touched here.

Two targets differ: a plain directory (a workspace, or the tree of a whole view), and another layer in overlayfs's
format (a branch that was forked again), where a deletion is itself an entry.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass, field

from forkwise.files.store.branch_info import BranchInfo
from forkwise.files.store.changes import Conflict
from forkwise.files.store.journal import Held, Meta, Run, Step, directory_facts
from forkwise.files.store.overlayfs import is_mark, is_opaque, is_origin, is_whiteout
from forkwise.files.store.scan import Entry, Scan, Touched, user_attributes
from forkwise.linux.trees import join, open_directory, open_root, proc_path

__all__ = ["Plan", "find_conflicts", "plan_directory", "plan_layer", "unresolved"]


@dataclass(slots=True)
class Plan:
    """The steps of a commit; ``staged`` are the entries to be copied aside first, under the slot's name, ``left`` the
    paths that stay as the parent has them.

    Of a layer folded into another: directories that must become ``opaque``, files of which it must be forgotten that
    they began as the parent's (``foreign``), files that began as what those they replace did (``heirs``).
    """

    runs: list[Run] = field(default_factory=list)
    metas: list[Meta] = field(default_factory=list)
    staged: dict[str, Entry] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    opaque: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    heirs: list[str] = field(default_factory=list)

    def add(self, directory: str, step: Step) -> None:
        if not self.runs or self.runs[-1].directory != directory:
            self.runs.append(Run(directory, []))
        self.runs[-1].steps.append(step)


def find_conflicts(scan: Scan, forked: int) -> list[Conflict]:
    """The paths that were changed in the parent since the filesystem's time ``forked``."""
    conflicts = []
    for entry in scan.entries:
        old = entry.old
        if old is None:
            if entry.copied and entry.new is not None and entry.above >= forked:
                conflicts.append(Conflict(entry.path, "deleted", "changed by the branch, deleted in the parent since"))
        elif scan.taken_back.ctime(old) >= forked or entry.appeared:
            did = "deleted" if entry.new is None else "changed"
            conflicts.append(Conflict(entry.path, "changed", f"{did} by the branch, changed in the parent since"))
    for touched in scan.touched:
        if touched.is_changed and scan.taken_back.ctime(touched.old) >= forked:
            detail = "its mode, owner or attributes are not the parent's, which changed since"
            conflicts.append(Conflict(touched.path or ".", "metadata", detail))
    return conflicts


def unresolved(birth: BranchInfo, scan: Scan) -> list[Conflict]:
    """What a rebase could not merge and nobody has touched since."""
    now = {e.path: e.new for e in scan.entries} | {t.path or ".": t.new for t in scan.touched if t.is_changed}
    return [
        c for c in birth.unmerged if c.path in now and ((new := now[c.path]) is None or new.st_ctime_ns < birth.rebased)
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
    """Steps into a plain directory.

    ``moves``: the branch's files may be renamed into place; otherwise they are copied aside first. ``dropped`` paths
    stay as the parent has them, ``merged`` ones come from aside. A directory that takes the place of another moves in
    one piece, unless the target cannot rename directories or something inside it is dropped or merged.
    """
    planner = _DirectoryPlanner(scan, moves, set(dropped), set(merged))
    special = planner.dropped | planner.merged
    split_all = not renames_directories
    is_left = False
    for entry in scan.entries:
        if not entry.unit:
            if is_left:
                planner.plan.left.add(entry.path)
            continue
        path = entry.path
        over_directory = entry.old is not None and stat.S_ISDIR(entry.old.st_mode)
        is_split = over_directory and (split_all or any(p.startswith(path + "/") for p in special))
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
        self.changed = _last_changes(scan)

    def slot(self) -> str:
        self.slots += 1
        return str(self.slots)

    def whole(self, entry: Entry) -> None:
        """One entry in one piece."""
        new, old = entry.new, entry.old
        if new is None:
            if old is not None:
                step = Step("take", entry.name, self.slot(), 0, old.st_ino, held=_held(None, old))
                self.add(entry, step)
            return
        slot = ""
        if not self.moves or entry.path in self.scan.mixed or entry.path in self.merged:
            slot = self.slot()
            self.plan.staged[slot] = entry
        if old is None:
            step = Step("put", entry.name, slot, new.st_ino, held=_held(new, None))
        else:
            step = Step("swap", entry.name, slot, new.st_ino, old.st_ino, held=_held(new, old))
        self.add(entry, step)

    def add(self, entry: Entry, step: Step) -> None:
        """Add a step, with what is to be known later of the entry it takes away."""
        if entry.old is not None:
            step.changed = 0, max(self.scan.taken_back.ctime(entry.old), self.changed.get(entry.path, 0))
            step.dated = entry.old.st_mtime_ns
        self.plan.add(entry.directory, step)

    def split(self, unit: Entry) -> None:
        """A directory that goes or is replaced, entry by entry."""
        beneath = unit.path + "/"
        inside = sorted((e for e in self.scan.entries if e.path.startswith(beneath)), key=lambda e: e.path)
        moved: list[str] = []  # directories that are new as a whole: what is inside went with them
        left: list[str] = []  # or stayed with them
        emptied: list[Entry] = []
        for entry in [unit, *inside]:
            if any(entry.path.startswith(m) for m in moved):
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
                left.append(entry.path + "/")
        kept = [d for d in self.dropped if d.startswith(beneath)]
        for entry in sorted(emptied, key=lambda e: e.path.count("/"), reverse=True):
            self.plan.metas.append(Meta.change(entry.path, entry.old, entry.old))  # it stays, or will be made again
            if entry.path in self.dropped or any(k.startswith(entry.path + "/") for k in kept):
                self.plan.left.add(entry.path)
                continue
            self.add(entry, Step("rmdir", entry.name, "", facts=directory_facts(entry.old)))
            if entry.new is not None:
                self.whole(Entry(entry.directory, entry.name, entry.new, None, False, True))

    def meta(self, touched: Touched, forked: int) -> None:
        path = touched.path
        if (path or ".") in self.dropped:
            return
        is_changed_there = self.scan.taken_back.ctime(touched.old) >= forked
        is_dated = touched.new.st_mtime_ns != touched.old.st_mtime_ns and not is_changed_there
        if touched.is_changed or is_dated or path in self.stepped:
            meta = Meta.change(path, touched.old, touched.new, touched.old_attributes, touched.new_attributes)
            if is_changed_there:
                meta.after[3] = max(meta.before[3], meta.after[3])  # the later of two changes
            self.plan.metas.append(meta)


def _last_changes(scan: Scan) -> dict[str, int]:
    """When anything was last changed in the directories that a commit takes away whole, by their paths."""
    changed: dict[str, int] = {}
    unit = ""
    for entry in scan.entries:  # what is inside a unit is listed after it, before the next
        if entry.unit:
            unit = entry.path
        elif entry.old is not None:
            changed[unit] = max(changed.get(unit, 0), scan.taken_back.ctime(entry.old))
    return changed


def plan_layer(
    child: str, parent: str, dropped: Collection[str] = (), moved: Collection[str] = (), *, marks_origins: bool = True
) -> Plan:
    """Steps that fold one layer into the layer below it: entries move as they are, whiteouts and all. ``moved`` are
    files whose marks speak of another name. ``marks_origins`` says whether a layer tells directories that have
    something below from those that have not; where it does not, its view shows no whiteout anywhere."""
    plan = Plan(foreign=list(moved))
    roots = open_root(child), open_root(parent)
    try:
        pending = [""]
        while pending:
            path = pending.pop()
            fds = [open_directory(root, path) for root in roots]
            try:
                _fold(plan, path, fds[0], fds[1], pending, dropped, marks_origins)
            finally:
                for fd in fds:
                    os.close(fd)
    finally:
        for root in roots:
            os.close(root)
    return plan


def _fold(
    plan: Plan, path: str, ours: int, theirs: int, pending: list[str], dropped: Collection[str], marks_origins: bool
) -> None:
    if (path or ".") not in dropped:
        plan.metas.append(
            Meta.change(path, os.fstat(theirs), os.fstat(ours), user_attributes(theirs), user_attributes(ours))
        )
    # In a directory that is only the layer's own, overlayfs would show a whiteout by its name.
    has_nothing_below = marks_origins and path != "" and not any(map(is_origin, _marks(theirs, ".")))
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
                plan.add(path, Step("put", name, "", new.st_ino, held=_held(new, None)))
                continue
            if is_directory and stat.S_ISDIR(old.st_mode) and not _hides(ours, name):
                pending.append(join(path, name))
                continue
            if join(path, name) in dropped or (is_whiteout(new) and is_whiteout(old)):
                continue
            if stat.S_ISDIR(old.st_mode) and any(d.startswith(join(path, name) + "/") for d in dropped):
                continue  # a layer's directory goes whole or not at all, and something in it is to stay
            if is_whiteout(new) and has_nothing_below:
                slot = str(sum(len(run.steps) for run in plan.runs) + 1)
                plan.add(path, Step("take", name, slot, leaves=old.st_ino, held=_held(None, old)))
                continue
            if is_directory and not stat.S_ISDIR(old.st_mode):
                # What stood here hid whatever the layers below have under this name, and so must the directory.
                plan.opaque.append(join(path, name))
            elif stat.S_ISREG(new.st_mode) and stat.S_ISREG(old.st_mode):
                (plan.heirs if _marks(theirs, name) else plan.foreign).append(join(path, name))
            plan.add(path, Step("swap", name, "", new.st_ino, old.st_ino, held=_held(new, old)))


def _marks(fd: int, name: str) -> list[str]:
    return [a for a in os.listxattr(proc_path(fd, name), follow_symlinks=False) if is_mark(a)]


def _hides(fd: int, name: str) -> bool:
    return is_opaque(proc_path(fd, name), _marks(fd, name))


def _held(new: os.stat_result | None, old: os.stat_result | None) -> Held | None:
    """What a rename may cost a directory of its own metadata."""
    sides = [[stat.S_IMODE(e.st_mode), e.st_mtime_ns] if e and stat.S_ISDIR(e.st_mode) else None for e in (new, old)]
    return None if sides == [None, None] else (sides[0], sides[1])
