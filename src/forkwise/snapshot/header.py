"""Headers: the small documents that name every object a snapshot or a packed delta needs, and describe it.

A header is addressed by its own digest. Garbage collection reads nothing else.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from forkwise.errors import SnapshotNotFoundError
from forkwise.snapshot.manifest import check_digest
from forkwise.snapshot.pack import DamagedObjectError

if TYPE_CHECKING:
    from forkwise.snapshot.object_store import HeaderKind, ObjectStore, Writer

__all__ = ["check_texts", "find_header", "read_header", "write_header"]

_FORMAT = 1
_LONGEST_TEXT = 4096


def write_header(writer: Writer, kind: HeaderKind, about: dict[str, Any], objects: list[str]) -> str:
    """Store a header that names ``objects``, all of which must be stored already; return its id."""
    content = json.dumps({"format": _FORMAT, "objects": objects, **about}, separators=(",", ":")).encode()
    name = writer.store.codec.digest(content)
    writer.put_header(kind, name, content)
    return name


def read_header(store: ObjectStore, kind: HeaderKind, name: str) -> dict[str, Any]:
    """Read a header, and check its digest, its format and the names of its objects; the caller checks the rest."""
    _ = store.id

    def check(content: bytes) -> dict[str, Any]:
        if store.codec.digest(content) != name:
            raise DamagedObjectError("its content does not match its digest")
        try:
            found = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise DamagedObjectError(f"it is not JSON: {str(error)[:100]}") from error
        if not isinstance(found, dict) or not isinstance(found.get("objects"), list):
            raise DamagedObjectError("it is malformed")
        if found.get("format") != _FORMAT:
            raise DamagedObjectError(f"its format {str(found.get('format'))[:20]} is not {_FORMAT}")
        for one in found["objects"]:
            check_digest(one)
        return found

    return store.read_header(kind, name, check)


def find_header(store: ObjectStore, kind: HeaderKind, word: str) -> str:
    """Return the id that begins with ``word``; SnapshotNotFoundError if there is none, or more than one."""
    found = [name for name in store.list_headers(kind) if word and name.startswith(word)]
    if len(found) == 1:
        return found[0]
    noun, shown = kind.removesuffix("s"), repr(word[:80])
    problem = (
        f"{len(found)} ids in {store.location} begin with {shown}: give more of it"
        if found
        else (f"no {noun} in {store.location} is called {shown}, or has an id that begins with that")
    )
    raise SnapshotNotFoundError(
        f"{problem}; list them with: forkwise snapshot ls",
        store=store.location,
        name=word,
    )


def check_texts(values: Any) -> tuple[str, ...]:
    """Return a list of texts from a header as a tuple; DamagedObjectError if it is not a list of texts."""
    if not isinstance(values, list) or not all(isinstance(v, str) and len(v) <= _LONGEST_TEXT for v in values):
        raise DamagedObjectError("a list of texts is malformed")
    return tuple(values)
