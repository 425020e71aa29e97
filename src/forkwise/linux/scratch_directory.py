"""Scratch directories: temporary directories that garbage collection can find after their process was killed.

Their process holds a lock on them, which the kernel releases however the process ends, in whatever PID namespace.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from forkwise.linux.trees import closing_fd, open_root, remove_tree

__all__ = ["create_scratch_directory", "is_purpose", "list_abandoned", "remove_abandoned", "scratch_directory"]

_NAME = re.compile(r"forkwise-scratch-[a-z]+-[A-Za-z0-9_]{8}\Z", re.ASCII)
_temporary: set[tuple[int, str]] = set()  # processes and the directories that they are to remove
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def scratch_directory(purpose: str) -> Iterator[str]:
    """Yield a new directory that only the user can read, and remove it when the block ends. ``purpose`` is one word."""
    path, fd = _create(purpose, _temporary)
    with closing_fd(fd):
        try:
            yield path
        finally:
            _remove(path)
            _temporary.discard((os.getpid(), path))


def create_scratch_directory(purpose: str) -> tuple[str, int]:
    """Create a directory; return it with the descriptor that holds its lock."""
    return _create(purpose, set())


def _create(purpose: str, known: set[tuple[int, str]]) -> tuple[str, int]:
    """Create a directory; it is added to ``known`` before it exists, so that an interrupt cannot leave it behind."""
    while True:
        path = f"{tempfile.gettempdir()}/forkwise-scratch-{purpose}-{secrets.token_hex(4)}"
        known.add((os.getpid(), path))
        try:
            os.mkdir(path, 0o700)
            fd = os.open(path, _DIRECTORY)
        except (FileExistsError, FileNotFoundError):
            # The name is taken, or a garbage collection removed the directory before it was locked.
            known.discard((os.getpid(), path))
            if not os.path.isdir(tempfile.gettempdir()):
                raise
            continue
        _lock(fd)
        if _is_at(path, fd):
            return path, fd
        os.close(fd)


def _remove(path: str) -> None:
    try:
        shutil.rmtree(path, ignore_errors=True)
    except KeyboardInterrupt:  # finish first: the process may run on for a long time
        shutil.rmtree(path, ignore_errors=True)
        raise


@atexit.register
def _remove_rest() -> None:
    """Remove directories whose creation or removal a signal interrupted."""
    for pid, path in _temporary:
        if pid == os.getpid():
            _remove(path)


def list_abandoned() -> list[str]:
    """List the scratch directories of this user whose processes have ended."""
    top = tempfile.gettempdir()
    try:
        names = sorted(name for name in os.listdir(top) if _NAME.match(name))
    except OSError:
        return []
    found = []
    for path in (f"{top}/{name}" for name in names):
        fd = _open_abandoned(path)
        if fd is not None:
            os.close(fd)
            found.append(path)
    return found


def is_purpose(path: str, purpose: str) -> bool:
    """Return whether a directory of `list_abandoned` was created for a purpose."""
    return os.path.basename(path).startswith(f"forkwise-scratch-{purpose}-")


def remove_abandoned(path: str) -> bool:
    """Remove a directory of `list_abandoned`. Return False if it is in use after all, or is not the user's."""
    top, _, name = path.rpartition("/")
    fd = _open_abandoned(path) if _NAME.match(name) else None
    if fd is None:
        return False
    with closing_fd(fd), closing_fd(open_root(top)) as parent:
        return not remove_tree(parent, name)


def _open_abandoned(path: str) -> int | None:
    """Lock a directory and return its descriptor; None if it is another user's, not a directory, or in use."""
    try:
        fd = os.open(path, _DIRECTORY)
    except OSError:
        return None
    if os.fstat(fd).st_uid == os.geteuid() and _lock(fd) and _is_at(path, fd):
        return fd
    os.close(fd)
    return None


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # also if the filesystem has no locks: then nothing counts as abandoned
        return False
    return True


def _is_at(path: str, fd: int) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and os.path.samestat(found, os.fstat(fd))
