"""Abort of a branch, which must not take longer with a thousand changed files than with one."""

from __future__ import annotations

from functools import partial

from bench import bare
from bench.line import Goal, Line
from bench.peers import git
from bench.rounds import Contender, play, timed
from bench.rows.commit import SIZE, change
from bench.scratch import Scratch
from forkwise import Workspace
from forkwise.files.store import trash

__all__ = ["measure_abort"]

_FILES = 5_000
_COUNTS = (1_000, 1)
_NOISE = 1.2


def measure_abort(scratch: Scratch) -> list[Line]:
    """Measure forkwise and the floor in turn for both numbers of files, then git."""
    root = scratch.shared_tree(_FILES, SIZE)
    workspace = scratch.workspace(root)
    contenders: dict[str, Contender] = {}
    for files in _COUNTS:
        contenders[f"ours {files}"] = partial(_abort, workspace, files)
        contenders[f"floor {files}"] = partial(_drop, scratch, root, files)
    scratch.report("aborting branches")
    figures = play(contenders, scratch.rounds(30, 10), warm=2)
    lines = [
        Line(f"abort with {n:,} changed file{'s' * (n > 1)}", figures[f"ours {n}"], figures[f"floor {n}"])
        for n in _COUNTS
    ]
    much, little = lines
    much.peers["git worktree remove"] = None
    if git.is_installed():
        scratch.report(f"creating a git repository of {_FILES:,} files")
        repository = git.Repository(scratch.new_path("repository"), _FILES, SIZE, checkout=False)
        figures |= play({"git": lambda: _remove(scratch, repository)}, scratch.rounds(3, 1), warm=0)
        much.peers["git worktree remove"] = figures["git"]
    much.goals.append(Goal("≤ 1 × with 1 (within 20 %)", much.ours.median / little.ours.median, _NOISE))
    much.faster_than("git worktree remove", 10)
    return lines


def _abort(workspace: Workspace, files: int) -> float:
    with workspace.branch("ballast", on_success=None) as ballast, workspace.branch("change", on_success=None) as branch:
        _write(str(branch.path), str(ballast.path), files)
        taken = timed(branch.abort)
        trash.wait_until_empty()
        ballast.abort()
        trash.wait_until_empty()
        return taken


def _drop(scratch: Scratch, root: str, files: int) -> float:
    ballast, directory = scratch.make_directory("ballast"), scratch.make_directory("floor")
    _write(bare.make(directory, root), bare.make(ballast, root), files)
    dropped = scratch.new_path("dropped")
    taken = timed(lambda: bare.drop(directory, dropped))
    bare.drop(ballast, scratch.new_path("dropped"))
    return taken


def _write(root: str, ballast: str, files: int) -> None:
    """Change ``files`` files; if few, also change many in ``ballast``, so that processor caches are equally warm."""
    change(root, files)
    if files < _COUNTS[0]:
        change(ballast, _COUNTS[0])


def _remove(scratch: Scratch, repository: git.Repository) -> float:
    worktree = scratch.new_path("worktree")
    repository.add(worktree, worktree.rpartition("/")[2])
    change(worktree, 1_000)
    return timed(lambda: repository.remove(worktree))
