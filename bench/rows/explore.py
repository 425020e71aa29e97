"""Exploring: a whole best-of, from the fork to the last branch gone, and how soon the first of many wins."""

from __future__ import annotations

import asyncio
import subprocess

from bench.figure import Figure
from bench.ground import Ground
from bench.line import Goal, Line
from bench.peers import branchcontext, git
from bench.rounds import Contender, play, timed
from forkwise import BestOfN, Speculate, Workspace
from forkwise.files.store import trash
from forkwise.sandbox.run import arun_in_branch

__all__ = ["measure_explore"]

_ATTEMPTS = 8
_WINNER = 0.1  # seconds
_LOSERS = 30


def measure_explore(ground: Ground) -> list[Line]:
    """Both in the big tree."""
    workspace = ground.workspace(ground.planted(ground.many))
    return [_best_of(ground, workspace), _first_wins(ground, workspace)]


def _best_of(ground: Ground, workspace: Workspace) -> Line:
    pattern = BestOfN(["true"], _ATTEMPTS, max_parallel=_ATTEMPTS)

    def ours() -> float:
        taken = timed(lambda: pattern(workspace))
        trash.wait_until_empty()
        return taken

    ground.say(f"best of {_ATTEMPTS}")
    contenders: dict[str, Contender] = {"ours": ours, "sandboxes": lambda: _sandboxes(workspace)}
    figures = play(contenders, ground.rounds(15, 5), warm=2)
    line = Line(
        f"best-of {_ATTEMPTS} of true, {ground.many:,} files, whole cycle (floor: the sandboxes alone)",
        figures["ours"],
        figures["sandboxes"],
    )
    root = ground.planted(ground.many)
    theirs = branchcontext.best_of(root, ground.directory("branchcontext"), ["true"], _ATTEMPTS)
    line.peers = {"git worktree": _git(ground), "BranchContext on BranchFS": theirs}
    line.faster_than("git worktree", 50 * ground.many / 50_000)  # it costs what the tree holds
    overhead = (figures["ours"].median - figures["sandboxes"].median) / _ATTEMPTS
    line.goals.append(Goal("< 20 ms an attempt beyond them", overhead * 1000, 20))
    return line


def _sandboxes(workspace: Workspace) -> float:
    """What the commands take by themselves, as many at once, in branches that are there already."""
    branches = [workspace.branch(f"bare-{number}", None, None) for number in range(_ATTEMPTS)]
    for branch in branches:
        _ = branch.path

    async def all_of_them() -> None:
        await asyncio.gather(*(arun_in_branch(branch, ["true"], check=True) for branch in branches))

    taken = timed(lambda: asyncio.run(all_of_them()))
    for branch in branches:
        branch.abort()
    trash.wait_until_empty()
    return taken


def _git(ground: Ground) -> Figure | None:
    if not git.is_installed():
        return None
    ground.say(f"a git repository of {ground.many:,} files")
    repository = git.Repository(ground.fresh("repository"), ground.many, 512, checkout=False)

    def loop() -> None:
        for number in range(_ATTEMPTS):
            worktree = ground.fresh("worktree")
            repository.add(worktree, f"attempt-{number}")
            subprocess.run(["true"], cwd=worktree, check=True)
            repository.remove(worktree)

    return Figure((timed(loop),))


def _first_wins(ground: Ground, workspace: Workspace) -> Line:
    """What is measured is all but the winner's own time."""
    commands = [["sleep", str(_WINNER)], *[["sleep", str(_LOSERS)]] * (_ATTEMPTS - 1)]
    pattern = Speculate(commands, max_parallel=_ATTEMPTS)

    def ours() -> float:
        taken = timed(lambda: pattern(workspace)) - _WINNER
        trash.wait_until_empty()
        return taken

    ground.say("the first of many wins")
    figures = play({"ours": ours}, ground.rounds(10, 3))
    line = Line(
        f"first of {_ATTEMPTS} wins after {_WINNER} s, the others take {_LOSERS} s: beyond that", figures["ours"]
    )
    line.goals.append(Goal("≤ 0.5 s", figures["ours"].median, 0.5))
    root = ground.planted(ground.many)
    theirs = branchcontext.first_wins(root, ground.directory("branchcontext"), commands)
    line.peers = {"BranchContext on BranchFS": theirs}
    return line
