"""Collecting what is no longer anybody's: branches of dead processes, old undo content, what never got finished.

Nothing here follows a mount, and nothing that holds uncommitted work goes unless it was asked for.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkwise.files.branch import Branch, Parent
from forkwise.files.store import trash
from forkwise.files.store.branch_info import BranchInfo
from forkwise.files.store.state import locked
from forkwise.linux.mountinfo import is_mount_point
from forkwise.linux.syscalls import MNT_DETACH, umount2

if TYPE_CHECKING:
    from forkwise.files.workspace import Workspace

__all__ = ["Collected", "collect"]


@dataclass(frozen=True, slots=True)
class Collected:
    """What was removed (branches and ``commit N``), which branches with uncommitted changes were left, and how many
    bytes of disk came free."""

    removed: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    freed: int = 0


def collect(
    workspace: Workspace, *, force: bool, keep: int, dry_run: bool, wanted: Mapping[str, bool] | None = None
) -> Collected:
    """Collect what belongs to one workspace. ``wanted`` says of branches, by their paths, whether anybody wants them,
    for who knows that better than can be told from the branch."""
    place = workspace.place
    with locked(place.state):
        workspace.recover()
        removed: list[str] = []
        listed: list[str] = []
        freed = _size(f"{place.state}/trash")
        for branch in reversed(workspace.settled_branches()):
            told = (wanted or {}).get(branch.branch_path)
            if _is_wanted(branch, told, removed):
                continue
            if told is None and not force and _has_changes(branch):
                listed.append(branch.branch_path)
                continue
            removed.append(branch.branch_path)
            freed += _size(f"{branch.home}/layer")
            if not dry_run:
                branch.remove()
                branch.parent.after_child_removed()
        trials = list(_trials(place.state))
        leftovers = [*_unfinished(workspace), *trials]
        old = [n for n in range(place.head - keep, 0, -1) if os.path.isdir(place.history(n))]
        removed += [f"commit {n}" for n in old]
        freed += sum(map(_size, [*leftovers, *(place.history(n) for n in old)]))
        if not dry_run:
            for home in trials:
                if is_mount_point(f"{home}/view"):
                    umount2(f"{home}/view", MNT_DETACH)
            for path in [*leftovers, *(place.history(n) for n in old)]:
                trash.discard(place, path)
    if not dry_run:
        trash.wait_until_empty()
        trash.empty(place.state)
    return Collected(tuple(removed), tuple(listed), freed)


def _is_wanted(branch: Branch, told: bool | None, removed: Collection[str]) -> bool:
    """Whether somebody still has it, or a branch made from it."""
    if told is None:
        birth = BranchInfo.load(branch.home)
        told = birth.kept or (birth.owner is not None and birth.owner.alive)
    return told or any(f"{branch.branch_path}/{name}" not in removed for name in branch.place.names())


def _has_changes(branch: Branch) -> bool:
    """Whether a branch holds anything; one that cannot be read, because something is mounted in it, may."""
    try:
        return bool(branch.scan().delta())
    except OSError:
        return True


def _unfinished(workspace: Workspace) -> Iterator[str]:
    """Homes whose makers were killed: whoever makes one holds the lock, and now we do; spares are made without it, and
    what was set aside goes with its process."""
    parents: list[Parent] = [workspace, *workspace.settled_branches()]
    for parent in parents:
        branches = f"{parent.place.path}/branches"
        names = os.listdir(branches) if os.path.isdir(branches) else []
        yield from (
            f"{branches}/{n}"
            for n in names
            if n.startswith(".new-") or (n.startswith((".spare-", ".aside-")) and _is_dead(n))
        )


def _trials(state: str) -> Iterator[str]:
    """Where a process tried out a view, and was killed meanwhile. One that runs cleans up by itself."""
    for name in os.listdir(state):
        if name.startswith(".probe-") and _is_dead(name):
            yield f"{state}/{name}"


def _is_dead(name: str) -> bool:
    """Whether the process is gone whose number a name has."""
    return not os.path.exists(f"/proc/{name.split('-')[1]}")


def _size(path: str) -> int:
    """The disk space beneath a directory; what cannot be read counts as nothing."""
    total = 0
    pending = [path]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    total += found.st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError:
            continue
    return total
