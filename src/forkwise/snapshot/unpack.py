"""Unpack: write the files of a snapshot to a new directory, or turn an earlier version of them into the next one.

What comes out of a store is checked before it is used: names stay below the root, every directory is listed before what
it contains, contents have the digests that the manifest names. Files are created by this user, without set-id bits, and
symbolic links are created last, so no path leads through one.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING

from forkwise.errors import StoreError
from forkwise.linux.trees import closing_fd, open_directory, open_root, remove_tree
from forkwise.progress import Work, report
from forkwise.snapshot.manifest import Directory, File, Link, Piece, require
from forkwise.snapshot.pack import DamagedObjectError
from forkwise.snapshot.snapshot import Snapshot, check_chunks, read_segment

if TYPE_CHECKING:
    from forkwise.snapshot.object_store import ObjectStore

__all__ = ["Tree", "TreeWriter", "read_tree", "unpack_snapshot"]

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCAL_THREADS = 2
_REMOTE_THREADS = 8
_MOST_ENTRIES = 5_000_000
_PERMISSIONS = 0o1777  # the set-id bits would grant the rights of a different user than before


@dataclass(slots=True)
class Tree:
    """The directories of a manifest by path, each with all of its parts, checked against each other."""

    directories: dict[str, Directory] = field(default_factory=dict)

    @classmethod
    def build(cls, parts: Iterable[Directory], *, most: int = _MOST_ENTRIES) -> Tree:
        """Put the parts of directories together; DamagedObjectError unless they are one tree."""
        found: dict[str, Directory] = {}
        names: dict[str, set[str]] = {}
        entries = 0
        for part in parts:
            entries += 1 + len(part.files) + len(part.links)
            if entries > most:
                raise DamagedObjectError(f"it has more than {most} entries")
            own = [f.name for f in part.files] + [link.name for link in part.links]
            known = found.get(part.path)
            if part.is_first:
                require(known is None, f"the directory {part.path[:80]!r} is in it twice")
                if part.path:
                    parent, _, name = part.path.rpartition("/")
                    require(parent in found, f"the directory above {part.path[:80]!r} is missing")
                    require(name not in names[parent], f"{part.path[:80]!r} is a directory and a file")
                    names[parent].add(name)
                found[part.path], names[part.path] = part, set()
            else:
                require(known is not None, f"the first part of {part.path[:80]!r} is missing")
                assert known is not None
                found[part.path] = known._replace(files=known.files + part.files, links=known.links + part.links)
            require(names[part.path].isdisjoint(own), f"a name is in {part.path[:80]!r} twice")
            names[part.path].update(own)
        require("" in found, "it has no root")
        return cls(found)

    @property
    def bytes(self) -> int:
        """The size of all files together."""
        return sum(file.size for directory in self.directories.values() for file in directory.files)


def unpack_snapshot(
    snapshot: Snapshot, store: ObjectStore, directory: str | os.PathLike[str], *, max_bytes: int | None = None
) -> None:
    """Write the files of a snapshot to a new directory, or to an empty one.

    They belong to this user; contents, modes, times, links, holes and the user's extended attributes are those of the
    workspace. A failure, or an interrupt, leaves the directory as it was found. Raises StoreError if the snapshot is
    damaged, or larger than ``max_bytes``.
    """
    target = os.fspath(directory)
    try:
        os.mkdir(target, 0o700)
        is_new = True
    except FileExistsError:
        is_new = False
        if not os.path.isdir(target) or os.listdir(target):
            raise StoreError(
                f"the snapshot {snapshot.id[:12]} was not unpacked: {target} is not an empty directory",
                store=store.location,
            ) from None
    with closing_fd(open_root(os.path.realpath(target))) as root:
        try:
            tree = read_tree(snapshot, store)
            if max_bytes is not None and tree.bytes > max_bytes:
                raise StoreError(
                    f"the snapshot {snapshot.id[:12]} was not unpacked: {tree.bytes} bytes are more than {max_bytes}",
                    store=store.location,
                )
            writer = TreeWriter(root, store)
            writer.write(tree.directories.values())
        except BaseException:
            for name in os.listdir(target):
                remove_tree(root, name)
            if is_new:
                with suppress(OSError):
                    os.rmdir(target)
            raise


def read_tree(
    snapshot: Snapshot, store: ObjectStore, read: Callable[[ObjectStore, str], Iterable[Directory]] = read_segment
) -> Tree:
    """Read the manifest of a snapshot, segment by segment with ``read``; StoreError if it is damaged."""
    try:
        return Tree.build(chain.from_iterable(read(store, segment) for segment in snapshot.segments))
    except DamagedObjectError as error:
        raise StoreError(
            f"the snapshot {snapshot.id} in {store.location} is damaged and was not used: {error}",
            store=store.location,
            name=snapshot.id,
        ) from error


class TreeWriter:
    """Writes entries below one open directory, in which nobody else writes."""

    def __init__(self, root: int, store: ObjectStore) -> None:
        self.root = root
        self.store = store
        self.groups: dict[File, tuple[str, str]] = {}
        self.work = Work("")
        self.unset_bits = _find_unset_bits(root)

    def write(self, directories: Iterable[Directory]) -> None:
        """Create directories with everything in them, each after the one above it."""
        listed = list(directories)
        for one in listed:
            self.make_directory(one.path)
        self.write_files([(one.path, file) for one in listed for file in one.files])
        self.write_links([(one.path, link) for one in listed for link in one.links])
        self.finish(listed)

    def make_directory(self, path: str) -> None:
        """Create a directory, unless it is the root."""
        if path:
            parent, _, name = path.rpartition("/")
            with closing_fd(open_directory(self.root, parent)) as above:
                os.mkdir(name, 0o700, dir_fd=above)

    def write_files(self, files: Sequence[tuple[str, File]]) -> None:
        """Create files, each in an existing directory; one of a group becomes a link to the first of the group."""
        linked: list[tuple[str, File]] = []
        packs: defaultdict[str, list[tuple[str, File]]] = defaultdict(list)
        pieced: list[tuple[str, File]] = []
        with report("Writing files", len(files)) as self.work:
            for path, file in files:
                if file.group and not self._is_first(path, file):
                    linked.append((path, file))
                elif len(file.pieces) <= 1 and all(piece.digest for piece in file.pieces):
                    packs[file.pieces[0].pack if file.pieces else ""].append((path, file))
                else:
                    pieced.append((path, file))
            self._write_pieced(pieced)
            self._each_pack(
                {pack: {piece for _, file in rows for piece in file.pieces} for pack, rows in packs.items()},
                lambda pack, content: self._write_pack(packs[pack], content),
            )
            for path, file in linked:
                self._link(path, file)

    def _is_first(self, path: str, file: File) -> bool:
        """Return whether a file is the first of its group. A file that changed during the capture is not in it."""
        return self.groups.setdefault(file._replace(name=""), (path, file.name)) == (path, file.name)

    def _each_pack(self, pieces: dict[str, set[Piece]], use: Callable[[str, memoryview], None]) -> None:
        """Fetch packs ahead with a few threads, and call ``use`` for each in this one.

        Only one thread creates files: several of them would spend their time waiting for the GIL.
        """
        threads = _LOCAL_THREADS if self.store.directory is not None else _REMOTE_THREADS
        waiting = iter(pieces)
        with ThreadPoolExecutor(threads) as pool:
            fetched: deque[tuple[str, Future[memoryview]]] = deque()
            try:
                for pack in islice(waiting, 2 * threads):
                    fetched.append((pack, pool.submit(self._fetch, pack, pieces[pack])))
                while fetched:
                    pack, content = fetched.popleft()
                    use(pack, content.result())
                    for following in islice(waiting, 1):
                        fetched.append((following, pool.submit(self._fetch, following, pieces[following])))
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _fetch(self, pack: str, pieces: set[Piece]) -> memoryview:
        """Return the content of a pack, after checking the digests of its pieces; without a name, return nothing."""
        if not pack:
            return memoryview(b"")
        return memoryview(self.store.read_object(pack, lambda content: check_chunks(self.store, content, pieces)))

    def _write_pack(self, rows: list[tuple[str, File]], content: memoryview) -> None:
        """Create the files whose whole content is in one pack, and empty ones."""
        directory, fd = None, -1
        try:
            for path, file in rows:
                if path != directory:
                    if fd >= 0:
                        os.close(fd)
                        fd = -1
                    fd = open_directory(self.root, path)
                    directory = path
                mode = file.mode & _PERMISSIONS
                is_final = mode & self.unset_bits == 0 and not file.attributes
                target = os.open(file.name, _CREATE, mode if is_final else 0o600, dir_fd=fd)
                try:
                    for piece in file.pieces:
                        _write_all(target, content[piece.offset : piece.offset + piece.length], 0)
                    if not is_final:
                        _write_attributes(target, file.attributes)
                        os.fchmod(target, mode)
                    os.utime(target, ns=(file.mtime_ns, file.mtime_ns))
                finally:
                    os.close(target)
        finally:
            if fd >= 0:
                os.close(fd)
        self.work.done += len(rows)

    def _write_pieced(self, files: Sequence[tuple[str, File]]) -> None:
        """Create files of several pieces, and of holes."""
        places: defaultdict[str, list[tuple[str, str, int, Piece]]] = defaultdict(list)
        for path, file in files:
            with closing_fd(self._open(path, file.name, _CREATE)) as target:
                os.ftruncate(target, file.size)
            position = 0
            for piece in file.pieces:
                if piece.digest:
                    places[piece.pack].append((path, file.name, position, piece))
                position += piece.length
        self._each_pack(
            {pack: {piece for _, _, _, piece in rows} for pack, rows in places.items()},
            lambda pack, content: self._fill(places[pack], content),
        )
        for path, file in files:
            with closing_fd(self._open(path, file.name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as target:
                if file.attributes:
                    _write_attributes(target, file.attributes)
                os.fchmod(target, file.mode & _PERMISSIONS)
                os.utime(target, ns=(file.mtime_ns, file.mtime_ns))
            self.work.done += 1

    def _fill(self, rows: list[tuple[str, str, int, Piece]], content: memoryview) -> None:
        for path, name, position, piece in rows:
            with closing_fd(self._open(path, name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as target:
                _write_all(target, content[piece.offset : piece.offset + piece.length], position)

    def _open(self, path: str, name: str, flags: int) -> int:
        with closing_fd(open_directory(self.root, path)) as directory:
            return os.open(name, flags, 0o600, dir_fd=directory)

    def _link(self, path: str, file: File) -> None:
        first_path, first = self.groups[file._replace(name="")]
        with (
            closing_fd(open_directory(self.root, first_path)) as source,
            closing_fd(open_directory(self.root, path)) as target,
        ):
            os.link(first, file.name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)

    def write_links(self, links: Iterable[tuple[str, Link]]) -> None:
        """Create symbolic links, each in an existing directory."""
        for path, link in links:
            with closing_fd(open_directory(self.root, path)) as directory:
                os.symlink(link.target, link.name, dir_fd=directory)
                os.utime(link.name, ns=(link.mtime_ns, link.mtime_ns), dir_fd=directory, follow_symlinks=False)

    def finish(self, directories: Sequence[Directory]) -> None:
        """Set modes, times and attributes of directories, innermost first: creating a name in one changes its times."""
        for one in sorted(directories, key=lambda d: d.path, reverse=True):
            with closing_fd(open_directory(self.root, one.path)) as target:
                if one.attributes:
                    _write_attributes(target, one.attributes)
                os.fchmod(target, one.mode & _PERMISSIONS)
                os.utime(target, ns=(one.mtime_ns, one.mtime_ns))


def _find_unset_bits(root: int) -> int:
    """Return the bits of a mode that a file created below ``root`` may not get: those of the umask, or all.

    A default access control list, which new directories inherit, takes the place of the umask.
    """
    try:
        os.getxattr(f"/proc/self/fd/{root}", "system.posix_acl_default")
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return _read_umask()
    return 0o7777


def _read_umask() -> int:
    """Return the umask without setting it, which would affect other threads; all bits if procfs does not show it."""
    with suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o7777


def _write_all(target: int, content: memoryview, position: int) -> None:
    while content:
        written = os.pwrite(target, content, position)
        content, position = content[written:], position + written


def _write_attributes(target: int, attributes: tuple[tuple[str, str], ...]) -> None:
    for name, value in attributes:
        try:
            os.setxattr(target, name, bytes.fromhex(value))
        except OSError as error:
            if error.errno != errno.ENOTSUP:  # the filesystem has none
                raise
