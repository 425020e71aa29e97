"""The public values: a change, a delta, a conflict, and a commit. Immutable, and without any access to the disk."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from forkwise.git.repository_change import RepositoryChange

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
    """One path that a branch added, changed or deleted, with its new ``size`` and ``mode`` (if deleted, the old).

    ``executor`` is the program on the user's machine that will run it, or run something because of it, such as ``git
    (hook pre-commit)``; empty for ordinary files. ``files`` is the number of changed files in a server's data
    directory, which is one change.
    """

    path: str
    kind: ChangeKind
    type: EntryType
    size: int
    mode: int
    executor: str = ""
    files: int = 0


@dataclass(frozen=True, slots=True)
class Delta:
    """All changes of a branch against its parent, sorted by path.

    They are changes to files. What the branch did to git repositories of the workspace is in ``repository``, one value
    for each; from a repository's own directory, ``changes`` has only what makes git run something, such as hooks.

    Names that are not UTF-8 are decoded as Python does everywhere (``os.fsdecode``).
    """

    changes: tuple[Change, ...]
    repository: tuple[RepositoryChange, ...] = ()

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    @property
    def added(self) -> tuple[str, ...]:
        """Added paths."""
        return self._of("added")

    @property
    def changed(self) -> tuple[str, ...]:
        """Paths whose content, type or metadata changed."""
        return self._of("changed")

    @property
    def deleted(self) -> tuple[str, ...]:
        """Deleted paths."""
        return self._of("deleted")

    @property
    def executable_config(self) -> tuple[tuple[str, str], ...]:
        """Paths that change what the user's machine will run, each with its ``executor``."""
        return tuple((c.path, c.executor) for c in self.changes if c.executor)

    @property
    def databases(self) -> str:
        """One line for each server's data directory that changed, to print before a diff; empty if none did."""
        return "".join(f"Database {c.path}: {c.files} files, {c.size} bytes\n" for c in self.changes if c.files)

    def add(self, changes: Iterable[Change]) -> Delta:
        """Return a delta with further changes."""
        return replace(self, changes=tuple(sorted((*self.changes, *changes), key=lambda c: c.path)))

    def _of(self, kind: ChangeKind) -> tuple[str, ...]:
        return tuple(c.path for c in self.changes if c.kind == kind)


def entry_type(mode: int) -> EntryType:
    """Return the type of entry that a mode describes."""
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
    """A path that both the branch and, since the fork, the parent changed.

    ``kind`` is what happened to it in the parent: ``changed``, ``deleted``, ``metadata`` (mode or owner of a
    directory), or, after an attempt to merge, ``unmerged``: both changed the same lines, or it is not text.
    """

    path: str
    kind: ConflictKind
    detail: str

    def __str__(self) -> str:
        return f"{self.path}: {self.detail}"


CommitKind = Literal["commit", "undo", "redo"]


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit (or undo, or redo), with the paths that it changed.

    ``conflicts`` are those that ``on_conflict`` decided, ``skipped`` the FIFOs, sockets and devices that were left
    out, ``executable_config`` the paths that change what the user's machine will run, each with what runs or reads it.
    ``repository`` says, in a sentence each, what was done in the workspace's git repositories.
    ``Workspace.undo`` takes its ``id``; ``undoes`` and ``undone_by`` link an undo and the commit that it undid.
    A commit by the workspace's own filesystem (BranchFS, DaxFS) has a ``note``: it cannot be undone and lists no paths.
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
    note: str = ""
    executable_config: tuple[tuple[str, str], ...] = ()
    repository: tuple[str, ...] = ()

    @property
    def undo_id(self) -> int:
        """The id to pass to ``Workspace.undo``."""
        return self.id

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths that it added, changed or deleted."""
        return (*self.added, *self.changed, *self.deleted)
