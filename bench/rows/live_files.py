"""Files of live branches: a command, a merge of many files, and stalls of the event loop by ten branches at once."""

from __future__ import annotations

import asyncio
import time

from bench.figure import Figure
from bench.line import Goal, Line
from bench.peers import pydantic_deep
from bench.rounds import timed
from bench.scratch import Scratch
from bench.workload import longest_gap
from forkwise import BranchOverlay, LocalBackend

__all__ = ["measure_live_files"]

# Seconds, measured for pydantic-deep from PyPI on the machine where this was written.
_THEIR_COMMAND = 9.2
_THEIR_MERGE = 9.1

_FILES = 10_000
_MERGED = 5_000
_AT_ONCE = 10
_COMMANDS = 5


def measure_live_files(scratch: Scratch) -> list[Line]:
    """Measure through the backends that an agent's tools use."""
    root = scratch.shared_tree(_FILES)
    parent = LocalBackend(scratch.workspace(root))
    return [_command(scratch, parent, root), _merge(scratch), _stall(scratch, parent, root)]


def _command(scratch: Scratch, parent: LocalBackend, root: str) -> Line:
    scratch.report("running commands in a live branch")
    branch = BranchOverlay(parent)
    try:
        samples = [timed(lambda: branch.execute("true")) for _ in range(scratch.rounds(60, 20))][2:]
    finally:
        branch.discard()
    theirs = pydantic_deep.measure("command", root=root, rounds=scratch.rounds(3, 1))
    name = f"live branch of {_FILES:,} files: shell command true"
    line = Line(name, Figure(tuple(samples)), peers={pydantic_deep.NAME: theirs})
    line.faster_than_seen(pydantic_deep.NAME, _THEIR_COMMAND, 100)
    return line


def _merge(scratch: Scratch) -> Line:
    scratch.report(f"merging {_MERGED:,} files")
    parent = LocalBackend(scratch.workspace(scratch.own_tree(_MERGED, 512)))
    samples = []
    for number in range(scratch.rounds(5, 2)):
        branch = BranchOverlay(parent)
        branch.execute(f"find . -type f -exec sed -i '1s/^/{number}/' {{}} +")
        started = time.perf_counter()
        report = branch.flush_to(parent)
        samples.append(time.perf_counter() - started)
        assert len(report.applied_paths) == _MERGED, report.errors
    theirs = pydantic_deep.measure("merge", root=scratch.own_tree(_MERGED, 512), rounds=1)
    line = Line(f"live branch: merge of {_MERGED:,} files", Figure(tuple(samples)), peers={pydantic_deep.NAME: theirs})
    line.faster_than_seen(pydantic_deep.NAME, _THEIR_MERGE, 10)
    return line


def _stall(scratch: Scratch, parent: LocalBackend, root: str) -> Line:
    """Measure the longest stall of the event loop while branches run commands.

    The floor is an idle event loop for the same time: the stalls by the machine itself. ``asyncio's subprocesses`` run
    the same commands without branches and sandboxes.
    """
    scratch.report(f"running commands in {_AT_ONCE} live branches")
    ours, idle, bare = [], [], []
    for _ in range(scratch.rounds(5, 3)):
        branches = [BranchOverlay(parent, f"live-{number}") for number in range(_AT_ONCE)]
        started = time.perf_counter()
        ours.append(asyncio.run(longest_gap(asyncio.gather, *map(_work, branches))))
        idle.append(asyncio.run(longest_gap(asyncio.sleep, time.perf_counter() - started)))
        bare.append(asyncio.run(longest_gap(asyncio.gather, *[_work_bare(root) for _ in branches])))
        for branch in branches:
            branch.discard()
    theirs = pydantic_deep.measure("stall", root=root, at_once=_AT_ONCE, commands=1)
    line = Line(
        f"{_AT_ONCE} live branches run commands: longest stall of the event loop (floor: an idle one)",
        Figure(tuple(ours)),
        Figure(tuple(idle)),
        peers={"asyncio's subprocesses": Figure(tuple(bare)), pydantic_deep.NAME: theirs},
    )
    line.goals.append(Goal("< 20 ms", line.ours.median, 0.020))
    return line


async def _work(branch: BranchOverlay) -> None:
    for number in range(_COMMANDS):
        await branch.async_execute(f"ls -R . > listing; echo {number}")


async def _work_bare(root: str) -> None:
    for number in range(_COMMANDS):
        command = f"ls -R . > /dev/null; echo {number}"
        process = await asyncio.create_subprocess_shell(command, cwd=root, stdout=asyncio.subprocess.PIPE)
        await process.communicate()
