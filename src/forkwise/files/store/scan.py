"""Scans: what a branch changed, read from a layer in overlayfs's format or from a whole tree.

The cost of reading a layer depends on the layer. A whole tree (btrfs, reflink and copy views) has no whiteouts: its
changes show by ctimes, its deletions by the names that it had when it was created, and every entry needs a stat.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BufferedReader
from stat import S_ISDIR, S_ISREG
from typing import TYPE_CHECKING

from forkwise.files.store.changes import Change, ChangeKind, Delta, entry_type
from forkwise.files.store.journal import has_same_owner
from forkwise.files.store.overlayfs import (
    OVERLAY_MARKS,
    Lower,
    LowerDirectory,
    is_mark,
    is_of_user,
    is_opaque,
    is_origin,
    is_whiteout,
    read_mark,
)
from forkwise.files.store.record import RolledBack
from forkwise.linux.syscalls import file_handle
from forkwise.linux.trees import join, open_directory, open_root, proc_path
from forkwise.progress import Work, report

if TYPE_CHECKING:
    from forkwise.files.store.view import Base
    from forkwise.git.repository_change import RepositoryChange

__all__ = [
    "Entry",
    "Reader",
    "Scan",
    "Touched",
    "compare_trees",
    "is_beneath",
    "scan_layer",
    "scan_tree",
    "user_attributes",
]


_BLOCK = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_HANDLE = 21  # bytes before the file handle in an origin: version, magic, length, flags, type, filesystem UUID


class Entry:
    """One path that differs: the branch's entry (``new``) and the parent's (``old``), None if there is none.

    ``copied`` is True if the branch's file was copied from the parent's. ``unit`` is True for an entry that a commit
    moves as a whole; the entries inside a moved directory are listed with ``unit`` False. ``above`` is the ctime of the
    parent's directory, as far as that matters; ``appeared`` is True if that directory is not the one that the branch
    was forked from, so that the parent's entry counts as changed, however old it is.
    """

    __slots__ = ("above", "appeared", "copied", "directory", "name", "new", "old", "path", "unit")

    def __init__(
        self,
        directory: str,
        name: str,
        new: os.stat_result | None,
        old: os.stat_result | None,
        copied: bool,
        unit: bool,
        above: int = sys.maxsize,
        appeared: bool = False,
    ) -> None:
        self.directory = directory
        self.name = name
        self.new = new
        self.old = old
        self.copied = copied
        self.unit = unit
        self.above = above
        self.appeared = appeared
        self.path = join(directory, name)

    @property
    def kind(self) -> ChangeKind:
        if self.new is None:
            return "deleted"
        return "added" if self.old is None else "changed"

    @property
    def is_directory(self) -> bool:
        """Whether the branch has a directory there, or, if it deleted the entry, the parent."""
        found = self.new or self.old
        return found is not None and stat.S_ISDIR(found.st_mode)

    def change(self) -> Change:
        """Return the entry as a public value."""
        shown = self.new or self.old
        assert shown is not None
        return Change(self.path, self.kind, entry_type(shown.st_mode), shown.st_size, stat.S_IMODE(shown.st_mode))


class Touched:
    """A directory that both the branch and the parent have, and in which the branch may have changed something."""

    __slots__ = ("new", "new_attributes", "old", "old_attributes", "path")

    def __init__(
        self,
        path: str,
        new: os.stat_result,
        old: os.stat_result,
        new_attributes: dict[str, bytes],
        old_attributes: dict[str, bytes],
    ) -> None:
        self.path = path
        self.new = new
        self.old = old
        self.new_attributes = new_attributes
        self.old_attributes = old_attributes

    @property
    def is_changed(self) -> bool:
        """Whether the directory itself differs: mode, owner or attributes."""
        new, old = self.new, self.old
        return new.st_mode != old.st_mode or not has_same_owner(new, old) or self.new_attributes != self.old_attributes


@dataclass(slots=True)
class Scan:
    """Everything that a branch changed.

    ``marked`` are paths with overlay marks, which must not leave the layer. ``mixed`` are units that contain something
    that a commit leaves out (``specials``). ``mark_files`` are the files of fuse-overlayfs itself, ``mounted`` changed
    directories on which another filesystem is mounted in the parent, ``moved`` files that were copied from the parent
    under another name, ``appeared`` directories that the parent did not have at the fork. ``rolled_back`` corrects
    ctimes in the parent that a rollback has set. ``repository`` are the entries of git repositories, once they are
    removed from ``entries``. ``data`` are the data directories that are committed as a whole, ``parent`` is the
    parent's directory.
    """

    entries: list[Entry] = field(default_factory=list)
    touched: list[Touched] = field(default_factory=list)
    marked: list[tuple[str, str, list[str]]] = field(default_factory=list)
    specials: list[str] = field(default_factory=list)
    mixed: set[str] = field(default_factory=set)
    mark_files: list[tuple[str, str]] = field(default_factory=list)
    mounted: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    appeared: list[str] = field(default_factory=list)
    rolled_back: RolledBack = field(default_factory=RolledBack)
    repository: list[Entry] = field(default_factory=list)
    data: tuple[str, ...] = ()
    parent: str = ""

    def find_data(self, path: str) -> str | None:
        """Return the data directory that is or contains a path; None if there is none."""
        return next((data for data in self.data if path == data or path.startswith(f"{data}/")), None)

    def list_data_paths(self) -> set[str]:
        """List the changed paths in data directories."""
        if not self.data:
            return set()
        paths = {e.path for e in self.entries} | {t.path for t in self.touched}
        return {path for path in paths if self.find_data(path) is not None}

    def without(self, paths: Collection[str]) -> Scan:
        """Return the scan without some paths, for everything but planning a commit."""
        if not paths:
            return self
        entries = [e for e in self.entries if e.path not in paths]
        changed = {e.directory for e in entries}
        quiet = {e.directory for e in self.entries if e.path in paths} - changed
        return replace(
            self,
            entries=entries,
            # A directory in which only such paths changed differs by its mtime alone, which does not count.
            touched=[t for t in self.touched if t.path not in paths and (t.is_changed or t.path not in quiet)],
            specials=[path for path in self.specials if not is_beneath(path, paths)],
        )

    def delta(self, executors: Mapping[str, str] | None = None, repository: tuple[RepositoryChange, ...] = ()) -> Delta:
        """Return the changes as a public value, with the ``executors`` of executable configuration by path."""
        hidden = self.list_data_paths()
        if hidden:
            return replace(self.without(hidden), data=()).delta(executors, repository).add(self._list_data_changes())
        changes = [e.change() for e in self.entries]
        if executors:
            changes = [replace(c, executor=executors.get(c.path, "")) for c in changes]
        changes += [
            Change(t.path or ".", "changed", "directory", t.new.st_size, stat.S_IMODE(t.new.st_mode))
            for t in self.touched
            if t.is_changed
        ]
        return Delta(tuple(sorted(changes, key=lambda c: c.path)), repository)

    def _list_data_changes(self) -> list[Change]:
        """Return one change for each data directory in which something changed."""
        changes = []
        for data in self.data:
            inside = [e for e in self.entries if e.path == data or e.path.startswith(f"{data}/")]
            files = [e for e in inside if (found := e.new or e.old) is not None and not S_ISDIR(found.st_mode)]
            if not inside:
                continue
            top = next((e for e in inside if e.path == data), None)
            kind: ChangeKind = "changed" if top is None else top.kind
            size = sum(e.new.st_size for e in files if e.new is not None)
            changes.append(Change(data, kind, "directory", size, 0o700, files=len(files)))
        return changes


def is_beneath(path: str, paths: Collection[str]) -> bool:
    """Return whether a path or a directory above it is one of ``paths``."""
    while path:
        if path in paths:
            return True
        path = path.rpartition("/")[0]
    return False


def scan_layer(
    layer: str,
    lowers: Sequence[str],
    mark_files: Collection[str] = (),
    mark_prefixes: Sequence[str] = OVERLAY_MARKS,
    rolled_back: RolledBack | None = None,
) -> Scan:
    """Scan a layer in overlayfs's format against its parent; the cost depends on the layer, not on the tree.

    ``mark_files`` are names of files that the view uses as marks, ``mark_prefixes`` those of its attributes.
    """
    with Lower(lowers, mark_prefixes) as lower:
        root = open_root(layer)
        try:
            reader = _LayerReader(root, lower, mark_files, mark_prefixes)
            reader.scan.rolled_back = rolled_back or RolledBack()
            reader.read()
            reader.find_moved()
            return reader.scan
        finally:
            os.close(root)


_SEARCH = "Looking for changes in a copied tree"


class Reader:
    """The common part of the readers of layers and of whole trees: lists entries moved or deleted as a whole."""

    def __init__(
        self,
        root: int,
        lower: Lower,
        mark_files: Collection[str] = (),
        mark_prefixes: Sequence[str] = OVERLAY_MARKS,
    ) -> None:
        self.root = root
        self.lower = lower
        self.mark_files = mark_files
        self.mark_prefixes = mark_prefixes
        self.scan = Scan()
        self.marked: set[int] = set()
        self.pending: list[str] = [""]
        self.work = Work(_SEARCH)
        self.attributes: list[str] = []  # of the directory that ``touch`` added last

    def read(self) -> None:
        """Fill ``scan``, directory by directory."""
        while self.pending:
            path = self.pending.pop()
            fd = open_directory(self.root, path)
            seen = len(self.scan.entries)
            try:
                with self.lower.directory(path) as parent:
                    self.read_directory(path, fd, parent)
                    if parent.is_mounted and len(self.scan.entries) > seen:
                        self.scan.mounted.append(path)
            finally:
                os.close(fd)

    def read_directory(self, path: str, fd: int, parent: LowerDirectory) -> None:
        """Read one directory that both sides have; every reader overrides it."""
        raise AssertionError("not implemented by this reader")

    def touch(self, path: str, fd: int, parent: LowerDirectory) -> Touched | None:
        """Add the directory itself to the scan, and return what was added."""
        if not parent.fds:
            return None
        old_fd = parent.fds[0]
        self.attributes = _list_attributes(fd)
        attributes = _read_user_attributes(fd, self.attributes)
        touched = Touched(path, os.fstat(fd), os.fstat(old_fd), attributes, user_attributes(old_fd))
        self.scan.touched.append(touched)
        return touched

    def mark(self, path: str, name: str, new: os.stat_result, marks: list[str]) -> None:
        """Add an entry's marks to the scan, once for all hard links of the entry."""
        if marks and new.st_ino not in self.marked:
            self.marked.add(new.st_ino)
            self.scan.marked.append((path, name, marks))

    def add(self, entry: Entry) -> None:
        """Add an entry to the scan, with everything that the parent loses by it."""
        self.scan.entries.append(entry)
        old, new = entry.old, entry.new
        if old is None or not S_ISDIR(old.st_mode) or (new is not None and S_ISDIR(new.st_mode)):
            return
        for directory, name, deleted in self.lower.walk(entry.path):
            self.scan.entries.append(Entry(directory, name, None, deleted, True, False))

    def add_unit(self, entry: Entry) -> None:
        """Add a directory of the branch's own, and compare its content with that of the directory it replaces."""
        self.add(entry)
        unit = entry.path
        pending = [unit]
        while pending:
            path = pending.pop()
            fd = open_directory(self.root, path)
            try:
                with self.lower.directory(path) as parent:
                    present = self._list_inside(entry, path, fd, parent, pending)
                    for name in sorted(parent.names() - present):
                        self.add(Entry(path, name, None, parent.lookup(name), True, False))
            finally:
                os.close(fd)

    def _is_copied(self, beneath: str, marks: Sequence[str], directory: str, name: str) -> bool:
        """Return whether an origin says that a file was copied up from this very path of the parent."""
        return any(is_origin(a, self.mark_prefixes) and _is_own(beneath, a, directory, name) for a in marks)

    def _list_inside(self, unit: Entry, path: str, fd: int, parent: LowerDirectory, pending: list[str]) -> set[str]:
        present = set()
        prefix = proc_path(fd, "")
        with os.scandir(fd) as found:
            for item in found:
                name = item.name
                if name in self.mark_files:
                    self.scan.mark_files.append((path, name))
                    continue
                new = item.stat(follow_symlinks=False)
                if entry_type(new.st_mode) == "special":
                    self.scan.mixed.add(unit.path)
                    if not is_whiteout(new):
                        self.scan.specials.append(join(path, name))
                    continue
                present.add(name)
                if not stat.S_ISLNK(new.st_mode):
                    marks = [a for a in os.listxattr(prefix + name, follow_symlinks=False) if is_mark(a)]
                    self.mark(path, name, new, marks)
                    if self.mark_files and self._is_copied(prefix + name, marks, path, name):
                        unit.copied = True  # fuse-overlayfs does not mark directories, so the files in them decide
                self.add(Entry(path, name, new, parent.lookup(name), False, False))
                if stat.S_ISDIR(new.st_mode):
                    pending.append(join(path, name))
        return present


class _LayerReader(Reader):
    def __init__(self, root: int, lower: Lower, mark_files: Collection[str], mark_prefixes: Sequence[str]) -> None:
        super().__init__(root, lower, mark_files, mark_prefixes)
        self.linked: list[tuple[str, str]] = []

    def read_directory(self, path: str, fd: int, parent: LowerDirectory) -> None:
        touched = self.touch(path, fd, parent)
        lookup = parent.lookup
        prefix = proc_path(fd, "")
        above = sys.maxsize
        if touched is not None:
            entries = [touched.old, *map(os.fstat, parent.fds[1:])]
            above = max(self.scan.rolled_back.ctime(entry) for entry in entries)
        appeared = bool(path) and bool(parent.fds) and not self._is_same_directory(fd, parent)
        if appeared:
            self.scan.appeared.append(path)
        with os.scandir(fd) as found:
            for item in found:
                name = item.name
                new = item.stat(follow_symlinks=False)
                mode = new.st_mode
                if S_ISREG(mode):
                    old = lookup(name)
                    copied = self._note_marks(path, name, new, prefix + name)
                    if not (copied and old is not None and _is_untouched(fd, name, new, old, parent)):
                        self.add(Entry(path, name, new, old, copied, True, above, appeared))
                    elif new.st_nlink > 1:
                        self.linked.append((path, name))
                elif S_ISDIR(mode):
                    self._read_subdirectory(path, name, prefix + name, new, lookup(name), above)
                elif stat.S_ISLNK(mode):
                    old = lookup(name)
                    if old is None or not _is_same_symlink(fd, name, new, old, parent):
                        self.add(Entry(path, name, new, old, False, True, above, appeared))
                elif is_whiteout(new):
                    old = lookup(name)
                    if old is not None:
                        self.add(Entry(path, name, None, old, True, True, above, appeared))
                else:
                    self.scan.specials.append(join(path, name))

    def _is_same_directory(self, fd: int, parent: LowerDirectory) -> bool:
        """Return whether the parent's directory is the same as when the branch first wrote into it."""
        if self.mark_files:
            return True  # fuse-overlayfs does not mark directories
        marks = [a for a in self.attributes if is_origin(a, self.mark_prefixes)]
        origins = [os.getxattr(fd, a)[_HANDLE:] for a in marks]
        return any(not o or o in {file_handle(f, ".") for f in parent.fds} for o in origins)

    def find_moved(self) -> None:
        """Distinguish files that the branch moved or linked to a new name from files that the parent has deleted.

        Both have an origin and no file in the parent under their name; but the origin of a moved file still exists in
        the parent under another name.
        """
        lost = [e for e in self.scan.entries if e.copied and e.old is None and e.unit and e.new is not None]
        files = [e for e in lost if e.new is not None and stat.S_ISREG(e.new.st_mode)]
        if not files:
            return
        known = [(e.directory, e.name) for e in self.scan.entries if e.old is not None and stat.S_ISREG(e.old.st_mode)]
        handles = set()
        for directory, name in known + self.linked:
            with self.lower.directory(directory) as parent:
                holder = parent.holder(name)
                handles.add(None if holder is None else file_handle(holder, name))
        for entry in files:
            fd = open_directory(self.root, entry.directory, os.O_PATH)
            try:
                entry.copied = self._origin_of(proc_path(fd, entry.name)) not in handles
                if not entry.copied:
                    self.scan.moved.append(entry.path)
            finally:
                os.close(fd)

    def _note_marks(self, path: str, name: str, new: os.stat_result, beneath: str) -> bool:
        """Add a file's marks to the scan; return whether one says that the file was copied up from the parent."""
        attributes = os.listxattr(beneath, follow_symlinks=False)
        if not attributes:
            return False
        marks = [a for a in attributes if is_mark(a)]
        self.mark(path, name, new, marks)
        return self._is_copied(beneath, marks, path, name)

    def _read_subdirectory(
        self, path: str, name: str, beneath: str, new: os.stat_result, old: os.stat_result | None, above: int
    ) -> None:
        marks = [a for a in os.listxattr(beneath, follow_symlinks=False) if is_mark(a)]
        is_replaced = is_opaque(beneath, marks, self.mark_prefixes)
        if old is not None and stat.S_ISDIR(old.st_mode) and not is_replaced:
            self.pending.append(join(path, name))
            return
        self.mark(path, name, new, marks)
        came_from_parent = not is_replaced and any(is_origin(a, self.mark_prefixes) for a in marks)
        self.add_unit(Entry(path, name, new, old, came_from_parent, True, above))

    def _origin_of(self, path: str) -> bytes:
        """Return the handle of the file that a file was copied up from; empty if it is unknown."""
        attributes = os.listxattr(path, follow_symlinks=False)
        found = [read_mark(path, a) for a in attributes if is_origin(a, self.mark_prefixes)]
        return found[0][_HANDLE:] if found else b""


def user_attributes(fd: int | str) -> dict[str, bytes]:
    """Return the extended attributes of an open directory or file that a user set, without overlay marks."""
    return _read_user_attributes(fd, _list_attributes(fd))


def _list_attributes(fd: int | str) -> list[str]:
    try:
        return os.listxattr(fd)
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        return []  # this filesystem has none


def _read_user_attributes(fd: int | str, names: list[str]) -> dict[str, bytes]:
    return {name: os.getxattr(fd, name) for name in names if is_of_user(name)}


def _is_own(beneath: str, mark: str, directory: str, name: str) -> bool:
    """Return whether an origin names this path: fuse-overlayfs stores the path, and the mark moves with the file."""
    if not mark.startswith("user.fuseoverlayfs."):
        return True
    return read_mark(beneath, mark).rstrip(b"\0") == os.fsencode(join(directory, name))


def _is_same_symlink(fd: int, name: str, new: os.stat_result, old: os.stat_result, parent: LowerDirectory) -> bool:
    if not stat.S_ISLNK(old.st_mode) or old.st_mtime_ns != new.st_mtime_ns:
        return False
    if not has_same_owner(new, old):
        return False
    holder = parent.holder(name)
    return holder is not None and os.readlink(name, dir_fd=fd) == os.readlink(name, dir_fd=holder)


def _is_untouched(fd: int, name: str, new: os.stat_result, old: os.stat_result, parent: LowerDirectory) -> bool:
    """Return whether a file was copied up (for example by opening it for writing) and not changed."""
    if (
        new.st_size != old.st_size
        or new.st_mtime_ns != old.st_mtime_ns
        or new.st_mode != old.st_mode
        or not has_same_owner(new, old)
    ):
        return False
    holder = parent.holder(name)
    if holder is None:
        return False
    with (
        open(os.open(name, _READ, dir_fd=fd), "rb") as ours,
        open(os.open(name, _READ, dir_fd=holder), "rb") as theirs,
    ):
        if user_attributes(ours.fileno()) != user_attributes(theirs.fileno()):
            return False
        return _is_same_stream(ours, theirs)


def _is_same_stream(first: BufferedReader, second: BufferedReader) -> bool:
    while block := first.read(_BLOCK):
        if block != second.read(_BLOCK):
            return False
    return not second.read(1)


def scan_tree(
    tree: str, lowers: Sequence[str], base: Base, made: int, rolled_back: RolledBack, set_back: int = 0
) -> Scan:
    """Scan a whole tree against its parent.

    ``made`` is the time by the filesystem's clock at which the tree was complete; ``rolled_back`` corrects ctimes in
    the tree that the rollback of a commit into it has set. If the clock was ``set_back`` since, files of that time are
    compared with the parent's.
    """
    with Lower(lowers[:1]) as lower, report(_SEARCH) as work:
        root = open_root(tree)
        try:
            reader = _TreeReader(root, lower, base, made, rolled_back, set_back)
            reader.work = work
            reader.read()
            return reader.scan
        finally:
            os.close(root)


class _TreeReader(Reader):
    def __init__(self, root: int, lower: Lower, base: Base, made: int, rolled_back: RolledBack, set_back: int) -> None:
        super().__init__(root, lower)
        self.set_back = set_back
        self.base = base
        self.made = made
        self.is_touched = False
        self.own = rolled_back

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
        self.work.done += len(now)
        for name in sorted(before - now):
            old = parent.lookup(name)
            if old is not None:
                self.add(Entry(path, name, None, old, True, True, appeared=appeared))
        if len(self.scan.entries) > seen or self.own.ctime(os.fstat(fd)) >= self.made - self.set_back:
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
        elif existed and self._is_older(new, parent.lookup(name) if self.set_back else None):
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

    def _is_older(self, new: os.stat_result, old: os.stat_result | None) -> bool:
        """Return whether an entry was not changed since the tree was made."""
        ctime = self.own.ctime(new)
        if ctime >= self.made or ctime < self.made - self.set_back:
            return ctime < self.made
        facts = [(e.st_mode, e.st_size, e.st_mtime_ns) for e in (new, old) if e is not None]
        return len(facts) == 2 and facts[0] == facts[1]

    def _is_another(self, path: str, parent: LowerDirectory) -> bool:
        """Return whether the parent's directory is not the one that the tree's directory was copied from."""
        origin = self.base.origin(path) if path and parent.fds else 0
        return origin != 0 and os.fstat(parent.fds[0]).st_ino != origin

    def _is_changed(self, path: str) -> bool:
        """Return whether the branch changed a directory that the parent no longer has, or anything inside it."""
        inside = _TreeReader(self.root, self.lower, self.base, self.made, self.own, self.set_back)
        inside.pending, inside.work = [path], self.work
        inside.read()
        return inside.is_touched


def compare_trees(tree: str, parent: str, is_ignored: Callable[[str], bool]) -> Scan:
    """Compare a whole tree with its parent, entry by entry, without any record of the fork.

    Files of the same size, mode and mtime count as equal, others are read. ``is_ignored`` is called with names at the
    root. No extended attributes are read, because the filesystem may have none.
    """
    with Lower([parent]) as lower, report(_SEARCH) as work:
        root = open_root(tree)
        try:
            reader = _ComparingReader(root, lower, is_ignored)
            reader.work = work
            reader.read()
            return reader.scan
        finally:
            os.close(root)


class _ComparingReader(Reader):
    def __init__(self, root: int, lower: Lower, is_ignored: Callable[[str], bool]) -> None:
        super().__init__(root, lower)
        self.is_ignored = is_ignored

    def read_directory(self, path: str, fd: int, parent: LowerDirectory) -> None:
        present = set()
        with os.scandir(fd) as found:
            for item in found:
                if not path and self.is_ignored(item.name):
                    continue
                present.add(item.name)
                self._read_entry(path, item.name, fd, item.stat(follow_symlinks=False), parent)
        self.work.done += len(present)
        for name in sorted(parent.names() - present):
            if path or not self.is_ignored(name):
                self.add(Entry(path, name, None, parent.lookup(name), True, True))

    def _read_entry(self, path: str, name: str, fd: int, new: os.stat_result, parent: LowerDirectory) -> None:
        old = parent.lookup(name)
        kind = entry_type(new.st_mode)
        if kind == "special":
            self.scan.specials.append(join(path, name))
            return
        if kind == "directory":
            self.pending.append(join(path, name))
        if old is None or new.st_mode != old.st_mode or not _has_same_content(fd, name, new, old, parent):
            self.add(Entry(path, name, new, old, False, True))


def _has_same_content(fd: int, name: str, new: os.stat_result, old: os.stat_result, parent: LowerDirectory) -> bool:
    """Return whether two entries of the same type are equal; directories always are."""
    if stat.S_ISDIR(new.st_mode) or (new.st_size == old.st_size and new.st_mtime_ns == old.st_mtime_ns):
        return True
    holder = parent.holder(name)
    if holder is None or new.st_size != old.st_size:
        return False
    if stat.S_ISLNK(new.st_mode):
        return os.readlink(name, dir_fd=fd) == os.readlink(name, dir_fd=holder)
    with (
        open(os.open(name, _READ, dir_fd=fd), "rb") as ours,
        open(os.open(name, _READ, dir_fd=holder), "rb") as theirs,
    ):
        return _is_same_stream(ours, theirs)
