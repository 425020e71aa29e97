"""Workload: models and histories for forkwise and for its peers.

This module must not import forkwise: peers run it in environments of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

__all__ = ["long_history", "longest_gap", "stepping_model"]


def stepping_model(requests: int) -> FunctionModel:
    """Build a model that calls the tool ``step``, and answers in its last of ``requests`` requests."""

    def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        since = 0
        for message in reversed(messages):
            if any(isinstance(part, UserPromptPart) for part in message.parts):
                break
            since += isinstance(message, ModelResponse)
        return ModelResponse(parts=[TextPart("done") if since >= requests - 1 else ToolCallPart("step", {})])

    return FunctionModel(think)


def long_history(messages: int) -> list[ModelMessage]:
    """Build a conversation of ``messages`` messages."""
    history: list[ModelMessage] = []
    for number in range(messages // 2):
        history.append(ModelRequest(parts=[UserPromptPart(f"question {number}: {'x' * 300}")]))
        history.append(ModelResponse(parts=[TextPart(f"answer {number}: {'y' * 400}")]))
    return history


async def longest_gap(work: Callable[..., Awaitable[object]], *arguments: Any) -> float:
    """Return the longest time for which ``work`` blocked the event loop, as seen by a task that wakes every 1 ms."""
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            due = time.perf_counter() + 0.001
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - due)

    ticking = asyncio.create_task(tick())
    await work(*arguments)
    ticking.cancel()
    return longest
