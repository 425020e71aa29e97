"""Packed deltas: what a branch changed, stored by content, and applied to a branch on another machine.

Every change records what the path was before: its type and the digest of its content. So a path that differs in the
target, because the workspace was edited since its snapshot, is reported as a conflict and not overwritten.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from forkwise.errors import BranchError, ConflictError, SnapshotNotFoundError, StoreError
from forkwise.files.store.changes import Conflict, entry_type
from forkwise.files.store.overlayfs import Lower
from forkwise.files.store.scan import Scan, is_beneath
from forkwise.linux.trees import NOT_THERE, closing_fd, join, open_directory, open_root, remove_tree
from forkwise.progress import report
from forkwise.snapshot.capture import Packer, list_attributes
from forkwise.snapshot.header import find_header, read_header, write_header
from forkwise.snapshot.manifest import (
    LARGEST_LINE,
    Directory,
    File,
    Link,
    check_digest,
    check_path,
    cut_segments,
    format_line,
)
from forkwise.snapshot.pack import PACK, WHOLE, DamagedObjectError
from forkwise.snapshot.snapshot import read_segment
from forkwise.snapshot.unpack import TreeWriter

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.snapshot.object_store import ObjectStore, Writer

__all__ = ["PackedDelta", "list_packed_deltas"]

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_TYPES = ("", "file", "directory", "symlink", "special")
_MOST_PATHS = 5_000_000


class _Before(NamedTuple):
    """What a path was before the change: its type, empty if it did not exist, and its content's digest."""

    path: str
    is_deleted: bool
    type: str
    digest: str


@dataclass(frozen=True, slots=True)
class PackedDelta:
    """The changes of a branch, in a store. ``paths`` counts them, ``bytes`` is the size of the new contents.

    ``stored`` are the bytes that packing it added to the store, ``skipped`` the FIFOs, sockets and devices left out.
    ``owner`` is a text from its creator, by which it can be found.
    """

    id: str
    created: datetime
    branch: str
    paths: int
    bytes: int
    stored: int
    segments: tuple[str, ...]
    before: str
    skipped: tuple[str, ...] = ()
    owner: str = ""

    @classmethod
    def create(cls, branch: Branch, store: ObjectStore, *, owner: str = "") -> PackedDelta:
        """Store what a branch changed against its parent, ignored files and git repositories included.

        The cost depends on the size of the changes. Raises BranchError if one of them cannot be read.
        """
        with branch._lock(), store.writer() as writer, report("Packing changes"):
            return _Packing(branch, writer).store(owner)

    @classmethod
    def load(cls, store: ObjectStore, word: str) -> PackedDelta:
        """Read a packed delta by its id, or the beginning of it."""
        return _read(store, find_header(store, "deltas", word))

    def apply(
        self, branch: Branch, store: ObjectStore, *, on_conflict: Literal["refuse", "ours", "theirs"] = "refuse"
    ) -> tuple[Conflict, ...]:
        """Apply it to a branch that has no changes of its own; the branch is then like any other with these changes.

        Raises ConflictError, and changes nothing, if a path is not what it was where the delta was made; with ``ours``
        the delta's version is taken, with ``theirs`` that of the branch is kept, and the conflicts are returned. Raises
        StoreError if the delta is damaged. As after a confined program, the branch cannot be committed if it changes
        executable configuration.
        """
        if on_conflict not in ("refuse", "ours", "theirs"):
            raise ValueError(f"on_conflict takes 'refuse', 'ours' or 'theirs', not {on_conflict!r}")
        if len(branch.delta(ignore=())):
            raise BranchError(
                f"{branch.branch_path} has changes, and a delta needs a branch without any; create another branch",
                branch=branch.name,
            )
        branch.mark_confined()
        with closing_fd(open_root(str(branch.path))) as root, report("Applying changes"):
            try:
                return _Application(self, store, root, branch.name).run(on_conflict)
            except (DamagedObjectError, OSError) as error:
                raise StoreError(
                    f"the delta {self.id[:12]} was not applied to {branch.branch_path}: {error}; abort that branch",
                    store=store.location,
                    name=self.id,
                ) from error

    def delete(self, store: ObjectStore) -> None:
        """Delete it from a store. Garbage collection then removes what nothing else needs."""
        store.delete_header("deltas", self.id)


def list_packed_deltas(store: ObjectStore) -> list[PackedDelta]:
    """List the packed deltas of a store."""
    found = []
    for name in store.list_headers("deltas"):
        with suppress(SnapshotNotFoundError):  # deleted since it was listed
            found.append(_read(store, name))
    return found


class _Packing:
    """One delta being stored."""

    def __init__(self, branch: Branch, writer: Writer) -> None:
        self.branch = branch
        self.writer = writer
        self.codec = writer.store.codec
        self.files: defaultdict[str, list[File]] = defaultdict(list)
        self.links: defaultdict[str, list[Link]] = defaultdict(list)
        self.own: dict[str, tuple[int, int, tuple[tuple[str, str], ...]]] = {}
        self.bytes = 0

    def store(self, owner: str) -> PackedDelta:
        scan = self.branch._scan()
        with closing_fd(open_root(self.branch.target)) as root:
            before = self._list_before(scan)
            self._read(scan, root)
        segments = {self.codec.digest(content): content for content in cut_segments(self._format())}
        text = json.dumps([list(one) for one in before], separators=(",", ":")).encode()
        facts = self.codec.digest(text)
        packs = {piece.pack for files in self.files.values() for f in files for piece in f.pieces if piece.digest}
        for name, content in {**segments, facts: text}.items():
            self.writer.put_object(name, content)
        about = {
            "created": time.time(),
            "branch": self.branch.branch_path,
            "owner": owner,
            "paths": len(before),
            "bytes": self.bytes,
            "stored": self.writer.written,
            "segments": list(segments),
            "before": facts,
            "skipped": scan.specials[:1000],
        }
        written = write_header(self.writer, "deltas", about, sorted({*segments, *packs, facts}))
        return _read(self.writer.store, written)

    def _list_before(self, scan: Scan) -> list[_Before]:
        """Return what each changed path was in the parent; directories with changed metadata only are left out."""
        before = []
        with Lower(self.branch.parent.lowers, self.branch.view_kind.mark_prefixes) as lower:
            for entry in sorted(scan.entries, key=lambda e: e.path):
                old = entry.old
                kind, digest = "", ""
                if old is not None:
                    kind = entry_type(old.st_mode)
                    with lower.directory(entry.directory) as directory:
                        holder = directory.holder(entry.name)
                        if holder is not None:
                            digest = _digest(self.writer.store, holder, entry.name, kind)
                before.append(_Before(entry.path, entry.new is None, kind, digest))
        return before

    def _read(self, scan: Scan, root: int) -> None:
        packer = Packer(root, self.writer)
        group: list[tuple[str, str]] = []
        size = 0
        with packer:
            for entry in sorted(scan.entries, key=lambda e: e.path):
                found = entry.new
                if found is None:
                    continue
                if stat.S_ISDIR(found.st_mode):
                    self._note_directory(root, entry.path, found)
                elif stat.S_ISLNK(found.st_mode):
                    with closing_fd(open_directory(root, entry.directory)) as fd:
                        target = os.readlink(entry.name, dir_fd=fd)
                    self.links[entry.directory].append(Link(entry.name, found.st_mtime_ns, target))
                elif found.st_size > WHOLE:
                    with closing_fd(open_directory(root, entry.directory)) as fd:
                        packed = packer.pack_file(fd, entry.name, entry.path)
                    self._note_files([(entry.directory, entry.name)], [packed])
                else:
                    group.append((entry.directory, entry.name))
                    size += found.st_size
                    if size >= PACK:
                        self._note_files(group, packer.pack_group(group))
                        group, size = [], 0
            self._note_files(group, packer.pack_group(group))
        for path, packed in packer.pack_grown():
            self._note_files([(path, "")], [packed])
        for touched in scan.touched:
            if touched.is_changed:
                self._note_directory(root, touched.path, touched.new)

    def _note_files(self, paths: list[tuple[str, str]], packed: list[tuple[File, os.stat_result] | None]) -> None:
        for (directory, _), one in zip(paths, packed, strict=True):
            if one is not None:
                self.files[directory].append(one[0])
                self.bytes += one[0].size

    def _note_directory(self, root: int, path: str, found: os.stat_result) -> None:
        with closing_fd(open_directory(root, path)) as fd:
            self.own[path] = (stat.S_IMODE(found.st_mode), found.st_mtime_ns, list_attributes(fd))

    def _format(self) -> list[tuple[str, bytes]]:
        lines = []
        for path in sorted({*self.files, *self.links, *self.own}):
            files, links = self.files[path], self.links[path]
            is_first = path in self.own
            mode, mtime_ns, attributes = self.own.get(path, (0, 0, ()))
            while files or links or is_first:
                some, files = files[:LARGEST_LINE], files[LARGEST_LINE:]
                room = LARGEST_LINE - len(some)
                part = Directory(path, is_first, mode, mtime_ns, attributes, tuple(some), tuple(links[:room]))
                links, is_first = links[room:], False
                lines.append((path, format_line(part)))
        return lines


class _Application:
    """One delta being applied to the directory of a branch."""

    def __init__(self, delta: PackedDelta, store: ObjectStore, root: int, branch: str) -> None:
        self.delta = delta
        self.store = store
        self.root = root
        self.branch = branch

    def run(self, on_conflict: str) -> tuple[Conflict, ...]:
        before = self.store.read_object(self.delta.before, self._parse_before)
        parts = [part for name in self.delta.segments for part in read_segment(self.store, name)]
        self._require_complete(before, parts)
        conflicts = tuple(found for one in before if (found := self._find_conflict(one)) is not None)
        if conflicts and on_conflict == "refuse":
            raise ConflictError(
                f"the delta {self.delta.id[:12]} was not applied: {len(conflicts)} of its paths, such as "
                f"{conflicts[0].path}, are not what they were where it was made; take its version (ours) or the "
                "branch's (theirs)",
                branch=self.branch,
                conflicts=conflicts,
            )
        left = {one.path for one in conflicts} if on_conflict == "theirs" else set()
        self._remove([one for one in before if not is_beneath(one.path, left)], parts)
        self._write(parts, left)
        return conflicts

    def _parse_before(self, content: bytes) -> list[_Before]:
        if self.store.codec.digest(content) != self.delta.before:
            raise DamagedObjectError("its content does not match its digest")
        try:
            rows = json.loads(content)
            found = [_Before(*row) for row in rows]
        except (ValueError, TypeError, RecursionError) as error:
            raise DamagedObjectError(f"it is malformed: {str(error)[:100]}") from error
        if len(found) > _MOST_PATHS:
            raise DamagedObjectError("it has too many paths")
        for one in found:
            check_path(one.path)
        if not all(type(row[1]) is bool and row[2] in _TYPES and isinstance(row[3], str) for row in rows):
            raise DamagedObjectError("it is malformed")
        return found

    def _require_complete(self, before: list[_Before], parts: list[Directory]) -> None:
        """Refuse a delta that writes a path without saying what it was before."""
        known = {one.path for one in before if not one.is_deleted}
        for part in parts:
            names = [file.name for file in part.files] + [link.name for link in part.links]
            for path in (join(part.path, name) for name in names):
                if path not in known:
                    raise DamagedObjectError(f"{path[:80]!r} is written, and nothing says what it was before")

    def _find_conflict(self, one: _Before) -> Conflict | None:
        parent, _, name = one.path.rpartition("/")
        kind, digest = "", ""
        try:
            with closing_fd(open_directory(self.root, parent)) as fd:
                kind = entry_type(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
                digest = _digest(self.store, fd, name, kind)
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
        if (kind, digest) == (one.type, one.digest):
            return None
        if not kind:
            return Conflict(one.path, "deleted", "it was deleted since the delta's snapshot")
        return Conflict(one.path, "changed", f"it is not the {kind} that the delta was made from")

    def _remove(self, before: list[_Before], parts: list[Directory]) -> None:
        """Remove what is deleted or replaced; a directory that stays a directory is only changed."""
        kept = {part.path for part in parts if part.is_first}
        for one in sorted(before, key=lambda b: b.path, reverse=True):
            if one.path in kept and one.type == "directory":
                continue
            parent, _, name = one.path.rpartition("/")
            try:
                with closing_fd(open_directory(self.root, parent)) as fd:
                    remove_tree(fd, name)
            except OSError as error:
                if error.errno not in NOT_THERE:
                    raise

    def _write(self, parts: list[Directory], left: set[str]) -> None:
        writer = TreeWriter(self.root, self.store)
        own = sorted((p for p in parts if p.is_first and not is_beneath(p.path, left)), key=lambda p: p.path)
        for part in own:
            if not self._is_directory(part.path):
                writer.make_directory(part.path)
        files = [(p.path, f) for p in parts for f in p.files if not is_beneath(join(p.path, f.name), left)]
        links = [(p.path, e) for p in parts for e in p.links if not is_beneath(join(p.path, e.name), left)]
        writer.write_files(files)
        writer.write_links(links)
        writer.finish(own)

    def _is_directory(self, path: str) -> bool:
        try:
            os.close(open_directory(self.root, path, os.O_PATH))
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
            return False
        return True


def _digest(store: ObjectStore, directory: int, name: str, kind: str) -> str:
    """Return the digest of a file's content or a symbolic link's target; empty for other types."""
    if kind == "symlink":
        return store.codec.digest(os.fsencode(os.readlink(name, dir_fd=directory)))
    if kind != "file":
        return ""
    with closing_fd(os.open(name, _READ, dir_fd=directory)) as fd:
        return store.codec.digest_file(fd)


def _read(store: ObjectStore, name: str) -> PackedDelta:
    about: dict[str, Any] = read_header(store, "deltas", name)
    try:
        counts = paths, size, stored = about["paths"], about["bytes"], about["stored"]
        owner = about.get("owner", "")
        texts = [about["branch"], owner, *about["skipped"]]
        if not all(type(one) is int and one >= 0 for one in counts) or not all(isinstance(one, str) for one in texts):
            raise DamagedObjectError("a value has the wrong type")
        return PackedDelta(
            name,
            datetime.fromtimestamp(about["created"], UTC),
            about["branch"],
            paths,
            size,
            stored,
            tuple(check_digest(one) for one in about["segments"]),
            check_digest(about["before"]),
            tuple(about["skipped"]),
            owner,
        )
    except (DamagedObjectError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise StoreError(
            f"the delta {name} in {store.location} has a damaged header and was not used: {error}",
            store=store.location,
            name=name,
        ) from error
