"""Flows: where prompts and answers go, in which order, and how failures are reported."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from forkwise.conversation import flows
from forkwise.conversation import flows as conditions
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.talk import Talk, text_of
from forkwise.errors import BranchesFailed

pytestmark = pytest.mark.anyio


def prompts_of(messages: list[ModelMessage]) -> list[str]:
    return [str(p.content) for m in messages for p in m.parts if isinstance(p, UserPromptPart)]


class Echo:
    """Answers with the prompts on its path; calls a tool if the prompt says so."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.serial = 0

    async def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        Conversation().extend(messages)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.01)
        self.running -= 1
        path = prompts_of(messages)
        if path[-1] == "fail":
            raise ValueError("no idea")
        if path[-1].startswith("tool") and not isinstance(messages[-1].parts[0], ToolReturnPart):
            self.serial += 1
            return ModelResponse(parts=[ToolCallPart(path[-1], {}, f"call_{self.serial}")])
        return ModelResponse(parts=[TextPart(" > ".join(path))])


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def talk(echo: Echo) -> Talk:
    agent = Agent(FunctionModel(echo))

    @agent.tool_plain
    def tool_a() -> str:
        return "a"

    @agent.tool_plain
    def tool_b() -> str:
        return "b"

    return Talk(agent)


async def test_chain(talk: Talk) -> None:
    said, nodes = await flows.chain(talk, ["a", "b", "c"])
    assert said == ["a", "a > b", "a > b > c"]
    assert talk.conversation.here is nodes[-1]


async def test_branch_and_par_branch_run_at_the_given_node(talk: Talk, echo: Echo) -> None:
    start = await talk.prompt("start")
    await talk.prompt("elsewhere")
    here = talk.conversation.here
    for flow, most in ((flows.branch, 1), (flows.par_branch, 3)):
        echo.most = 0
        said, nodes = await flow(talk, ["x", "y", "z"], start)
        assert said == ["start > x", "start > y", "start > z"]
        assert all(node.parent is not None and node.parent.parent is start for node in nodes)
        assert echo.most == most
    assert talk.conversation.here is here
    said, _ = await flows.par_branch(talk, ["here"])
    assert said == ["start > elsewhere > here"]


async def test_loops(talk: Talk) -> None:
    said, nodes = await flows.prompt_while(talk, "go", "ok", conditions.five_iterations)
    assert len(said) == 5
    assert said[-1] == "go > ok > ok > ok > ok"
    start = nodes[-1]
    said, _ = await flows.prompt_while(talk, "one", stop=lambda nodes: False, most=3, at=start)
    assert len(said) == 3
    said, _ = await flows.chain_while(talk, ["a", "b"], lambda nodes: len(nodes) == 2, at=talk.conversation.root)
    assert said == ["a > ok", "a > ok > b > ok"]
    for flow in (flows.branch_while, flows.par_branch_while):
        said, _ = await flow(talk, ["a", "b"], lambda nodes: len(nodes) == 2, "more", at=talk.conversation.root)
        assert said == ["a > more", "b > more"]


async def test_prompt_for(talk: Talk) -> None:
    said, _ = await flows.prompt_for(talk, [1, 2], lambda n: f"item {n}", at=talk.conversation.root)
    assert said == ["item 1", "item 1 > item 2"]
    said, _ = await flows.prompt_for(talk, [1, 2], lambda n: f"item {n}", should_branch=True, at=talk.conversation.root)
    assert said == ["item 1", "item 2"]


async def test_tree_of_thought(talk: Talk) -> None:
    said, node = await flows.tree_of_thought(talk, ["x", "y"], "concatenate")
    assert said.endswith("Response 1:\nx\n\nResponse 2:\ny")
    assert node.depth == 2
    assert talk.conversation.here is node


async def test_par_dispatch(talk: Talk) -> None:
    other = Talk(talk.agent)
    report = await flows.par_dispatch([talk, other], flows.chain, ["a", "b"])
    assert [said for said, _ in report] == [["a", "a > b"]] * 2
    assert [nodes[-1] for _, nodes in report] == [talk.conversation.here, other.conversation.here]


async def test_broadcast(talk: Talk) -> None:
    start = await talk.prompt("start")
    _, nodes = await flows.branch(talk, ["x", "y", "z"])
    talk.conversation.label("done", nodes[1])
    said, _ = await flows.broadcast_to_leaves(talk, "sum up", skip=["done", "unknown"], at=start)
    assert said == ["start > x > sum up", "start > z > sum up"]
    report = await flows.broadcast(talk, flows.chain, ["p", "q"], at=nodes[1])
    assert [said for said, _ in report] == [["start > y > p", "start > y > p > q"]]


async def test_a_failed_branch_is_reported_with_the_answers_of_the_others(talk: Talk) -> None:
    with pytest.raises(BranchesFailed, match="1 of 3 branches failed: branch 2: ValueError: no idea") as failed:
        await flows.par_branch(talk, ["x", "fail", "z"])
    assert [text_of(node) for node in failed.value.done] == ["x", "z"]  # type: ignore[arg-type]
    assert list(failed.value.failures) == [1]


async def test_conditions(talk: Talk) -> None:
    plain = await talk.prompt("DONE, no Error")
    used = await talk.prompt("tool_a")
    again = await talk.prompt("tool_a")
    other = await talk.prompt("tool_b")
    holds: dict[str, tuple[Any, Any]] = {
        "tool_used": ([used], [plain]),
        "tool_not_used": ([plain], [used]),
        "said_DONE": ([plain], [other]),
        "error_in_response": ([plain], []),
        "no_new_tools_used": ([used, again], [used, other]),
        "five_iterations": ([plain] * 5, [plain] * 4),
    }
    for name, (yes, no) in holds.items():
        condition = getattr(conditions, name)
        assert condition(yes), name
        if no and name != "said_DONE":
            assert not condition(no), name
    assert conditions.said_READY([await talk.prompt("READY")])
    assert not conditions.said_READY([plain])
