"""Choosing: all that several sibling branches changed, path by path and hunk by hunk, and a new branch made of what
somebody chose of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from forkwise.errors import BranchError
from forkwise.files.branch import Branch, Parent
from forkwise.files.combine import scan_sibling, siblings
from forkwise.files.file_tree import FileTree
from forkwise.files.store.state import locked
from forkwise.files.versions import Versions, file_diffs
from forkwise.linux.trees import open_directory, open_root
from forkwise.text.diff import FileDiff, Side, is_text
from forkwise.text.merge3 import Alignment, Hunk, align

__all__ = ["AlignedPath", "Choice", "align_branches", "select"]

#: What is chosen at a path: the name of the branch whose version it is to be, or some hunks of any of them.
Choice = str | frozenset[Hunk]


@dataclass(frozen=True, slots=True)
class AlignedPath:
    """One path as the parent has it and as each branch that changed it does; None is where there is nothing.

    Where all of them are texts, and alike in all else, there is an ``alignment``: hunks can be chosen from it. Else one
    version is chosen whole.
    """

    path: str
    base: Side | None
    versions: Mapping[str, Side | None]
    alignment: Alignment | None


def align_branches(parent: Parent, branches: Mapping[str, Branch]) -> list[AlignedPath]:
    """What several branches of one parent changed, sorted by path; each branch is called as it is named here.
    Directories are not part of it: they come and go with what is in them.

    Raises what ``combine`` does: where a branch is stale, or clashes with what somebody else changed in the parent.

    >>> import tempfile, pathlib
    >>> from forkwise import Workspace
    >>> project = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (project / "a.txt").write_text("one\\ntwo\\nthree\\n")
    >>> ws = Workspace(project)
    >>> both = {"first": ws.branch("try-1"), "second": ws.branch("try-2")}
    >>> _ = (both["first"].path / "a.txt").write_text("1\\ntwo\\n3\\n")
    >>> _ = (both["second"].path / "a.txt").write_text("ein\\ntwo\\ndrei\\n")
    >>> [lineup] = line_up(ws, both)
    >>> top, bottom = lineup.alignment.regions
    >>> made = choose(ws, both, "made", {"a.txt": frozenset(top.of("first") + bottom.of("second"))})
    >>> (made.path / "a.txt").read_text()
    '1\\ntwo\\ndrei\\n'
    >>> for branch in ws.branches(): branch.abort()
    """
    siblings(parent, list(branches.values()))
    changed: dict[str, dict[str, FileDiff]] = {}
    with ExitStack() as held:
        held.enter_context(locked(parent.place.state))
        for name, branch in branches.items():
            scan = scan_sibling(branch)
            versions = held.enter_context(Versions(branch.target, branch.parent.lowers))
            for change in file_diffs(versions, scan):
                if change.old != change.new:
                    changed.setdefault(change.path, {})[name] = change
    return [_lineup(path, found) for path, found in sorted(changed.items())]


def select(parent: Parent, branches: Mapping[str, Branch], name: str, choice: Mapping[str, Choice]) -> Branch:
    """Make a branch ``name`` of ``parent`` that holds what was chosen, by path, of what several branches of it changed.
    Those stay as they are; a path that is not in the choice stays as the parent has it.

    BranchError where what was chosen is no longer there to be chosen, or overlaps, and what ``line_up`` raises.
    Whatever is raised, no new branch is left.
    """
    siblings(parent, list(branches.values()))
    made = parent.branch(name, on_success=None, on_error=None)
    try:
        there = _tree(made)
        # Lined up only now: what somebody else changes in the parent from here on is found by the new branch's commit.
        lineups = {lineup.path: lineup for lineup in align_branches(parent, branches)}
        for path, chosen in sorted(choice.items()):
            _write(there, branches, path, lineups.get(path), chosen)
        _drop_directories(
            there, branches.values(), {path for path, chosen in choice.items() if isinstance(chosen, str)}
        )
    except BaseException as error:
        made.abort()
        if isinstance(error, OSError | ValueError):
            raise BranchError(f"{made.branch_path} could not be made: {error}", branch=name) from error
        raise
    return made


def _lineup(path: str, found: Mapping[str, FileDiff]) -> AlignedPath:
    base = next(iter(found.values())).old
    versions = {name: change.new for name, change in found.items()}
    texts = {name: side.content for name, side in versions.items() if side is not None and side.content is not None}
    if base is None or base.content is None or len(texts) < len(versions):
        return AlignedPath(path, base, versions, None)
    modes = {base.mode, *(side.mode for side in versions.values() if side is not None)}
    is_alike = len(modes) == 1 and stat.S_ISREG(base.mode) and all(map(is_text, [base.content, *texts.values()]))
    return AlignedPath(path, base, versions, align(base.content, texts) if is_alike else None)


def _write(
    there: FileTree, branches: Mapping[str, Branch], path: str, lineup: AlignedPath | None, chosen: Choice
) -> None:
    if isinstance(chosen, str):
        if lineup is None or chosen not in lineup.versions:
            raise ValueError(f"{chosen} did not change {path}")
        if lineup.versions[chosen] is not None:
            there.copy_from(_tree(branches[chosen]), path)
        else:
            with suppress(FileNotFoundError, NotADirectoryError):  # it went with what was put in its directory's place
                there.remove(path)
    elif chosen:
        if lineup is None or lineup.alignment is None:
            raise ValueError(f"{path} has no hunks to choose from")
        there.write(path, lineup.alignment.apply(chosen))


def _drop_directories(there: FileTree, branches: Iterable[Branch], taken: set[str]) -> None:
    """Have the directories go that a branch removed, where all that was in them was chosen to go."""
    gone = {c.path for branch in branches for c in branch.delta() if c.kind == "deleted" and c.type == "directory"}
    root = open_root(there.root)
    try:
        for path in sorted(gone, key=len, reverse=True):
            if any(name.startswith(f"{path}/") for name in taken):
                with suppress(OSError):  # something is left in it, or it is not there any more
                    _rmdir(root, path)
    finally:
        os.close(root)


def _rmdir(root: int, path: str) -> None:
    above, _, name = path.rpartition("/")
    fd = open_directory(root, above, os.O_PATH)
    try:
        os.rmdir(name, dir_fd=fd)
    finally:
        os.close(fd)


def _tree(branch: Branch) -> FileTree:
    return FileTree(os.fspath(branch.path), os.fspath(branch.workspace.path))
