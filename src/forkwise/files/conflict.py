"""Conflict: a path that both a branch and somebody else changed since the fork. A value, passed around and shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Conflict", "ConflictKind", "OnConflict"]

ConflictKind = Literal["changed", "deleted", "metadata", "unmerged"]
OnConflict = Literal["refuse", "ours", "theirs", "merge"]


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
