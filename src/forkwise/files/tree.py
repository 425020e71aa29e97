"""The reader for whole trees (btrfs, reflink and copy views): what differs from the tree as it was made.

A tree has no whiteouts. What changed is told by the filesystem's clock, what is gone by the names that were there when
the tree was made. It costs a look at every entry of the tree, which is why these views come last.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from forkwise.files.beneath import join, open_root
from forkwise.files.delta import entry_type
from forkwise.files.layer import Entry, Reader, Scan
from forkwise.files.lower import Lower, LowerDirectory
from forkwise.files.taken_back import TakenBack
from forkwise.files.views.protocol import Base

__all__ = ["scan_tree"]


def scan_tree(tree: str, lowers: Sequence[str], base: Base, made: int, taken_back: TakenBack) -> Scan:
    """Read a whole tree against its parent; ``made`` is the filesystem's time at which the tree was complete,
    ``taken_back`` knows what in it was committed to and taken back."""
    with Lower(lowers[:1]) as lower:
        root = open_root(tree)
        try:
            reader = _TreeReader(root, lower, base, made, taken_back)
            reader.read()
            return reader.scan
        finally:
            os.close(root)


class _TreeReader(Reader):
    def __init__(self, root: int, lower: Lower, base: Base, made: int, taken_back: TakenBack) -> None:
        super().__init__(root, lower)
        self.base = base
        self.made = made
        self.is_touched = False
        self.own = taken_back

    def read_directory(self, path: str, fd: int, parent: LowerDirectory) -> None:
        known = self.base.directory(path)
        before = known[1] if known else frozenset()
        seen = len(self.scan.entries)
        now = set()
        appeared = known is None or self._is_another(path, parent)
        if appeared:
            self.scan.appeared.append(path)
        with os.scandir(fd) as found:
            for item in found:
                now.add(item.name)
                self._read_entry(path, item.name, item.stat(follow_symlinks=False), before, appeared, parent)
        for name in sorted(before - now):
            old = parent.lookup(name)
            if old is not None:
                self.add(Entry(path, name, None, old, True, True, appeared=appeared))
        if len(self.scan.entries) > seen or self.own.ctime(os.fstat(fd)) >= self.made:
            self.is_touched = True
            self.touch(path, fd, parent)

    def _read_entry(
        self,
        path: str,
        name: str,
        new: os.stat_result,
        before: frozenset[str],
        appeared: bool,
        parent: LowerDirectory,
    ) -> None:
        kind = entry_type(new.st_mode)
        existed = name in before
        if kind == "directory":
            self._read_subdirectory(path, name, new, existed, parent.lookup(name))
        elif existed and self.own.ctime(new) < self.made:
            return
        elif kind == "special":
            self.scan.specials.append(join(path, name))
        else:
            self.add(Entry(path, name, new, parent.lookup(name), existed, True, appeared=appeared))

    def _read_subdirectory(
        self, path: str, name: str, new: os.stat_result, existed: bool, old: os.stat_result | None
    ) -> None:
        beneath = join(path, name)
        was = self.base.directory(beneath)
        is_same = was is not None and was[0] == new.st_ino
        if old is not None and stat.S_ISDIR(old.st_mode) and (is_same or not existed):
            self.pending.append(beneath)
        elif not is_same or self._is_changed(beneath):
            self.add_unit(Entry(path, name, new, old, existed, True))

    def _is_another(self, path: str, parent: LowerDirectory) -> bool:
        """Whether the parent's directory is not the one that the tree's was made from."""
        origin = self.base.origin(path) if path and parent.fds else 0
        return origin != 0 and os.fstat(parent.fds[0]).st_ino != origin

    def _is_changed(self, path: str) -> bool:
        """Whether the branch changed a directory that the parent no longer has, or anything inside it."""
        inside = _TreeReader(self.root, self.lower, self.base, self.made, self.own)
        inside.pending = [path]
        inside.read()
        return inside.is_touched
