"""Comparison: what lies between a branch and its parent, file by file, and between two branches of one parent, as text.
Read from their layers, so that it costs what they changed, and no view is brought up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from heapq import merge
from itertools import groupby

from forkwise.errors import BranchError
from forkwise.files.branch import Branch
from forkwise.files.diff import FileDiff, unified
from forkwise.files.state import locked
from forkwise.files.versions import Versions, file_diffs

__all__ = ["changed_files", "compare"]


def changed_files(branch: Branch) -> list[FileDiff]:
    """Both versions of every file and link that a branch changed, sorted by path; of large ones only the size."""
    with ExitStack() as held:
        held.enter_context(locked(branch.place.state))
        return list(_changes(branch, held))


def compare(first: Branch, second: Branch) -> str:
    """What turns the first of two siblings into the second, as unified text that ``git apply`` takes.

    >>> import tempfile, pathlib
    >>> from forkwise import Workspace
    >>> ws = Workspace(tempfile.mkdtemp())
    >>> one, two = ws.branch("one"), ws.branch("two")
    >>> _ = (one.path / "a.txt").write_text("yes\\n"), (two.path / "a.txt").write_text("no\\n")
    >>> print(*compare(one, two).splitlines()[-2:])
    -yes +no
    >>> for branch in ws.branches(): branch.abort()
    """
    if first.parent.place.path != second.parent.place.path:
        raise BranchError(
            f"{second.branch_path} is not made from what {first.branch_path} is made from: only siblings are compared",
            branch=second.name,
        )
    with ExitStack() as held:
        held.enter_context(locked(first.place.state))
        return unified(_between(_changes(first, held), _changes(second, held)))


def _changes(branch: Branch, held: ExitStack) -> Iterator[FileDiff]:
    branch.settle()
    versions = held.enter_context(Versions(branch.target, branch.parent.lowers))
    return file_diffs(versions, branch.scan())


def _between(first: Iterator[FileDiff], second: Iterator[FileDiff]) -> Iterator[FileDiff]:
    """Both are sorted by path, so that one is held at a time. What one left alone is there as the other found it."""
    told = merge(((0, change) for change in first), ((1, change) for change in second), key=lambda t: (t[1].path, t[0]))
    for path, changes in groupby(told, key=lambda t: t[1].path):
        by = dict(changes)
        if len(by) == 2:
            yield FileDiff(path, by[0].new, by[1].new)
        else:
            yield by[1] if 1 in by else FileDiff(path, by[0].new, by[0].old)
