"""Capture: read a tree into a store. What changed since the last snapshot is read, hashed, packed and stored.

Small files are read in groups whose ends depend on a hash of the file name, not only on the number of bytes: two
machines with almost the same tree make mostly the same packs, and the second one stores only the packs that differ.
Compressing and storing release the GIL for long, reading small files too briefly: so one thread reads while a few
others use all processors.

The index of the last snapshot has for each directory the identities of its entries (device, inode number, size, ctime)
as one value, and its lines of the manifest. A directory whose value is the same now is not examined further. A file
that was changed just before the snapshot has no identity there, because a later change could have the same ctime.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest
from itertools import chain, compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from blake3 import blake3

from forkwise.errors import BranchError
from forkwise.files.store.state import locked
from forkwise.files.store.state_root import find_problem
from forkwise.files.workspace import Workspace
from forkwise.git.ignore_rules import check_ignore, is_matched
from forkwise.linux.trees import NOT_THERE, closing_fd, join, list_extents, open_directory, open_root
from forkwise.progress import Work, report
from forkwise.snapshot.header import write_header
from forkwise.snapshot.manifest import (
    LARGEST_LINE,
    Directory,
    File,
    FileRow,
    Link,
    Piece,
    cut_segments,
    format_row,
    format_rows,
    list_pieces,
    parse_rows,
)
from forkwise.snapshot.pack import PACK, WHOLE
from forkwise.snapshot.snapshot import Snapshot

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.snapshot.object_store import ObjectStore, Writer

__all__ = ["Packer", "create_snapshot", "list_attributes"]

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SETTLED_NS = 50_000_000  # a file changed again after this time gets a different ctime
_GROUP = 1 << 20  # bytes after which a path may end a group
_ENDS = 32  # one path in this many does
_TRIES = 3
_DEDUPLICATE = 8 << 20  # changed bytes from which it pays to compare them with all known chunks
_LARGEST_SHOWN = 10
_MOST_LISTED = 1000
_REMOTE_THREADS = 8


def create_snapshot(source: Workspace | Branch, store: ObjectStore, *, name: str, exclude: Sequence[str]) -> Snapshot:
    """Store a workspace or a branch as it is now; see ``Snapshot.create``."""
    check_ignore(list(exclude))
    root_path = str(source.path)
    _require_outside(root_path, store)
    index_path = f"{source.state}/snapshot-{store.id[:16]}" if isinstance(source, Workspace) else None
    with (
        locked(source.state_dir.state, shared=True) as lock,
        store.writer() as writer,
        closing_fd(open_root(os.path.realpath(root_path))) as root,
    ):
        index = _TreeIndex() if index_path is None else _TreeIndex.load(index_path)
        # While that header exists, so does everything it names: no garbage is collected while this process writes.
        if index.snapshot and not store.has(f"snapshots/{index.snapshot}"):
            index = _TreeIndex()
        with report("Reading the workspace") as work:
            capture = _Capture(root, writer, index, exclude, work, lock.now())
            capture.scan()
            capture.read()
            snapshot, new_index = capture.store(name, str(source.workspace.path))
    if index_path is not None:
        with suppress(OSError):  # the next snapshot then reads everything again
            new_index.save(index_path)
    return snapshot


def _require_outside(root_path: str, store: ObjectStore) -> None:
    root = os.path.realpath(root_path)
    if store.directory is not None and f"{store.directory}/".startswith(f"{root}/"):
        raise BranchError(f"the store {store.directory} is inside {root}: choose a directory outside of it")


@dataclass(slots=True, eq=False)
class _Read:
    """A directory that differs from the index: what is known about it, and what has to be read."""

    path: str
    status: os.stat_result
    attributes: tuple[tuple[str, str], ...]
    rows: list[tuple[str, os.stat_result]]
    below: list[str]
    sizes: _Sizes
    has_skipped: bool = False
    files: dict[str, FileRow] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    identities: dict[str, _Identity] = field(default_factory=dict)


class _Capture:
    """One snapshot in progress."""

    def __init__(
        self, root: int, writer: Writer, index: _TreeIndex, exclude: Sequence[str], work: Work, started: int
    ) -> None:
        self.root = root
        self.writer = writer
        self.index = index
        self.exclude = exclude
        self.work = work
        self.device = os.fstat(root).st_dev
        self.started = started
        self.directories: list[tuple[str, _IndexedDirectory | _Read]] = []
        self.pending: list[tuple[_Read, str, int]] = []
        self.skipped: list[str] = []
        self.files = self.bytes = 0
        self.large: list[tuple[int, str]] = []
        self.floor = 0
        self.sizes: dict[str, int] = {}
        self.packer = Packer(root, writer)

    # Scan.

    def scan(self) -> None:
        """List the tree, and find out which files have to be read."""
        pending = [""]
        while pending:
            path = pending.pop()
            try:
                fd = open_directory(self.root, path)
            except OSError as error:
                if path and error.errno in NOT_THERE:
                    if error.errno == errno.EXDEV:
                        self._skip(path)
                    continue
                raise _unreadable(path, error) from error
            with closing_fd(fd):
                below = self._scan_directory(path, fd)
            below.reverse()
            pending += below

    def _scan_directory(self, path: str, fd: int) -> list[str]:
        """Scan one directory; return the directories in it."""
        try:
            with os.scandir(fd) as entries:
                listed = list(entries)
            # Two lists instead of pairs: an unchanged directory needs nothing else.
            names, found = [entry.name for entry in listed], [entry.stat(follow_symlinks=False) for entry in listed]
        except FileNotFoundError:
            names, found = self._list_slowly(fd)
        except OSError as error:
            raise _unreadable(path, error) from error
        if self.exclude:
            kept = [not is_matched(join(path, name), self.exclude) for name in names]
            names, found = list(compress(names, kept)), list(compress(found, kept))
        self.work.done += len(names)
        status = os.fstat(fd)
        identities = _format_identities((status.st_ino, status.st_ctime_ns), names, map(_identify, found))
        known = self.index.directories.get(path)
        if known is not None and identities and known.identities == identities:
            self._count(path, zip(names, found, strict=True), known.sizes)
            self.directories.append((path, known))
            below = known.below
        else:
            rows = list(zip(names, found, strict=True))
            below = sorted(name for name, found in rows if stat.S_ISDIR(found.st_mode))
            read = _Read(path, status, list_attributes(fd), rows, below, self._count(path, rows, None))
            self.directories.append((path, read))
            self._compare(read, known, fd)
        return [join(path, name) for name in below]

    def _list_slowly(self, fd: int) -> tuple[list[str], list[os.stat_result]]:
        """List a directory from which an entry was removed while it was being listed."""
        names, found = [], []
        for name in os.listdir(fd):
            with suppress(FileNotFoundError):
                found.append(os.stat(name, dir_fd=fd, follow_symlinks=False))
                names.append(name)
        return names, found

    def _count(self, path: str, rows: Iterable[tuple[str, os.stat_result]], known: _Sizes | None) -> _Sizes:
        """Count the files of a directory, and their sizes, unless these are known."""
        counted = known
        if counted is None or counted.largest > self.floor:
            sizes = [(found.st_size, name) for name, found in rows if stat.S_ISREG(found.st_mode)]
            total = sum(size for size, _ in sizes)
            counted = _Sizes(len(sizes), total, max(sizes)[0] if sizes else 0)
            if large := [(size, join(path, name)) for size, name in sizes if size > self.floor]:
                self.large = nlargest(_LARGEST_SHOWN, self.large + large)
                self.floor = self.large[-1][0] if len(self.large) == _LARGEST_SHOWN else 0
        self.files += counted.files
        self.bytes += counted.bytes
        self.sizes[path] = counted.bytes
        return counted

    def _compare(self, read: _Read, known: _IndexedDirectory | None, fd: int) -> None:
        """Take over what did not change in a directory, and note the files that have to be read."""
        identities = {} if known is None else _parse_identities(known.identities)
        files = _list_files(known)
        for name, found in sorted(read.rows):
            path = join(read.path, name)
            if stat.S_ISDIR(found.st_mode):
                continue
            if found.st_dev != self.device or not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
                self._skip(path)
                read.has_skipped = True
            elif stat.S_ISLNK(found.st_mode):
                with suppress(FileNotFoundError, OSError):
                    read.links.append(Link(name, found.st_mtime_ns, os.readlink(name, dir_fd=fd)))
            elif name in files and identities.get(name) == (identity := _identify(found)):
                read.files[name] = files[name]
                read.identities[name] = identity
            else:
                self.pending.append((read, name, found.st_size))
                # If its content is the same after all, it stays where it is.
                if name in files:
                    self.packer.known.update({piece.digest: piece for piece in list_pieces(files[name])})

    def _skip(self, path: str) -> None:
        if len(self.skipped) < _MOST_LISTED:
            self.skipped.append(path)

    # Read.

    def read(self) -> None:
        """Read what is new, and store it in packs."""
        if sum(size for _, _, size in self.pending) > _DEDUPLICATE:
            self._load_known()
        self.work.total = self.work.done + len(self.pending)
        self.packer.run([partial(self._read_group, group) for group in _group(self.pending)])
        large = [row for row in self.pending if row[2] > WHOLE]
        with self.packer:
            for read, name, _ in large:
                with suppress(FileNotFoundError), closing_fd(open_directory(self.root, read.path)) as directory:
                    file = self.packer.pack_file(directory, name, join(read.path, name))
                    self._keep(read, file)
        reads = {read.path: read for read, _, _ in self.pending}
        for path, packed in self.packer.pack_grown():
            self._keep(reads[path], packed)

    def _read_group(self, group: list[tuple[_Read, str, int]]) -> None:
        readers: list[tuple[_Read, str]] = [(read, name) for read, name, _ in group]
        for (read, _), file in zip(readers, self.packer.pack_group([(r.path, n) for r, n in readers]), strict=True):
            if file is not None:
                self._keep(read, file)
        self.work.done += len(group)

    def _keep(self, read: _Read, file: tuple[File, os.stat_result] | None) -> None:
        if file is None:
            return
        entry, found = file
        read.files[entry.name] = format_row(entry)
        if join(read.path, entry.name) not in self.packer.unstable:
            read.identities[entry.name] = _identify(found)

    def _load_known(self) -> None:
        """Load the chunks of the last snapshot, so that moved and copied contents are not stored again."""
        for known in self.index.directories.values():
            for file in _list_files(known).values():
                self.packer.known.update({piece.digest: piece for piece in list_pieces(file)})

    # Store.

    def store(self, name: str, source: str) -> tuple[Snapshot, _TreeIndex]:
        """Store the manifest and the header; return the snapshot and the index for the next one."""
        indexed: dict[str, _IndexedDirectory] = {}
        lines: list[tuple[str, bytes]] = []
        packs: dict[str, None] = {}
        for path, found in self.directories:
            one = found if isinstance(found, _IndexedDirectory) else self._format(found)
            indexed[path] = one
            packs.update(dict.fromkeys(one.packs))
            lines += [(path, line) for line in one.lines.split(b"\n")]
        segments = self._store_segments(lines)
        created = time.time()
        about: dict[str, Any] = {
            "name": name,
            "created": created,
            "source": source,
            "files": self.files,
            "directories": len(self.directories),
            "bytes": self.bytes,
            "stored": self.writer.written,
            "segments": segments,
            "packs": list(packs),
            "largest_files": [(path, size) for size, path in self.large],
            "largest_directories": self._find_largest(),
            "skipped": self.skipped,
            "unstable": sorted(self.packer.unstable)[:_MOST_LISTED],
        }
        written = write_header(self.writer, "snapshots", about, sorted({*segments, *packs}))
        return Snapshot._parse(self.writer.store, written, about), _TreeIndex(written, frozenset(segments), indexed)

    def _store_segments(self, lines: list[tuple[str, bytes]]) -> list[str]:
        digest = self.writer.store.codec.digest
        contents = {digest(content): content for content in cut_segments(lines)}
        new = [(one, content) for one, content in contents.items() if one not in self.index.segments]
        self.packer.run([partial(self.writer.put_object, one, content) for one, content in new])
        return list(contents)

    def _format(self, read: _Read) -> _IndexedDirectory:
        """Return the index's entry for a directory; files changed too recently get no identity in it."""
        files, links = [read.files[name] for name in sorted(read.files)], read.links
        about = (stat.S_IMODE(read.status.st_mode), read.status.st_mtime_ns, read.attributes)
        lines: list[bytes] = []
        packs: dict[str, None] = {}
        while files or links or not lines:
            room = max(LARGEST_LINE - len(files), 0)
            part = Directory(read.path, not lines, *about, (), tuple(links[:room]))
            line, needed = format_rows(part, files[:LARGEST_LINE])
            files, links = files[LARGEST_LINE:], links[room:]
            packs.update(dict.fromkeys(needed))
            lines.append(line)
        latest = self.started - _SETTLED_NS
        rows: list[_Identity] = []
        for name, found in read.rows:
            identity = read.identities.get(name) if stat.S_ISREG(found.st_mode) else _identify(found)
            rows.append(identity if identity is not None and identity[-1] < latest else (0, 0, 0, 0))
        ctime = read.status.st_ctime_ns
        # A directory with a FIFO is compared every time, so that every snapshot lists what it leaves out.
        own = (read.status.st_ino, ctime if ctime < latest and not read.has_skipped else 0)
        identities = _format_identities(own, [name for name, _ in read.rows], rows)
        return _IndexedDirectory(identities, read.below, read.sizes, list(packs), b"\n".join(lines))

    def _find_largest(self) -> list[tuple[str, int]]:
        totals: dict[str, int] = {}
        for path, size in self.sizes.items():
            while path:
                totals[path] = totals.get(path, 0) + size
                path = path.rpartition("/")[0]
        return [
            (path, size) for size, path in nlargest(_LARGEST_SHOWN, ((size, path) for path, size in totals.items()))
        ]


#: The name, content, status and extended attributes of a file.
_SmallFile = tuple[str, memoryview, os.stat_result, tuple[tuple[str, str], ...]]


class Packer:
    """Reads files and stores their contents in packs, with a few threads. As a context manager it waits for them."""

    def __init__(self, root: int, writer: Writer) -> None:
        self.root = root
        self.writer = writer
        self.codec = writer.store.codec
        self.known: dict[str, Piece] = {}
        self.unstable: set[str] = set()
        self._grown: list[tuple[str, str]] = []
        threads = (os.cpu_count() or 1) + 1 if writer.store.directory is not None else _REMOTE_THREADS
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._room = threading.Semaphore(threads * 2)
        # One thread reads at a time, the others compress: several threads with short system calls would wait for the
        # GIL.
        self._reading = threading.Lock()
        self._own = threading.local()
        self._jobs: list[Future[object]] = []

    def __enter__(self) -> Packer:
        self._pool = ThreadPoolExecutor(self._threads)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._pool is not None
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        jobs, self._jobs, self._pool = self._jobs, [], None
        if kind is None:
            for job in jobs:
                job.result()

    def run(self, works: Sequence[Callable[[], object]]) -> None:
        """Run all of ``works`` in threads; run a single one in this thread."""
        if len(works) == 1:
            works[0]()
            return
        with self:
            for work in works:
                self.submit(work)

    def submit(self, work: Callable[[], object]) -> None:
        """Run something in a thread, or wait for room. A failure is raised here or when the block ends."""
        assert self._pool is not None
        self._room.acquire()
        if self._jobs and self._jobs[0].done():
            self._jobs.pop(0).result()
        try:
            job = self._pool.submit(work)
        except BaseException:
            self._room.release()
            raise
        job.add_done_callback(lambda _: self._room.release())
        self._jobs.append(job)

    def pack_group(self, paths: Sequence[tuple[str, str]]) -> list[tuple[File, os.stat_result] | None]:
        """Store small files, given by directory and name, in one pack; None for a file that no longer exists."""
        if not hasattr(self._own, "buffer"):
            self._own.buffer = memoryview(bytearray(PACK))
        with self._reading:
            read = self._read_group(paths, self._own.buffer)
            digests = ["" if one is None or not one[1] else self.codec.digest(one[1]) for one in read]
        return self._store_small(read, digests)

    def _read_group(self, paths: Sequence[tuple[str, str]], buffer: memoryview) -> list[_SmallFile | None]:
        """Read small files one after the other into a buffer; files that do not fit get memory of their own."""
        read: list[_SmallFile | None] = []
        directory, fd = None, -1
        try:
            for path, name in paths:
                if path != directory:
                    if fd >= 0:
                        os.close(fd)
                        fd = -1
                    directory = path
                    with suppress(FileNotFoundError, NotADirectoryError):
                        fd = open_directory(self.root, path)
                one = None if fd < 0 else self._read_small(fd, name, join(path, name), buffer)
                if one is not None and len(one[1]) <= len(buffer):
                    buffer = buffer[len(one[1]) :]
                read.append(one)
        finally:
            if fd >= 0:
                os.close(fd)
        return read

    def _store_small(
        self, read: Sequence[_SmallFile | None], digests: Sequence[str]
    ) -> list[tuple[File, os.stat_result] | None]:
        new: dict[str, memoryview] = {}
        for digest, one in zip(digests, read, strict=True):
            if digest and one is not None and digest not in self.known:
                new[digest] = one[1]
        pieces: dict[str, Piece] = {}
        if new:
            pieces = self._store_pack(new)
        files: list[tuple[File, os.stat_result] | None] = []
        for digest, one in zip(digests, read, strict=True):
            if one is None:
                files.append(None)
                continue
            name, _, found, attributes = one
            parts = (pieces.get(digest) or self.known[digest],) if digest else ()
            files.append((_make_file(name, found, attributes, parts), found))
        return files

    def _store_pack(self, chunks: dict[str, memoryview]) -> dict[str, Piece]:
        """Store chunks as one pack; return where each is."""
        pack = self.codec.name_pack(list(chunks))
        pieces: dict[str, Piece] = {}
        offset = 0
        for digest, chunk in chunks.items():
            pieces[digest] = Piece(digest, pack, offset, len(chunk))
            offset += len(chunk)
        self.writer.put_object(pack, b"".join(chunks.values()))
        self.known.update(pieces)
        return pieces

    def _read_small(self, directory: int, name: str, path: str, buffer: memoryview) -> _SmallFile | None:
        try:
            fd = os.open(name, _READ, dir_fd=directory)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                return None
            raise _unreadable(path, error) from error
        try:
            found = os.fstat(fd)
            for _ in range(_TRIES):
                if not stat.S_ISREG(found.st_mode):
                    return None
                if found.st_size > WHOLE:
                    self._grown.append((path.rpartition("/")[0], name))
                    return None
                data = _read_whole(fd, found.st_size, buffer)
                after = os.fstat(fd)
                if after.st_ctime_ns == found.st_ctime_ns and len(data) == found.st_size:
                    return name, data, found, list_attributes(fd)
                found = after
            self.unstable.add(path)
            return name, data, found, list_attributes(fd)
        except OSError as error:
            raise _unreadable(path, error) from error
        finally:
            os.close(fd)

    def pack_grown(self) -> Iterator[tuple[str, tuple[File, os.stat_result] | None]]:
        """Store files that were too large for their group once they were read; yield each with its directory's path."""
        with self:
            for path, name in self._grown:
                with suppress(FileNotFoundError, NotADirectoryError), closing_fd(open_directory(self.root, path)) as fd:
                    yield path, self.pack_file(fd, name, join(path, name))
        self._grown = []

    def pack_file(self, directory: int, name: str, path: str) -> tuple[File, os.stat_result] | None:
        """Store a large file in chunks; None if it no longer exists. Called by the thread that submits."""
        try:
            fd = os.open(name, _READ, dir_fd=directory)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):
                return None
            raise _unreadable(path, error) from error
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                return None
            parts = self._pack_parts(fd, found)
            if os.fstat(fd).st_ctime_ns != found.st_ctime_ns:
                self.unstable.add(path)
            return _make_file(name, found, list_attributes(fd), tuple(parts)), found
        except OSError as error:
            raise _unreadable(path, error) from error
        finally:
            os.close(fd)

    def _pack_parts(self, fd: int, found: os.stat_result) -> list[Piece]:
        is_sparse = found.st_blocks * 512 < found.st_size
        extents = list_extents(fd, found.st_size) if is_sparse else iter([(0, found.st_size)])
        parts: list[Piece | str] = []
        own: dict[str, Piece] = {}
        gathered: dict[str, bytes] = {}
        size = position = 0
        for start, end in extents:
            if start > position:
                parts.append(Piece("", "", 0, start - position))
            position = start
            for chunk in self.codec.cut(fd, start, end):
                digest = self.codec.digest(chunk)
                position += len(chunk)
                parts.append(digest)
                if digest in own or digest in gathered:
                    continue
                if digest in self.known:
                    own[digest] = self.known[digest]
                    continue
                gathered[digest] = chunk
                size += len(chunk)
                if size >= PACK:
                    own.update(self._submit_pack(gathered))
                    gathered, size = {}, 0
        if gathered:
            own.update(self._submit_pack(gathered))
        if is_sparse and position < found.st_size:
            parts.append(Piece("", "", 0, found.st_size - position))
        return [own[part] if isinstance(part, str) else part for part in parts]

    def _submit_pack(self, chunks: dict[str, bytes]) -> dict[str, Piece]:
        pack = self.codec.name_pack(list(chunks))
        pieces: dict[str, Piece] = {}
        offset = 0
        for digest, chunk in chunks.items():
            pieces[digest] = Piece(digest, pack, offset, len(chunk))
            offset += len(chunk)
        self.submit(lambda: self.writer.put_object(pack, b"".join(chunks.values())))
        return pieces


def _make_file(
    name: str, found: os.stat_result, attributes: tuple[tuple[str, str], ...], pieces: tuple[Piece, ...]
) -> File:
    group = found.st_ino if found.st_nlink > 1 else 0
    size = sum(piece.length for piece in pieces)
    return File(name, stat.S_IMODE(found.st_mode), found.st_mtime_ns, size, group, attributes, pieces)


def _read_whole(fd: int, size: int, buffer: memoryview) -> memoryview:
    """Read the first bytes of a file into the front of a buffer, or into a new one if that is too small."""
    room = buffer[:size] if size <= len(buffer) else memoryview(bytearray(size))
    position = 0
    while position < size and (count := os.preadv(fd, [room[position:]], position)):
        position += count
    return room[:position]


def list_attributes(fd: int) -> tuple[tuple[str, str], ...]:
    """List the user's extended attributes of an open file, without the marks of overlayfs."""
    try:
        names = os.listxattr(fd)
    except OSError:
        return ()
    kept = [n for n in names if n.startswith("user.") and not n.startswith(("user.overlay.", "user.fuseoverlayfs."))]
    found = []
    for name in sorted(kept):
        with suppress(OSError):  # removed since it was listed
            found.append((name, os.getxattr(fd, name).hex()))
    return tuple(found)


_Identity = tuple[int, int, int, int]
_identify: Callable[[os.stat_result], _Identity] = attrgetter("st_dev", "st_ino", "st_size", "st_ctime_ns")
_OWN, _EACH = 3, 4  # numbers of a directory, and of each of its entries


def _format_identities(own: tuple[int, int], names: Sequence[str], identities: Iterable[_Identity]) -> bytes:
    """Return the identities of a directory and of its entries as one value, empty if a number is out of range."""
    try:
        numbers = array("Q", chain((len(names), *own), chain.from_iterable(identities)))
    except OverflowError:
        return b""
    return numbers.tobytes() + os.fsencode("/".join(names))


def _parse_identities(identities: bytes) -> dict[str, _Identity]:
    """Return the identities of a directory's entries by name."""
    numbers = memoryview(identities)[: len(identities) // 8 * 8].cast("Q")
    if not numbers or not numbers[0]:
        return {}
    end = _OWN + _EACH * numbers[0]
    names = os.fsdecode(identities[8 * end :]).split("/")
    values = iter(numbers[_OWN:end])
    return dict(zip(names, zip(values, values, values, values, strict=True), strict=True))


def _list_files(known: _IndexedDirectory | None) -> dict[str, FileRow]:
    """Return the files of a directory in the index by name."""
    return {} if known is None else {row[0]: row for line in known.lines.split(b"\n") for row in parse_rows(line)}


def _group(rows: list[tuple[_Read, str, int]]) -> Iterator[list[tuple[_Read, str, int]]]:
    """Yield small files in groups of at most a pack; the hash of a name may end a group of sufficient size."""
    group: list[tuple[_Read, str, int]] = []
    size = 0
    for row in rows:
        if row[2] > WHOLE:
            continue
        if group and size + row[2] > PACK:
            yield group
            group, size = [], 0
        group.append(row)
        size += row[2]
        if size >= _GROUP and crc32(row[1].encode(errors="surrogateescape")) % _ENDS == 0:
            yield group
            group, size = [], 0
    if group:
        yield group


def _unreadable(path: str, error: OSError) -> BranchError:
    return BranchError(
        f"{path or 'the workspace'} cannot be read: {error.strerror or error}; make it readable, or leave it out with "
        "an exclude rule",
        paths=[path],
    )


# The index of a workspace's last snapshot.

_DIGEST = 64


class _Sizes(NamedTuple):
    """The number of a directory's files, their total size in bytes, and the size of the largest."""

    files: int
    bytes: int
    largest: int


class _IndexedDirectory(NamedTuple):
    """What is known about one directory: identities, the directories in it, sizes, packs, lines of the manifest."""

    identities: bytes
    below: list[str]
    sizes: _Sizes
    packs: list[str]
    lines: bytes


@dataclass(slots=True)
class _TreeIndex:
    """What is known about a tree: the last snapshot's id, the ids of its segments, and its directories by path.

    The file holds a digest of the rest, a line of JSON, and the identities and lines of all directories.
    """

    snapshot: str = ""
    segments: frozenset[str] = frozenset()
    directories: Mapping[str, _IndexedDirectory] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str) -> _TreeIndex:
        """Read an index; an empty one if there is none, or if it is damaged: then everything is read again."""
        if find_problem(os.path.dirname(path)) is not None:
            return cls()
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            return cls()
        if blake3(memoryview(data)[_DIGEST + 1 :]).hexdigest().encode() != data[:_DIGEST]:
            return cls()
        position = data.find(b"\n", _DIGEST + 1) + 1
        try:  # an older version wrote a different format
            head = json.loads(data[_DIGEST + 1 : position])
            snapshot, segments, rows = head["snapshot"], head["segments"], head["directories"]
        except (ValueError, TypeError, KeyError):
            return cls()
        directories = {}
        for name, below, sizes, packs, *lengths in rows:
            middle = position + lengths[0]
            end = middle + lengths[1]
            directories[name] = _IndexedDirectory(data[position:middle], below, _Sizes(*sizes), packs, data[middle:end])
            position = end
        return cls(snapshot, frozenset(segments), directories)

    def save(self, path: str) -> None:
        """Write the index, whole or not at all. A damaged one is noticed when it is read, so nothing is synced."""
        rows = [
            (name, one.below, one.sizes, one.packs, len(one.identities), len(one.lines))
            for name, one in self.directories.items()
        ]
        head = {"snapshot": self.snapshot, "segments": sorted(self.segments), "directories": rows}
        blobs = [json.dumps(head).encode() + b"\n"]
        for one in self.directories.values():
            blobs += (one.identities, one.lines)
        hasher = blake3()
        for blob in blobs:
            hasher.update(blob)
        beside = f"{path}.{os.getpid()}"
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(hasher.hexdigest().encode() + b"\n")
            file.writelines(blobs)
        os.replace(beside, path)
