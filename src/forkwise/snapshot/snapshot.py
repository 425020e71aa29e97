"""Snapshot: a workspace at one moment, as a value that names its contents in a store."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from forkwise.errors import SnapshotNotFoundError, StoreError
from forkwise.progress import report
from forkwise.snapshot.header import check_texts, find_header, read_header
from forkwise.snapshot.manifest import Directory, Piece, check_digest, parse_lines
from forkwise.snapshot.pack import DamagedObjectError

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.workspace import Workspace
    from forkwise.snapshot.object_store import ObjectStore

__all__ = ["Snapshot", "check_chunks", "list_snapshots", "read_raw_segment", "read_segment"]

_MOST = 1 << 50
_READERS = 4


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A workspace at one moment. Its contents are in the store that it was created in.

    ``id`` names it; ``tree`` is the same for snapshots of the same content. ``files``, ``directories`` and ``bytes``
    count what is in it, ``stored`` the bytes that creating it added to the store. ``largest_files`` and
    ``largest_directories`` are paths with their sizes in bytes. ``skipped`` are FIFOs, sockets, devices and mount
    points, which are not in it; ``unstable`` are files that were being written while they were read.
    """

    id: str
    tree: str
    name: str
    created: datetime
    source: str
    files: int
    directories: int
    bytes: int
    stored: int
    segments: tuple[str, ...]
    packs: tuple[str, ...]
    largest_files: tuple[tuple[str, int], ...] = ()
    largest_directories: tuple[tuple[str, int], ...] = ()
    skipped: tuple[str, ...] = ()
    unstable: tuple[str, ...] = ()

    @classmethod
    def create(
        cls, source: Workspace | Branch, store: ObjectStore, *, name: str = "", exclude: Sequence[str] = ()
    ) -> Snapshot:
        """Store a workspace, or a branch, as it is now. No commit changes it meanwhile.

        Ignored files are included. ``exclude`` are globs of what is left out: one without a slash matches a name at any
        depth. A second snapshot of a workspace to the same store reads and stores only what changed. Raises BranchError
        if a file cannot be read.
        """
        from forkwise.snapshot.capture import create_snapshot  # noqa: PLC0415 - only this one writes

        return create_snapshot(source, store, name=name, exclude=exclude)

    @classmethod
    def load(cls, store: ObjectStore, word: str) -> Snapshot:
        """Read a snapshot by its id, the beginning of its id, or its name; the newest one of several with that name."""
        if named := [one for one in list_snapshots(store) if word and one.name == word]:
            return named[0]
        return cls._read(store, find_header(store, "snapshots", word))

    @classmethod
    def _read(cls, store: ObjectStore, name: str) -> Snapshot:
        return cls._parse(store, name, read_header(store, "snapshots", name))

    @classmethod
    def _parse(cls, store: ObjectStore, name: str, about: dict[str, Any]) -> Snapshot:
        try:
            return _parse(name, about, store.codec.digest("".join(check_texts(about.get("segments"))).encode()))
        except (DamagedObjectError, TypeError, ValueError, OverflowError) as error:
            raise StoreError(
                f"the snapshot {name} in {store.location} has a damaged header and was not used: {error}",
                store=store.location,
                name=name,
            ) from error

    def verify(self, store: ObjectStore) -> list[str]:
        """Read everything that it needs, and return a sentence for each object that is missing or damaged."""
        problems: list[str] = []
        pieces: dict[str, set[Piece]] = {pack: set() for pack in self.packs}
        for segment in self.segments:
            try:
                for directory in read_segment(store, segment):
                    for file in directory.files:
                        for piece in file.pieces:
                            if piece.digest:
                                pieces.setdefault(piece.pack, set()).add(piece)
            except StoreError as error:
                problems.append(str(error))

        def check(pack: str) -> str:
            try:
                store.read_object(pack, lambda content: check_chunks(store, content, pieces[pack]))
            except StoreError as error:
                return str(error)
            return ""

        with report("Reading packs", len(pieces)) as work, ThreadPoolExecutor(_READERS) as pool:
            for problem in pool.map(check, sorted(pieces)):
                work.done += 1
                problems += [problem] if problem else []
        return problems

    def delete(self, store: ObjectStore) -> None:
        """Delete it from a store. Garbage collection then removes what no other snapshot needs."""
        store.delete_header("snapshots", self.id)


def list_snapshots(store: ObjectStore) -> list[Snapshot]:
    """List the snapshots of a store, newest first."""
    found = []
    for name in store.list_headers("snapshots"):
        try:
            found.append(Snapshot._read(store, name))
        except SnapshotNotFoundError:
            continue  # deleted since it was listed
    return sorted(found, key=lambda one: one.created, reverse=True)


def read_raw_segment(store: ObjectStore, name: str) -> bytes:
    """Read one segment of a manifest, whose values the caller checks; StoreError if it does not match its digest."""
    return store.read_object(name, lambda content: _check_segment(store, name, content))


def read_segment(store: ObjectStore, name: str) -> list[Directory]:
    """Read the directories of one segment of a manifest; StoreError if it is damaged."""
    return store.read_object(name, lambda content: list(parse_lines(_check_segment(store, name, content))))


def _check_segment(store: ObjectStore, name: str, content: bytes) -> bytes:
    if store.codec.digest(content) != name:
        raise DamagedObjectError("its content does not match its digest")
    return content


def check_chunks(store: ObjectStore, content: bytes, pieces: set[Piece]) -> bytes:
    """Return the content of a pack; DamagedObjectError if one of the pieces in it does not match its digest."""
    view, digest = memoryview(content), store.codec.digest
    for piece in pieces:
        if digest(view[piece.offset : piece.offset + piece.length]) != piece.digest:
            raise DamagedObjectError("a chunk does not match its digest")
    return content


def _parse(name: str, about: dict[str, Any], tree: str) -> Snapshot:
    return Snapshot(
        name,
        tree,
        check_texts([about.get("name")])[0],
        datetime.fromtimestamp(about["created"], UTC),
        check_texts([about.get("source")])[0],
        _count(about.get("files")),
        _count(about.get("directories")),
        _count(about.get("bytes")),
        _count(about.get("stored")),
        tuple(check_digest(one) for one in about["segments"]),
        tuple(check_digest(one) for one in about["packs"]),
        _sizes(about.get("largest_files")),
        _sizes(about.get("largest_directories")),
        check_texts(about.get("skipped")),
        check_texts(about.get("unstable")),
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise DamagedObjectError(f"{str(value)[:40]!r} is not a count")
    return value


def _sizes(values: Any) -> tuple[tuple[str, int], ...]:
    return tuple((check_texts([path])[0], _count(size)) for path, size in values)
