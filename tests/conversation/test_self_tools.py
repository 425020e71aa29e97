"""branch_self as a plain function: where it can be called, and what it answers to malformed arguments."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from forkwise.conversation.self_tools import branch_self
from forkwise.conversation.talk import Talk
from forkwise.errors import ConversationError

pytestmark = pytest.mark.anyio


def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call the first tool at each prompt, but not in a branch."""
    last = messages[-1].parts[-1]
    if isinstance(last, UserPromptPart) and not str(last.content).startswith("(self-prompt)"):
        return ModelResponse(parts=[ToolCallPart(info.function_tools[0].name, {})])
    return ModelResponse(parts=[TextPart("done")])


async def test_outside_an_agent_it_is_refused() -> None:
    """Seed: "Malformed inputs (validation and error messages)"."""
    with pytest.raises(ConversationError, match="needs an agent"):
        branch_self("['a']")
    with pytest.raises(ConversationError, match="needs an agent"):
        await asyncio.to_thread(branch_self, "['a']")


async def test_in_a_tool_that_is_async_it_is_refused() -> None:
    """Seed: "Malformed inputs (validation and error messages)"."""
    agent = Agent(FunctionModel(model))

    @agent.tool_plain
    async def work() -> str:
        return branch_self("['a']")

    with pytest.raises(ConversationError, match="would block the event loop"):
        await Talk(agent).prompt("go")


async def test_errors_are_answers_and_the_limit_counts_per_run() -> None:
    """Seed: "Malformed inputs (validation and error messages)"."""
    answers: list[str] = []
    calls: list[dict[str, Any]] = [
        {"self_prompts": "[]"},
        {"self_prompts": "['it's'"},
        {"self_prompts": "['a']", "recombine": "by magic"},
        {"self_prompts": "['a']", "allow_work": "perhaps"},
        {"self_prompts": [f"task {n}" for n in range(51)]},
        {"self_prompts": [f"task {n}" for n in range(20)], "parallel": "False"},
        {"self_prompts": [f"task {n}" for n in range(31)]},
    ]
    agent = Agent(FunctionModel(model))

    @agent.tool_plain
    def work() -> str:
        answers.extend(branch_self(**call) for call in calls)
        return "worked"

    talk = Talk(agent)
    await talk.prompt("go")
    expected = [
        "Error: self_prompts must be a list",
        "Error: self_prompts looks like a list",
        "Error: recombine must be one of",
        "Error: allow_work must be True or False",
        "Error: 50 more branches can be made, not 51",
        "Successfully created 20 branches.",
        "Error: 30 more branches can be made, not 31",
    ]
    assert all(answer.startswith(start) for answer, start in zip(answers, expected, strict=True))
    assert len(talk.conversation.node(2).replies) == 21
    await talk.prompt("again")
    assert answers[12].startswith("Successfully created 20 branches.")
