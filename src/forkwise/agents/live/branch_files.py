"""BranchFiles: what a diff needs to know of a branch's files, whatever keeps them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

__all__ = ["BranchFiles", "BranchModes"]


class BranchFiles(Protocol):
    """The files of a branch, and of what it was forked from."""

    def touched(self) -> Iterable[str]:
        """The paths of all files that the branch wrote or deleted; each once, in any order."""
        ...

    def old(self, path: str) -> bytes | None:
        """What the parent had there at the fork; None where there was no file."""
        ...

    def new(self, path: str) -> bytes | None:
        """What the branch has there; None where there is no file."""
        ...


@runtime_checkable
class BranchModes(Protocol):
    """The permissions of a branch's files, for those that have them: a full ``st_mode``, or None for no file."""

    def old_mode(self, path: str) -> int | None:
        """That in the parent."""
        ...

    def new_mode(self, path: str) -> int | None:
        """That in the branch."""
        ...
