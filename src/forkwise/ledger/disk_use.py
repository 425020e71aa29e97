"""Disk use: what branches, undo records, logs and caches of a workspace occupy.

Each file counts once, however many names it has, with the blocks it occupies: holes count as nothing. Blocks that files
share on btrfs or XFS count for each of them, because finding out would be expensive.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forkwise.files.store.state import read_workspace

if TYPE_CHECKING:
    from forkwise.files.workspace import Workspace

__all__ = ["KINDS", "DiskUse", "list_disk_use", "measure_disk_use"]

#: The kinds of data. ``changes`` is what attempts changed, as the ledger keeps it, ``caches`` are prepared branches and
#: mirrors, ``trash`` is what is being deleted.
KINDS = ("branches", "undo", "logs", "changes", "ledger", "caches", "trash", "other")

_MAX_PATH = 2000  # characters; the kernel accepts 4095 bytes
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class DiskUse:
    """The bytes that the state of one workspace occupies, by kind, by branch and by commit.

    ``workspace`` is None if the state does not say which workspace it belongs to. ``unreadable`` counts directories
    that could not be read.
    """

    workspace: str | None
    state: str
    kinds: dict[str, int]
    branches: dict[str, int] = field(default_factory=dict)
    undo: dict[int, int] = field(default_factory=dict)
    unreadable: int = 0

    @property
    def total(self) -> int:
        """The bytes of everything."""
        return sum(self.kinds.values())


def list_disk_use(workspace: Workspace) -> list[DiskUse]:
    """Measure the state of every workspace in the same state root as ``workspace``, the largest first."""
    root = os.path.dirname(workspace.state_dir.state)
    seen: set[tuple[int, int]] = set()
    with os.scandir(root) as entries:
        states = sorted(e.path for e in entries if e.is_dir(follow_symlinks=False) and _is_state(e.path))
    return sorted((_measure(state, seen) for state in states), key=lambda use: -use.total)


def measure_disk_use(workspace: Workspace) -> DiskUse:
    """Measure the state of a workspace."""
    return _measure(workspace.state_dir.state, set())


def _is_state(path: str) -> bool:
    return all(os.path.isdir(f"{path}/{name}") for name in ("head", "history", "branches"))


def _measure(state: str, seen: set[tuple[int, int]]) -> DiskUse:
    known = read_workspace(state)
    kinds: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
    branches: Counter[str] = Counter()
    undo: Counter[int] = Counter()
    walk = _Walk(seen)
    for path, size in walk.entries(state):
        parts = path.split("/", 2)
        kind = _find_kind(parts)
        kinds[kind] += size
        if kind == "branches" and len(parts) > 1:
            branches[parts[1]] += size
        elif kind == "undo" and len(parts) > 1 and parts[1].isdecimal():
            undo[int(parts[1])] += size
    return DiskUse(
        None if known is None else known[0],
        state,
        dict(kinds),
        dict(branches.most_common()),
        dict(sorted(undo.items())),
        walk.unreadable,
    )


def _find_kind(parts: list[str]) -> str:
    top, below = parts[0], parts[1] if len(parts) > 1 else ""
    if top == "branches":
        return "caches" if below.startswith(".") else "branches"
    if top == "ledger":
        return {"output": "logs", "detached": "logs", "changes": "changes"}.get(below, "ledger")
    if top.startswith(".probe-"):
        return "trash"
    return {"history": "undo", "mirrors": "caches", "trash": "trash"}.get(top, "other")


class _Walk:
    """One walk over a state directory; ``seen`` are the files that were counted."""

    def __init__(self, seen: set[tuple[int, int]]) -> None:
        self._seen = seen
        self._device = -1
        self._open_fds: list[int] = []
        self.unreadable = 0

    def entries(self, root: str) -> Iterator[tuple[str, int]]:
        """Yield the relative path, cut if it is long, and the size of each entry. Mounts are not entered."""
        self._device = os.stat(root).st_dev
        pending = [("", root)]
        try:
            while pending:
                relative, path = pending.pop()
                try:
                    with os.scandir(self._shorten(path)) as entries:
                        for entry in entries:
                            below = f"{relative}/{entry.name}" if relative else entry.name
                            yield from self._measure(entry, below, pending)
                except FileNotFoundError:
                    continue  # deleted meanwhile
                except OSError:
                    self.unreadable += 1
        finally:
            for fd in self._open_fds:
                os.close(fd)

    def _measure(
        self, entry: os.DirEntry[str], below: str, pending: list[tuple[str, str]]
    ) -> Iterator[tuple[str, int]]:
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        is_directory = entry.is_dir(follow_symlinks=False)
        if found.st_dev != self._device:
            return
        if is_directory:
            pending.append((below[:_MAX_PATH], entry.path))
        elif found.st_nlink > 1:
            if (found.st_dev, found.st_ino) in self._seen:
                return
            self._seen.add((found.st_dev, found.st_ino))
        yield below[:_MAX_PATH], found.st_blocks * _BLOCK

    def _shorten(self, path: str) -> str:
        """Return a shorter path to the same directory: a tree can be deeper than a path may be long."""
        if len(path) < _MAX_PATH:
            return path
        self._open_fds.append(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))
        return f"/proc/self/fd/{self._open_fds[-1]}"
