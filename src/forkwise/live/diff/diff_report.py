"""Agreement: how the branches of a fork relate, path by path as the guide counts it, and by the work itself.

The guide's score measures conflict: branches that each edit other files agree fully. Whether they did the *same* work
is another question, answered here by the changed lines, wherever they stand.
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
    "changed_lines",
    "classify",
    "combination",
    "content_agreement",
    "support",
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


def classify(end_states: Sequence[Hashable]) -> BranchDiffAgreement:
    """How the branches that touched a path relate, by the state each left it in.

    >>> classify([b"x", b"x"]), classify([b"x", None]), classify([b"x"]), classify([])
    ('unanimous_change', 'split', 'unique', 'unanimous_no_change')
    """
    if not end_states:
        return "unanimous_no_change"
    if len(end_states) == 1:
        return "unique"
    return "unanimous_change" if len(set(end_states)) == 1 else "split"


def changed_lines(before: Set[bytes], after: Set[bytes]) -> frozenset[bytes]:
    r"""The lines that only one of two texts has, each with its sign; none that say nothing, like a brace.

    >>> sorted(changed_lines({b"keep", b"  one"}, {b"keep", b"  two", b"}"}))
    [b'+two', b'-one']
    """
    added = (b"+" + line.strip() for line in after - before)
    removed = (b"-" + line.strip() for line in before - after)
    return frozenset(line for line in (*added, *removed) if len(line) > 2)


def content_agreement(work: Mapping[str, Iterable[Hashable]]) -> float | None:
    """How much of the work of several branches is the same, by the pieces (changed lines) of each.

    Of all the places where a piece could be shared, the share where it is: for two branches, what both have among
    all that either has. None where fewer than two branches did anything.

    >>> content_agreement({"a": {"+x", "+y"}, "b": {"+y"}}), content_agreement({"a": {"+x"}, "b": {"+y"}})
    (0.5, 0.0)
    """
    done = [pieces for each in work.values() if (pieces := frozenset(each))]
    if len(done) < 2:
        return None
    having = Counter(piece for pieces in done for piece in pieces)
    return sum(count - 1 for count in having.values()) / (len(having) * (len(done) - 1))


def support(report: BranchDiffReport, branch_id: str) -> float:
    """How far the others did what this branch did: of its changed paths, the mean share of others that left the same.

    A branch that changed nothing is supported by those that changed nothing either. With no others it is 1.0: nothing
    speaks against it.

    >>> from forkwise.live.diff.diff_report import DiffSummary
    >>> support(BranchDiffReport("f", [], DiffSummary(0, 0, 0, {}, 1.0)), "a")
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
    r"""What the versions of a path that several branches changed come to together, conflicts and all.

    Versions that split may still go together, where each changed other lines: then the merge is clean. None where they
    cannot be merged line by line, because one deleted the path, or is not text.
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
