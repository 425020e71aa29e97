"""What an agent and its peers are given to do. Nothing of forkwise is imported here: peers run it in environments of
their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

__all__ = ["long_history", "longest_gap", "stepping_model"]


def stepping_model(requests: int) -> FunctionModel:
    """A model that calls the tool ``step`` until it was asked so often, and then answers."""

    def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        since = 0
        for message in reversed(messages):
            if any(isinstance(part, UserPromptPart) for part in message.parts):
                break
            since += isinstance(message, ModelResponse)
        return ModelResponse(parts=[TextPart("done") if since >= requests - 1 else ToolCallPart("step", {})])

    return FunctionModel(think)


def long_history(messages: int) -> list[ModelMessage]:
    """A conversation of so many messages."""
    said: list[ModelMessage] = []
    for number in range(messages // 2):
        said.append(ModelRequest(parts=[UserPromptPart(f"question {number}: {'x' * 300}")]))
        said.append(ModelResponse(parts=[TextPart(f"answer {number}: {'y' * 400}")]))
    return said


async def longest_gap(doing: Callable[..., Awaitable[object]], *given: Any) -> float:
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
