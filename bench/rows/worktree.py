"""A worktree added to a big checkout: mounted, and as clones; beside git and cp."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count

from bench.line import Goal, Line
from bench.peers import fuse, git
from bench.peers.image import is_supported, mounted_image, run_program
from bench.rounds import Contender, play, timed
from bench.scratch import Scratch
from forkwise.worktree.worktree import Worktree, add_worktree, remove_worktree

__all__ = ["measure_worktree"]

_GOAL_S = 0.05


def measure_worktree(scratch: Scratch) -> list[Line]:
    """Measure every view in turn with git; return no line if git is not installed."""
    if not git.is_installed():
        return []
    scratch.report(f"creating a git repository of {scratch.many:,} files")
    repository = git.Repository(scratch.new_path("checkout"), scratch.many, 512, checkout=True)
    lines = _measure_mounts(scratch, repository)
    if is_supported("xfs"):
        with mounted_image("xfs", scratch.new_path("image"), scratch.new_path("xfs")) as mount:
            scratch.report("copying the repository to XFS")
            root = f"{mount}/checkout"
            shutil.copytree(repository.path, root, symlinks=True)
            lines.append(_measure_clones(scratch, root))
    return lines


def _measure_mounts(scratch: Scratch, repository: git.Repository) -> list[Line]:
    views = ["overlay", *(["fuse"] if fuse.is_installed() else [])]
    contenders: dict[str, Contender] = {}
    with ExitStack() as cleanup:
        for view in views:
            contenders[view] = _ours(repository.path, scratch.new_path(f"worktrees-{view}"), view, cleanup.callback)
        numbers = count()
        directory = scratch.make_directory("git-worktrees")

        def check_out() -> float:
            number = next(numbers)
            return timed(lambda: repository.add(f"{directory}/{number}", f"git-{number}"))

        contenders["git worktree add"] = check_out
        scratch.report("adding worktrees")
        figures = play(contenders, scratch.rounds(5, 3))
    lines = []
    for view in views:
        line = Line(f"worktree added, view {view}, {scratch.many:,} files", figures[view])
        line.peers = {"git worktree add": figures["git worktree add"]}
        line.goals.append(Goal("≤ 50 ms", figures[view].median / _GOAL_S, 1.0))
        lines.append(line)
    return lines


def _measure_clones(scratch: Scratch, root: str) -> Line:
    above = os.path.dirname(root)
    numbers = count()

    def clone() -> float:
        path = f"{above}/cp-{next(numbers)}"
        taken = timed(lambda: run_program("cp", "-r", "--reflink=always", root, path))
        subprocess.run(["rm", "-rf", path], check=True)
        return taken

    with ExitStack() as cleanup:
        ours = _ours(root, f"{above}/worktrees", "reflink", cleanup.callback, removes=True)
        scratch.report("cloning")
        figures = play({"ours": ours, "cp": clone}, scratch.rounds(5, 3))
    line = Line(f"worktree added, view reflink, {scratch.many:,} files", figures["ours"], figures["cp"])
    line.below_floor(1.2)
    return line


def _ours(root: str, directory: str, view: str, callback: Callable[..., object], *, removes: bool = False) -> Contender:
    numbers = count()
    os.mkdir(directory)

    def turn() -> float:
        path = f"{directory}/{view}-{next(numbers)}"
        made: list[Worktree] = []
        taken = timed(lambda: made.append(add_worktree(root, path, view=view)))
        if removes:
            remove_worktree(root, made[0], force=True)
        else:
            callback(remove_worktree, root, made[0], force=True)  # after all measurements
        return taken

    return turn
