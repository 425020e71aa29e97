"""Patterns: best-of from the fork until the last branch is dropped, and speculate until the first success wins."""

from __future__ import annotations

import asyncio
import subprocess

from bench.figure import Figure
from bench.line import Goal, Line
from bench.peers import branchcontext, git
from bench.rounds import Contender, play, timed
from bench.scratch import Scratch
from forkwise import BestOfN, Speculate, Workspace
from forkwise.files.store import trash
from forkwise.sandbox.run import arun_in_branch

__all__ = ["measure_explore"]

_ATTEMPTS = 8
_WINNER = 0.1  # seconds
_LOSERS = 30


def measure_explore(scratch: Scratch) -> list[Line]:
    """Measure both patterns in the big tree."""
    workspace = scratch.workspace(scratch.shared_tree(scratch.many))
    return [_best_of(scratch, workspace), _first_wins(scratch, workspace)]


def _best_of(scratch: Scratch, workspace: Workspace) -> Line:
    pattern = BestOfN(["true"], _ATTEMPTS, max_parallel=_ATTEMPTS)

    def ours() -> float:
        taken = timed(lambda: pattern(workspace))
        trash.wait_until_empty()
        return taken

    scratch.report(f"best of {_ATTEMPTS}")
    contenders: dict[str, Contender] = {"ours": ours, "sandboxes": lambda: _sandboxes(workspace)}
    figures = play(contenders, scratch.rounds(15, 5), warm=2)
    line = Line(
        f"best-of {_ATTEMPTS} of true, {scratch.many:,} files, whole cycle (floor: the sandboxes alone)",
        figures["ours"],
        figures["sandboxes"],
    )
    root = scratch.shared_tree(scratch.many)
    theirs = branchcontext.best_of(root, scratch.make_directory("branchcontext"), ["true"], _ATTEMPTS)
    line.peers = {"git worktree": _git(scratch), "BranchContext on BranchFS": theirs}
    line.faster_than("git worktree", 50 * scratch.many / 50_000)  # its cost grows with the tree
    overhead = (figures["ours"].median - figures["sandboxes"].median) / _ATTEMPTS
    line.goals.append(Goal("< 20 ms more per attempt", overhead * 1000, 20))
    return line


def _sandboxes(workspace: Workspace) -> float:
    """Return the time of the commands alone, all at once, in existing branches."""
    branches = [workspace.branch(f"bare-{number}", None, None) for number in range(_ATTEMPTS)]
    for branch in branches:
        _ = branch.path

    async def run_all() -> None:
        await asyncio.gather(*(arun_in_branch(branch, ["true"], check=True) for branch in branches))

    taken = timed(lambda: asyncio.run(run_all()))
    for branch in branches:
        branch.abort()
    trash.wait_until_empty()
    return taken


def _git(scratch: Scratch) -> Figure | None:
    if not git.is_installed():
        return None
    scratch.report(f"creating a git repository of {scratch.many:,} files")
    repository = git.Repository(scratch.new_path("repository"), scratch.many, 512, checkout=False)

    def loop() -> None:
        for number in range(_ATTEMPTS):
            worktree = scratch.new_path("worktree")
            repository.add(worktree, f"attempt-{number}")
            subprocess.run(["true"], cwd=worktree, check=True)
            repository.remove(worktree)

    return Figure((timed(loop),))


def _first_wins(scratch: Scratch, workspace: Workspace) -> Line:
    """Measure the time that speculate takes in addition to its winner."""
    commands = [["sleep", str(_WINNER)], *[["sleep", str(_LOSERS)]] * (_ATTEMPTS - 1)]
    pattern = Speculate(commands, max_parallel=_ATTEMPTS)

    def ours() -> float:
        taken = timed(lambda: pattern(workspace)) - _WINNER
        trash.wait_until_empty()
        return taken

    scratch.report(f"speculating with {_ATTEMPTS} attempts")
    figures = play({"ours": ours}, scratch.rounds(10, 3))
    line = Line(
        f"first of {_ATTEMPTS} wins after {_WINNER} s, the others take {_LOSERS} s: additional time", figures["ours"]
    )
    line.goals.append(Goal("≤ 0.5 s", figures["ours"].median, 0.5))
    root = scratch.shared_tree(scratch.many)
    theirs = branchcontext.first_wins(root, scratch.make_directory("branchcontext"), commands)
    line.peers = {"BranchContext on BranchFS": theirs}
    return line
