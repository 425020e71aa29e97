"""Patterns: best-of with all its branches, speculate until the first success wins, and tests that judge."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from bench.figure import Figure
from bench.line import Goal, Line
from bench.peers import branchcontext, git
from bench.rounds import Contender, play, timed
from bench.scratch import Scratch
from forkwise import BestOfN, Speculate, Tests, Workspace
from forkwise.files.store import trash
from forkwise.fork.evaluation import scratch as judged_branch
from forkwise.git.ignore_rules import remember_answers
from forkwise.sandbox.run import arun_in_branch
from forkwise.testing.report import Comparison

__all__ = ["measure_explore"]

_ATTEMPTS = 8
_WINNER = 0.1  # seconds
_LOSERS = 30
_IGNORED = 1000
_RUNS = 3


def measure_explore(scratch: Scratch) -> list[Line]:
    """Measure both patterns in the big tree."""
    workspace = scratch.workspace(scratch.shared_tree(scratch.many))
    lines = [_best_of(scratch, workspace), _first_wins(scratch, workspace), _sealed_tests(scratch, workspace)]
    return [*lines, *([_ignored_files(scratch)] if git.is_installed() else [])]


def _sealed_tests(scratch: Scratch, workspace: Workspace) -> Line:
    """Measure an evaluation by sealed tests against the same command in a sandbox, without any judgement."""
    test, other = workspace.path / "test_bench.py", workspace.path / "bench_calc.py"
    test.write_text("import time, bench_calc\ndef test_it():\n    time.sleep(2)\n    assert bench_calc.ANSWER == 42\n")
    other.write_text("ANSWER = 41\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_bench.py"]
    tests = Tests(command)
    scratch.report("the baseline of the tests")
    baseline = asyncio.run(tests.measure(workspace))
    branch = workspace.branch("judged", None, None)
    (branch.path / "bench_calc.py").write_text("ANSWER = 42\n")
    (branch.path / "test_bench.py").write_text(test.read_text() + "# changed\n")

    def plain() -> float:
        async def run() -> None:
            async with judged_branch(branch) as test_branch:
                await arun_in_branch(test_branch, command)

        return timed(lambda: asyncio.run(run()))

    def sealed() -> float:
        return timed(lambda: _require(asyncio.run(tests.test(branch, baseline)).comparison))

    scratch.report("sealed tests")
    figures = play({"ours": sealed, "plain": plain}, scratch.rounds(9, 3), warm=1)
    branch.abort()
    test.unlink()
    other.unlink()
    line = Line(
        f"evaluation by sealed tests of 2 s, {scratch.many:,} files (floor: the same command in a sandbox)",
        figures["ours"],
        figures["plain"],
    )
    line.goals.append(Goal("<= 15 % more", (figures["ours"].median / figures["plain"].median - 1) * 100, 15))
    return line


def _ignored_files(scratch: Scratch) -> Line:
    """Measure what git's ignore rules add to the scratch branch of a test run: the questions alone."""
    root = scratch.new_path("ignoring")
    scratch.report(f"creating a git repository of {scratch.many:,} files")
    git.Repository(root, scratch.many, 512, checkout=True)
    workspace = scratch.workspace(root)
    (workspace.path / ".gitignore").write_text("*.log\nbuild/\n")

    def judge(name: str, *, is_ignoring: bool) -> float:
        branch = workspace.branch(name, None, None)
        branch.set_ignore("git" if is_ignoring else None)
        (branch.path / "changed.py").write_text("x = 1\n")
        (branch.path / "build").mkdir()
        for number in range(_IGNORED):
            (branch.path / f"build/{number}").write_text("x")

        async def open_scratch() -> None:
            with remember_answers():
                for _ in range(_RUNS):
                    async with judged_branch(branch):
                        pass

        taken = timed(lambda: asyncio.run(open_scratch())) / _RUNS
        branch.abort()
        trash.wait_until_empty()
        return taken

    scratch.report("ignored files")
    contenders: dict[str, Contender] = {
        "ours": lambda: judge("ignoring", is_ignoring=True),
        "plain": lambda: judge("plain", is_ignoring=False),
    }
    figures = play(contenders, scratch.rounds(15, 5), warm=2)
    line = Line(
        f"scratch branch of a test run in git, {_IGNORED:,} ignored files, {_RUNS} runs (floor: without ignore rules)",
        figures["ours"],
        figures["plain"],
    )
    line.goals.append(Goal("<= 60 ms more", (figures["ours"].median - figures["plain"].median) * 1000, 60))
    return line


def _require(comparison: Comparison | None) -> None:
    assert comparison is not None
    assert comparison.fixed == 1


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
