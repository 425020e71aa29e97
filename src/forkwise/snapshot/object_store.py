"""ObjectStore: where snapshots and packed deltas are kept: a directory, memory, S3, Azure or Google storage.

format              the number of this layout, the store's id, and a proof of its key
objects/<xx>/<id>   packs of contents and segments of manifests, named by content; never changed
snapshots/<id>      the header of a snapshot, written last: what it names exists
deltas/<id>         the header of a packed delta
writers/<token>     exists while a process writes; collectors/<token> while one collects garbage
revoked/<token>     a writer that was presumed dead

A writer and a collector exclude each other without locks: each creates its own mark first and then looks for the
other's. Both marks expire by the store's own clock, so the clocks of different machines do not matter. A writer that
was presumed dead finds its revocation after it has written its header, and deletes the header again.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from forkwise.errors import SnapshotNotFoundError, StoreError
from forkwise.snapshot.manifest import check_digest
from forkwise.snapshot.pack import Codec, DamagedObjectError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["MARK_EXPIRY_S", "HeaderKind", "ObjectStore", "Writer", "list_marks"]

#: After this time by the store's clock, the process behind the mark of a writer or a collector is presumed dead.
MARK_EXPIRY_S = 3600.0

HeaderKind = Literal["snapshots", "deltas"]

_FORMAT = 1
_REFRESH_S = 300.0
_PATIENCE_S = 120.0
_LARGEST_HEADER = 64 << 20
_T = TypeVar("_T")
_SCHEMES = ("file", "memory", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl")


class _Backend(Protocol):
    """The part of an obstore store that is used."""

    def put(self, path: str, file: bytes, *, mode: Any = None) -> Any: ...
    def get(self, path: str) -> Any: ...
    def head(self, path: str) -> Any: ...
    def list(self, prefix: str | None = None) -> Any: ...
    def delete(self, paths: Any) -> Any: ...


class ObjectStore:
    """A store of snapshots: a directory, or a URL such as ``s3://bucket/prefix``, ``az://…``, ``gs://…``, ``memory://``.

    ``key``, of 32 bytes, encrypts everything in it and has to be given whenever it is opened. ``options`` are obstore's
    for the kind of store (``endpoint``, ``region``); credentials are taken from the environment, as obstore documents.
    Instead of a URL, an obstore store can be given. Several threads and processes can use it at the same time.
    """

    def __init__(
        self,
        location: str | os.PathLike[str] | Any,
        *,
        key: bytes | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.codec = Codec(key)
        if isinstance(location, str | os.PathLike):
            self.location = os.fspath(location)
            self._backend, self.directory = _open(self.location, dict(options or {}))
        else:
            self.location, self.directory = type(location).__name__, None
            self._backend = cast(_Backend, location)

    def __repr__(self) -> str:
        return f"<ObjectStore {self.location}>"

    @cached_property
    def id(self) -> str:
        """The store's own id, created with the store. Raises StoreError if the key is not that of the store."""
        about = self._read_format()
        if about is None:
            own = secrets.token_hex(16)
            created = {"format": _FORMAT, "id": own, "proof": self._prove(own)}
            with self._reported("create"):
                self._put_new("format", json.dumps(created).encode())
            about = self._read_format()
        if not isinstance(about, dict) or not isinstance(about.get("id"), str):
            raise StoreError(f"{self.location} is not a store of snapshots: its format is damaged", store=self.location)
        if type(about.get("format")) is not int or about["format"] > _FORMAT:
            raise StoreError(
                f"{self.location} was written by a newer forkwise (format {str(about.get('format'))[:20]}); install a "
                "newer forkwise",
                store=self.location,
            )
        if about.get("proof") != self._prove(about["id"]):
            needs = "another key" if self.codec.is_encrypted else "a key"
            raise StoreError(
                f"{self.location} cannot be read: it was created with {needs}; give the key it was created with",
                store=self.location,
            )
        return str(about["id"])

    def _prove(self, own: str) -> str:
        return self.codec.digest(f"store {own}".encode())

    def _read_format(self) -> Any:
        with self._reported("read"):
            data = self._get("format")
        try:
            return None if data is None else json.loads(data[:10_000])
        except (ValueError, RecursionError):
            return {}

    def _put_new(self, path: str, data: bytes) -> None:
        """Create an object unless it exists."""
        from obstore.exceptions import AlreadyExistsError  # noqa: PLC0415 - loaded on use

        try:
            self._backend.put(path, data, mode="create")
        except AlreadyExistsError:
            return

    # Objects

    def has_object(self, name: str) -> bool:
        """Return whether an object exists."""
        return self.has(f"objects/{name[:2]}/{name}")

    def read_object(self, name: str, check: Callable[[bytes], _T], *, limit: int | None = None) -> _T:
        """Read an object and return the result of ``check`` on its content.

        If it is damaged, or ``check`` raises DamagedObjectError, it is read once more; then StoreError is raised.
        """
        return self._read_checked(f"objects/{name[:2]}/{name}", name, check, limit)

    def read(self, path: str, check: Callable[[bytes], _T], *, limit: int) -> _T:
        """Read what is stored at a path and return the result of ``check`` on it. Internal."""
        return self._read_checked(path, path, check, limit)

    def _read_checked(self, path: str, name: str, check: Callable[[bytes], _T], limit: int | None) -> _T:
        problem = ""
        for _ in range(2):
            with self._reported(f"read {path} of"):
                data = self._get(path)
            if data is None:
                raise SnapshotNotFoundError(
                    f"{self.location} has no {path}; it was removed, or never stored there",
                    store=self.location,
                    name=path,
                )
            try:
                return check(
                    self.codec.decode(name, data) if limit is None else self.codec.decode(name, data, limit=limit)
                )
            except DamagedObjectError as error:
                problem = str(error)
        raise StoreError(
            f"{path} in {self.location} is damaged and was not used: {problem}; create the snapshot again",
            store=self.location,
            name=path,
        )

    def list_objects(self) -> dict[str, int]:
        """Return the names of all objects with their sizes."""
        return {path.rpartition("/")[2]: size for path, size, _ in self.list_under("objects")}

    # Headers

    def read_header(self, kind: HeaderKind, name: str, check: Callable[[bytes], _T]) -> _T:
        """Read a header and return the result of ``check`` on it; SnapshotNotFoundError if there is none."""
        check_digest(name)
        return self._read_checked(f"{kind}/{name}", name, check, _LARGEST_HEADER)

    def list_headers(self, kind: HeaderKind) -> list[str]:
        """List the names of all headers of a kind."""
        names = (path.rpartition("/")[2] for path, _, _ in self.list_under(kind))
        return sorted(name for name in names if len(name) == 64)

    def delete_header(self, kind: HeaderKind, name: str) -> None:
        """Delete a header. What only it needed is removed by the next garbage collection."""
        check_digest(name)
        if not self.has(f"{kind}/{name}"):
            raise SnapshotNotFoundError(f"{self.location} has no {kind}/{name}", store=self.location, name=name)
        self.delete([f"{kind}/{name}"])

    @contextmanager
    def writer(self) -> Iterator[Writer]:
        """Let the block write objects, which no garbage collection removes before their header is written."""
        writer = Writer(self)
        writer.begin()
        try:
            yield writer
        finally:
            writer.end()

    # Plain access, for marks and garbage collection

    def has(self, path: str) -> bool:
        """Return whether something is stored at a path. Internal."""
        with self._reported(f"look for {path} in"):
            try:
                self._backend.head(path)
            except FileNotFoundError:
                return False
            return True

    def put(self, path: str, data: bytes) -> None:
        """Store bytes at a path. Internal."""
        with self._reported(f"write {path} to"):
            self._backend.put(path, data)

    def delete(self, paths: Collection[str]) -> None:
        """Delete paths that may be missing. Internal."""
        with self._reported("delete from"):
            for path in paths:
                try:
                    self._backend.delete(path)
                except FileNotFoundError:
                    continue

    def list_under(self, directory: str) -> list[tuple[str, int, datetime]]:
        """List what is stored below a directory: path, size, time by the store's clock. Internal."""
        with self._reported(f"list {directory} of"):
            rows = [row for batch in self._backend.list(f"{directory}/") for row in batch]
        return [(row["path"], row["size"], row["last_modified"]) for row in rows]

    def find_time(self, path: str) -> datetime | None:
        """Return when a path was written, by the store's clock; None if it does not exist. Internal."""
        with self._reported(f"look for {path} in"):
            try:
                return cast(datetime, self._backend.head(path)["last_modified"])
            except FileNotFoundError:
                return None

    def _get(self, path: str) -> bytes | None:
        try:
            return bytes(self._backend.get(path).bytes())
        except FileNotFoundError:
            return None

    @contextmanager
    def _reported(self, action: str) -> Iterator[None]:
        """Turn failures of the storage into StoreError."""
        from obstore.exceptions import BaseError  # noqa: PLC0415 - loaded on use

        try:
            yield
        except (BaseError, OSError) as error:
            reason = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
            raise StoreError(
                f"could not {action} {self.location}: {reason}; check the store and its credentials, then run it again",
                store=self.location,
            ) from error


class Writer:
    """One writer to a store. Its objects are safe from garbage collection until ``end``."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.written = 0
        self._mark = f"writers/{secrets.token_hex(16)}"
        self._refreshed = 0.0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Announce the writer, and wait until no garbage is being collected. Raises StoreError if that takes long."""
        _ = self.store.id
        pause, deadline = 0.01, time.monotonic() + _PATIENCE_S
        while True:
            self._refresh()
            if not list_marks(self.store, "collectors", self._mark)[0]:
                return
            self.store.delete([self._mark])
            if time.monotonic() > deadline:
                raise StoreError(
                    f"could not write to {self.store.location}: its garbage is being collected for more than "
                    f"{_PATIENCE_S:.0f} s; run it again later",
                    store=self.store.location,
                )
            time.sleep(pause)
            pause = min(pause * 2, 1.0)

    def put_object(self, name: str, content: bytes) -> int:
        """Store an object unless it exists; return how many bytes were written."""
        if time.monotonic() - self._refreshed > _REFRESH_S:
            self._refresh()
        if self.store.has_object(name):
            return 0
        data = self.store.codec.encode(name, content)
        self.store.put(f"objects/{name[:2]}/{name}", data)
        with self._lock:
            self.written += len(data)
        return len(data)

    def put_header(self, kind: HeaderKind, name: str, content: bytes) -> None:
        """Store a header, after the objects that it names. Raises StoreError if these may have been collected."""
        data = self.store.codec.encode(name, content)
        self.store.put(f"{kind}/{name}", data)
        self.written += len(data)
        if not self.store.has(self._mark.replace("writers/", "revoked/")):
            return
        # Checking that everything exists would not help: the collection may be about to remove it.
        self.store.delete([f"{kind}/{name}"])
        raise StoreError(
            f"{kind}/{name} was not kept in {self.store.location}: its writer did not proceed for so long that a "
            "garbage collection took it for dead and removed what it had written; run it again",
            store=self.store.location,
        )

    def end(self) -> None:
        """Let garbage collections run again."""
        self.store.delete([self._mark])

    def _refresh(self) -> None:
        self.store.put(self._mark, b"")
        self._refreshed = time.monotonic()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.end()


def list_marks(store: ObjectStore, directory: str, own_mark: str) -> tuple[list[str], list[str]]:
    """List the other marks in a directory, living and expired, by the store's time of ``own_mark``. Internal."""
    marks = [(path, at) for path, _, at in store.list_under(directory) if path != own_mark]
    now = store.find_time(own_mark) if marks else None
    expired = [path for path, at in marks if now is not None and (now - at).total_seconds() >= MARK_EXPIRY_S]
    return [path for path, _ in marks if path not in expired], expired


def _open(location: str, options: dict[str, Any]) -> tuple[_Backend, str | None]:
    """Open a location; return the local directory too, if it is one."""
    from obstore import store as kinds  # noqa: PLC0415 - loaded on use
    from obstore.exceptions import BaseError  # noqa: PLC0415

    scheme, mark, rest = location.partition("://")
    try:
        if not mark or scheme == "file":
            directory = os.path.abspath(rest if mark else location)
            os.makedirs(directory, mode=0o700, exist_ok=True)
            return cast(_Backend, kinds.LocalStore(directory)), os.path.realpath(directory)
        if scheme not in _SCHEMES:
            raise ValueError(f"{scheme}:// is not one of {', '.join(f'{s}://' for s in _SCHEMES)}")
        if scheme == "memory":
            return cast(_Backend, kinds.MemoryStore()), None
        client = options.pop("client_options", None)
        return cast(_Backend, kinds.from_url(location, config=cast(Any, options or None), client_options=client)), None
    except (BaseError, OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise StoreError(f"{location} cannot be used as a store: {reason}", store=location) from error
