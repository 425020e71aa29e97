"""Both versions of the files that a branch changed, and the diff between two branches of one parent.

Everything is read from the layers: the cost depends on the size of the changes, and no view is mounted.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from heapq import merge, nsmallest
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from forkwise.errors import BranchError
from forkwise.files.old_versions import record_scanned_bases
from forkwise.files.store.overlayfs import Lower
from forkwise.files.store.state import locked
from forkwise.git.repository_change import find_repository_paths
from forkwise.linux.trees import open_directory, open_root
from forkwise.text.diff import LIMIT, FileDiff, FileVersion, edits, is_text, lines_of, unified

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.store.changes import ChangeKind, Delta
    from forkwise.files.store.scan import Entry, Scan
    from forkwise.git.ignore_rules import Ignore
    from forkwise.git.repository_change import RepositoryChange

__all__ = [
    "ChangedFiles",
    "ChangedLines",
    "Versions",
    "changed_files",
    "compare",
    "count_changed_lines",
    "diff_between",
    "drop_repositories",
    "file_diffs",
    "find_executables",
    "find_ignored",
    "list_ignored_tops",
    "read_changes",
    "read_repositories",
    "record_bases",
]


_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Versions:
    """A layer and the directories below it, open for reading."""

    def __init__(self, layer: str, lowers: Sequence[str], mark_prefixes: Sequence[str]) -> None:
        self._lower = Lower(lowers, mark_prefixes)
        self._layer = open_root(layer)

    @classmethod
    def of(cls, branch: Branch) -> Versions:
        """Open the versions of a branch."""
        return cls(branch.target, branch.parent.lowers, branch.view_kind.mark_prefixes)

    def close(self) -> None:
        """Close the descriptors."""
        self._lower.close()
        os.close(self._layer)

    def __enter__(self) -> Versions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def new(self, entry: Entry) -> bytes:
        """Return the branch's content of a file, or the target of a symlink."""
        fd = open_directory(self._layer, entry.directory, os.O_PATH)
        try:
            return _read(fd, entry.name)
        finally:
            os.close(fd)

    def old(self, entry: Entry) -> bytes:
        """Return the parent's content of a file, or the target of a symlink; empty if there is none."""
        with self._lower.directory(entry.directory) as directory:
            holder = directory.holder(entry.name)
            return b"" if holder is None else _read(holder, entry.name)

    def link(self, entry: Entry, target: str) -> None:
        """Hard-link the branch's file at ``target``; copy it if that is not possible, as on another filesystem."""
        fd = open_directory(self._layer, entry.directory, os.O_PATH)
        try:
            os.link(entry.name, target, src_dir_fd=fd, follow_symlinks=False)
        except OSError:
            with open(target, "wb") as file:
                file.write(_read(fd, entry.name))
        finally:
            os.close(fd)

    def is_same(self, entry: Entry) -> bool:
        """Return whether both sides have the same type, mode and content."""
        new, old = entry.new, entry.old
        if new is None or old is None or new.st_mode != old.st_mode or stat.S_ISDIR(new.st_mode):
            return False
        return new.st_size == old.st_size and self.new(entry) == self.old(entry)


def file_diffs(versions: Versions, scan: Scan) -> Iterator[FileDiff]:
    """Yield both versions of each changed file and symlink, sorted by path, reading one file at a time.

    Files in data directories of servers are left out.
    """
    for entry in sorted(scan.entries, key=lambda e: e.path):
        if scan.data and scan.find_data(entry.path) is not None:
            continue
        old = _read_version(entry.old, entry, versions.old)
        new = _read_version(entry.new, entry, versions.new)
        if old or new:
            yield FileDiff(entry.path, old, new)


def _read_version(
    found: os.stat_result | None, entry: Entry, read: Callable[[Entry], bytes], limit: int = LIMIT
) -> FileVersion | None:
    if found is None or not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
        return None
    if found.st_size > limit:
        return FileVersion(found.st_mode, None, found.st_size)
    return FileVersion(found.st_mode, read(entry))


class _Bounds:
    """How much content may still be read."""

    def __init__(self, files: int, size: int, file_size: int) -> None:
        self._files = files
        self._size = size
        self._file_size = file_size

    def admit(self, found: Sequence[os.stat_result | None]) -> bool:
        """Return whether the versions of one path may be read, and count them if so."""
        sizes = [one.st_size for one in found if one is not None and not stat.S_ISDIR(one.st_mode)]
        if not self._files or not sizes or max(sizes) > self._file_size or sum(sizes) > self._size:
            return False
        self._files -= 1
        self._size -= sum(sizes)
        return True


class ChangedFiles(NamedTuple):
    """A delta with both versions of its files; ``unlisted`` changes are left out. ``total`` counts all files."""

    delta: Delta
    files: list[FileDiff]
    unlisted: int
    total: int


def read_changes(branch: Branch, *, listed: int, files: int, size: int, file_size: int) -> ChangedFiles:
    """Return what a branch changed, and both versions of the files, from one scan, which also records the bases.

    Only the first ``listed`` changes of a large delta are returned: paths that the parent has come before new ones, and
    those at the top before those in deep directories. Content is read for at most ``files`` paths and ``size`` bytes in
    total, and never for a version of more than ``file_size`` bytes.
    """
    with branch._lock():
        scan = branch._scan_kept(None)
        data = [change for change in scan.delta() if change.files] if scan.data else []
        scan = replace(scan.without(scan.list_data_paths()), data=())
        record_scanned_bases(branch, scan)
        total = sum(1 for entry in scan.entries if not entry.is_directory) + len(data)
        touched = [directory for directory in scan.touched if directory.is_changed]
        entries = nsmallest(listed, scan.entries, key=lambda e: (e.old is None, e.path.count("/"), e.path))
        first = replace(scan, entries=entries, touched=touched[: listed - len(entries)])
        delta = first.delta(find_executables(branch, first, thorough=False), read_repositories(branch, scan)).add(data)
        bounds = _Bounds(files, size, file_size)
        found = []
        with Versions.of(branch) as versions:
            for entry in entries:
                limit = file_size if bounds.admit([entry.old, entry.new]) else -1
                old = _read_version(entry.old, entry, versions.old, limit)
                new = _read_version(entry.new, entry, versions.new, limit)
                if old or new:
                    found.append(FileDiff(entry.path, old, new))
    unlisted = len(scan.entries) + len(touched) - len(first.entries) - len(first.touched)
    return ChangedFiles(delta, sorted(found, key=lambda change: change.path), unlisted, total)


def record_bases(branch: Branch) -> Delta:
    """Do what ``record_scanned_bases`` does, and return the branch's delta."""
    with branch._lock():
        scan = branch._scan_kept(None)
        record_scanned_bases(branch, scan)
        return scan.delta(repository=read_repositories(branch, scan))


def _read(fd: int, name: str) -> bytes:
    if stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
        return os.fsencode(os.readlink(name, dir_fd=fd))
    with open(os.open(name, _READ, dir_fd=fd), "rb") as file:
        return file.read()


def changed_files(branch: Branch) -> list[FileDiff]:
    """List both versions of each file and symlink that a branch changed, sorted by path; large ones without content."""
    with ExitStack() as stack:
        stack.enter_context(locked(branch.state_dir.state))
        return list(_changes(branch, stack))


class ChangedLines(NamedTuple):
    """How many lines of a file were added and removed; None for both if it is binary or too large to compare."""

    path: str
    kind: ChangeKind
    added: int | None
    removed: int | None


def count_changed_lines(branch: Branch, max_files: int) -> tuple[list[ChangedLines], int]:
    """Count the changed lines of at most ``max_files`` files, one at a time. Return them and the number of all files.

    A branch may hold any number of large files: only those that are counted are read.
    """
    with ExitStack() as stack:
        stack.enter_context(locked(branch.state_dir.state))
        branch._recover()
        versions = stack.enter_context(Versions.of(branch))
        scan = drop_repositories(branch, branch._scan())
        scan = scan.without(scan.list_data_paths())
        found = sorted((e for e in scan.entries if _is_file(e.old) or _is_file(e.new)), key=lambda e: e.path)
        return [_count_lines(entry, versions) for entry in found[:max_files]], len(found)


def _is_file(found: os.stat_result | None) -> bool:
    return found is not None and (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode))


def _count_lines(entry: Entry, versions: Versions) -> ChangedLines:
    old = _read_version(entry.old, entry, versions.old)
    new = _read_version(entry.new, entry, versions.new)
    kind: ChangeKind = "added" if old is None else "deleted" if new is None else "changed"
    before, after = (b"" if side is None else side.content for side in (old, new))
    if before is None or after is None or not is_text(before) or not is_text(after):
        return ChangedLines(entry.path, kind, None, None)
    found = edits(lines_of(before), lines_of(after))
    added = sum(edit.new_stop - edit.new_start for edit in found)
    return ChangedLines(entry.path, kind, added, sum(edit.old_stop - edit.old_start for edit in found))


def find_executables(branch: Branch, scan: Scan, *, thorough: bool = True) -> dict[str, str]:
    """Return the changed paths that are executable configuration, each with what will run or read it."""
    from forkwise.files.executable_config import find_executable_config  # noqa: PLC0415 - loaded on use

    return find_executable_config(branch, scan, lambda: Versions.of(branch), thorough=thorough)


def drop_repositories(branch: Branch, scan: Scan) -> Scan:
    """Return the scan without entries of git repositories, which it has in ``repository``.

    What makes git run something, such as a hook, stays, and so do git's lists of patterns (``info/exclude``): the user
    has to see both.
    """
    paths = find_repository_paths(
        branch.workspace.target, [*(e.path for e in scan.entries), *(t.path for t in scan.touched)]
    )
    if not paths:
        return scan
    entries = [e for e in scan.entries if e.path in paths]
    shown = set(find_executables(branch, replace(scan, entries=entries, touched=[])))
    new = tuple(f"{e.path}/" for e in entries if e.name == ".git" and e.old is None)  # has git's own info/exclude
    patterns = [e for e in entries if "/info/" in e.path and "/objects/" not in e.path and not e.is_directory]
    shown |= {e.path for e in patterns if not e.path.startswith(new)}
    found = scan.without(paths - shown)
    found.repository = entries
    return found


def read_repositories(branch: Branch, scan: Scan) -> tuple[RepositoryChange, ...]:
    """Return what a branch did to git repositories, from a scan without their entries."""
    if not scan.repository:
        return ()
    from forkwise.git.repository_change import read_repository_changes  # noqa: PLC0415 - loaded on use

    return read_repository_changes(branch.workspace.target, scan.repository, lambda: Versions.of(branch))


def find_ignored(branch: Branch, scan: Scan, ignore: Ignore | None) -> set[str]:
    """Return the changed paths that the workspace's rules ignore, each with everything below it that was changed.

    For a directory that was added or deleted as a whole, git is asked about the directory first. A new directory that
    holds nothing else counts as ignored too.
    """
    dropped = _find_dropped(branch, scan)
    if not ignore or not scan.entries:
        return dropped
    from forkwise.git.ignore_rules import remember_answers, select_ignored  # noqa: PLC0415 - loaded on use

    ignored: set[str] = set()
    touched = [t.path for t in scan.touched if t.path and t.is_changed]

    def select(entries: Iterable[Entry], directories: Iterable[str] = ()) -> None:
        paths = {f"{e.path}/" if e.is_directory else e.path: e.path for e in entries}
        paths |= {f"{path}/": path for path in directories}
        ignored.update(paths[path] for path in select_ignored(branch.workspace.target, paths, ignore))

    def inside(*, directories: bool) -> list[Entry]:
        return [e for e in scan.entries if not e.unit and e.is_directory == directories and e.path not in ignored]

    with remember_answers():
        select((e for e in scan.entries if e.unit), touched)  # all at once, because each call of git takes time
        ignored_touched = ignored.intersection(touched)
        ignored -= ignored_touched
        _spread(scan, ignored)
        select(inside(directories=True))
        _spread(scan, ignored)
        select(inside(directories=False))
    _add_hollow(scan, ignored)
    for entry in scan.entries:  # if a file replaces a directory, nothing in the directory can stay
        if entry.unit and entry.new and not entry.is_directory and entry.old and stat.S_ISDIR(entry.old.st_mode):
            ignored = {path for path in ignored if not path.startswith(f"{entry.path}/")}
    return ((ignored | ignored_touched) - scan.list_data_paths()) | dropped


def _find_dropped(branch: Branch, scan: Scan) -> set[str]:
    """Return the changed paths in data directories whose changes are not part of the branch's result."""
    directories = branch.data_directories.dropped
    if not directories:
        return set()
    above = tuple(f"{directory}/" for directory in directories)
    paths = {e.path for e in scan.entries} | {t.path for t in scan.touched}
    return {path for path in paths if path in directories or path.startswith(above)}


def list_ignored_tops(branch: Branch, scan: Scan, ignore: Ignore | None) -> list[str]:
    """List the changed paths that are ignored, without those inside another one of them."""
    ignored = find_ignored(branch, scan, ignore)
    changed = {e.path for e in scan.entries}
    return sorted(path for path in ignored & changed if path.rpartition("/")[0] not in ignored)


def _spread(scan: Scan, ignored: set[str]) -> None:
    """Add everything below the ignored paths; a scan lists a directory before what is in it."""
    if ignored:
        ignored.update(e.path for e in scan.entries if not e.unit and e.directory in ignored)


def _add_hollow(scan: Scan, ignored: set[str]) -> None:
    """Add the new directories that hold ignored paths and nothing else."""
    if not ignored:
        return
    hollow = {path.rpartition("/")[0] for path in ignored}
    kept = Counter(e.directory for e in scan.entries if e.path not in ignored)
    added = {e.path for e in scan.entries if e.old is None and e.is_directory}
    for path in sorted(added - ignored, key=lambda path: path.count("/"), reverse=True):
        if path in hollow and not kept[path]:
            above = path.rpartition("/")[0]
            ignored.add(path)
            hollow.add(above)
            kept[above] -= 1


def compare(first: Branch, second: Branch) -> str:
    """Return the unified diff from one sibling to another; ``git apply`` accepts it.

    >>> import tempfile, pathlib
    >>> from forkwise import Workspace
    >>> ws = Workspace(tempfile.mkdtemp())
    >>> one, two = ws.branch("one"), ws.branch("two")
    >>> _ = (one.path / "a.txt").write_text("yes\\n"), (two.path / "a.txt").write_text("no\\n")
    >>> print(*compare(one, two).splitlines()[-2:])
    -yes +no
    >>> for branch in ws.branches(): branch.abort()
    """
    if first.parent.state_dir.path != second.parent.state_dir.path:
        raise BranchError(
            f"{first.branch_path} and {second.branch_path} have different parents: only siblings can be compared",
            branch=second.name,
        )
    with ExitStack() as stack:
        stack.enter_context(locked(first.state_dir.state))
        return unified(diff_between(_changes(first, stack), _changes(second, stack)))


def _changes(branch: Branch, stack: ExitStack) -> Iterator[FileDiff]:
    branch._recover()
    versions = stack.enter_context(Versions.of(branch))
    scan = drop_repositories(branch, branch._scan())
    return file_diffs(versions, scan.without(find_ignored(branch, scan, branch.ignore)))


def diff_between(first: Iterable[FileDiff], second: Iterable[FileDiff]) -> Iterator[FileDiff]:
    """Yield the differences between the changes of two siblings, both sorted by path, holding one file at a time.

    A branch that did not change a path has the parent's version, which is the other branch's old one.
    """
    both = merge(((0, change) for change in first), ((1, change) for change in second), key=lambda t: (t[1].path, t[0]))
    for path, changes in groupby(both, key=lambda t: t[1].path):
        by_side = dict(changes)
        if len(by_side) == 2:
            yield FileDiff(path, by_side[0].new, by_side[1].new)
        else:
            yield by_side[1] if 1 in by_side else FileDiff(path, by_side[0].new, by_side[0].old)
