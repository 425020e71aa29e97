"""Whole views, whose branches are complete trees: their common part, and the copy view.

A branch of the copy view is a full copy of the workspace: slow and large, but it works everywhere.
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar

from forkwise.errors import BranchError, ForkwiseWarning, MountError
from forkwise.files.store.view import Base, DetachedMount, Refusal, Site, View
from forkwise.linux.mountinfo import is_mount_point, remount_flags
from forkwise.linux.syscalls import MNT_DETACH, MS_BIND, MS_RDONLY, MS_REMOUNT, filesystem_magic, mount, umount2
from forkwise.linux.trees import CopiedTree, copy_tree
from forkwise.text.phrases import join_first

__all__ = [
    "CopiedView",
    "CopyView",
    "RecordedBase",
    "WholeView",
    "state_refusal",
]


_STABLE_INODES = (0xEF53, 0x58465342, 0x9123683E, 0x01021994)  # ext, XFS, btrfs, tmpfs: never renumber a directory


class WholeView(View):
    """A branch whose layer is a complete tree, visible without a mount."""

    whole: ClassVar[bool] = True

    def show(self, home: str, lowers: Sequence[str], *, writable: bool, premounted: DetachedMount | None = None) -> str:
        if writable:
            self._unprotect(home)
        else:
            self._protect(home)
        return layer_of(home)

    def visible_path(self, home: str) -> str | None:
        return layer_of(home) if os.path.isdir(layer_of(home)) else None

    def hide(self, home: str) -> bool:
        if self.visible_path(home) is not None:  # a power failure may have left a branch without its tree
            self._unprotect(home)
        # The tree is not a mount, so there is no way to know whether a process has one of its files open for writing.
        return False

    def freeze(self, home: str, lowers: Sequence[str]) -> None:
        self._protect(home)
        writers = _writers(layer_of(home))
        if writers:
            self._unprotect(home)
            pids = ", ".join(map(str, writers))
            raise BranchError(
                f"the branch in {home} cannot be made read-only: processes {pids} have files of it open for writing. "
                "Let them finish or end them, then fork again.",
                branch=os.path.basename(home),
            )

    def thaw(self, home: str, lowers: Sequence[str]) -> None:
        self._unprotect(home)

    def release(self, home: str) -> None:
        self._unprotect(home)

    def _protect(self, home: str) -> None:
        """Make the tree read-only by bind-mounting it on itself.

        Without permission to mount this does nothing: a frozen branch is then read-only by convention. Its children do
        not depend on it, because they are complete trees. A process whose working directory was in the tree before can
        still write.
        """
        layer = layer_of(home)
        if is_mount_point(layer):
            return
        flags = remount_flags(layer)
        try:
            mount(layer, layer, None, MS_BIND)
        except PermissionError:
            return
        try:
            mount(layer, layer, None, MS_BIND | MS_REMOUNT | MS_RDONLY | flags)
        except OSError as error:
            umount2(layer, MNT_DETACH)
            raise MountError(
                f"the branch in {home} could not be made read-only: {error.strerror}",
                view=self.name,
                reason=error.strerror or "",
            ) from error

    def _unprotect(self, home: str) -> None:
        layer = layer_of(home)
        while is_mount_point(layer):
            try:
                umount2(layer)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise MountError(
                        f"the read-only mount of the branch in {home} could not be unmounted: {error.strerror}. "
                        "Only a user who may mount can do that; run this as the user who froze the branch.",
                        view=self.name,
                        reason=error.strerror or "",
                    ) from error
                umount2(layer, MNT_DETACH)


class CopiedView(WholeView):
    """A whole view whose tree is copied file by file, with a record of its original content."""

    reflink_only: ClassVar[bool]

    def make(self, home: str, lowers: Sequence[str]) -> None:
        os.mkdir(layer_of(home), 0o700)
        source = os.open(lowers[0], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            target = os.open(layer_of(home), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                tree = copy_tree(source, target, reflink_only=self.reflink_only)
            finally:
                os.close(target)
        except OSError as error:
            raise MountError(
                f"a {self.name} branch of {lowers[0]} could not be created: {error.filename or '.'}: {error.strerror}",
                view=self.name,
                reason=error.strerror or "",
                remedy="free space, or fix the permissions of that path"
                + (", or use the copy view" if self.reflink_only else ""),
            ) from error
        finally:
            os.close(source)
        RecordedBase.write(home, tree, keeps_origins=filesystem_magic(lowers[0]) in _STABLE_INODES)
        if tree.skipped:
            warnings.warn(
                f"{len(tree.skipped)} sockets, FIFOs, devices or mounted files of {lowers[0]} are not in the branch: "
                + join_first([repr(path) for path in tree.skipped], 5),
                ForkwiseWarning,
                stacklevel=2,
            )

    def base(self, home: str) -> Base:
        return RecordedBase(home)


class RecordedBase(Base):
    """The original content of a copied tree, read from ``home/base.json`` on first use."""

    def __init__(self, home: str) -> None:
        self.home = home

    @staticmethod
    def write(home: str, tree: CopiedTree, *, keeps_origins: bool = True) -> None:
        origins = tree.origins if keeps_origins else {}
        listed = {p: [inode, sorted(names), origins.get(p, 0)] for p, (inode, names) in tree.directories.items()}
        # ASCII, because names need not be valid UTF-8: JSON escapes their surrogates, which survive a round trip.
        with open(_record_of(home), "x", encoding="ascii") as file:
            json.dump(listed, file, ensure_ascii=True)

    def directory(self, path: str) -> tuple[int, frozenset[str]] | None:
        found = self._directories.get(path)
        return None if found is None else (found[0], frozenset(found[1]))

    def origin(self, path: str) -> int:
        found = self._directories.get(path)
        return 0 if found is None else found[2]

    @cached_property
    def _directories(self) -> Mapping[str, tuple[int, list[str], int]]:
        try:
            with open(_record_of(self.home), encoding="ascii") as file:
                directories: dict[str, tuple[int, list[str], int]] = json.load(file)
        except ValueError:
            raise BranchError(
                f"the changes of the branch in {self.home} cannot be found: base.json is empty or damaged, as after a "
                "power failure of a branch that was not kept. Copy the files that are needed, then abort the branch",
                branch=os.path.basename(self.home),
            ) from None
        return directories


def layer_of(home: str) -> str:
    return f"{home}/layer"


def state_refusal(site: Site) -> Refusal | None:
    """Return why nothing can be created in the state directory; None if it is writable."""
    if os.access(site.state, os.W_OK | os.X_OK):
        return None
    return Refusal(
        f"{site.state} cannot be written by this user",
        "run as its owner, make its filesystem writable, or choose another state directory",
    )


def _record_of(home: str) -> str:
    return f"{home}/base.json"


def _writers(layer: str) -> list[int]:
    """Return the processes, among those visible to this user, that have a file below ``layer`` open for writing."""
    prefix = os.path.realpath(layer) + "/"
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and _has_open_for_writing(pid, prefix)]


def _has_open_for_writing(pid: str, prefix: str) -> bool:
    try:
        with os.scandir(f"/proc/{pid}/fd") as listing:
            for entry in listing:
                # The mode of the link in /proc is the mode in which the file was opened.
                if os.readlink(entry.path).startswith(prefix) and entry.stat(follow_symlinks=False).st_mode & 0o200:
                    return True
    except OSError:
        return False  # the process has exited, or belongs to another user
    return False


class CopyView(CopiedView):
    """A branch as a copy of every file."""

    name: ClassVar[str] = "copy"
    reflink_only: ClassVar[bool] = False

    def refusal(self, site: Site) -> Refusal | None:
        return state_refusal(site)
