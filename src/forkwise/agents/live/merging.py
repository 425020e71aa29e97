"""What a branch did to its files, event by event, and what became of it in the parent."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

__all__ = ["FileChange", "FileOperation", "FlushError", "FlushReport", "MergeResult"]

FileOperation = Literal["write", "edit", "delete", "mkdir", "rmdir"]


@dataclass(frozen=True)
class FileChange:
    """One write, edit or deletion in a branch, when it happened."""

    path: str
    op: FileOperation
    timestamp: datetime


@dataclass(frozen=True)
class FlushError:
    """A change that could not be made in the parent, and why."""

    path: str
    op: FileOperation
    message: str


@dataclass(frozen=True)
class FlushReport:
    """What became of a branch's changes in the parent.

    ``applied_changes`` counts operations, of which a path may have seen several. ``conflicts`` are paths that somebody
    else changed meanwhile; ``conflict_contents`` has the branch's version of each that was left alone (None: deleted
    there), so that nothing is lost; of a directory's files ``kept_branch`` names the branch that has those versions.
    """

    applied_paths: list[str]
    applied_changes: int
    conflicts: list[str]
    errors: list[FlushError]
    deleted_paths: list[str] = field(default_factory=list)
    conflict_contents: dict[str, bytes | None] = field(default_factory=dict)
    kept_branch: str | None = None


@dataclass
class MergeResult:
    """How a fork ended: the winner, the conversation to go on with, and what became of its files.

    The fields on files are those of `FlushReport`. ``blocked_commands`` are approvals the winner was refused.
    ``combined_branches`` are all whose work is in it, where several were combined; ``commit_id`` is what undoes it,
    where the parent is a workspace.
    """

    fork_id: str
    winner_branch_id: str
    discarded_branches: list[str]
    history_after_merge: list[Any]
    applied_paths: list[str] = field(default_factory=list)
    applied_changes: int = 0
    conflicts: list[str] = field(default_factory=list)
    errors: list[FlushError] = field(default_factory=list)
    deleted_paths: list[str] = field(default_factory=list)
    blocked_commands: list[str] = field(default_factory=list)
    conflict_contents: dict[str, bytes | None] = field(default_factory=dict)
    kept_branch: str | None = None
    combined_branches: list[str] = field(default_factory=list)
    commit_id: str | None = None
