"""Directories opened beneath a root by descriptor: no symlink followed, no mount crossed, no path too long.

Every commit, scan and copy reaches its files through here, which is why a branch that plants a symlink gets nothing
written outside.
"""

from __future__ import annotations

import errno
import os

from forkwise.files.syscalls import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, openat2

__all__ = ["join", "open_directory", "open_root", "proc_path"]

_RESOLVE = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LONGEST = 1000  # characters of a path given to the kernel at once: at most 4,000 bytes, PATH_MAX is 4,096


def join(directory: str, name: str) -> str:
    """A relative path below a root; the root itself is the empty string."""
    return f"{directory}/{name}" if directory else name


def proc_path(fd: int, name: str) -> str:
    """A path for the calls that take no directory descriptor (the xattr family)."""
    return f"/proc/self/fd/{fd}/{name}"


def open_root(path: str) -> int:
    """A descriptor to start from."""
    return os.open(path, os.O_PATH | _DIRECTORY)


def open_directory(root: int, path: str, flags: int = os.O_RDONLY) -> int:
    """Open a directory beneath ``root``.

    Raises OSError: ELOOP or ENOTDIR where a part of the path is no directory, EXDEV where it is another mount.
    """
    if not path:
        return os.open(".", flags | _DIRECTORY, dir_fd=root)
    here = root
    for piece in _pieces(path):
        try:
            below = _open(here, piece, flags)
        finally:
            if here != root:
                os.close(here)
        here = below
    return here


def _pieces(path: str) -> list[str]:
    if len(path) <= _LONGEST:
        return [path]
    pieces, piece = [], ""
    for name in path.split("/"):
        if piece and len(piece) + len(name) >= _LONGEST:
            pieces.append(piece)
            piece = name
        else:
            piece = join(piece, name)
    return [*pieces, piece]


def _open(here: int, path: str, flags: int) -> int:
    try:
        return openat2(here, path, flags | _DIRECTORY, _RESOLVE)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):  # no such call before Linux 5.6, or a seccomp filter
            raise
    return _open_by_steps(here, path, flags)


def _open_by_steps(here: int, path: str, flags: int) -> int:
    device = os.fstat(here).st_dev
    fd = os.dup(here)
    for name in path.split("/"):
        try:
            below = os.open(name, flags | _DIRECTORY, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
        if os.fstat(fd).st_dev != device:
            os.close(fd)
            raise OSError(errno.EXDEV, "another filesystem is mounted there", path)
    return fd
