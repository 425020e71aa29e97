"""The examples of bots' design of ``branch_self``: each runs in a tool of an agent, and is the call of a model too."""

from __future__ import annotations

import ast
import asyncio
import re
from typing import Any

from pydantic_ai import Agent, Tool
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

import forkwise
from forkwise import BranchSelf, Conversation, Talk
from forkwise.conversation.self_tools import branch_self
from tests.seeds.page import Example, Page

__all__ = ["page"]

page = Page("bots", package="bots")


def _last_prompt(messages: list[ModelMessage]) -> str:
    prompts = [part for message in messages for part in message.parts if isinstance(part, UserPromptPart)]
    return str(prompts[-1].content)


class _Mind:
    """A model that makes ``call`` at the prompt "go", works in two steps in a branch, and judges the second best."""

    def __init__(self, call: ToolCallPart) -> None:
        self._call = call
        self.requests = 0

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.requests += 1
        prompt = _last_prompt(messages)
        is_first = isinstance(messages[-1].parts[-1], UserPromptPart)
        if info.output_tools:
            return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"option": 2})])
        if prompt == "go":
            return ModelResponse(parts=[self._call if is_first else TextPart("All was tried.")])
        task = prompt.removeprefix("(self-prompt): ")
        if "Task" in task and is_first:
            return ModelResponse(parts=[TextPart("first step"), ToolCallPart("work", {})])
        return ModelResponse(parts=[TextPart(f"response to {task}")])


def _work() -> str:
    return "worked"


def _run(example: Example) -> dict[str, Any]:
    """Run an example in a tool of an agent, then as the call of a model. Return the results by their tool."""
    statement = ast.parse(example.code).body[0]
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Call)
    arguments = {"self_prompts": ast.literal_eval(statement.value.args[0])}
    arguments |= {keyword.arg: ast.literal_eval(keyword.value) for keyword in statement.value.keywords}

    results: dict[str, Any] = {}

    def call_branch_self(*positional: Any, **named: Any) -> str:
        results["code"] = branch_self(*positional, **named)
        return str(results["code"])

    def run_example() -> str:
        example.run(branch_self=call_branch_self)
        return str(results["code"])

    work = Tool(_work, name="work")
    tools: dict[str, Agent[None, str]] = {
        "run_example": Agent(tools=[work, run_example]),
        "toolset": Agent(tools=[work], toolsets=[BranchSelf()]),
        "tool": Agent(tools=[work, branch_self]),
    }
    for name, agent in tools.items():
        call = ToolCallPart(name, {}) if name == "run_example" else ToolCallPart("branch_self", dict(arguments))
        talk = Talk(agent, model=FunctionModel(_Mind(call)))
        end = asyncio.run(talk.prompt("go"))
        assert end.parent is not None
        [returned] = [p for p in talk.conversation.path(end.parent)[-1].parts if isinstance(p, ToolReturnPart)]
        results[name] = returned.content
        caller = talk.conversation.node(2)
        asked = [_last_prompt([reply.message]) for reply in caller.replies[:-1] if reply.message is not None]
        prompts = ast.literal_eval(arguments["self_prompts"])
        assert asked == [f"(self-prompt): {prompt}" for prompt in prompts]
        for reply in caller.replies[:-1]:
            later = asyncio.run(talk.prompt("and then?", reply.replies[-1]))  # a branch can be continued
            assert later.is_below(reply)
    assert len({str(results[name]) for name in ("code", *tools)}) == 1
    return results


@page.example("Conversation Structure")
def draw_the_tree(example: Example) -> None:
    """Compare the tree with its drawing: while the branches run, when they are done, and after the next message.

    One step differs: the branches see the summary as soon as it exists, not only after the next message.
    """
    during, done, after = re.findall(r"^(Assistant \(tool_use.*(?:\n .*)*)", example.code, re.MULTILINE)
    prompts = [prompt.removeprefix("(self-prompt): ") for _, prompt in _read_users(during)]
    seen: list[tuple[str, str]] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(_describe(messages[-1]))
        return ModelResponse(parts=[TextPart(f"response to {_last_prompt(messages)}")])

    tree = Conversation()
    tree.say("go")
    caller = tree.add(ModelResponse(parts=[ToolCallPart("branch_self", {"self_prompts": prompts}, "X")]))
    talk = Talk(Agent(FunctionModel(model)), tree)
    branched = asyncio.run(forkwise.branch_self(talk, prompts, caller, parallel=False))
    assert seen == _read_users(during)
    tree.settle(caller, "X", branched.summary)
    assert "pending_result" in done
    assert caller.results["X"].content == branched.summary
    tree.say("<next user msg>", caller)
    users = [_describe(tree.path(reply)[-1]) for reply in caller.replies]
    drawn = _read_users(after)
    assert [prompt for _, prompt in users] == [prompt for _, prompt in drawn]
    for (content, _), (drawn_content, _) in zip(users, drawn, strict=True):
        assert content == branched.summary
        assert content.startswith(drawn_content.split("...")[0])
    assert [len(reply.replies) for reply in caller.replies] == [1, 1, 1, 0]


def _read_users(drawing: str) -> list[tuple[str, str]]:
    """Return the result and the prompt of each user message in a drawing."""
    return re.findall(r'User \(tool_result: id=X, content="(.*?)"\) \+ "(.*?)"$', drawing, re.MULTILINE)


def _describe(message: ModelMessage) -> tuple[str, str]:
    assert isinstance(message, ModelRequest)
    result, _ = message.parts
    assert isinstance(result, ToolReturnPart)
    assert result.tool_call_id == "X"
    return str(result.content), _last_prompt([message])


@page.example("Basic Branching")
def branch(example: Example) -> None:
    """Check that the answer of each branch is in the result."""
    result = _run(example)["code"]
    assert result.startswith("Successfully created 3 branches.")
    for number, task in enumerate(("Analyze data", "Create visualization", "Write summary"), 1):
        assert f"Branch {number} ({task!r}):\nresponse to {task}" in result


@page.example("Iterative Work")
def work(example: Example) -> None:
    """Check that the branches worked until they were done."""
    result = _run(example)["code"]
    assert result.endswith("Branch 1 ('Task 1'):\nresponse to Task 1\n\nBranch 2 ('Task 2'):\nresponse to Task 2")


@page.example("With Recombination")
def recombine(example: Example) -> None:
    """Check that the judge's choice takes the place of the answers."""
    result = _run(example)["code"]
    assert result == "Successfully created 2 branches.\n\nOption 2 was chosen\n\nresponse to Approach B"
