"""Commit: a delta that was applied to a parent through the journal, and that can be undone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from forkwise.files.conflict import Conflict

__all__ = ["Commit", "CommitKind"]

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
