"""Paths opened beneath a directory by descriptor: no symlink followed, no mount crossed, no path too long.

Every commit, scan and copy reaches its files through here, which is why a branch that plants a symlink gets nothing
written outside.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from forkwise.files.syscalls import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, openat2

__all__ = ["NOT_THERE", "join", "mount_id", "open_beneath", "open_directory", "open_root", "proc_path", "writable"]

#: What opening a directory answers where there is none, or one of another filesystem.
NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV)

_RESOLVE = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
_PIECE = 1000  # characters of a path opened at once: at most 4 bytes each, so always below PATH_MAX


def join(directory: str, name: str) -> str:
    """A relative path below a root; the root itself is the empty string."""
    return f"{directory}/{name}" if directory else name


def proc_path(fd: int, name: str) -> str:
    """A path for the calls that take no directory descriptor (the xattr family)."""
    return f"/proc/self/fd/{fd}/{name}"


def open_root(path: str) -> int:
    """A descriptor to start from."""
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def open_directory(root: int, path: str, flags: int = os.O_RDONLY) -> int:
    """Open a directory beneath ``root``, or with an empty path that one itself."""
    return open_beneath(root, path, flags | os.O_DIRECTORY)


def open_beneath(directory: int, path: str, flags: int) -> int:
    """Open a path of any length beneath ``directory``: ELOOP at a symlink, EXDEV at a mount point."""
    here = directory
    try:
        while len(path) > _PIECE:
            cut = path.rindex("/", 0, _PIECE)
            deeper = _open_piece(here, path[:cut], os.O_PATH | os.O_DIRECTORY)
            path = path[cut + 1 :]
            if here != directory:
                os.close(here)
            here = deeper
        return _open_piece(here, path or ".", flags)
    finally:
        if here != directory:
            os.close(here)


@contextmanager
def writable(directory: int) -> Iterator[None]:
    """Let an open directory of this user's, also a read-only one, take and give names while the block lasts."""
    mode = stat.S_IMODE(os.fstat(directory).st_mode)
    if os.geteuid() == 0 or mode & 0o300 == 0o300:
        yield
        return
    os.chmod(f"/proc/self/fd/{directory}", mode | 0o300)
    try:
        yield
    finally:
        os.chmod(f"/proc/self/fd/{directory}", mode)


def _open_piece(directory: int, path: str, flags: int) -> int:
    try:
        return openat2(directory, path, flags, _RESOLVE)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    # Linux before 5.6, or a seccomp filter that does not know openat2: the same by hand.
    here = os.dup(directory)
    names = path.split("/")
    for depth, name in enumerate(names, start=1):
        how = flags if depth == len(names) else os.O_PATH | os.O_DIRECTORY
        try:
            deeper = os.open(name, how | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
        finally:
            os.close(here)
        here = deeper
    # A way down that leaves a mount never comes back into it, so its end tells of every step.
    if mount_id(here) != mount_id(directory):
        os.close(here)
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    return here


def mount_id(fd: int) -> bytes:
    """What names the mount that an open file is on."""
    told = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return next(line for line in os.read(told, 4096).split(b"\n") if line.startswith(b"mnt_id:"))
    finally:
        os.close(told)
