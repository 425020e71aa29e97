"""Modules: many branches in one turn, compared with the time of their models and tools alone."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

from bench.line import Goal, Line
from bench.rounds import play, timed
from bench.scratch import Scratch

__all__ = ["measure_modules"]

_BRANCHES = 20
_MODEL = 0.1  # seconds
_TOOL = 0.1


def measure_modules(scratch: Scratch) -> list[Line]:
    """Measure branches that answer at once, and branches that call a plain tool first."""
    return [_line(scratch, "branches", 3, 0, 0.35), _line(scratch, "branches with a plain tool each", 4, 1, 0.6)]


def _line(scratch: Scratch, kind: str, requests: int, tools: int, bound: float) -> Line:
    module = _module(calls_tool=bool(tools))
    scratch.report(f"running {_BRANCHES} {kind}")

    def floor() -> None:
        time.sleep(requests * _MODEL + tools * _TOOL)

    contenders: dict[str, Callable[[], float]] = {"ours": lambda: timed(module), "floor": lambda: timed(floor)}
    figures = play(contenders, scratch.rounds(10, 3))
    name = f"{_BRANCHES} {kind} in one turn, 0.1 s per request (floor: the requests that depend on each other)"
    line = Line(name, figures["ours"], figures["floor"])
    line.goals.append(Goal(f"< {bound:g} s in total", figures["ours"].median, bound))
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
            """Block the event loop for a while."""
            time.sleep(_TOOL)
            return "done"

    root = Root()

    def run() -> None:
        root()
        results = [entry["content"] for entry in root.history if entry["role"] == "tool"]
        assert sum("<value>1</value>" in result for result in results) == _BRANCHES, results

    return run
