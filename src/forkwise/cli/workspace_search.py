"""Which workspace a command means if none is named: the one that the current directory is in.

It is the nearest directory, from the current one upwards, that is the top of a git repository or that forkwise has
worked on. Only directories that the user owns count, so that no other user can place a workspace above theirs.
"""

from __future__ import annotations

import os
from contextlib import suppress

from forkwise.files.store.state_root import find_state

__all__ = ["find_workspace", "has_history", "is_in_state"]

_HISTORY = ("history", "branches", "ledger/output")


def find_workspace(start: str) -> str:
    """Return the workspace that contains the directory ``start``, a real path; ``start`` itself if there is none.

    The search ends at the home directory, which counts only if it has history, and at a filesystem of another user.
    A directory that everybody may write to does not count.
    """
    home = os.path.realpath(os.path.expanduser("~"))
    allowed = {os.geteuid(), os.stat(start).st_uid}
    directory = start
    while True:
        is_home = directory == home and directory != start
        can_be = directory == start or not _is_shared(directory)
        if can_be and ((not is_home and _is_repository(directory, allowed)) or has_history(directory)):
            return directory
        parent = os.path.dirname(directory)
        if directory in (home, parent) or not _is_reachable(directory, parent, allowed):
            return start
        directory = parent


def is_in_state(directory: str) -> bool:
    """Return whether a directory is in a state directory, where a commit moves what it replaces or deletes."""
    while directory != "/":
        directory = os.path.dirname(directory)
        if all(os.path.lexists(f"{directory}/{name}") for name in ("workspace.json", "history", "lock")):
            return True
    return False


def has_history(directory: str) -> bool:
    """Return whether forkwise has made a commit, a branch or an attempt in a directory."""
    state = find_state(directory)
    return state is not None and any(_has_entries(f"{state}/{name}") for name in _HISTORY)


def _is_repository(directory: str, allowed: set[int]) -> bool:
    """Return whether a directory is the top of a git work tree, and the user owns it and its repository."""
    with suppress(OSError):
        return os.lstat(f"{directory}/.git").st_uid in allowed and os.stat(directory).st_uid in allowed
    return False


def _is_shared(directory: str) -> bool:
    """Return whether all users may write to a directory, as in /tmp."""
    return bool(os.stat(directory).st_mode & 0o002)


def _is_reachable(directory: str, parent: str, allowed: set[int]) -> bool:
    """Return whether the search continues in a parent: it is on the same filesystem, or the user owns it."""
    with suppress(OSError):
        above = os.stat(parent)
        return above.st_dev == os.stat(directory).st_dev or above.st_uid in allowed
    return False


def _has_entries(directory: str) -> bool:
    with suppress(OSError), os.scandir(directory) as entries:
        return any(True for _ in entries)
    return False
