"""BranchContext (the package ``branchcontext``) on BranchFS, where both are installed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from bench.figure import Figure
from bench.peers import branchfs
from bench.rounds import timed

__all__ = ["best_of", "first_wins", "is_installed"]

_Candidate = Callable[[Path], bool]


def is_installed() -> bool:
    """Whether there are both the package and the filesystem."""
    return branchfs.is_installed() and find_spec("branching") is not None


def best_of(root: str, home: str, command: Sequence[str], n: int) -> Figure | None:
    """A command tried so many times, the best committed; ``home`` is an empty directory."""
    return _measured("BestOfN", root, home, [_running(command)] * n)


def first_wins(root: str, home: str, commands: Sequence[Sequence[str]]) -> Figure | None:
    """Several commands, the first success committed."""
    return _measured("Speculate", root, home, [_running(command) for command in commands])


def _measured(pattern: str, root: str, home: str, candidates: list[_Candidate]) -> Figure | None:
    if not is_installed():
        return None
    branching = import_module("branching")
    with branchfs.mounted(root, home) as filesystem:
        workspace = branching.Workspace(filesystem.mount)
        return Figure((timed(lambda: getattr(branching, pattern)(candidates)(workspace)),))


def _running(command: Sequence[str]) -> _Candidate:
    return lambda path: subprocess.run(command, cwd=path, check=False).returncode == 0
