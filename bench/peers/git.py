"""git worktree: a repository with the same files, and its branches in worktrees.

It is configured to sync nothing, like forkwise with ``durable=False``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

from bench import tree

__all__ = ["Repository", "is_installed", "status"]

_CONFIGURATION = {
    "core.fsync": "none",
    "gc.auto": "0",
    "advice.detachedHead": "false",
    "user.name": "b",
    "user.email": "b@b",
}


def is_installed() -> bool:
    """Return whether git is installed."""
    return shutil.which("git") is not None


class Repository:
    """A repository of ``files`` files; with ``checkout`` it is not bare, and has them checked out."""

    def __init__(self, path: str, files: int, size: int, *, checkout: bool) -> None:
        self.path = path
        _git("init", "-q", "-b", "main", *([] if checkout else ["--bare"]), path)
        for key, value in _CONFIGURATION.items():
            _git("-C", path, "config", key, value)
        stream = b"".join(_fast_import(files, size))
        subprocess.run(["git", "-C", path, "fast-import", "--quiet"], input=stream, check=True, env=_environment())
        if checkout:
            _git("-C", path, "reset", "-q", "--hard")

    def add(self, worktree: str, branch: str) -> None:
        """Check out a new branch in a worktree."""
        _git("-C", self.path, "worktree", "add", "-q", "-b", branch, worktree)

    def commit(self, worktree: str) -> None:
        """Commit all changes of a worktree."""
        _git("-C", worktree, "commit", "-q", "-a", "-m", "changed")

    def merge(self, branch: str) -> None:
        """Merge a branch into the checked out one."""
        _git("-C", self.path, "merge", "-q", branch)

    def remove(self, worktree: str) -> None:
        """Remove a worktree and its uncommitted changes."""
        _git("-C", self.path, "worktree", "remove", "--force", worktree)


def status(path: str) -> None:
    """Run ``git status`` as an agent or an editor does."""
    _git("-C", path, "status", "--porcelain")


def _fast_import(files: int, size: int) -> Iterator[bytes]:
    yield b"commit refs/heads/main\ncommitter b <b> 0 +0000\ndata 0\n"
    for path, data in tree.files(files, size):
        yield f"M 100644 inline {path}\ndata {len(data)}\n".encode() + data + b"\n"


def _environment() -> dict[str, str]:
    return {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, env=_environment(), stdout=subprocess.DEVNULL)
