"""The driver for a workspace that is itself a DaxFS mount; each of its branches is a separate mount.

DaxFS creates, commits and aborts branches by mount options. The calls of the new mount interface are here because only
DaxFS needs them, to pass a dma-buf.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from forkwise.errors import AbortError, BranchError, BranchStaleError, CommitError, MountError
from forkwise.linux.mountinfo import MountEntry, find_entry, mounts, remount_flags
from forkwise.linux.syscalls import MNT_DETACH, MS_REMOUNT, mount, umount2

__all__ = ["MOST_BRANCHES", "DaxFS", "backing_options", "branch_count", "branch_options", "find_mount", "mount_new"]

MOST_BRANCHES = 256

_GET_DMABUF = 0x4401  # _IO('D', 1)
_NAME = re.compile(r"[^\s,/=]+")
_MAX_NAME = 31  # bytes

# The same numbers on every architecture.
_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 429, 430, 431, 432
_CLOEXEC = 1
_SET_FLAG, _SET_STRING, _SET_FD, _CMD_CREATE = 0, 1, 5, 6
_MOVE_MOUNT_F_EMPTY_PATH = 4
_AT_FDCWD = -100

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


class DaxFS:
    """One DaxFS mount; its branches are mounted below ``mount_directory``.

    The main branch is read-only, and a commit merges a branch with all its ancestors into it.
    """

    def __init__(self, mount: str, mount_directory: str) -> None:
        self.mount = mount
        self.mount_directory = mount_directory

    def path(self, name: str) -> str:
        """Return the path at which a branch is visible."""
        return f"{self.mount_directory}/{name}"

    def split(self, path: str) -> tuple[str | None, str]:
        """Split a path on DaxFS into the branch that its mount shows (None: main) and the path inside the branch."""
        entry = find_entry(path, mounts())
        if entry is None or entry.fstype != "daxfs":
            raise MountError(f"{path} is not on a DaxFS mount", view="daxfs", remedy="mount it first")
        shown = next((o.partition("=")[2] for o in entry.options if o.startswith("branch=")), "main")
        name = shown.rstrip("/").rpartition("/")[2]
        return None if name in ("", "main") else name, path[len(entry.point.rstrip("/")) :].strip("/")

    def exists(self, name: str) -> bool:
        """Return whether a branch of that name is mounted."""
        entry = find_entry(self.path(name), mounts())
        return entry is not None and entry.fstype == "daxfs" and entry.point == self.path(name)

    def is_own_name(self, name: str) -> bool:
        """Return whether an entry at the root of a branch belongs to DaxFS itself: none does."""
        return False

    def create(self, name: str, parent: str | None = None) -> str:
        """Create a branch of ``parent`` (or of main), mount it, and return its name."""
        entries = mounts()
        above = find_entry(self.mount, entries)
        if above is None or above.fstype != "daxfs":
            raise MountError(f"{self.mount} is not a DaxFS mount", view="daxfs", remedy="mount it first")
        if branch_count(above, entries) >= MOST_BRANCHES:
            raise BranchError(
                f"{self.mount} already has {MOST_BRANCHES} branches, the maximum of DaxFS. Commit or abort some first.",
                branch=name,
            )
        options = branch_options(name, parent or "main")
        os.makedirs(self.path(name))
        try:
            with ExitStack() as stack:
                buffer = _dmabuf(self.mount)
                if buffer is None:
                    mount_new("daxfs", self.path(name), [*backing_options(above), *options])
                else:
                    stack.callback(os.close, buffer)
                    mount_new("daxfs", self.path(name), [("dmabuf", buffer), *options])
        except OSError as error:
            os.rmdir(self.path(name))
            raise _explain(error, BranchError, f"a branch {name} of {self.mount} could not be created", name) from error
        return name

    def commit(self, name: str) -> None:
        """Merge a branch and its ancestors into main and unmount it; all other branches become stale."""
        self._remount(name, "commit", CommitError)

    def abort(self, name: str, *, nested: bool = False) -> None:
        """Drop a branch, and unmount it.

        A ``nested`` branch is only unmounted, which drops it alone: the mount option drops the branches around it too.
        """
        if nested:
            self._unmount(name)
        else:
            self._remount(name, "abort", AbortError)

    def _remount(self, name: str, flag: str, failure: type[BranchError]) -> None:
        path = self.path(name)
        try:
            mount("none", path, None, MS_REMOUNT | remount_flags(path), flag)
        except OSError as error:
            raise _explain(error, failure, f"{path}: {flag} failed", name) from error
        self._unmount(name)

    def _unmount(self, name: str) -> None:
        umount2(self.path(name), MNT_DETACH)
        os.rmdir(self.path(name))


def find_mount(path: str) -> str | None:
    """Return the mount point of the DaxFS that contains a path; None if it is on another filesystem."""
    found = find_entry(os.path.realpath(path), mounts())
    return found.point if found is not None and found.fstype == "daxfs" else None


def branch_options(branch: str, parent: str) -> list[tuple[str, str | int | None]]:
    """Return the mount options that create a branch.

    >>> branch_options("try", "main")
    [('branch', 'try'), ('parent', 'main')]
    """
    for name in (branch, parent):
        if not _NAME.fullmatch(name) or len(os.fsencode(name)) > _MAX_NAME:
            raise BranchError(
                f"{name!r} cannot name a DaxFS branch: it is empty, longer than {_MAX_NAME} bytes, or has spaces, "
                "commas, '/' or '='",
                branch=name,
            )
    return [("branch", branch), ("parent", parent)]


def backing_options(mount: MountEntry) -> list[tuple[str, str | int | None]]:
    """Return the options of a mount that name its memory, for another mount of the same memory."""
    found: list[tuple[str, str | int | None]] = []
    for option in mount.options:
        key, _, value = option.partition("=")
        if key in ("phys", "size", "name"):
            found.append((key, value))
    return found


def branch_count(mount: MountEntry, entries: Iterable[MountEntry]) -> int:
    """Count the mounted branches on the memory of ``mount``, including main."""
    backing = backing_options(mount)
    names = {
        option
        for other in entries
        if other.fstype == "daxfs" and backing_options(other) == backing
        for option in other.options
        if option.startswith("branch=")
    }
    return len(names | {"branch=/main"})


def mount_new(fstype: str, target: str, options: Sequence[tuple[str, str | int | None]]) -> None:
    """Mount a new filesystem; the value of an option is a string, a descriptor, or None for a flag."""
    with ExitStack() as stack:
        context = _call(_FSOPEN, fstype.encode(), _CLOEXEC)
        stack.callback(os.close, context)
        for key, value in options:
            if value is None:
                _call(_FSCONFIG, context, _SET_FLAG, key.encode(), None, 0)
            elif isinstance(value, int):
                _call(_FSCONFIG, context, _SET_FD, key.encode(), None, value)
            else:
                _call(_FSCONFIG, context, _SET_STRING, key.encode(), os.fsencode(value), 0)
        _call(_FSCONFIG, context, _CMD_CREATE, None, None, 0)
        mount_fd = _call(_FSMOUNT, context, _CLOEXEC, 0)
        stack.callback(os.close, mount_fd)
        _call(_MOVE_MOUNT, mount_fd, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)


def _call(number: int, *arguments: int | bytes | None) -> int:
    result = int(_syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _dmabuf(mount: str) -> int | None:
    """Return a descriptor of the dma-buf that backs a mount; None if a range of physical memory backs it."""
    directory = os.open(mount, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return fcntl.ioctl(directory, _GET_DMABUF)
    except OSError:
        return None
    finally:
        os.close(directory)


def _explain(error: OSError, failure: type[BranchError], message: str, name: str) -> BranchError:
    if error.errno == errno.ESTALE:
        return BranchStaleError(f"{message}: a sibling was committed first. Fork again.", branch=name)
    if error.errno == errno.EBUSY:
        return failure(f"{message}: files of it are open. Close them, then try again.", branch=name)
    if error.errno == errno.ENOSPC:
        return failure(
            f"{message}: no space is left, or there are {MOST_BRANCHES} branches. Commit or abort some first.",
            branch=name,
        )
    if error.errno == errno.EIO:
        return failure(
            f"{message}: DaxFS returned EIO. The branch may have children; commit or abort those first.", branch=name
        )
    return failure(f"{message}: {error.strerror}", branch=name)
