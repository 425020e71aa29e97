"""Commit: a delta that was applied to a parent through the journal, and that can be undone."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

__all__ = [
    "Change",
    "ChangeKind",
    "Commit",
    "CommitKind",
    "Conflict",
    "ConflictKind",
    "ConflictPolicy",
    "Delta",
    "EntryType",
    "OnConflict",
    "entry_type",
]


ChangeKind = Literal["added", "changed", "deleted"]
EntryType = Literal["file", "directory", "symlink", "special"]


@dataclass(frozen=True, slots=True)
class Change:
    """One path a branch added, changed or deleted. ``size`` and ``mode`` are the new ones (the old, if deleted)."""

    path: str
    kind: ChangeKind
    type: EntryType
    size: int
    mode: int


@dataclass(frozen=True, slots=True)
class Delta:
    """All that a branch changed against its parent, sorted by path.

    Names that are not UTF-8 are held as Python holds them everywhere (``os.fsdecode``).
    """

    changes: tuple[Change, ...]

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    @property
    def added(self) -> tuple[str, ...]:
        """Paths that are new."""
        return self._of("added")

    @property
    def changed(self) -> tuple[str, ...]:
        """Paths whose content, type or metadata is another."""
        return self._of("changed")

    @property
    def deleted(self) -> tuple[str, ...]:
        """Paths that are gone."""
        return self._of("deleted")

    def _of(self, kind: ChangeKind) -> tuple[str, ...]:
        return tuple(c.path for c in self.changes if c.kind == kind)


def entry_type(mode: int) -> EntryType:
    """What kind of thing a mode describes."""
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "symlink" if stat.S_ISLNK(mode) else "special"


ConflictKind = Literal["changed", "deleted", "metadata", "unmerged"]
OnConflict = Literal["refuse", "ours", "theirs", "merge"]

#: Which version of a path wins if both the winning branch and another writer changed it: the parent's newer one, or the
#: winner's.
ConflictPolicy = Literal["keep_newer", "last_write_wins"]


@dataclass(frozen=True, slots=True)
class Conflict:
    """A path that the branch changed and that is no longer what it was forked from.

    ``kind`` says what happened to it in the parent: ``changed``, ``deleted``, ``metadata`` (mode or owner of a
    directory), or, after a merge was tried, ``unmerged``: both changed the same lines, or it is not text.
    """

    path: str
    kind: ConflictKind
    detail: str

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


CommitKind = Literal["commit", "undo", "redo"]


@dataclass(frozen=True, slots=True)
class Commit:
    """What one commit (or undo, or redo) did.

    ``conflicts`` are those that ``on_conflict`` decided, ``skipped`` the FIFOs, sockets and devices that were left
    out. ``id`` is what ``Workspace.undo`` takes; ``undoes`` and ``undone_by`` tie an undo to what it took back.
    """

    id: int
    kind: CommitKind
    branch: str
    at: datetime
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    skipped: tuple[str, ...] = ()
    undoes: int | None = None
    undone_by: int | None = None
    durable: bool = True

    @property
    def undo_id(self) -> int:
        """The number to give to ``Workspace.undo``."""
        return self.id

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path it touched."""
        return (*self.added, *self.changed, *self.deleted)
