"""The files of attempts in an object store: what they printed, changed and tested, for the other machines of a ledger.

A ledger in PostgreSQL is shared, while these files are beside it on one machine. With a store, an attempt's files are
copied there as one object, ``ledger/<namespace>/<attempt>``, before its end is recorded, and a machine without them
fetches that object once. What comes out of the store is untrusted: names, lengths and the digest are checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from forkwise.errors import ForkwiseWarning, LedgerError, StoreError
from forkwise.linux.file_write import replace_file
from forkwise.snapshot.object_store import ObjectStore
from forkwise.snapshot.pack import DamagedObjectError, read_key_file

__all__ = ["StoredFiles", "open_stored_files"]

_LARGEST = 128 << 20  # bytes of one attempt's files
_DIGEST = 64
_ATTEMPT = re.compile(r"[a-z0-9]+\.[0-9]+", re.ASCII)
_PATH = re.compile(r"(?:output|changes|tests|network)/{}(?:\.[a-z]+){{1,2}}|output/{}\.servers/[a-z][a-z0-9_.-]*")
_ASK_AGAIN_S = 5.0
_PAUSE_S = 60.0  # before a store that failed is tried again: it may take minutes to fail


class StoredFiles:
    """The files of a ledger's attempts in ``store``, beside those in ``directory`` on this machine.

    ``namespace`` distinguishes this ledger from others in the same store. A failure of the store is a warning, never an
    error: the files remain on the machine on which the attempt ran.
    """

    def __init__(self, store: ObjectStore, directory: Path, namespace: str) -> None:
        self._store = store
        self._directory = directory
        self._prefix = f"ledger/{hashlib.sha256(namespace.encode(errors='surrogatepass')).hexdigest()[:32]}"
        self._asked: dict[str, float] = {}
        self._failed_at = -_PAUSE_S

    def save(self, attempt: str) -> None:
        """Copy the files of an attempt to the store."""
        if time.monotonic() - self._failed_at < _PAUSE_S:
            return
        head: list[tuple[str, int]] = []
        contents: list[bytes] = []
        for path in self._list_files(attempt):
            with suppress(FileNotFoundError):
                content = path.read_bytes()
                if sum(size for _, size in head) + len(content) <= _LARGEST:
                    head.append((path.relative_to(self._directory).as_posix(), len(content)))
                    contents.append(content)
        data = b"".join([json.dumps(head).encode(), b"\n", *contents])
        try:
            _ = self._store.id
            name, codec = self._name(attempt), self._store.codec
            self._store.put(name, codec.encode(name, codec.digest(data).encode() + data))
        except StoreError as error:
            self._failed_at = time.monotonic()
            _warn(f"the output and the changes of {attempt} were not copied to the store: {error}")

    def fetch(self, attempt: str) -> None:
        """Copy the files of an attempt from the store, unless this machine has them."""
        if not _ATTEMPT.fullmatch(attempt) or next(self._list_files(attempt), None) is not None:
            return
        if time.monotonic() - self._asked.get(attempt, -_ASK_AGAIN_S) < _ASK_AGAIN_S:
            return
        self._asked[attempt] = time.monotonic()
        name = self._name(attempt)
        try:
            _ = self._store.id
            if not self._store.has(name):  # it runs still, or ran without a store
                return
            content = self._store.read(name, self._check, limit=_LARGEST + (16 << 20))
            self._unpack(attempt, content)
        except (StoreError, DamagedObjectError, OSError) as error:
            _warn(f"the output and the changes of {attempt} could not be fetched: {error}")

    def collect(self, has_attempt: Callable[[str], bool]) -> int:
        """Delete the files of attempts that are no longer in the ledger from the store; return how many there were.

        An attempt is in the ledger before its files are in the store, so those of a new one are never deleted.
        """
        try:
            found = [path for path, _, _ in self._store.list_under(self._prefix)]
            gone = [path for path in found if not has_attempt(path.rpartition("/")[2])]
            self._store.delete(gone)
        except StoreError as error:
            _warn(f"the files of deleted attempts are still in the store: {error}")
            return 0
        return len(gone)

    def _name(self, attempt: str) -> str:
        return f"{self._prefix}/{attempt}"

    def _list_files(self, attempt: str) -> Iterator[Path]:
        for kind in ("output", "changes", "tests", "network"):
            for path in sorted(Path(self._directory, kind).glob(f"{attempt}.*")):
                yield from sorted(path.iterdir()) if path.is_dir() else [path]

    def _check(self, content: bytes) -> bytes:
        if self._store.codec.digest(content[_DIGEST:]).encode() != content[:_DIGEST]:
            raise DamagedObjectError("its content does not match its digest")
        return content[_DIGEST:]

    def _unpack(self, attempt: str, content: bytes) -> None:
        """Write the files, the output last: if it is there, ``fetch`` knows that all of them are."""
        first, _, rest = content.partition(b"\n")
        allowed = re.compile(_PATH.pattern.format(re.escape(attempt), re.escape(attempt)), re.ASCII)
        try:
            rows = [(str(path), int(size)) for path, size in json.loads(first)]
        except (ValueError, TypeError, RecursionError) as error:
            raise DamagedObjectError(f"its list of files is invalid: {str(error)[:100]}") from error
        is_sound = all(size >= 0 and allowed.fullmatch(path) for path, size in rows)
        if not is_sound or sum(size for _, size in rows) != len(rest):
            raise DamagedObjectError("its list of files is invalid")
        position, files = 0, []
        for path, size in rows:
            files.append((path, rest[position : position + size]))
            position += size
        for path, data in sorted(files, key=lambda file: file[0].startswith("output/")):
            target = self._directory / path
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(target, data)


def open_stored_files(directory: Path, namespace: str) -> StoredFiles:
    """Open the store that $FORKWISE_LEDGER_STORE names, with the key in $FORKWISE_STORE_KEY_FILE if it is encrypted."""
    location, key_file = os.environ["FORKWISE_LEDGER_STORE"], os.environ.get("FORKWISE_STORE_KEY_FILE")
    try:
        key = read_key_file(key_file) if key_file else None
    except (OSError, ValueError) as error:
        raise LedgerError(f"FORKWISE_LEDGER_STORE cannot be used: {error}") from error
    return StoredFiles(ObjectStore(location, key=key), directory, namespace)


def _warn(problem: str) -> None:
    warnings.warn(problem, ForkwiseWarning, stacklevel=3)
