"""Edits found by times: which files of a workspace have changed since a branch was forked, without a commit.

The cost does not grow with the tree: it looks at the entries of the workspace's top directory, at the paths that the
branch changed, and at the directories that contain these.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from stat import S_ISDIR
from typing import TYPE_CHECKING

from forkwise.files.store.branch_info import BranchInfo
from forkwise.linux.trees import NOT_THERE, closing_fd, open_directory, open_root

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.workspace import Workspace

__all__ = ["find_edits", "is_of_git", "list_committed"]

_MOST_PATHS = 2000  # that a branch changed, and in the top directory


def find_edits(branch: Branch, generation: int) -> list[str]:
    """Return the paths that other programs changed in the workspace since the branch was forked.

    A directory, which ends with a slash, stands for names that were added to it or removed from it. ``generation`` is
    the number of the last commit before the fork: what later commits changed is not listed, nor are git's directories.
    """
    workspace = branch.workspace
    since = BranchInfo.load(branch.home).forked_at_earliest
    # If the branch is a complete tree, only reading all of it would show what it changed.
    delta = () if branch.view_kind.whole else branch.delta()
    changed = [change.path for change in islice(delta, _MOST_PATHS)]
    with closing_fd(open_root(workspace.target)) as root:
        known = _read_top(root)
        known |= {path: _find_status(root, path) for path in _add_directories(changed) if path not in known}
    found = {
        path: status
        for path, status in known.items()
        if status is not None and status.st_ctime_ns >= since and not is_of_git(path)
    }
    committed = list_committed(workspace, generation) if found else set()
    return [f"{path}/" if S_ISDIR(status.st_mode) else path for path, status in found.items() if path not in committed]


def list_committed(workspace: Workspace, generation: int) -> set[str]:
    """List the paths that forkwise changed itself, in commits after ``generation``, with the directories of these."""
    if workspace.state_dir.head == generation:
        return set()
    commits = [commit for commit in workspace.history() if commit.id > generation]
    return set(_add_directories(path for c in commits for path in (*c.added, *c.changed, *c.deleted)))


def is_of_git(path: str) -> bool:
    """Return whether a path is in a git directory, whose changes are merged as a repository's."""
    return ".git" in path.split("/")


def _read_top(root: int) -> dict[str, os.stat_result | None]:
    """Return the status of each entry of the top directory, by its name."""
    found: dict[str, os.stat_result | None] = {}
    with closing_fd(open_directory(root, "")) as fd, os.scandir(fd) as entries:
        for entry in islice(entries, _MOST_PATHS):
            with suppress(FileNotFoundError):  # it was removed meanwhile
                found[entry.name] = entry.stat(follow_symlinks=False)
    return dict(sorted(found.items()))


def _add_directories(paths: Iterable[str]) -> list[str]:
    """Return paths and, after them, the directories above them, each once."""
    given = dict.fromkeys(paths)
    above: dict[str, None] = {}
    for path in given:
        parent = os.path.dirname(path)
        while parent and parent not in above:
            above[parent] = None
            parent = os.path.dirname(parent)
    return [*given, *(path for path in above if path not in given)]


def _find_status(root: int, path: str) -> os.stat_result | None:
    """Return the status of a path, following no link on the way; None if there is nothing."""
    directory, _, name = path.rpartition("/")
    try:
        with closing_fd(open_directory(root, directory)) as fd:
            return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError as error:
        if error.errno in NOT_THERE:
            return None
        raise
