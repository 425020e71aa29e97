"""Both versions of a path that a layer changed: the branch's own and the parent's, read without a view."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence

from forkwise.files.beneath import open_directory, open_root
from forkwise.files.diff import LIMIT, FileDiff, Side
from forkwise.files.layer import Entry, Scan
from forkwise.files.lower import Lower

__all__ = ["Versions", "file_diffs"]

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
