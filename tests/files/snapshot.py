"""A whole tree as a value: every property of its entries that a commit or an undo must restore."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import NamedTuple

from forkwise.linux.trees import join, open_directory, open_root, proc_path

__all__ = ["Seen", "snapshot"]


class Seen(NamedTuple):
    """One entry."""

    type: int
    mode: int
    owner: tuple[int, int]
    content: str
    mtime: int
    attributes: tuple[tuple[str, bytes], ...]


def snapshot(root: Path, *, times: bool = True) -> dict[str, Seen]:
    """Return every entry below a directory, and the directory itself as ''."""
    seen: dict[str, Seen] = {}
    top = open_root(str(root))
    pending = [""]
    try:
        seen[""] = _see(top, ".", times)
        while pending:
            path = pending.pop()
            try:
                fd = open_directory(top, path)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                continue  # a mounted filesystem is not part of the tree
            try:
                for name in os.listdir(fd):
                    entry = _see(fd, name, times)
                    seen[join(path, name)] = entry
                    if entry.type == stat.S_IFDIR:
                        pending.append(join(path, name))
            finally:
                os.close(fd)
    finally:
        os.close(top)
    return seen


def _see(fd: int, name: str, times: bool) -> Seen:
    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    kind = stat.S_IFMT(found.st_mode)
    content = ""
    if kind == stat.S_IFREG:
        with open(os.open(name, os.O_RDONLY, dir_fd=fd), "rb") as file:
            content = f"{found.st_size}:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    elif kind == stat.S_IFLNK:
        content = os.readlink(name, dir_fd=fd)
    path = proc_path(fd, name)
    attributes = tuple(
        sorted((a, os.getxattr(path, a, follow_symlinks=False)) for a in os.listxattr(path, follow_symlinks=False))
    )
    mtime = found.st_mtime_ns if times else 0
    return Seen(kind, stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid), content, mtime, attributes)
