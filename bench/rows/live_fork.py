"""Live forks of an agent: the overhead over bare runs, the memory of branches, and a resolution by tests."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
import warnings
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import RunUsage

from bench.figure import Figure
from bench.line import Line
from bench.peers import pydantic_deep
from bench.rounds import play
from bench.scratch import Scratch
from bench.workload import long_history, stepping_model
from forkwise import BranchOutcome, BranchSpec, DeepAgentDeps, ForkCoordinator, JudgeVerdict, Workspace

__all__ = ["measure_live_fork"]

_MESSAGES = 1_000
_BRANCHES = 10
_REQUESTS = 5
_SIZE = {"branches": _BRANCHES, "requests": _REQUESTS, "messages": _MESSAGES}
_FILES = 10_000
_PEER_FORK_SECONDS = 0.0009  # measured for a fork of pydantic-deep in memory
_PEER_SECONDS = 50.0  # measured for a resolution of pydantic-deep by a test command
_PEER_BYTES = 10.9 * 2**20  # measured for branches of pydantic-deep


def measure_live_fork(scratch: Scratch) -> list[Line]:
    """Measure ten branches with five requests each, forked from a long conversation, and two without files on disk."""
    scratch.report("running live forks")
    return [
        _measure_fork_in_memory(scratch),
        _measure_run(scratch),
        _measure_memory(scratch),
        _measure_resolution(scratch),
    ]


def _measure_fork_in_memory(scratch: Scratch) -> Line:
    """Measure the call that starts two branches of an agent whose files are in memory."""
    mirrors, rounds = Path(scratch.make_directory("mirrors")), scratch.rounds(100, 30)
    agent = Agent(stepping_model(1), deps_type=DeepAgentDeps)
    warnings.filterwarnings("ignore", "there is no checkpoint store")
    taken = asyncio.run(_fork_in_memory(agent, mirrors, rounds))
    theirs = pydantic_deep.measure("fork_in_memory", mirrors=str(mirrors), rounds=rounds)
    line = Line("fork of 2 branches, files in memory", Figure(tuple(taken)), peers={pydantic_deep.NAME: theirs})
    line.faster_than_seen(pydantic_deep.NAME, _PEER_FORK_SECONDS, 0.5)
    return line


def _measure_run(scratch: Scratch) -> Line:
    root = scratch.shared_tree(1_000)
    workspace = scratch.workspace(root)
    agent, history = _agent(), long_history(_MESSAGES)
    figures = play(
        {
            "ours": lambda: asyncio.run(_timed(_fork(agent, workspace, history))),
            "bare": lambda: asyncio.run(_timed(_bare(agent, history))),
        },
        scratch.rounds(9, 3),
        warm=1,
    )
    line = Line(
        f"fork of {_BRANCHES} branches x {_REQUESTS} requests, {_MESSAGES:,}-message history (floor: bare runs)",
        figures["ours"],
        figures["bare"],
        peers={pydantic_deep.NAME: pydantic_deep.measure("fork", root=root, rounds=1, **_SIZE)},
    )
    line.below_floor(1.3)
    return line


def _measure_memory(scratch: Scratch) -> Line:
    root = scratch.shared_tree(1_000)
    workspace = scratch.workspace(root)
    agent, history = _agent(), long_history(_MESSAGES)
    held = [asyncio.run(_find_memory(agent, workspace, history)) for _ in range(scratch.rounds(3, 2))]
    name = f"memory held by {_BRANCHES} finished branches, {_MESSAGES:,}-message history"
    theirs = pydantic_deep.measure("memory", unit="B", root=root, **_SIZE)
    line = Line(name, Figure(tuple(held), "B"), peers={pydantic_deep.NAME: theirs})
    line.faster_than_seen(pydantic_deep.NAME, _PEER_BYTES, 5)
    return line


def _measure_resolution(scratch: Scratch) -> Line:
    root = scratch.shared_tree(_FILES)
    workspace = scratch.workspace(root)
    taken = [asyncio.run(_time_resolution(_agent(), workspace)) for _ in range(scratch.rounds(5, 2))]
    name = f'resolve with test_command="true", {_BRANCHES} branches, {_FILES:,}-file parent'
    theirs = pydantic_deep.measure("resolve", root=root, branches=_BRANCHES)
    line = Line(name, Figure(tuple(taken)), peers={pydantic_deep.NAME: theirs})
    line.faster_than_seen(pydantic_deep.NAME, _PEER_SECONDS, 100)
    return line


async def _fork_in_memory(agent: Agent[DeepAgentDeps, str], mirrors: Path, rounds: int) -> list[float]:
    taken = []
    specs = [BranchSpec("a", "go a"), BranchSpec("b", "go b")]
    for _ in range(rounds):
        coordinator = ForkCoordinator(agent, DeepAgentDeps(), materializer_root=mirrors)
        started = time.perf_counter()
        await coordinator.fork(specs, parent_history=[])
        taken.append(time.perf_counter() - started)
        await asyncio.wait([runtime.task for runtime in coordinator.branches.values()])
        await coordinator.aclose()
    return taken


async def _timed(work: Coroutine[Any, Any, ForkCoordinator | None]) -> float:
    started = time.perf_counter()
    coordinator = await work
    taken = time.perf_counter() - started
    if coordinator is not None:
        await coordinator.aclose()
    return taken


async def _bare(agent: Agent[None, str], history: list[ModelMessage]) -> None:
    await asyncio.gather(*(agent.run(f"go {n}", message_history=history) for n in range(_BRANCHES)))


async def _fork(agent: Agent[None, str], workspace: Workspace, history: list[ModelMessage]) -> ForkCoordinator:
    coordinator = ForkCoordinator(agent, workspace=workspace, test_command="true", judge=_First())
    await coordinator.fork([BranchSpec(str(n), f"go {n}") for n in range(_BRANCHES)], parent_history=history)
    await asyncio.wait([runtime.task for runtime in coordinator.branches.values()])
    return coordinator


async def _find_memory(agent: Agent[None, str], workspace: Workspace, history: list[ModelMessage]) -> float:
    gc.collect()
    tracemalloc.start()
    coordinator = await _fork(agent, workspace, history)
    gc.collect()
    held = float(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    await coordinator.aclose()
    return held


async def _time_resolution(agent: Agent[None, str], workspace: Workspace) -> float:
    coordinator = await _fork(agent, workspace, [])
    started = time.perf_counter()
    await coordinator.resolve()
    taken = time.perf_counter() - started
    await coordinator.aclose()
    return taken


class _First:
    """A judge that returns the first branch at once."""

    async def evaluate(
        self, goal: str, diff_report: object, outcomes: Sequence[BranchOutcome]
    ) -> tuple[JudgeVerdict, RunUsage]:
        verdict = JudgeVerdict(winner_branch_id=outcomes[0].branch_id, confidence=1.0, reasoning="it is the first")
        return verdict, RunUsage()


def _agent() -> Agent[None, str]:
    """Build an agent that calls a tool four times, then answers."""
    agent = Agent(stepping_model(_REQUESTS))

    @agent.tool_plain
    async def step() -> str:
        return "ok"

    return agent
