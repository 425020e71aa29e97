"""Selection from sibling branches: align their changes by path and hunk, and create a branch from the user's choice."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkwise.errors import BranchError
from forkwise.files.combine import copy_repositories, mark_replaced, scan_sibling, siblings
from forkwise.files.file_tree import FileTree
from forkwise.files.store.state import locked
from forkwise.files.versions import Versions, file_diffs, read_repositories
from forkwise.linux.trees import open_directory, open_root
from forkwise.text.diff import FileDiff, FileVersion, is_text
from forkwise.text.merge3 import Alignment, Hunk, align

if TYPE_CHECKING:
    from forkwise.files.branch import Branch, Parent
    from forkwise.git.repository_change import RepositoryChange

__all__ = ["AlignedPath", "Choice", "Selection", "align_branches", "align_path", "build_selection", "select"]

#: The choice for a path: the name of the branch whose version to take, or hunks of any of the branches.
Choice = str | frozenset[Hunk]


@dataclass(frozen=True, slots=True)
class AlignedPath:
    """One path in the parent and in each branch that changed it; None means that it does not exist there.

    If all versions are text files of the same mode there is an ``alignment`` from which hunks can be chosen; otherwise
    only a whole version can be.
    """

    path: str
    base: FileVersion | None
    versions: Mapping[str, FileVersion | None]
    alignment: Alignment | None


@dataclass(frozen=True, slots=True)
class Selection:
    """A new branch with chosen changes; ``left_repositories`` is as in ``Combination``."""

    branch: Branch
    left_repositories: Mapping[str, tuple[RepositoryChange, ...]]


def align_branches(parent: Parent, branches: Mapping[str, Branch]) -> list[AlignedPath]:
    """Align the changes of several branches of one parent, sorted by path; versions are keyed like ``branches``.

    Directories are left out: they are created and removed with the files in them. Raises BranchStaleError if a branch
    is stale, ConflictError if the same paths were changed in the parent since the fork, as ``combine`` does.

    >>> import tempfile, pathlib
    >>> from forkwise import Workspace
    >>> project = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (project / "a.txt").write_text("one\\ntwo\\nthree\\n")
    >>> ws = Workspace(project)
    >>> both = {"first": ws.branch("try-1"), "second": ws.branch("try-2")}
    >>> _ = (both["first"].path / "a.txt").write_text("1\\ntwo\\n3\\n")
    >>> _ = (both["second"].path / "a.txt").write_text("ein\\ntwo\\ndrei\\n")
    >>> [aligned] = align_branches(ws, both)
    >>> top, bottom = aligned.alignment.regions
    >>> mixed = select(ws, both, "mixed", {"a.txt": frozenset(top.of("first") + bottom.of("second"))})
    >>> (mixed.path / "a.txt").read_text()
    '1\\ntwo\\ndrei\\n'
    >>> for branch in ws.branches(): branch.abort()
    """
    siblings(parent, list(branches.values()))
    changed: dict[str, dict[str, FileDiff]] = {}
    with ExitStack() as stack:
        stack.enter_context(locked(parent.state_dir.state))
        for name, branch in branches.items():
            scan = scan_sibling(branch)
            versions = stack.enter_context(Versions.of(branch))
            for change in file_diffs(versions, scan):
                if change.old != change.new:
                    changed.setdefault(change.path, {})[name] = change
    return [align_path(path, found) for path, found in sorted(changed.items())]


def select(parent: Parent, branches: Mapping[str, Branch], name: str, choice: Mapping[str, Choice]) -> Branch:
    """Create a branch ``name`` of ``parent`` with the chosen changes of several of its branches.

    ``choice`` maps paths to what to take; other paths keep the parent's version. ``branches`` are not changed. Raises
    BranchError if a chosen change no longer exists or chosen hunks overlap, and what ``align_branches`` raises. If it
    raises, no new branch is left.
    """
    return build_selection(parent, branches, name, choice).branch


def build_selection(
    parent: Parent, branches: Mapping[str, Branch], name: str, choice: Mapping[str, Choice]
) -> Selection:
    """Create a branch as ``select`` does, and return it with the work in git repositories that is not part of it.

    A branch's work in git repositories is part of the selection if exactly that branch's changes to files were chosen.
    """
    siblings(parent, list(branches.values()))
    branch = parent.branch(name, on_success=None, on_error=None)
    try:
        tree = _tree(branch)
        if any(source.is_confined for source in branches.values()):
            branch.mark_confined()
        if ignored := [source.ignore for source in branches.values() if source.ignore]:
            branch.set_ignore(ignored[0])
        # Align only after the fork: whatever changes in the parent from now on is found by the new branch's commit.
        paths = {aligned.path: aligned for aligned in align_branches(parent, branches)}
        for path, chosen in sorted(choice.items()):
            _write(tree, branches, path, paths.get(path), chosen)
        _drop_directories(tree, branches.values(), {path for path, chosen in choice.items() if isinstance(chosen, str)})
        left = _select_repositories(branch, branches, paths, choice)
    except BaseException as error:
        branch.abort()
        if isinstance(error, OSError | ValueError):
            raise BranchError(f"{branch.branch_path} could not be created: {error}", branch=name) from error
        raise
    return Selection(branch, left)


def _select_repositories(
    made: Branch, branches: Mapping[str, Branch], paths: Mapping[str, AlignedPath], choice: Mapping[str, Choice]
) -> dict[str, tuple[RepositoryChange, ...]]:
    """Copy the work in git repositories of the one branch whose changes were all chosen; return that of the others."""
    with locked(made.parent.state_dir.state):
        scans = {name: scan_sibling(branch) for name, branch in branches.items()}
        left = {name: found for name, scan in scans.items() if (found := read_repositories(branches[name], scan))}
        whole = [
            name for name in left if all(_is_version(path, choice.get(path.path), name) for path in paths.values())
        ]
        if len(whole) == 1:
            view, source = os.fspath(made.path), branches[whole[0]]
            mark_replaced(made, copy_repositories(view, source, scans[whole[0]]))
            del left[whole[0]]
    return left


def _is_version(aligned: AlignedPath, chosen: Choice | None, name: str) -> bool:
    """Return whether the choice for a path results in a branch's version of it."""
    wanted = aligned.versions.get(name, aligned.base)
    if isinstance(chosen, str):
        return aligned.versions.get(chosen) == wanted
    if not chosen or aligned.alignment is None:
        return wanted == aligned.base
    return wanted is not None and aligned.alignment.apply(chosen) == wanted.content


def align_path(path: str, found: Mapping[str, FileDiff]) -> AlignedPath:
    """Align the changes of one path; ``found`` maps the name of each branch to its change."""
    base = next(iter(found.values())).old
    versions = {name: change.new for name, change in found.items()}
    texts = {
        name: version.content
        for name, version in versions.items()
        if version is not None and version.content is not None
    }
    if base is None or base.content is None or len(texts) < len(versions):
        return AlignedPath(path, base, versions, None)
    modes = {base.mode, *(version.mode for version in versions.values() if version is not None)}
    is_alike = len(modes) == 1 and stat.S_ISREG(base.mode) and all(map(is_text, [base.content, *texts.values()]))
    return AlignedPath(path, base, versions, align(base.content, texts) if is_alike else None)


def _write(
    tree: FileTree, branches: Mapping[str, Branch], path: str, aligned: AlignedPath | None, chosen: Choice
) -> None:
    if isinstance(chosen, str):
        if aligned is None or chosen not in aligned.versions:
            raise ValueError(f"{chosen} did not change {path}")
        if aligned.versions[chosen] is not None:
            tree.copy_from(_tree(branches[chosen]), path)
        else:
            with suppress(FileNotFoundError, NotADirectoryError):  # removed already with its directory
                tree.remove(path)
    elif chosen:
        if aligned is None or aligned.alignment is None:
            raise ValueError(f"{path} has no hunks to choose from")
        tree.write(path, aligned.alignment.apply(chosen))


def _drop_directories(tree: FileTree, branches: Iterable[Branch], taken: set[str]) -> None:
    """Remove the directories that a branch removed, if the choice has emptied them."""
    removed = {c.path for branch in branches for c in branch.delta() if c.kind == "deleted" and c.type == "directory"}
    root = open_root(tree.root)
    try:
        for path in sorted(removed, key=len, reverse=True):
            if any(name.startswith(f"{path}/") for name in taken):
                with suppress(OSError):  # it is not empty, or already removed
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
