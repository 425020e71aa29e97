"""A branch dropped: with a thousand changed files no slower than with one."""

from __future__ import annotations

from functools import partial

from bench import bare
from bench.ground import Ground
from bench.line import Goal, Line
from bench.peers import git
from bench.rounds import Contender, play, timed
from bench.rows.commit import SIZE, change
from forkwise import Workspace
from forkwise.files.store import trash

__all__ = ["measure_abort"]

_FILES = 5_000
_COUNTS = (1_000, 1)
_NOISE = 1.2


def measure_abort(ground: Ground) -> list[Line]:
    """Both numbers of files, ours and the floor taking turns; then git."""
    root = ground.planted(_FILES, SIZE)
    workspace = ground.workspace(root)
    contenders: dict[str, Contender] = {}
    for files in _COUNTS:
        contenders[f"ours {files}"] = partial(_abort, workspace, files)
        contenders[f"floor {files}"] = partial(_drop, ground, root, files)
    ground.say("aborts")
    figures = play(contenders, ground.rounds(30, 10), warm=2)
    lines = [
        Line(f"abort with {n:,} changed file{'s' * (n > 1)}", figures[f"ours {n}"], figures[f"floor {n}"])
        for n in _COUNTS
    ]
    much, little = lines
    much.peers["git worktree remove"] = None
    if git.is_installed():
        ground.say(f"a git repository of {_FILES:,} files")
        repository = git.Repository(ground.fresh("repository"), _FILES, SIZE, checkout=False)
        figures |= play({"git": lambda: _remove(ground, repository)}, ground.rounds(3, 1), warm=0)
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


def _drop(ground: Ground, root: str, files: int) -> float:
    ballast, home = ground.directory("ballast"), ground.directory("floor")
    _write(bare.make(home, root), bare.make(ballast, root), files)
    gone = ground.fresh("gone")
    taken = timed(lambda: bare.drop(home, gone))
    bare.drop(ballast, ground.fresh("gone"))
    return taken


def _write(root: str, ballast: str, files: int) -> None:
    """Change so many files, and as many elsewhere as make a thousand: nobody starts with warmer processor caches."""
    change(root, files)
    if files < _COUNTS[0]:
        change(ballast, _COUNTS[0])


def _remove(ground: Ground, repository: git.Repository) -> float:
    worktree = ground.fresh("worktree")
    repository.add(worktree, worktree.rpartition("/")[2])
    change(worktree, 1_000)
    return timed(lambda: repository.remove(worktree))
