"""Branches of a plain ``agent.run`` inherit the options of that run."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent, FunctionToolset, RunContext, UsageLimits
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.toolsets import AbstractToolset, WrapperToolset
from pydantic_ai.usage import RunUsage

from forkwise.conversation.branch_self import BranchSelf

pytestmark = pytest.mark.anyio


class Recorder:
    """A model that branches at the prompts of ``branch_at``, calls the tools of ``calls``, and records its requests."""

    def __init__(self, branch_at: dict[str, list[str]], calls: dict[str, str] | None = None) -> None:
        self.branch_at = branch_at
        self.calls = calls or {}
        self.requests: list[tuple[str, list[ModelMessage], AgentInfo]] = []

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = [p for m in messages for p in m.parts if isinstance(p, UserPromptPart)]
        prompt = str(parts[-1].content).removeprefix("(self-prompt): ")
        self.requests.append((prompt, messages, info))
        last = messages[-1].parts[-1]
        if not isinstance(last, UserPromptPart):
            return ModelResponse(parts=[TextPart(f"heard {last.content}")])
        if prompt in self.branch_at:
            arguments = {"self_prompts": self.branch_at[prompt], "allow_work": True}
            return ModelResponse(parts=[ToolCallPart("branch_self", arguments)])
        if prompt in self.calls:
            return ModelResponse(parts=[ToolCallPart(self.calls[prompt], {})])
        return ModelResponse(parts=[TextPart("done")])

    def sent(self, prompt: str) -> tuple[list[ModelMessage], AgentInfo]:
        """Return the first request with that prompt."""
        return next((messages, info) for asked, messages, info in self.requests if asked == prompt)

    def instructions(self, prompt: str) -> str:
        """Return the instructions of the first request with that prompt."""
        last = self.sent(prompt)[0][-1]
        assert isinstance(last, ModelRequest)
        assert self.sent(prompt)[1].instructions == last.instructions
        return last.instructions or ""


def tools_of(info: AgentInfo) -> set[str]:
    return {tool.name for tool in info.function_tools}


@pytest.mark.parametrize("is_given_to_run", [False, True])
async def test_branches_have_the_toolsets_given_to_run(is_given_to_run: bool) -> None:
    """Seed: "Each branch receives its own copy of the conversation history and executes independently"."""
    model = Recorder({"go": ["one", "two"], "one": ["deep"]}, {"two": "extra", "deep": "own"})
    extra = FunctionToolset[Any]()
    seen: list[str | None] = []

    @extra.tool(name="extra")
    def call_extra(ctx: RunContext[Any]) -> str:
        seen.append(ctx.run_id)
        return "of the run"

    branching = BranchSelf()
    agent = Agent(FunctionModel(model), toolsets=[] if is_given_to_run else [branching])

    @agent.tool_plain
    def own() -> str:
        return "of the agent"

    done = await agent.run("go", toolsets=[extra, *([branching] if is_given_to_run else [])])
    for prompt in ("go", "one", "two", "deep"):
        assert tools_of(model.sent(prompt)[1]) == {"own", "extra", "branch_self"}
    assert "heard of the run" in done.output
    assert "heard of the agent" in done.output
    assert len(seen) == 1
    assert branching.conversation is not None
    assert len(branching.conversation) == 2 + 3 * 4


async def test_branches_have_the_instructions_given_to_run() -> None:
    """Seed: "Each branch runs in isolation with its own bot instance": with the instructions of that bot."""
    model = Recorder({"go": ["one"], "one": ["deep"]})
    agent = Agent(FunctionModel(model), instructions="Be brief.", toolsets=[BranchSelf()])

    @agent.instructions
    def name_the_step(ctx: RunContext[Any]) -> str:
        return f"This is step {ctx.run_step}."

    await agent.run("go", instructions=["Speak French.", "Never lie."])
    for prompt in ("go", "one", "deep"):
        sent = model.instructions(prompt)
        for text in ("Be brief.", "This is step 1.", "Speak French.", "Never lie."):
            assert sent.count(text) == 1, (prompt, sent)


async def test_branches_have_the_system_prompt_of_the_agent() -> None:
    """Seed: "Each branch receives its own copy of the conversation history"."""
    model = Recorder({"go": ["one"]})
    agent = Agent(FunctionModel(model), system_prompt="You are a goat.", toolsets=[BranchSelf()])
    await agent.run("go")
    messages, _ = model.sent("one")
    assert str(messages).count("You are a goat.") == 1


async def test_branches_have_the_settings_given_to_run() -> None:
    """Seed: "Each branch runs in isolation with its own bot instance": with the settings of that bot."""
    model = Recorder({"go": ["one"], "one": ["deep"]})
    settings = ModelSettings(temperature=0.1, max_tokens=7)
    agent = Agent(FunctionModel(model), model_settings=ModelSettings(temperature=0.9, seed=1), toolsets=[BranchSelf()])
    await agent.run("go", model_settings=settings)
    for prompt in ("go", "one", "deep"):
        used = model.sent(prompt)[1].model_settings
        assert used == {"temperature": 0.1, "max_tokens": 7, "seed": 1}


async def test_a_later_branching_has_the_settings_too() -> None:
    """Seed: "Each branch runs in isolation with its own bot instance": with the settings of that bot."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        step = sum(isinstance(message, ModelResponse) for message in messages)
        used.append((info.model_settings or {}).get("temperature"))
        if "(self-prompt)" in str(messages) or step == 2:
            return ModelResponse(parts=[TextPart("done")])
        if step == 0:
            return ModelResponse(parts=[ToolCallPart("wait", {})])
        return ModelResponse(parts=[ToolCallPart("branch_self", {"self_prompts": ["a"]})])

    used: list[float | None] = []
    agent = Agent(FunctionModel(model), toolsets=[BranchSelf()])

    @agent.tool_plain
    def wait() -> str:
        return "waited"

    await agent.run("go", model_settings=ModelSettings(temperature=0.25))
    assert used == [0.25] * 4


async def test_requests_of_branches_count_in_the_run_s_usage() -> None:
    """Seed: "Branch execution details are kept internal to the tool": their cost is not."""
    model = Recorder({"go": ["one", "two"], "one": ["deep"]})
    agent = Agent(FunctionModel(model), toolsets=[BranchSelf()])
    usage = RunUsage(requests=100)
    done = await agent.run("go", usage=usage, usage_limits=UsageLimits(request_limit=200))
    assert done.usage.requests == 100 + len(model.requests) == 106


async def test_usage_limits_of_the_run_hold_for_its_branches() -> None:
    """Seed: "Recursive branching is intended": the limits of the run bound it."""
    model = Recorder({"go": ["a", "b", "c", "d", "e"]})
    agent = Agent(FunctionModel(model), toolsets=[BranchSelf(max_parallel=1)])
    with pytest.raises(Exception, match="request_limit of 3"):
        await agent.run("go", usage_limits=UsageLimits(request_limit=3))
    assert len(model.requests) == 3


async def test_branches_have_the_deps_and_the_model_given_to_run() -> None:
    """Seed: "Each branch runs in isolation with its own bot instance"."""
    model = Recorder({"go": ["one"]}, {"one": "name"})
    agent: Agent[str, str] = Agent("test", deps_type=str, toolsets=[BranchSelf()])

    @agent.tool
    def name(ctx: RunContext[str]) -> str:
        return f"deps {ctx.deps}"

    done = await agent.run("go", model=FunctionModel(model), deps="given")
    assert "heard deps given" in done.output


async def test_a_later_branching_has_the_present_instructions_once() -> None:
    """Seed: "Each branch runs in isolation with its own bot instance": with the instructions of that bot."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        step = sum(isinstance(message, ModelResponse) for message in messages)
        if "(self-prompt)" in str(messages[-1]):
            sent.append(info.instructions or "")
            return ModelResponse(parts=[TextPart("done")])
        if step == 3:
            return ModelResponse(parts=[TextPart("end")])
        name, arguments = ("wait", {}) if step == 0 else ("branch_self", {"self_prompts": ["a"]})
        return ModelResponse(parts=[ToolCallPart(name, arguments)])

    sent: list[str] = []
    agent = Agent(FunctionModel(model), instructions="Be brief.", toolsets=[BranchSelf()])

    @agent.instructions
    def name_the_step(ctx: RunContext[Any]) -> str:
        return f"This is step {ctx.run_step} of the run."

    @agent.tool_plain
    def wait() -> str:
        return "waited"

    await agent.run("go", instructions="Speak French.\n\nNever lie.")
    assert len(sent) == 2
    for text in sent:
        assert text.count("This is step 1 of the run.") == text.count("This is step") == 1
        assert text.count("Be brief.") == text.count("Speak French.") == text.count("Never lie.") == 1


async def test_a_toolset_that_is_made_anew_at_each_step_is_inherited() -> None:
    """Seed: "Each branch runs in isolation with its own bot instance": with the tools of that bot."""
    made: list[int] = []

    class Renewed(WrapperToolset[Any]):
        async def for_run_step(self, ctx: RunContext[Any]) -> AbstractToolset[Any]:
            made.append(ctx.run_step)
            return Renewed(FunctionToolset([count]))

    def count() -> str:
        return f"made {len(made)}"

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last = messages[-1].parts[-1]
        step = sum(isinstance(message, ModelResponse) for message in messages)
        if "(self-prompt)" in str(messages[-1]):
            return ModelResponse(parts=[ToolCallPart("count", {})])
        if step == 2 or "(self-prompt)" in str(messages):
            return ModelResponse(parts=[TextPart(f"heard {last.content}")])
        return ModelResponse(parts=[ToolCallPart("branch_self", {"self_prompts": ["a"], "allow_work": True})])

    agent = Agent(FunctionModel(model), toolsets=[BranchSelf()])
    done = await agent.run("go", toolsets=[Renewed(FunctionToolset())])
    assert "heard made" in done.output


async def test_a_streamed_run_branches() -> None:
    """Seed: "Branch Execution: Each branch runs in isolation with its own bot instance"."""

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> Any:
        if not isinstance(messages[-1].parts[-1], UserPromptPart):
            yield f"heard {messages[-1].parts[-1].content}"
        else:
            yield {0: DeltaToolCall("branch_self", '{"self_prompts": ["a", "b"]}', tool_call_id="c1")}

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("done in a branch")])

    agent = Agent(FunctionModel(model, stream_function=stream), toolsets=[BranchSelf()])
    async with agent.run_stream("go") as run:
        output = await run.get_output()
    assert output.count("done in a branch") == 2
