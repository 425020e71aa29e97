"""The diff report of a fork's branches, and measures of how far the branches agree.

Agreement has two meanings, and both are measured. ``agreement_score`` counts conflicts per path: branches that edit
different files agree fully. ``content_agreement`` compares the changed lines themselves, in whichever files they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from forkwise.text.merge3 import Merge, merge

__all__ = [
    "BranchChange",
    "BranchDiffAgreement",
    "BranchDiffOperation",
    "BranchDiffReport",
    "DiffSummary",
    "PathDiff",
    "classify",
    "combination",
    "find_changed_lines",
    "measure_agreement",
    "measure_support",
]


BranchDiffAgreement = Literal["unanimous_change", "unanimous_no_change", "split", "unique"]
BranchDiffOperation = Literal["created", "modified", "deleted", "untouched"]


_T = TypeVar("_T")


class _LazyField(Generic[_T]):
    """A dataclass field that, if set to a function, is computed by it on the first read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object | None, owner: type | None = None) -> _T:
        if instance is None:
            raise AttributeError(self._name)  # as for any field without a default
        held: _T | Callable[[], _T] = instance.__dict__[self._name]
        if callable(held):
            held = instance.__dict__[self._name] = held()
        return held

    def __set__(self, instance: object, value: _T | Callable[[], _T]) -> None:
        instance.__dict__[self._name] = value


@dataclass(frozen=True)
class BranchChange:
    """The final state of a path in one branch, compared with the parent.

    ``unified_diff_vs_parent`` is computed on first use, because most diffs of a large report are never read.
    ``new_content`` is None for binary, deleted and untouched files. A renamed or copied file has the original path in
    ``renamed_from`` or ``copied_from`` and their ``similarity`` (1.0: identical); the original path of a rename has
    ``renamed_to``.
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

    def copy_with(self, **fields: Any) -> BranchChange:
        """Return a copy with other fields, without computing the diff."""
        return BranchChange(**(vars(self) | fields))


BranchChange.unified_diff_vs_parent = _LazyField[str]("unified_diff_vs_parent")  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class PathDiff:
    """One path: the parent's content (None if there is no file, or a binary one), and the change of each branch."""

    path: str
    parent_content: str | None
    branches: dict[str, BranchChange]
    agreement: BranchDiffAgreement


def _none() -> None:
    return None


@dataclass(frozen=True)
class DiffSummary:
    """Counts and scores over all paths that any branch touched.

    ``agreement_score`` is 1 − split / touched: it measures conflicts on the same path, so branches that change
    different files agree fully. ``content_agreement`` is the share of changed lines that the branches have in common,
    in whichever files: 1.0 if all made the same changes, 0.0 if no line is shared, None if fewer than two branches
    changed anything. It is computed on first use, because it reads every changed line.
    """

    total_paths_touched: int
    unanimous_paths: int
    split_paths: int
    per_branch_unique: dict[str, int]
    agreement_score: float
    content_agreement: float | None = field(default_factory=_none)  # a plain default would be set by pydantic


DiffSummary.content_agreement = _LazyField[float | None]("content_agreement")  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class BranchDiffReport:
    """The changes of a fork's branches: each path, in order, and a summary."""

    fork_id: str
    paths: list[PathDiff]
    summary: DiffSummary

    def changes_of(self, branch_id: str) -> list[tuple[PathDiff, BranchChange]]:
        """Return the paths that a branch changed, each with its change."""
        return [
            (path, change)
            for path in self.paths
            if (change := path.branches.get(branch_id)) is not None and change.operation != "untouched"
        ]


def classify(end_states: Sequence[Hashable]) -> BranchDiffAgreement:
    """Classify the agreement of the branches that touched a path, given its final state in each.

    >>> classify([b"x", b"x"]), classify([b"x", None]), classify([b"x"]), classify([])
    ('unanimous_change', 'split', 'unique', 'unanimous_no_change')
    """
    if not end_states:
        return "unanimous_no_change"
    if len(end_states) == 1:
        return "unique"
    return "unanimous_change" if len(set(end_states)) == 1 else "split"


def find_changed_lines(before: Set[bytes], after: Set[bytes]) -> frozenset[bytes]:
    r"""Return the added and removed lines, each with its sign, without trivial ones such as a single brace.

    >>> sorted(find_changed_lines({b"keep", b"  one"}, {b"keep", b"  two", b"}"}))
    [b'+two', b'-one']
    """
    added = (b"+" + line.strip() for line in after - before)
    removed = (b"-" + line.strip() for line in before - after)
    return frozenset(line for line in (*added, *removed) if len(line) > 2)


def measure_agreement(work: Mapping[str, Iterable[Hashable]]) -> float | None:
    """Measure how much of the work of several branches is the same, given the pieces (changed lines) of each.

    For two branches this is the Jaccard index: the pieces of both, divided by the pieces of either. For more, each
    piece counts by the share of other branches that have it. None if fewer than two branches have any.

    >>> measure_agreement({"a": {"+x", "+y"}, "b": {"+y"}}), measure_agreement({"a": {"+x"}, "b": {"+y"}})
    (0.5, 0.0)
    """
    branches = [pieces for each in work.values() if (pieces := frozenset(each))]
    if len(branches) < 2:
        return None
    counts = Counter(piece for pieces in branches for piece in pieces)
    return sum(count - 1 for count in counts.values()) / (len(counts) * (len(branches) - 1))


def measure_support(report: BranchDiffReport, branch_id: str) -> float:
    """Measure how far the other branches made the same changes: the mean share of others, over its changed paths.

    A branch that changed nothing has support 1.0 if no other branch changed anything either, else 0.0. A branch without
    others has 1.0, because nothing contradicts it.

    >>> from forkwise.live.diff.diff_report import DiffSummary
    >>> measure_support(BranchDiffReport("f", [], DiffSummary(0, 0, 0, {}, 1.0)), "a")
    1.0
    """
    shares = []
    for path, own in report.changes_of(branch_id):
        state = (own.operation, own.new_content, own.binary_sha256)
        others = [change for other, change in path.branches.items() if other != branch_id]
        if not others:
            return 1.0
        shares.append(sum((c.operation, c.new_content, c.binary_sha256) == state for c in others) / len(others))
    if shares:
        return sum(shares) / len(shares)
    return 1.0 if all(c.operation == "untouched" for p in report.paths for c in p.branches.values()) else 0.0


def combination(path: PathDiff) -> Merge | None:
    """Merge all branches' versions of a path, line by line.

    The merge of a split path is clean if each branch changed different lines; else it stops at the first branch that
    conflicts. None if a version cannot be merged, because it is binary or the path was deleted.
    """
    touched = [change for change in path.branches.values() if change.operation != "untouched"]
    if any(change.new_content is None for change in touched):
        return None
    base = (path.parent_content or "").encode()
    merged = Merge(base, ())
    for content in dict.fromkeys(change.new_content for change in touched):
        both = merge(base, merged.content, (content or "").encode())
        merged = Merge(both.content, merged.conflicts + both.conflicts)
        if merged.conflicts:
            return merged
    return merged
