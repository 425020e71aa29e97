"""Real clients against a provider that enforces the rules: it accepts a request from every node of any tree."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai import Agent
from pydantic_ai.direct import model_request
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models import Model

from forkwise.conversation.branch_self import BranchSelf
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.node import Node
from forkwise.conversation.talk import Talk, text_of
from tests.counts import examples
from tests.provider.fixtures import StartProvider, check_requests
from tests.provider.models import provider_models
from tests.provider.reply import answer, call
from tests.provider.request import Request
from tests.provider.server import ProviderServer

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


async def ask_everywhere(talk: Conversation, model: Model) -> int:
    """Send a request from every node, and return the number of requests."""
    asked = 0
    for node in [talk.root, *talk]:
        prompt = "and then?" if node.message is None or node.is_response else None
        await model_request(model, talk.request(prompt, node))
        asked += 1
    return asked


def branching(request: Request) -> Any:
    """Branch in two, branch again in the first branch, and answer every other request."""
    said = request.last_user_text
    if request.tool_results and not said.startswith("(self-prompt)"):
        return answer(f"so: {request.tool_results[0].text}")
    if said == "go":
        return answer(
            "let me see",
            call("branch_self", self_prompts=["one", "two"], allow_work=True, recombine="llm_judge"),
            call("note", text="x"),
        )
    if said == "(self-prompt): one" and len(request.messages) == 3:
        return answer(call("branch_self", self_prompts=["deep one", "deep two"], recombine="concatenate"))
    if "Choose the best" in said:
        return answer(call(request.tool_names[0], option=2))
    return answer(f"answer to {said}")


async def test_branch_self(provider: StartProvider, provider_name: str) -> None:
    server = provider(branching)
    agent = Agent(provider_models(server)[provider_name], toolsets=[BranchSelf()])

    @agent.tool_plain
    def note(text: str) -> str:
        return f"noted {text}"

    talk = Talk(agent)
    end = await talk.prompt("go")
    assert "Successfully created 2 branches" in text_of(end)
    assert "Option 2 was chosen" in text_of(end)
    caller = talk.conversation.node(2)
    assert len(caller.replies) == 3
    deep = caller.replies[0].replies[0]
    assert [text_of(way.replies[0]) for way in deep.replies[:2]] == [
        "answer to (self-prompt): deep one",
        "answer to (self-prompt): deep two",
    ]
    await talk.prompt("go on", at=deep.replies[0].replies[0])
    assert await ask_everywhere(talk.conversation, provider_models(server)[provider_name]) == len(talk.conversation) + 1


def branching_twice(request: Request) -> Any:
    """Call ``branch_self`` wrongly, then twice in one message, then again in the next; answer every other request."""
    said = request.last_user_text
    if said.startswith("(self-prompt)") or said == "go on":
        return answer(f"answer to {said}")
    if "Choose the best" in said:
        return answer(call(request.tool_names[0], option=99))
    calls = {
        0: [call("branch_self", self_prompts=7), call("note", text="x")],
        1: [
            call("branch_self", self_prompts=["a", "b"], recombine="llm_vote"),
            call("branch_self", self_prompts="['c']"),
        ],
        2: [call("branch_self", self_prompts=["d"])],
    }
    turn = sum(message.role == "assistant" for message in request.messages) - 1
    return answer("let me see", *calls[turn]) if turn in calls else answer("done")


async def test_branch_self_in_a_plain_run(provider: StartProvider, provider_name: str) -> None:
    """Seed: "The implementation ensures compliance with the Anthropic API requirements"."""
    server = provider(branching_twice)
    model = provider_models(server)[provider_name]
    tools = BranchSelf()
    agent = Agent(model, toolsets=[tools], system_prompt="You are a goat.")

    @agent.tool_plain
    def note(text: str) -> str:
        return f"noted {text}"

    before = [ModelRequest(parts=[UserPromptPart("hello")]), ModelResponse(parts=[TextPart("hi")])]
    done = await agent.run("go", message_history=before, instructions="Speak French.")
    assert done.output == "done"
    assert done.usage.requests == len(server.requests)
    tree = tools.conversation
    assert tree is not None
    leaves = [node for node in tree if node.is_response and "(self-prompt)" in text_of(node)]
    assert len(leaves) == 4
    for leaf in leaves:
        await Talk(agent, tree).prompt("go on", at=leaf)
    assert await ask_everywhere(tree, model) == len(tree) + 1


STEPS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3), st.booleans()), min_size=1, max_size=14)


def grown(steps: list[tuple[int, int, bool]]) -> Conversation:
    """Build a tree from steps: the node to continue from, its number of calls, and whether one of them is settled."""
    talk = Conversation()
    nodes: list[Node] = [talk.root]
    for number, (at, calls, is_settled) in enumerate(steps):
        parent = nodes[at % len(nodes)]
        if parent.message is None or parent.is_response:
            nodes.append(talk.say(f"prompt {number}", parent))
            continue
        made = [ToolCallPart("look", {"n": n}, f"call_{parent.depth}_{n}") for n in range(calls)]
        node = talk.add(ModelResponse(parts=[TextPart(f"said {number}"), *made]), parent)
        nodes.append(node)
        if is_settled and calls:
            talk.settle(node, made[0].tool_call_id, {"seen": number})
    return talk


@pytest.fixture(scope="module")
def server() -> Any:
    with ProviderServer(lambda _: answer("yes")) as running:
        yield running
    check_requests(running)


@settings(max_examples=examples(12))
@given(steps=STEPS)
async def test_any_tree(steps: list[tuple[int, int, bool]], server: ProviderServer) -> None:
    talk = grown(steps)
    for model in provider_models(server).values():
        await ask_everywhere(talk, model)
    assert not server.faults
