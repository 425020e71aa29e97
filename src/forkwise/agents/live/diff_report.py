"""BranchDiffReport: what the branches of a fork made of the same files, as a value that is shown, judged and scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "BranchChange",
    "BranchDiffAgreement",
    "BranchDiffOperation",
    "BranchDiffReport",
    "DiffSummary",
    "PathDiff",
]

BranchDiffAgreement = Literal["unanimous_change", "unanimous_no_change", "split", "unique"]
BranchDiffOperation = Literal["created", "modified", "deleted", "untouched"]


@dataclass(frozen=True, slots=True)
class BranchChange:
    """What one branch made of a path in the end, against the parent.

    ``new_content`` is None for what is binary, deleted or untouched. A file that came from another has that one's path
    in ``renamed_from`` or ``copied_from``, with how alike they are (1.0: the same) in ``similarity``; the path that it
    left has ``renamed_to``.
    """

    branch_id: str
    branch_label: str
    operation: BranchDiffOperation
    new_content: str | None
    unified_diff_vs_parent: str
    size_bytes: int
    is_binary: bool
    binary_sha256: str | None = None
    renamed_from: str | None = None
    copied_from: str | None = None
    renamed_to: str | None = None
    similarity: float | None = None


@dataclass(frozen=True, slots=True)
class PathDiff:
    """One path: what the parent has (None: nothing, or nothing that is text), and what each branch made of it."""

    path: str
    parent_content: str | None
    branches: dict[str, BranchChange]
    agreement: BranchDiffAgreement


@dataclass(frozen=True, slots=True)
class DiffSummary:
    """All paths that any branch touched, in figures.

    ``agreement_score`` is 1 − split / touched: it measures conflict on the same path, so branches that each work on
    files of their own agree fully. ``content_agreement`` measures whether they did the same work, wherever: the share
    of changed lines that the branches have in common, 1.0 where all changed the same and 0.0 where no line is shared;
    None where fewer than two branches changed anything.
    """

    total_paths_touched: int
    unanimous_paths: int
    split_paths: int
    per_branch_unique: dict[str, int]
    agreement_score: float
    content_agreement: float | None = None


@dataclass(frozen=True, slots=True)
class BranchDiffReport:
    """What the branches of a fork changed, path by path in order, and in figures."""

    fork_id: str
    paths: list[PathDiff]
    summary: DiffSummary

    def changes_of(self, branch_id: str) -> list[tuple[PathDiff, BranchChange]]:
        """The paths that one branch changed, each with what it made of it."""
        return [
            (path, change)
            for path in self.paths
            if (change := path.branches.get(branch_id)) is not None and change.operation != "untouched"
        ]
