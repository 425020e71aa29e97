"""The diff of a commit, long after its branch is gone: what it replaced is in its undo record."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forkwise.errors import CommitError
from forkwise.files.addressed import AddressedTree
from forkwise.files.ancestor import slot_of, standing, step_on
from forkwise.files.diff import LIMIT, FileDiff, Side, unified
from forkwise.files.record import Record
from forkwise.files.state import locked

if TYPE_CHECKING:
    from forkwise.files.workspace import Workspace

__all__ = ["commit_diff"]


def commit_diff(workspace: Workspace, number: int) -> str:
    """What a commit into a workspace changed, as unified text that ``git apply`` takes.

    CommitError for one that was undone, or whose record was collected. Where somebody has changed a path since, by
    hand and not by a commit, it is shown as it is now.

    >>> import tempfile
    >>> from forkwise import Workspace
    >>> ws = Workspace(tempfile.mkdtemp())
    >>> with ws.branch("try", on_success="commit") as branch:
    ...     _ = (branch.path / "a.txt").write_text("new\\n")
    >>> print(commit_diff(ws, 1).splitlines()[-1])
    +new
    """
    with locked(workspace.place.state):
        records = standing(workspace.place, number - 1)
        if not records or records[0].number != number:
            raise CommitError(f"commit {number} does not stand any more: it was undone, or collected")
        first, *later = records
        tree = AddressedTree(workspace.target, workspace.target)
        changes = [
            FileDiff(path, _before(workspace, [first], path), _before(workspace, later, path, tree))
            for path in sorted({*first.added, *first.changed, *first.deleted})
        ]
    return unified(changes)


def _before(
    workspace: Workspace, records: Sequence[Record], path: str, now: AddressedTree | None = None
) -> Side | None:
    """What a path was before the first of some commits that changed it; where none did, what it is ``now``."""
    for record in records:
        if (step := step_on(record, path)) is not None:
            return None if step[1].code in ("put", "mkdir") else _kept(slot_of(workspace, record, *step))
    return None if now is None else _found(now, path)


def _kept(path: str) -> Side | None:
    """What lies in a slot, where nobody but forkwise writes."""
    directory, _, name = path.rpartition("/")
    return _found(AddressedTree(directory, directory), name) if os.path.isdir(directory) else None


def _found(tree: AddressedTree, path: str) -> Side | None:
    entry = tree.entry(path)
    if entry is None or not (stat.S_ISREG(entry.st_mode) or stat.S_ISLNK(entry.st_mode)):
        return None
    return Side(entry.st_mode, None if entry.st_size > LIMIT else tree.content(path), entry.st_size)
