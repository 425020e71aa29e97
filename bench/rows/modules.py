"""Modules: many branches in one turn, beside the time that their models and tools take by themselves."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

from bench.ground import Ground
from bench.line import Goal, Line
from bench.rounds import play, timed

__all__ = ["measure_modules"]

_BRANCHES = 20
_MODEL = 0.1  # seconds
_TOOL = 0.1


def measure_modules(ground: Ground) -> list[Line]:
    """Branches that answer at once, and branches that call a plain tool first."""
    return [_line(ground, "branches", 3, 0, 0.35), _line(ground, "branches with a plain tool each", 4, 1, 0.6)]


def _line(ground: Ground, what: str, requests: int, tools: int, bound: float) -> Line:
    module = _module(calls_tool=bool(tools))
    ground.say(f"{_BRANCHES} {what}")

    def floor() -> None:
        time.sleep(requests * _MODEL + tools * _TOOL)

    contenders: dict[str, Callable[[], float]] = {"ours": lambda: timed(module), "floor": lambda: timed(floor)}
    figures = play(contenders, ground.rounds(10, 3))
    name = f"{_BRANCHES} {what} in one turn, 0.1 s a request (floor: one after the other that must be)"
    line = Line(name, figures["ours"], figures["floor"])
    line.goals.append(Goal(f"< {bound:g} s in all", figures["ours"].median, bound))
    return line


def _module(*, calls_tool: bool) -> Callable[[], Any]:
    os.environ["PYDANTIC_AI_NO_BANNER"] = "1"
    from pydantic import BaseModel
    from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    from forkwise import Module, tool

    class Output(BaseModel):
        value: int

    async def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await asyncio.sleep(_MODEL)
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        if "Branch" in (info.instructions or ""):
            is_done = turn == int(calls_tool)
            return ModelResponse(parts=[ToolCallPart("__finish__", {"value": 1}) if is_done else ToolCallPart("work")])
        if turn:
            return ModelResponse(parts=[ToolCallPart("__finish__")])
        return ModelResponse(parts=[ToolCallPart("branch", {"name": "Leaf"}) for _ in range(_BRANCHES)])

    class Leaf(Module):
        """Branch."""

        max_steps = 3
        final_output = Output

    class Root(Module):
        """Root."""

        model = FunctionModel(think)
        branches = [Leaf]  # noqa: RUF012
        max_steps = 3

        @tool
        def work(self) -> str:
            """Work, without letting anybody else."""
            time.sleep(_TOOL)
            return "done"

    root = Root()

    def run() -> None:
        root()
        told = [entry["content"] for entry in root.history if entry["role"] == "tool"]
        assert sum("<value>1</value>" in result for result in told) == _BRANCHES, told

    return run
