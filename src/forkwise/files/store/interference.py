"""Interference: what other processes did, while a commit ran, to the entries that it removes from its target.

A commit compares its target with the branch, and then renames. A file that an editor saves between the two, by a rename
or in place, would be moved out of the target unnoticed. So every entry that was moved out is compared with what was
planned, and a file that a process still has open for writing counts as changed, because its next write would be lost.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forkwise.files.store.changes import Conflict
from forkwise.linux.trees import join, open_directory

if TYPE_CHECKING:
    from forkwise.files.store.journal import JournalStep, Slots
    from forkwise.linux.lease import Leases

__all__ = ["OldEntry", "find_interference", "find_waiting", "is_dated_since", "is_saved_since"]

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(slots=True)
class OldEntry:
    """An entry that a step removes from the target, as it was when the step was planned.

    ``inside`` has everything below a directory that is removed as a whole, by the path relative to it.
    """

    directory: str
    step: JournalStep
    found: os.stat_result
    inside: Mapping[str, os.stat_result] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return join(self.directory, self.step.name)


def find_interference(entries: Iterable[OldEntry], slots: Slots, leases: Leases) -> list[Conflict]:
    """Compare the entries in their slots with what was planned, and take a lease on each file."""
    conflicts: list[Conflict] = []
    for entry in entries:
        slot = entry.step.slot
        fd, name = (slots.side, slot) if slot else (slots.open(slots.layer, entry.directory), entry.step.name)
        conflicts += _compare(fd, name, entry, leases)
    return conflicts


def find_waiting(leases: Leases) -> list[Conflict]:
    """List the files that another process began to open for writing since their lease was taken."""
    return [_conflict(path, "opened for writing") for path in leases.find_wanted()]


def is_saved_since(fd: int, name: str, started: int, leases: Leases) -> bool:
    """Return whether another process saved an entry since ``started``, or anything below it, or is about to.

    A save sets mtime and ctime to the present; a file that is dated in the future has an mtime after its ctime.
    """
    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode):
        return _is_leaf_saved(fd, name, started, leases)
    pending = [name]
    while pending:
        path = pending.pop()
        here = open_directory(fd, path)
        try:
            if is_dated_since(os.fstat(here), started):
                return True
            with os.scandir(here) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(join(path, entry.name))
                    elif _is_leaf_saved(here, entry.name, started, leases):
                        return True
        finally:
            os.close(here)
    return False


def _is_leaf_saved(fd: int, name: str, started: int, leases: Leases) -> bool:
    file = _open(fd, name)
    if file is not None and not leases.take(file, name):
        return True
    return is_dated_since(os.stat(name, dir_fd=fd, follow_symlinks=False), started)


def is_dated_since(entry: os.stat_result, started: int) -> bool:
    """Return whether an entry's mtime says that it was saved since ``started``; a date in the future does not."""
    return started < entry.st_mtime_ns <= entry.st_ctime_ns


def _compare(fd: int, name: str, entry: OldEntry, leases: Leases) -> Iterator[Conflict]:
    found = entry.found
    if not stat.S_ISDIR(found.st_mode):
        if (conflict := _compare_leaf(fd, name, found, entry.path, leases)) is not None:
            yield conflict
        return
    now = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if (now.st_ino, now.st_mode) != (found.st_ino, found.st_mode):
        yield _conflict(entry.path, "replaced")
        return
    missing = dict(entry.inside)
    root = open_directory(fd, name, os.O_PATH)
    try:
        yield from _compare_inside(root, entry, missing, leases)
    finally:
        os.close(root)
    for path in missing:
        yield _conflict(join(entry.path, path), "deleted")


def _compare_inside(
    root: int, entry: OldEntry, missing: dict[str, os.stat_result], leases: Leases
) -> Iterator[Conflict]:
    """Compare everything below a directory with ``missing``, and remove from that what still exists."""
    pending = [""]
    while pending:
        here = pending.pop()
        fd = open_directory(root, here)
        try:
            for name in os.listdir(fd):
                path = join(here, name)
                found = missing.pop(path, None)
                if found is None:
                    yield _conflict(join(entry.path, path), "created")
                elif not stat.S_ISDIR(found.st_mode):
                    if (conflict := _compare_leaf(fd, name, found, join(entry.path, path), leases)) is not None:
                        yield conflict
                elif os.stat(name, dir_fd=fd, follow_symlinks=False).st_ino == found.st_ino:
                    pending.append(path)
                else:
                    yield _conflict(join(entry.path, path), "replaced")
        finally:
            os.close(fd)


def _compare_leaf(fd: int, name: str, found: os.stat_result, path: str, leases: Leases) -> Conflict | None:
    """Compare a file or a symlink; the lease comes first, so that no write follows the comparison."""
    if stat.S_ISREG(found.st_mode) and (file := _open(fd, name)) is not None and not leases.take(file, path):
        return _conflict(path, "opened for writing")
    now = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if _facts(now) == _facts(found):
        return None
    return _conflict(path, "saved" if stat.S_ISREG(now.st_mode) else "replaced")


def _facts(entry: os.stat_result) -> tuple[int, ...]:
    return entry.st_ino, entry.st_mtime_ns, entry.st_size, entry.st_mode, entry.st_uid, entry.st_gid


def _open(fd: int, name: str) -> int | None:
    """Open a file to take a lease on it; None if this user may not read it or if it is no longer a file."""
    try:
        return os.open(name, _READ, dir_fd=fd)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.ELOOP, errno.ENXIO, errno.ENOENT):
            raise
        return None


def _conflict(path: str, did: str) -> Conflict:
    return Conflict(path, "deleted" if did == "deleted" else "changed", f"{did} by another process during the commit")
