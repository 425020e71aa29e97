"""The cache of unpacked snapshots on one machine: each is unpacked once, and used by any number of branches.

<cache>/lock          held exclusively while trees are chosen, renamed or removed
<cache>/<tree>/root   the files; they are only read, as the lower directory of overlays
<cache>/<tree>/segments  the segments of its manifest; size: its bytes
<cache>/<tree>/lock   held shared by each user of the tree, exclusively to change or remove it
<cache>/.new-…        a tree that is being made

A new version is made from the most similar tree in the cache, at a cost that depends on what changed: if no process
uses that tree, it becomes the new one; otherwise its unchanged files become hard links. No file in the cache is ever
written to again, so that versions can share it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from forkwise.errors import StoreError
from forkwise.linux.trees import closing_fd, open_directory, open_root, remove_tree
from forkwise.snapshot.manifest import Directory, File, Link, check_digest, parse_line, parse_lines
from forkwise.snapshot.pack import DamagedObjectError
from forkwise.snapshot.snapshot import Snapshot, read_raw_segment
from forkwise.snapshot.unpack import Tree, TreeWriter, read_tree

if TYPE_CHECKING:
    from types import TracebackType

    from forkwise.snapshot.object_store import ObjectStore

__all__ = ["SnapshotCache", "UnpackedSnapshot"]

_DIRECTORY_RIGHTS = 0o700
_WORTH = 8  # a tree must share at least one segment in this many


class UnpackedSnapshot:
    """A snapshot in a cache: ``path`` is its directory, which must only be read, such as below an overlay.

    It stays there until ``release``, the end of the ``with`` block, or the end of this process.
    """

    def __init__(self, snapshot: Snapshot, path: Path, lock_fd: int) -> None:
        self.snapshot = snapshot
        self.path = path
        self._lock_fd: int | None = lock_fd

    def release(self) -> None:
        """Let the cache remove it when it needs room."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def __enter__(self) -> UnpackedSnapshot:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.release()


class SnapshotCache:
    """A directory of unpacked snapshots, of at most ``max_bytes``. Several processes may use it at the same time.

    The least recently used snapshots that nobody uses are removed to make room.
    """

    def __init__(self, directory: str | os.PathLike[str], *, max_bytes: int) -> None:
        self.directory = os.path.realpath(directory)
        self.max_bytes = max_bytes
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        found = os.stat(self.directory)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise StoreError(f"{self.directory} is not used as a cache: other users can write to it")

    def unpack(self, snapshot: Snapshot, store: ObjectStore) -> UnpackedSnapshot:
        """Unpack a snapshot, or return it if it is in the cache; others that request it at the same time wait for it.

        Raises StoreError if it is damaged, or if there is no room for it.
        """
        check_digest(snapshot.tree)
        with _exclusive(f"{self.directory}/.making-{snapshot.tree}", removes=True):
            found = self._use(snapshot)
            if found is None:
                self._make(snapshot, store)
                found = self._use(snapshot)
            if found is None:
                raise StoreError(f"the snapshot {snapshot.id[:12]} was removed from {self.directory} again")
            return found

    def list_trees(self) -> list[str]:
        """List the trees in the cache, the least recently used one first."""
        with os.scandir(self.directory) as entries:
            trees = [(entry.stat().st_mtime_ns, entry.name) for entry in entries if len(entry.name) == 64]
        return [name for _, name in sorted(trees)]

    def _use(self, snapshot: Snapshot) -> UnpackedSnapshot | None:
        """Return a tree of the cache, held for the caller; None if it is not there."""
        path = f"{self.directory}/{snapshot.tree}"
        with self._lock():
            try:
                fd = os.open(f"{path}/lock", os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            fcntl.flock(fd, fcntl.LOCK_SH)  # it is only held exclusively under the cache's lock
            os.utime(path)
        return UnpackedSnapshot(snapshot, Path(path, "root"), fd)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with _exclusive(f"{self.directory}/lock"):
            yield

    def _make(self, snapshot: Snapshot, store: ObjectStore) -> None:
        self._remove_abandoned()
        self._make_room(snapshot, store)
        new = f"{self.directory}/.new-{secrets.token_hex(8)}"
        with ExitStack() as stack:
            stack.callback(_remove, self.directory, os.path.basename(new))
            base = self._find_base(snapshot, new, stack)
            if base is not None and base != new:
                self._prepare(new, stack)
            try:
                is_made = base is not None and _make_version(base, new, snapshot, store)
            except OSError:  # such as a directory that cannot be read: everything is unpacked again
                is_made = False
            if not is_made:
                _remove(self.directory, os.path.basename(new))
                self._prepare(new, stack)
                _unpack_all(new, snapshot, store)
            with self._lock():
                os.rename(new, f"{self.directory}/{snapshot.tree}")

    def _find_base(self, snapshot: Snapshot, new: str, stack: ExitStack) -> str | None:
        """Find the tree that has most in common with a snapshot; it is moved to ``new`` if nobody uses it.

        Return its directory, which stays held until ``stack`` ends; None if none has anything in common.
        """
        wanted = set(snapshot.segments)
        with self._lock():
            shared = {tree: len(wanted & _list_segments(f"{self.directory}/{tree}")) for tree in self.list_trees()}
            best = max(shared, key=lambda tree: shared[tree], default=None)
            if best is None or not self._shares(snapshot, best):
                return None
            base = f"{self.directory}/{best}"
            fd = os.open(f"{base}/lock", os.O_RDWR | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(fd, fcntl.LOCK_SH)
                return base
            os.rename(base, new)
            return new

    # Room

    def _make_room(self, snapshot: Snapshot, store: ObjectStore) -> None:
        needed = snapshot.bytes
        if needed > self.max_bytes:
            raise StoreError(
                f"the snapshot {snapshot.id[:12]} has {needed} bytes, more than the {self.max_bytes} of the cache "
                f"{self.directory}; give the cache more",
                store=store.location,
            )
        with self._lock():
            trees = self.list_trees()
            if sum(_read_size(f"{self.directory}/{tree}") for tree in trees) + needed <= self.max_bytes:
                return
            used = self._measure()
            for tree in trees:
                if used + needed <= self.max_bytes:
                    return
                if self._shares(snapshot, tree):
                    continue  # most of it will be in the new one
                if self._remove_unused(tree):
                    used = self._measure()
            if used + needed > self.max_bytes and not any(self._shares(snapshot, tree) for tree in self.list_trees()):
                raise StoreError(
                    f"the snapshot {snapshot.id[:12]} was not unpacked: those in the cache {self.directory} are in "
                    f"use and leave no room for {needed} bytes; give the cache more, or wait",
                    store=store.location,
                )

    def _shares(self, snapshot: Snapshot, tree: str) -> bool:
        """Return whether a tree has enough in common with a snapshot to be worth making one from the other."""
        common = set(snapshot.segments) & _list_segments(f"{self.directory}/{tree}")
        return bool(common) and len(common) * _WORTH >= len(snapshot.segments)

    def _remove_unused(self, tree: str) -> bool:
        """Remove a tree unless it is in use; return whether it was removed. Called under the lock."""
        with closing_fd(os.open(f"{self.directory}/{tree}/lock", os.O_RDWR | os.O_CLOEXEC)) as fd:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            _remove(self.directory, tree)
            return True

    def _measure(self) -> int:
        """Return the size of all files in the cache, each counted once."""
        seen: set[int] = set()
        total = 0
        pending = [f"{self.directory}/{tree}/root" for tree in self.list_trees()]
        while pending:
            with suppress(OSError), os.scandir(pending.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif found.st_ino not in seen:
                        seen.add(found.st_ino)
                        total += found.st_size
        return total

    def _remove_abandoned(self) -> None:
        """Remove what killed processes left: unfinished trees whose lock is free."""
        with self._lock():
            for name in os.listdir(self.directory):
                if not name.startswith(".new-"):
                    continue
                lock = f"{self.directory}/{name}/lock"
                with suppress(OSError), closing_fd(os.open(lock, os.O_RDWR | os.O_CLOEXEC)) as fd:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(self.directory, name)
                if not os.path.exists(lock):
                    _remove(self.directory, name)

    def _prepare(self, new: str, stack: ExitStack) -> None:
        """Create the directory of a new tree, with a lock that is held until ``stack`` ends."""
        with self._lock():
            os.mkdir(new, 0o700)
            fd = os.open(f"{new}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, fd)
            fcntl.flock(fd, fcntl.LOCK_EX)
        os.mkdir(f"{new}/root", 0o700)
        os.mkdir(f"{new}/segments", 0o700)


def _unpack_all(new: str, snapshot: Snapshot, store: ObjectStore) -> None:
    """Unpack a snapshot to a prepared directory."""
    tree = read_tree(snapshot, store, lambda store, name: parse_lines(_save_segment(new, store, name)))
    with closing_fd(open_root(f"{new}/root")) as root:
        TreeWriter(root, store).write(tree.directories.values())
    _save_size(new, tree.bytes)


def _make_version(base: str, new: str, snapshot: Snapshot, store: ObjectStore) -> bool:
    """Make a tree from another version of it; return False if that is not possible."""
    try:
        return _Version(base, new, snapshot, store).make()
    except DamagedObjectError as error:
        raise StoreError(
            f"the snapshot {snapshot.id} in {store.location} is damaged and was not used: {error}",
            store=store.location,
            name=snapshot.id,
        ) from error


class _Version:
    """A tree made from another version: from that tree itself, moved to ``new``, or by hard links to one that stays."""

    def __init__(self, base: str, new: str, snapshot: Snapshot, store: ObjectStore) -> None:
        self.base = base
        self.new = new
        self.snapshot = snapshot
        self.store = store
        before, after = _list_segments(base), set(snapshot.segments)
        self.kept = before & after
        old = [line for name in sorted(before - after) for line in _load_segment(base, name).split(b"\n")]
        added = [name for name in snapshot.segments if name not in self.kept]
        lines = [line for name in added for line in _save_segment(new, store, name).split(b"\n")]
        # Most lines of a changed segment are those of directories that did not change.
        common = frozenset(old).intersection(lines)
        self.old = [parse_line(line) for line in old if line not in common]
        self.parts = [parse_line(line) for line in lines if line not in common]

    def make(self) -> bool:
        """Make the root of ``new`` that of the snapshot; return False if everything has to be unpacked instead."""
        is_made = self._advance() if self.base == self.new else self._link()
        _save_size(self.new, self.snapshot.bytes)
        return is_made

    def _link(self) -> bool:
        for name in self.kept:
            os.link(f"{self.base}/segments/{name}", f"{self.new}/segments/{name}")
        segments = (_load_segment(self.new, name) for name in self.snapshot.segments)
        listed = list(Tree.build(chain.from_iterable(map(parse_lines, segments))).directories.values())
        old, new = _list_entries(self.old), _list_entries(self.parts)
        different = {key for key, entry in new.items() if old.get(key) != entry}
        same = {
            (one.path, file.name)
            for one in listed
            for file in one.files
            if not file.group and (one.path, file.name) not in different
        }
        with closing_fd(open_root(f"{self.base}/root")) as source, closing_fd(open_root(f"{self.new}/root")) as target:
            writer = TreeWriter(target, self.store)
            for one in listed:
                writer.make_directory(one.path)
                linked = [file.name for file in one.files if (one.path, file.name) in same]
                if linked:
                    _link_files(source, target, one.path, linked)
            files = [(one.path, file) for one in listed for file in one.files if (one.path, file.name) not in same]
            writer.write_files(files)
            writer.write_links([(one.path, link) for one in listed for link in one.links])
            writer.finish(listed)
        return True

    def _advance(self) -> bool:
        old, new = _list_entries(self.old), _list_entries(self.parts)
        removed = [key for key, entry in old.items() if new.get(key) != entry]
        added = [(key[0], entry) for key, entry in new.items() if old.get(key) != entry]
        changed = [old[key] for key in removed] + [entry for _, entry in added]
        if any(isinstance(entry, File) and entry.group for entry in changed):
            return False  # its other names may be in directories that did not change
        old_paths = {part.path for part in self.old if part.is_first}
        listed = [part for part in self.parts if part.is_first]
        new_paths = {part.path for part in listed}
        with closing_fd(open_root(f"{self.new}/root")) as root:
            touched = _Touched(root)
            for path, name in removed:
                touched.open(path, partial(_unlink, name))
            for path in sorted(old_paths - new_paths, reverse=True):
                parent, _, name = path.rpartition("/")
                touched.open(parent, partial(_rmdir, name))
            writer = TreeWriter(root, self.store)
            for path in sorted(new_paths - old_paths):
                touched.open(path.rpartition("/")[0], _look)
                writer.make_directory(path)
            for path, _ in added:
                touched.open(path, _look)
            writer.write_files([(path, entry) for path, entry in added if isinstance(entry, File)])
            writer.write_links([(path, entry) for path, entry in added if isinstance(entry, Link)])
            touched.restore(new_paths | (old_paths - new_paths))
            writer.finish(listed)
        for name in _list_segments(self.new) - set(self.snapshot.segments):
            os.unlink(f"{self.new}/segments/{name}")
        return True


class _Touched:
    """Directories in which names are created or removed: their times and modes are restored afterwards."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._before: dict[str, os.stat_result] = {}

    def open(self, path: str, action: Callable[[int], None]) -> None:
        with closing_fd(open_directory(self._root, path)) as fd:
            if path not in self._before:
                found = os.fstat(fd)
                self._before[path] = found
                if found.st_mode & _DIRECTORY_RIGHTS != _DIRECTORY_RIGHTS:
                    os.fchmod(fd, found.st_mode & 0o7777 | _DIRECTORY_RIGHTS)
            action(fd)

    def restore(self, others: set[str]) -> None:
        """Restore all directories but ``others``, which are set to their new state or are gone."""
        for path, found in self._before.items():
            if path not in others:
                with closing_fd(open_directory(self._root, path)) as fd:
                    os.fchmod(fd, found.st_mode & 0o7777)
                    os.utime(fd, ns=(found.st_atime_ns, found.st_mtime_ns))


def _list_entries(parts: list[Directory]) -> dict[tuple[str, str], File | Link]:
    found: dict[tuple[str, str], File | Link] = {}
    for part in parts:
        found.update({(part.path, file.name): file for file in part.files})
        found.update({(part.path, link.name): link for link in part.links})
    return found


def _unlink(name: str, directory: int) -> None:
    os.unlink(name, dir_fd=directory)


def _rmdir(name: str, directory: int) -> None:
    os.rmdir(name, dir_fd=directory)


def _look(directory: int) -> None:
    """Only note that a directory will change."""


def _link_files(source: int, target: int, path: str, names: list[str]) -> None:
    with closing_fd(open_directory(source, path)) as old, closing_fd(open_directory(target, path)) as new:
        for name in names:
            os.link(name, name, src_dir_fd=old, dst_dir_fd=new, follow_symlinks=False)


def _save_segment(tree: str, store: ObjectStore, name: str) -> bytes:
    """Save a segment of a store beside a tree, and return it; the caller checks its values."""
    content = read_raw_segment(store, name)
    with open(f"{tree}/segments/{name}", "wb") as file:
        file.write(content)
    return content


def _load_segment(tree: str, name: str) -> bytes:
    with open(f"{tree}/segments/{name}", "rb") as file:
        return file.read()


def _list_segments(tree: str) -> set[str]:
    return set(os.listdir(f"{tree}/segments"))


def _save_size(tree: str, size: int) -> None:
    with open(f"{tree}/size", "w") as file:
        file.write(str(size))


def _read_size(tree: str) -> int:
    with open(f"{tree}/size") as file:
        return int(file.read())


def _remove(directory: str, name: str) -> None:
    with closing_fd(open_root(directory)) as fd, suppress(FileNotFoundError):
        remove_tree(fd, name)


@contextmanager
def _exclusive(path: str, *, removes: bool = False) -> Iterator[None]:
    """Hold a lock file exclusively; with ``removes`` the file is removed at the end."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if not removes or _is_same(fd, path):
                break
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    try:
        yield
    finally:
        if removes:
            with suppress(FileNotFoundError):
                os.unlink(path)
        os.close(fd)


def _is_same(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
