"""Files of live branches: a command in one, a merge of many files, and what the event loop feels of ten at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.figure import Figure
from bench.ground import Ground
from bench.line import Goal, Line
from bench.rounds import timed
from forkwise import BranchOverlay, LocalBackend

__all__ = ["measure_live_files"]

# Seconds, as seen for pydantic-deep from PyPI on the machine this was written on.
_THEIR_COMMAND = 9.2
_THEIR_MERGE = 9.1
_THEIR_STALL = 1.5

_FILES = 10_000
_MERGED = 5_000
_AT_ONCE = 10
_COMMANDS = 5


def measure_live_files(ground: Ground) -> list[Line]:
    """All through the backends that the tools of an agent have."""
    parent = LocalBackend(ground.workspace(ground.planted(_FILES)))
    return [_command(ground, parent), _merge(ground), _stall(ground, parent)]


def _command(ground: Ground, parent: LocalBackend) -> Line:
    ground.say("commands in a live branch")
    branch = BranchOverlay(parent)
    try:
        samples = [timed(lambda: branch.execute("true")) for _ in range(ground.rounds(60, 20))][2:]
    finally:
        branch.discard()
    ours = Figure(tuple(samples))
    return Line(
        f"live branch of {_FILES:,} files: shell command true (pydantic-deep: {_THEIR_COMMAND} s)",
        ours,
        goals=[Goal("≥ 100 × faster", _THEIR_COMMAND / ours.median, 100, at_least=True)],
    )


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
    ours = Figure(tuple(samples))
    return Line(
        f"live branch: merge of {_MERGED:,} files (pydantic-deep: {_THEIR_MERGE} s)",
        ours,
        goals=[Goal("≥ 10 × faster", _THEIR_MERGE / ours.median, 10, at_least=True)],
    )


def _stall(ground: Ground, parent: LocalBackend) -> Line:
    """Beside an event loop that has nothing else to do, for as long: that is what the machine itself keeps it from."""
    ground.say(f"{_AT_ONCE} live branches run commands")
    ours, idle = [], []
    for _ in range(ground.rounds(5, 3)):
        branches = [BranchOverlay(parent, f"live-{number}") for number in range(_AT_ONCE)]
        begun = time.perf_counter()
        ours.append(asyncio.run(_longest_gap(asyncio.gather, *map(_work, branches))))
        idle.append(asyncio.run(_longest_gap(asyncio.sleep, time.perf_counter() - begun)))
        for branch in branches:
            branch.discard()
    line = Line(
        f"{_AT_ONCE} live branches run commands: longest stall of the event loop (floor: an idle one; "
        f"pydantic-deep: {_THEIR_STALL * 1000:,.0f} ms)",
        Figure(tuple(ours)),
        Figure(tuple(idle)),
    )
    line.goals.append(Goal("< 20 ms", line.ours.median, 0.020))
    return line


async def _work(branch: BranchOverlay) -> None:
    for number in range(_COMMANDS):
        await branch.async_execute(f"ls -R . > listing; echo {number}")


async def _longest_gap(doing: Callable[..., Awaitable[object]], *given: Any) -> float:
    """The longest time for which a task that only ticks is kept from it while something is done."""
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            due = time.perf_counter() + 0.001
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - due)

    ticking = asyncio.create_task(tick())
    await doing(*given)
    ticking.cancel()
    return longest
