"""Removing a tree for good: by descriptor, however deep, no symlink followed and nothing mounted ever touched."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from forkwise.files.beneath import open_beneath

__all__ = ["remove_tree"]

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


def remove_tree(parent_dir: int, name: str) -> list[str]:
    """Remove ``name`` with all it holds; gives the paths that had to stay because they are mount points."""
    left: list[str] = []
    pending = [(name, False)]
    while pending:
        path, emptied = pending.pop()
        try:
            if emptied:
                _remove_directory(parent_dir, path, left)
            else:
                below = _empty_directory(parent_dir, path, left)
                if below is not None:
                    pending.append((path, True))
                    pending.extend((child, False) for child in below)
        except FileNotFoundError:
            continue  # somebody else removes it too
        except OSError as error:
            error.filename = path
            raise
    return left


@contextmanager
def _opened(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def _empty_directory(root: int, path: str, left: list[str]) -> list[str] | None:
    """Unlink what one directory holds; gives the directories still in it, or None where ``path`` stays or is gone."""
    parent, _, name = path.rpartition("/")
    with _opened(open_beneath(root, parent, _DIRECTORY)) as above:
        if not stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
            _unlink(above, name, path, left)
            return None
        try:
            directory = _open_to_empty(above, name)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            left.append(path)
            return None
    below: list[str] = []
    with _opened(directory):
        with os.scandir(directory) as listing:
            entries = list(listing)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                below.append(f"{path}/{entry.name}")
            else:
                _unlink(directory, entry.name, f"{path}/{entry.name}", left)
    return below


def _open_to_empty(above: int, name: str) -> int:
    """Open a directory with the right to list and change it, taken where its owner lacks it."""
    with _opened(open_beneath(above, name, os.O_PATH | os.O_DIRECTORY)) as found:
        mode = stat.S_IMODE(os.fstat(found).st_mode)
        if mode & 0o700 != 0o700:
            with suppress(PermissionError):
                os.chmod(f"/proc/self/fd/{found}", mode | 0o700)
    return open_beneath(above, name, _DIRECTORY)


def _unlink(directory: int, name: str, path: str, left: list[str]) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.EBUSY:  # which is what a mounted-over file answers
            raise
        left.append(path)


def _remove_directory(root: int, path: str, left: list[str]) -> None:
    parent, _, name = path.rpartition("/")
    with _opened(open_beneath(root, parent, _DIRECTORY)) as above:
        try:
            os.rmdir(name, dir_fd=above)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not any(kept.startswith(f"{path}/") for kept in left):
                raise
