"""BranchContext (the package ``branchcontext``) on BranchFS, if both are installed."""

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
    """Return whether the package and the filesystem are installed."""
    return branchfs.is_installed() and find_spec("branching") is not None


def best_of(root: str, directory: str, command: Sequence[str], n: int) -> Figure | None:
    """Measure a command that is tried ``n`` times; ``directory`` is empty."""
    return _measure("BestOfN", root, directory, [_build_candidate(command)] * n)


def first_wins(root: str, directory: str, commands: Sequence[Sequence[str]]) -> Figure | None:
    """Measure several commands, of which the first success is committed; ``directory`` is empty."""
    return _measure("Speculate", root, directory, [_build_candidate(command) for command in commands])


def _measure(pattern: str, root: str, directory: str, candidates: list[_Candidate]) -> Figure | None:
    if not is_installed():
        return None
    branching = import_module("branching")
    with branchfs.mounted(root, directory) as filesystem:
        workspace = branching.Workspace(filesystem.mount)
        return Figure((timed(lambda: getattr(branching, pattern)(candidates)(workspace)),))


def _build_candidate(command: Sequence[str]) -> _Candidate:
    return lambda path: subprocess.run(command, cwd=path, check=False).returncode == 0
