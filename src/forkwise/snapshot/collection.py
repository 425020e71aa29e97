"""Garbage collection of a store: objects that no snapshot and no packed delta names are removed.

The objects are listed before the headers, and no writer is active in between. So nothing that a header names, or that a
writer relies on, is ever removed.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

from forkwise.errors import SnapshotNotFoundError, StoreError
from forkwise.snapshot.header import read_header
from forkwise.snapshot.object_store import MARK_EXPIRY_S, HeaderKind, ObjectStore, list_marks

__all__ = ["Collection", "collect_garbage"]

_DEADLINE_S = 600.0  # far below the expiry of its mark, so that a suspended collector removes nothing later
_BATCH = 100


@dataclass(frozen=True, slots=True)
class Collection:
    """What a garbage collection removed, or would remove: objects and bytes. ``kept`` objects are in use."""

    removed: int
    bytes: int
    kept: int


def collect_garbage(store: ObjectStore, *, dry_run: bool = False) -> Collection:
    """Remove the objects of a store that neither a snapshot nor a packed delta needs.

    Raises StoreError, and removes nothing, while another process writes to the store, or if a header cannot be read,
    because then it is unknown what that header needs.
    """
    _ = store.id
    token = secrets.token_hex(16)
    mark = f"collectors/{token}"
    started = time.monotonic()
    store.put(mark, b"")
    try:
        _require_no_writer(store, mark)
        found = store.list_objects()
        named = _list_named(store)
        garbage = sorted(name for name in found if name not in named)
        if not dry_run:
            for start in range(0, len(garbage), _BATCH):
                if time.monotonic() - started > _DEADLINE_S:
                    raise StoreError(
                        f"the garbage collection of {store.location} took more than {_DEADLINE_S:.0f} s and stopped; "
                        "run it again to continue",
                        store=store.location,
                    )
                store.delete([f"objects/{name[:2]}/{name}" for name in garbage[start : start + _BATCH]])
            _forget_revoked(store, mark)
        return Collection(len(garbage), sum(found[name] for name in garbage), len(found) - len(garbage))
    finally:
        store.delete([mark])


def _require_no_writer(store: ObjectStore, mark: str) -> None:
    """Revoke writers that are presumed dead; raise StoreError if a writer or another collector is alive."""
    collectors, dead_collectors = list_marks(store, "collectors", mark)
    writers, dead_writers = list_marks(store, "writers", mark)
    if living := writers + collectors:
        raise StoreError(
            f"the garbage of {store.location} was not collected: {len(living)} other processes are using the store; "
            f"run it again later (the mark of a killed process expires after {MARK_EXPIRY_S / 60:.0f} minutes)",
            store=store.location,
        )
    # Only those that were listed: a writer that begins now sees this collector's mark, and waits.
    for path in dead_writers:
        store.put(path.replace("writers/", "revoked/"), b"")
        store.delete([path])
    store.delete(dead_collectors)


def _forget_revoked(store: ObjectStore, mark: str) -> None:
    """Delete the revocations that are so old that their writers cannot be alive."""
    now = store.find_time(mark)
    old = [p for p, _, at in store.list_under("revoked") if now and (now - at).total_seconds() > 24 * MARK_EXPIRY_S]
    store.delete(old)


def _list_named(store: ObjectStore) -> set[str]:
    kinds: tuple[HeaderKind, ...] = ("snapshots", "deltas")
    named: set[str] = set()
    for kind in kinds:
        for name in store.list_headers(kind):
            try:
                named.update(read_header(store, kind, name)["objects"])
            except SnapshotNotFoundError:
                continue  # deleted since it was listed
    return named
