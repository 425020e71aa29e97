"""Which process uses a directory: has it as its working directory, or a file in it open, or left its lock there.

A database that runs on a directory keeps it inconsistent on the disk, so its files must be neither replaced nor forked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

__all__ = ["find_directory_user", "find_postgres", "list_directory_users"]

_POSTGRES_LOCK = "postmaster.pid"
_POSTGRES_NAMES = ("postgres", "postmaster")


def find_directory_user(directory: str) -> str | None:
    """Return the name and PID of a process that uses a directory; None if none is found.

    Root sees the processes of all users. Any other user sees only their own, and PostgreSQL by its lock file. A process
    in a sandbox that sees a branch at the same path does not count: its files have other device or inode numbers.
    """
    if not os.path.isdir(directory):
        return None
    root = os.path.realpath(directory)
    locker = find_postgres(root)
    if locker is not None:
        return locker
    return next((_describe(str(pid)) for pid in _list_users(root)), None)


def list_directory_users(directory: str) -> list[int]:
    """List the processes that use a directory, as far as this user sees them."""
    return list(_list_users(os.path.realpath(directory)))


def _list_users(root: str) -> Iterator[int]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) != os.getpid() and any(_is_inside(link, root) for link in _list_links(pid)):
            yield int(pid)


def find_postgres(root: str) -> str | None:
    """Return the PostgreSQL server whose lock file is in a data directory, if it runs on that directory."""
    with suppress(OSError, ValueError), open(f"{root}/{_POSTGRES_LOCK}", "rb") as file:
        lines = file.read(4096).decode(errors="replace").splitlines()
        pid, served = int(lines[0]), os.path.realpath(lines[1]) if len(lines) > 1 else root
        with open(f"/proc/{pid}/comm") as comm:
            name = comm.read().strip()
        # A killed server leaves its lock file, and its number may be that of another server by now.
        if name in _POSTGRES_NAMES and served == root and _may_work_in(pid, root):
            return f"{name} (process {pid})"
    return None


def _may_work_in(pid: int, root: str) -> bool:
    """Return whether a process works in a directory, as PostgreSQL does; True if this user may not find out."""
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/cwd"), os.stat(root))
    except PermissionError:
        return True


def _list_links(pid: str) -> Iterator[str]:
    """Yield the links in /proc to the working directory and the open files of a process, if this user may read them."""
    yield f"/proc/{pid}/cwd"
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            yield f"/proc/{pid}/fd/{number}"


def _is_inside(link: str, root: str) -> bool:
    with suppress(OSError):
        path = os.readlink(link)
        return (path == root or path.startswith(f"{root}/")) and os.path.samestat(os.stat(link), os.stat(path))
    return False


def _describe(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/comm", errors="replace") as file:
            name = file.read().strip()
    except OSError:
        name = "a process"
    return f"{''.join(c for c in name if c.isprintable())} (process {pid})"
