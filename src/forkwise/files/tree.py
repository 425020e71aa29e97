"""The reader for whole trees (btrfs, reflink and copy views): what differs from the tree as it was made.

A tree has no whiteouts. What changed is told by the filesystem's clock, what is gone by the names that were there when
the tree was made. It costs a look at every entry of the tree, which is why these views come last.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from forkwise.files.beneath import join, open_root
from forkwise.files.delta import entry_type
from forkwise.files.layer import Entry, Reader, Scan
from forkwise.files.lower import Lower, LowerDirectory
from forkwise.files.views.protocol import Base

__all__ = ["scan_tree"]


def scan_tree(tree: str, lowers: Sequence[str], base: Base, made: int) -> Scan:
    """Read a whole tree against its parent; ``made`` is the filesystem's time at which the tree was complete."""
    with Lower(lowers[:1]) as lower:
        root = open_root(tree)
        try:
            reader = _TreeReader(root, lower, base, made)
            reader.read()
            return reader.scan
        finally:
            os.close(root)


class _TreeReader(Reader):
    def __init__(self, root: int, lower: Lower, base: Base, made: int) -> None:
        super().__init__(root, lower)
        self.base = base
        self.made = made

    def read_directory(self, path: str, fd: int, parent: LowerDirectory) -> None:
        known = self.base.directory(path)
        before = known[1] if known else frozenset()
        seen = len(self.scan.entries)
        now = set()
        with os.scandir(fd) as found:
            for item in found:
                now.add(item.name)
                self._read_entry(path, item.name, item.stat(follow_symlinks=False), item.name in before, parent)
        for name in sorted(before - now):
            old = parent.lookup(name)
            if old is not None:
                self.add(Entry(path, name, None, old, True, True))
        if len(self.scan.entries) > seen or os.fstat(fd).st_ctime_ns >= self.made:
            self.touch(path, fd, parent)

    def _read_entry(self, path: str, name: str, new: os.stat_result, existed: bool, parent: LowerDirectory) -> None:
        kind = entry_type(new.st_mode)
        if kind == "directory":
            was = self.base.directory(join(path, name))
            if was is not None and was[0] == new.st_ino:
                self.pending.append(join(path, name))
            else:
                self.add_unit(Entry(path, name, new, parent.lookup(name), False, True))
        elif existed and new.st_ctime_ns < self.made:
            return
        elif kind == "special":
            self.scan.specials.append(join(path, name))
        else:
            self.add(Entry(path, name, new, parent.lookup(name), existed, True))
