"""Delta: what a branch changed, as a value that can be listed and shown without touching the branch again."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

__all__ = ["Change", "ChangeKind", "Delta", "EntryType", "entry_type"]

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
