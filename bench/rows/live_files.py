"""Files of live branches: a command in one, a merge of many files, and what the event loop feels of ten at once."""

from __future__ import annotations

import asyncio
import time

from bench.figure import Figure
from bench.ground import Ground
from bench.line import Goal, Line
from bench.peers import pydantic_deep
from bench.rounds import timed
from bench.workload import longest_gap
from forkwise import BranchOverlay, LocalBackend

__all__ = ["measure_live_files"]

# Seconds, as seen for pydantic-deep from PyPI on the machine this was written on.
_THEIR_COMMAND = 9.2
_THEIR_MERGE = 9.1

_FILES = 10_000
_MERGED = 5_000
_AT_ONCE = 10
_COMMANDS = 5


def measure_live_files(ground: Ground) -> list[Line]:
    """All through the backends that the tools of an agent have."""
    root = ground.planted(_FILES)
    parent = LocalBackend(ground.workspace(root))
    return [_command(ground, parent, root), _merge(ground), _stall(ground, parent, root)]


def _command(ground: Ground, parent: LocalBackend, root: str) -> Line:
    ground.say("commands in a live branch")
    branch = BranchOverlay(parent)
    try:
        samples = [timed(lambda: branch.execute("true")) for _ in range(ground.rounds(60, 20))][2:]
    finally:
        branch.discard()
    theirs = pydantic_deep.measure("command", root=root, rounds=ground.rounds(3, 1))
    name = f"live branch of {_FILES:,} files: shell command true"
    line = Line(name, Figure(tuple(samples)), peers={pydantic_deep.NAME: theirs})
    line.faster_than_seen(pydantic_deep.NAME, _THEIR_COMMAND, 100)
    return line


def _merge(ground: Ground) -> Line:
    ground.say(f"merging {_MERGED:,} files")
    parent = LocalBackend(ground.workspace(ground.own(_MERGED, 512)))
    samples = []
    for number in range(ground.rounds(5, 2)):
        branch = BranchOverlay(parent)
        branch.execute(f"find . -type f -exec sed -i '1s/^/{number}/' {{}} +")
        begun = time.perf_counter()
        report = branch.flush_to(parent)
        samples.append(time.perf_counter() - begun)
        assert len(report.applied_paths) == _MERGED, report.errors
    theirs = pydantic_deep.measure("merge", root=ground.own(_MERGED, 512), rounds=1)
    line = Line(f"live branch: merge of {_MERGED:,} files", Figure(tuple(samples)), peers={pydantic_deep.NAME: theirs})
    line.faster_than_seen(pydantic_deep.NAME, _THEIR_MERGE, 10)
    return line


def _stall(ground: Ground, parent: LocalBackend, root: str) -> Line:
    """Beside an event loop that has nothing else to do, for as long: that is what the machine itself keeps it from. And
    beside one that runs the same commands with asyncio's own means, in no branch and no sandbox."""
    ground.say(f"{_AT_ONCE} live branches run commands")
    ours, idle, bare = [], [], []
    for _ in range(ground.rounds(5, 3)):
        branches = [BranchOverlay(parent, f"live-{number}") for number in range(_AT_ONCE)]
        begun = time.perf_counter()
        ours.append(asyncio.run(longest_gap(asyncio.gather, *map(_work, branches))))
        idle.append(asyncio.run(longest_gap(asyncio.sleep, time.perf_counter() - begun)))
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
