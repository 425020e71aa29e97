"""Garbage collection: remove the branches of dead processes, old undo content, and unfinished homes.

It never follows a mount, and removes uncommitted changes only if forced.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkwise.errors import BranchError, BranchNotFoundError, StateError
from forkwise.files.store import trash
from forkwise.files.store.branch_info import BranchInfo
from forkwise.files.store.state import StateDir, locked, read_workspace
from forkwise.files.store.state_root import (
    find_problem,
    find_root_problem,
    forget_roots,
    key_of,
    list_known_roots,
    list_roots,
)
from forkwise.linux.mountinfo import is_mount_point, mounts
from forkwise.linux.process_id import ProcessId
from forkwise.linux.scratch_directory import is_purpose, list_abandoned, remove_abandoned
from forkwise.linux.syscalls import MNT_DETACH, umount2
from forkwise.linux.trees import closing_fd, open_beneath, open_directory, open_root, remove_tree

if TYPE_CHECKING:
    from forkwise.files.branch import Branch, Parent
    from forkwise.files.workspace import Workspace

__all__ = ["MIRRORS", "OWNER_FILE", "Collected", "Orphan", "collect", "collect_orphans", "unmount_home"]

MIRRORS = ".forkwise/forks"
"""The directory of the mirrors of forks in memory, below the current directory of their process."""
OWNER_FILE = "owner"
"""In the directory of a fork's mirror: the process that made it, as JSON."""
_MAX_OWNER = 4096  # bytes
_KEY = re.compile(r"[A-Za-z0-9._-]+-[0-9a-f]{16}(?:-mounted)?\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of a garbage collection.

    ``removed`` lists branches, ``commit N``, ``mirror of fork ID`` and ``temporary directory PATH``. ``listed`` has
    what was left: branches that have uncommitted changes or cannot be opened, and temporary directories of BranchFS
    mounts with branches. ``freed`` is the freed disk space in bytes.
    """

    removed: tuple[str, ...] = ()
    listed: tuple[str, ...] = ()
    freed: int = 0


def collect(
    workspace: Workspace,
    *,
    force: bool,
    keep: int,
    dry_run: bool,
    wanted: Mapping[str, bool] | None = None,
    old_commits: Collection[int] | None = None,
) -> Collected:
    """Collect the garbage of one workspace.

    ``wanted`` maps the paths of branches to whether they are still needed, for a caller that knows more than is
    recorded in the branch. ``old_commits`` are the commits whose undo records are removed, instead of all but the last
    ``keep``.
    """
    state_dir = workspace.state_dir
    with locked(state_dir.state):
        workspace._recover()
        removed: list[str] = []
        listed: list[str] = []
        freed = _size(f"{state_dir.state}/trash")
        for branch in reversed(workspace._settled_branches()):
            is_wanted = (wanted or {}).get(branch.branch_path)
            if _is_needed(branch, is_wanted, removed):
                continue
            if is_wanted is None and not force and branch._has_changes():
                listed.append(branch.branch_path)
                continue
            removed.append(branch.branch_path)
            freed += _size(f"{branch.home}/layer")
            if not dry_run:
                branch._remove()
                branch.parent._after_child_removed()
        unusable = list(_unusable_homes(workspace))
        if force:
            removed += [name for name, _ in unusable]
        else:
            listed += [name for name, _ in unusable]
        probes = list(_abandoned_probes(state_dir.state))
        leftovers = [*_abandoned_homes(workspace), *probes, *(home for _, home in unusable if force)]
        old = [n for n in state_dir.numbers() if n <= state_dir.head - keep]
        if old_commits is not None:
            old = [n for n in state_dir.numbers() if n in old_commits]
        removed += [f"commit {n}" for n in old]
        freed += sum(map(_size, [*leftovers, *(state_dir.history(n) for n in old)]))
        if not dry_run:
            for home in [*probes, *(home for _, home in unusable if force)]:
                unmount_home(home)
            for path in [*leftovers, *(state_dir.history(n) for n in old)]:
                trash.discard(state_dir, path)
        for root in (f"{state_dir.state}/mirrors", f"{workspace.path}/{MIRRORS}"):
            names, size = _collect_mirrors(root, dry_run=dry_run)
            removed += [f"mirror of fork {name}" for name in names]
            freed += size
    for path in list_abandoned():
        if is_purpose(path, "branchfs"):
            from forkwise.files.mounted import find_abandoned_branches, release_abandoned_mount  # noqa: PLC0415

            size = sum(_size(f"{path}/{name}") for name in ("storage", "state"))  # without what is mounted there
            branches = find_abandoned_branches(path)
            if branches == "kept" or (branches == "some" and not force):
                listed.append(f"temporary directory {path}")
                continue
            if not dry_run and not release_abandoned_mount(path):
                continue
        else:
            size = _size(path)
        if dry_run or remove_abandoned(path):
            removed.append(f"temporary directory {path}")
            freed += size
    if not dry_run:
        trash.wait_until_empty()
        trash.empty(state_dir.state)
    return Collected(tuple(removed), tuple(listed), freed)


def _collect_mirrors(root: str, *, dry_run: bool) -> tuple[list[str], int]:
    """Remove the mirrors of live forks whose processes were killed. Return the forks and the freed space.

    Those of forks in memory are inside the workspace, so neither a symbolic link nor a mount is followed.
    """
    found: list[str] = []
    freed = 0
    top, _, below = root.rpartition("/.forkwise/")
    try:
        top_fd = open_root(top or root)
    except OSError:
        return [], 0
    with closing_fd(top_fd):
        try:
            root_fd = open_directory(top_fd, f".forkwise/{below}" if top else "")
        except OSError:
            return [], 0
        with closing_fd(root_fd):
            for name in sorted(os.listdir(root_fd)):
                owner = _read_owner(root_fd, f"{name}/{OWNER_FILE}")
                if owner is None or owner.alive:
                    continue
                found.append(name)
                freed += _size(f"/proc/self/fd/{root_fd}/{name}")
                if not dry_run:
                    remove_tree(root_fd, name)
        if top and not dry_run:
            for directory in (f".forkwise/{below}", ".forkwise"):
                with suppress(OSError):  # not empty, or not there
                    os.rmdir(directory, dir_fd=top_fd)
    return found, freed


def _read_owner(root_fd: int, path: str) -> ProcessId | None:
    try:
        with open(open_beneath(root_fd, path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            return ProcessId.load(json.loads(file.read(_MAX_OWNER)))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Orphan:
    """The state of a workspace that no longer exists; ``reason`` is why it is kept, empty if it is removed.

    ``workspace`` is None if it is not known, which is so for state that version 0.1.0 wrote.
    """

    state: str
    workspace: str | None
    size: int
    reason: str = ""


def collect_orphans(*, force: bool, dry_run: bool) -> list[Orphan]:
    """Remove the state of all workspaces of this user that were deleted, moved or renamed.

    State with uncommitted changes in a branch is kept, unless ``force`` is given, and so is that of a workspace whose
    filesystem is not mounted. With ``dry_run`` nothing is removed.
    """
    roots = dict.fromkeys([*list_known_roots(), *list_roots(os.getcwd())])
    found = []
    for root in roots:
        if os.path.isdir(root) and find_root_problem(root, f"{root}/-") is None:
            names = sorted(n for n in os.listdir(root) if _KEY.match(n) and os.path.isdir(f"{root}/{n}/head"))
            found += [orphan for name in names if (orphan := _collect_orphan(root, name, force, dry_run)) is not None]
    if not dry_run:
        forget_roots()
    return found


def _collect_orphan(root: str, name: str, force: bool, dry_run: bool) -> Orphan | None:
    state = f"{root}/{name}"
    if find_problem(state) is not None:
        return None
    workspace, mount = read_workspace(state) or (_guess_workspace(root, name), None)
    if workspace is None or key_of(workspace) != name.removesuffix("-mounted"):
        return Orphan(state, None, _size(state), "its workspace is not known")
    if (reason := _find_use(workspace, mount)) is None:
        return None
    with locked(state):
        reason = reason or _find_work(StateDir(state, state), force)
        orphan = Orphan(state, workspace, _size(state), reason)
        if not reason and not dry_run:
            for entry in reversed(mounts()):
                if entry.point.startswith(f"{state}/"):
                    umount2(entry.point, MNT_DETACH)
            removed = f".removed-{secrets.token_hex(8)}"
            os.rename(state, f"{root}/{removed}")
            with closing_fd(open_root(root)) as parent:
                remove_tree(parent, removed)
    return orphan


def _guess_workspace(root: str, name: str) -> str | None:
    """Return the workspace of state that names none, if it is next to the root."""
    parent = os.path.dirname(root)
    guess = f"{parent.rstrip('/')}/{name.removesuffix('-mounted')[:-17]}"
    return guess if key_of(guess) == name.removesuffix("-mounted") else None


def _find_use(workspace: str, mount: str | None) -> str | None:
    """Return None if a workspace exists, an empty text if it does not, or why that is unknown."""
    try:
        os.stat(workspace)
    except (FileNotFoundError, NotADirectoryError):
        if mount is None or os.path.ismount(mount):
            return ""
        return f"no filesystem is mounted at {mount}, where its workspace was"
    except OSError as error:
        return f"its workspace cannot be reached: {error.strerror}"
    return None


def _find_work(state_dir: StateDir, force: bool) -> str:
    """Return why state must be kept: a worktree, a live process, or changes that were never committed."""
    with suppress(OSError):
        for name in sorted(os.listdir(f"{state_dir.state}/worktrees")):
            if os.path.isdir(f"{state_dir.state}/worktrees/{name}/layer"):
                return f"the worktree {name} has its files in it; save them, then delete {state_dir.state} by hand"
    for name in state_dir.names():
        home = state_dir.home(name)
        try:
            info = BranchInfo.load(home)
        except (StateError, BranchError):
            info = None
        if info is not None and info.owner is not None and info.owner.alive and not info.kept:
            return f"a running process uses its branch {name}"
        with suppress(OSError):
            if not force and os.listdir(f"{home}/layer"):
                return f"its branch {name} has changes that were not committed"
    return ""


def unmount_home(home: str) -> None:
    """Unmount the view in a home from which no branch can be opened."""
    if os.path.exists(f"{home}/alive"):  # a fuse view, which only fusermount3 may unmount without root
        from forkwise.files.views.fuse import FuseView  # noqa: PLC0415

        FuseView().release(home)
    elif is_mount_point(f"{home}/view"):
        umount2(f"{home}/view", MNT_DETACH)


def _is_needed(branch: Branch, is_wanted: bool | None, removed: Collection[str]) -> bool:
    """Return whether a branch is still needed, itself or by one of its branches."""
    if is_wanted is None:
        info = BranchInfo.load(branch.home)
        is_wanted = info.kept or (info.owner is not None and info.owner.alive)
    return is_wanted or any(f"{branch.branch_path}/{name}" not in removed for name in branch.state_dir.names())


def _unusable_homes(workspace: Workspace) -> Iterator[tuple[str, str]]:
    """Yield the path in the tree of branches and the home of every branch whose info is lost or damaged."""
    parents: list[Parent] = [workspace, *workspace._settled_branches()]
    for parent in parents:
        for name in parent.state_dir.names():
            try:
                BranchInfo.load(parent.state_dir.home(name))
            except (BranchNotFoundError, StateError):
                yield f"{parent.branch_path}/{name}", parent.state_dir.home(name)


def _abandoned_homes(workspace: Workspace) -> Iterator[str]:
    """Yield the homes whose creators were killed.

    A new home is created under the lock, which the caller holds, so its creator is dead. Pooled homes are created
    without the lock and shelved ones belong to their process: these are abandoned only if that process is dead.
    """
    parents: list[Parent] = [workspace, *workspace._settled_branches()]
    for parent in parents:
        branches = f"{parent.state_dir.path}/branches"
        names = os.listdir(branches) if os.path.isdir(branches) else []
        yield from (
            f"{branches}/{n}"
            for n in names
            if n.startswith(".new-") or (n.startswith((".spare-", ".aside-")) and _is_dead(n))
        )


def _abandoned_probes(state: str) -> Iterator[str]:
    """Yield the directories in which killed processes had probed a view or set path views aside."""
    for name in os.listdir(state):
        if name.startswith((".probe-", ".paths-")) and _is_dead(name):
            yield f"{state}/{name}"


def _is_dead(name: str) -> bool:
    """Return whether the process whose id is in ``name`` is dead."""
    return not os.path.exists(f"/proc/{name.split('-')[1]}")


def _size(path: str) -> int:
    """Return the disk space below a directory, ignoring what cannot be read."""
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
