"""Live forks of an agent: what it costs to run in branches instead of bare, what they hold, and how long a fork takes
to be resolved by its tests."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Coroutine, Sequence
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RunUsage

from bench.figure import Figure
from bench.ground import Ground
from bench.line import Goal, Line
from bench.rounds import play
from forkwise import BranchOutcome, BranchSpec, ForkCoordinator, JudgeVerdict, Workspace

__all__ = ["measure_live_fork"]

_MESSAGES = 1_000
_BRANCHES = 10
_REQUESTS = 5
_FILES = 10_000
_PEER_SECONDS = 50.0  # that pydantic-deep was seen to take where it is resolved by a test command
_PEER_BYTES = 10.9 * 2**20  # that it was seen to hold


def measure_live_fork(ground: Ground) -> list[Line]:
    """Ten branches of five requests each, off a long conversation."""
    ground.say("live forks")
    return [_running(ground), _memory(ground), _resolving(ground)]


def _running(ground: Ground) -> Line:
    workspace = ground.workspace(ground.planted(1_000))
    agent, history = _agent(), _history()
    figures = play(
        {
            "ours": lambda: asyncio.run(_timed(_fork(agent, workspace, history))),
            "bare": lambda: asyncio.run(_timed(_bare(agent, history))),
        },
        ground.rounds(9, 3),
        warm=1,
    )
    line = Line(
        f"fork of {_BRANCHES} branches x {_REQUESTS} requests, {_MESSAGES:,}-message history (floor: bare runs)",
        figures["ours"],
        figures["bare"],
    )
    line.below_floor(1.3)
    return line


def _memory(ground: Ground) -> Line:
    workspace = ground.workspace(ground.planted(1_000))
    agent, history = _agent(), _history()
    held = [asyncio.run(_held(agent, workspace, history)) for _ in range(ground.rounds(3, 2))]
    name = f"memory held by {_BRANCHES} finished branches, {_MESSAGES:,}-message history"
    line = Line(name, Figure(tuple(held), "B"))
    line.goals.append(Goal("≤ 1/5 of 10.9 MiB", line.ours.median, _PEER_BYTES / 5))
    return line


def _resolving(ground: Ground) -> Line:
    workspace = ground.workspace(ground.planted(_FILES))
    taken = [asyncio.run(_resolved(_agent(), workspace)) for _ in range(ground.rounds(5, 2))]
    name = f'resolve with test_command="true", {_BRANCHES} branches, {_FILES:,}-file parent'
    line = Line(name, Figure(tuple(taken)))
    line.goals.append(Goal("≥ 100 × faster than 50 s", line.ours.median, _PEER_SECONDS / 100))
    return line


async def _timed(work: Coroutine[Any, Any, ForkCoordinator | None]) -> float:
    begun = time.perf_counter()
    made = await work
    taken = time.perf_counter() - begun
    if made is not None:
        await made.aclose()
    return taken


async def _bare(agent: Agent[None, str], history: list[ModelMessage]) -> None:
    await asyncio.gather(*(agent.run(f"go {n}", message_history=history) for n in range(_BRANCHES)))


async def _fork(agent: Agent[None, str], workspace: Workspace, history: list[ModelMessage]) -> ForkCoordinator:
    coordinator = ForkCoordinator(agent, workspace=workspace, test_command="true", judge=_First())
    await coordinator.fork([BranchSpec(str(n), f"go {n}") for n in range(_BRANCHES)], parent_history=history)
    await asyncio.wait([runtime.task for runtime in coordinator.branches.values()])
    return coordinator


async def _held(agent: Agent[None, str], workspace: Workspace, history: list[ModelMessage]) -> float:
    gc.collect()
    tracemalloc.start()
    coordinator = await _fork(agent, workspace, history)
    gc.collect()
    held = float(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    await coordinator.aclose()
    return held


async def _resolved(agent: Agent[None, str], workspace: Workspace) -> float:
    coordinator = await _fork(agent, workspace, [])
    begun = time.perf_counter()
    await coordinator.resolve()
    taken = time.perf_counter() - begun
    await coordinator.aclose()
    return taken


class _First:
    """A judge that takes no time."""

    async def evaluate(
        self, goal: str, diff_report: object, outcomes: Sequence[BranchOutcome]
    ) -> tuple[JudgeVerdict, RunUsage]:
        verdict = JudgeVerdict(winner_branch_id=outcomes[0].branch_id, confidence=1.0, reasoning="it came first")
        return verdict, RunUsage()


def _agent() -> Agent[None, str]:
    """An agent that calls a tool four times, then answers."""

    def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        since = 0
        for message in reversed(messages):
            if any(isinstance(part, UserPromptPart) for part in message.parts):
                break
            since += isinstance(message, ModelResponse)
        return ModelResponse(parts=[TextPart("done") if since >= _REQUESTS - 1 else ToolCallPart("step", {})])

    agent = Agent(FunctionModel(think))

    @agent.tool_plain
    async def step() -> str:
        return "ok"

    return agent


def _history() -> list[ModelMessage]:
    said: list[ModelMessage] = []
    for number in range(_MESSAGES // 2):
        said.append(ModelRequest(parts=[UserPromptPart(f"question {number}: {'x' * 300}")]))
        said.append(ModelResponse(parts=[TextPart(f"answer {number}: {'y' * 400}")]))
    return said
