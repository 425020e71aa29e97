"""BranchDiffReport: what the branches of a fork made of the same files, as a value that is shown, judged and scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

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


_T = TypeVar("_T")


class _Late(Generic[_T]):
    """A field that is worked out when it is first read, if what it was given is a function."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object | None, owner: type | None = None) -> _T:
        if instance is None:
            raise AttributeError(self._name)  # as for any field that has no default
        held: _T | Callable[[], _T] = instance.__dict__[self._name]
        if callable(held):
            held = instance.__dict__[self._name] = held()
        return held

    def __set__(self, instance: object, value: _T | Callable[[], _T]) -> None:
        instance.__dict__[self._name] = value


@dataclass(frozen=True)
class BranchChange:
    """What one branch made of a path in the end, against the parent.

    Of a large report most diffs are never read, so ``unified_diff_vs_parent`` is worked out when it is.
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

    def but(self, **fields: Any) -> BranchChange:
        """The same with other fields, and without working out the diff."""
        return BranchChange(**(vars(self) | fields))


BranchChange.unified_diff_vs_parent = _Late[str]("unified_diff_vs_parent")  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class PathDiff:
    """One path: what the parent has (None: nothing, or nothing that is text), and what each branch made of it."""

    path: str
    parent_content: str | None
    branches: dict[str, BranchChange]
    agreement: BranchDiffAgreement


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class DiffSummary:
    """All paths that any branch touched, in figures.

    ``agreement_score`` is 1 − split / touched: it measures conflict on the same path, so branches that each work on
    files of their own agree fully. ``content_agreement`` measures whether they did the same work, wherever: the share
    of changed lines that the branches have in common, 1.0 where all changed the same and 0.0 where no line is shared;
    None where fewer than two branches changed anything. It takes a look at every line, and so it is taken when somebody
    asks for it.
    """

    total_paths_touched: int
    unanimous_paths: int
    split_paths: int
    per_branch_unique: dict[str, int]
    agreement_score: float
    content_agreement: float | None = field(default_factory=_nothing)  # pydantic sets plain ones


DiffSummary.content_agreement = _Late[float | None]("content_agreement")  # type: ignore[assignment]


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
