"""Comparison: what lies between a branch and its parent, file by file, and between two branches of one parent, as text.
Read from their layers, so that it costs what they changed, and no view is brought up.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from heapq import merge
from itertools import groupby

from forkwise.errors import BranchError
from forkwise.files.branch import Branch
from forkwise.files.store.overlayfs import Lower
from forkwise.files.store.scan import Entry, Scan
from forkwise.files.store.state import locked
from forkwise.linux.trees import open_directory, open_root
from forkwise.text.diff import LIMIT, FileDiff, Side, unified

__all__ = [
    "Versions",
    "changed_files",
    "compare",
    "file_diffs",
]


_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Versions:
    """The layer and what lies below it, open for reading."""

    def __init__(self, layer: str, lowers: Sequence[str]) -> None:
        self._lower = Lower(lowers)
        self._layer = open_root(layer)

    def close(self) -> None:
        self._lower.close()
        os.close(self._layer)

    def __enter__(self) -> Versions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def new(self, entry: Entry) -> bytes:
        """The branch's content (a symlink's target)."""
        fd = open_directory(self._layer, entry.directory, os.O_PATH)
        try:
            return _read(fd, entry.name)
        finally:
            os.close(fd)

    def old(self, entry: Entry) -> bytes:
        """The parent's content."""
        with self._lower.directory(entry.directory) as directory:
            holder = directory.holder(entry.name)
            return b"" if holder is None else _read(holder, entry.name)

    def is_same(self, entry: Entry) -> bool:
        """Whether both sides came to the same: same type, same mode, same content."""
        new, old = entry.new, entry.old
        if new is None or old is None or new.st_mode != old.st_mode or stat.S_ISDIR(new.st_mode):
            return False
        return new.st_size == old.st_size and self.new(entry) == self.old(entry)


def file_diffs(versions: Versions, scan: Scan) -> Iterator[FileDiff]:
    """What a diff of a scan shows, sorted by path, read one file at a time."""
    for entry in sorted(scan.entries, key=lambda e: e.path):
        old = _side(entry.old, entry, versions.old)
        new = _side(entry.new, entry, versions.new)
        if old or new:
            yield FileDiff(entry.path, old, new)


def _side(found: os.stat_result | None, entry: Entry, read: Callable[[Entry], bytes]) -> Side | None:
    if found is None or not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        return None
    if found.st_size > LIMIT:
        return Side(found.st_mode, None, found.st_size)
    return Side(found.st_mode, read(entry))


def _read(fd: int, name: str) -> bytes:
    if stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
        return os.fsencode(os.readlink(name, dir_fd=fd))
    with open(os.open(name, _READ, dir_fd=fd), "rb") as file:
        return file.read()


def changed_files(branch: Branch) -> list[FileDiff]:
    """Both versions of every file and link that a branch changed, sorted by path; of large ones only the size."""
    with ExitStack() as held:
        held.enter_context(locked(branch.place.state))
        return list(_changes(branch, held))


def compare(first: Branch, second: Branch) -> str:
    """What turns the first of two siblings into the second, as unified text that ``git apply`` takes.

    >>> import tempfile, pathlib
    >>> from forkwise import Workspace
    >>> ws = Workspace(tempfile.mkdtemp())
    >>> one, two = ws.branch("one"), ws.branch("two")
    >>> _ = (one.path / "a.txt").write_text("yes\\n"), (two.path / "a.txt").write_text("no\\n")
    >>> print(*compare(one, two).splitlines()[-2:])
    -yes +no
    >>> for branch in ws.branches(): branch.abort()
    """
    if first.parent.place.path != second.parent.place.path:
        raise BranchError(
            f"{second.branch_path} is not made from what {first.branch_path} is made from: only siblings are compared",
            branch=second.name,
        )
    with ExitStack() as held:
        held.enter_context(locked(first.place.state))
        return unified(_between(_changes(first, held), _changes(second, held)))


def _changes(branch: Branch, held: ExitStack) -> Iterator[FileDiff]:
    branch.recover()
    versions = held.enter_context(Versions(branch.target, branch.parent.lowers))
    return file_diffs(versions, branch.scan())


def _between(first: Iterator[FileDiff], second: Iterator[FileDiff]) -> Iterator[FileDiff]:
    """Both are sorted by path, so that one is held at a time. What one left alone is there as the other found it."""
    told = merge(((0, change) for change in first), ((1, change) for change in second), key=lambda t: (t[1].path, t[0]))
    for path, changes in groupby(told, key=lambda t: t[1].path):
        by = dict(changes)
        if len(by) == 2:
            yield FileDiff(path, by[0].new, by[1].new)
        else:
            yield by[1] if 1 in by else FileDiff(path, by[0].new, by[0].old)
