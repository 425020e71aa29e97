"""Talk: failed turns, system prompts, and recombination that fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import ProcessEventStream, ProcessHistory
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from forkwise.conversation.adopt import adopted
from forkwise.conversation.branch_self import BranchSelf
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.talk import Answer, Recombination, Talk, recombine, text_of

pytestmark = pytest.mark.anyio


def talk_of(*answers: list[str | Exception]) -> Talk:
    """Return a talk with a streaming agent; an exception among the pieces breaks the stream."""
    left = list(answers)

    async def speak(_messages: Any, _info: Any) -> AsyncIterator[str]:
        for piece in left.pop(0):
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def listen(_ctx: Any, events: Any) -> None:
        async for _ in events:
            pass

    return Talk(Agent(FunctionModel(stream_function=speak), capabilities=[ProcessEventStream(listen)]))


async def test_an_answer_that_broke_off_before_it_began_is_no_answer() -> None:
    talk = talk_of([ConnectionError("no line")], ["hello"])
    with pytest.raises(ConnectionError):
        await talk.prompt("hi")
    [asked] = talk.conversation
    assert not asked.is_response
    assert text_of(await talk.go_on(asked)) == "hello"
    assert len(talk.conversation) == 2


async def test_the_text_before_an_interruption_is_kept() -> None:
    talk = talk_of(["half a "], ["half a ", ConnectionError("no line")])
    await talk.prompt("hi")
    with pytest.raises(ConnectionError):
        await talk.prompt("and")
    assert [text_of(node) for node in talk.conversation if node.is_response] == ["half a ", "half a "]


# --- history processors ---------------------------------------------------------------------------------------------


async def test_an_agent_that_shortens_its_history_is_recorded_in_full() -> None:
    """Seed: "Conversation Tree Integrity": a message that the model no longer receives stays in the tree."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        last = messages[-1].parts[-1]
        lengths.append(len(messages))
        if isinstance(last, UserPromptPart):
            if str(last.content).startswith("go"):
                return ModelResponse(parts=[ToolCallPart("branch_self", {"self_prompts": ["a", "b"]})])
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[TextPart("went")])

    def shorten(messages: list[ModelMessage]) -> list[ModelMessage]:
        return messages[-1:] if isinstance(messages[-1].parts[-1], UserPromptPart) else messages[-3:]

    lengths: list[int] = []
    tools = BranchSelf()
    agent = Agent(FunctionModel(model), toolsets=[tools], capabilities=[ProcessHistory(shorten)])
    talk = Talk(agent)
    said = [text_of(await talk.prompt(prompt)) for prompt in ("hi", "go", "hi", "go", "hi")]
    assert said == ["done", "went", "done", "went", "done"]
    assert len(talk.conversation) == 2 + 8 + 2 + 8 + 2
    assert len(talk.conversation.path()) == 2 + 4 + 2 + 4 + 2
    assert max(lengths) == 3
    assert (await agent.run("go")).output == "went"
    assert tools.conversation is not None
    assert len(tools.conversation) == 6


# --- system prompts -------------------------------------------------------------------------------------------------


class Listener:
    """A model that records the instructions and system prompts that it receives."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        systems = [p.content for m in messages for p in m.parts if p.part_kind == "system-prompt"]
        self.heard.append("\n\n".join([*systems, info.instructions or ""]))
        return ModelResponse(parts=[TextPart("yes")])


@pytest.mark.parametrize("given", [None, "Speak French.", ["Speak French."], ("Speak French.",)])
async def test_system_prompts_are_sent_like_instructions(given: Any) -> None:
    """Seed: "Each branch runs in isolation with its own bot instance": the system message belongs to the bot."""
    model = Listener()
    agent: Agent[int, str] = Agent(
        FunctionModel(model), deps_type=int, system_prompt="You are a goat.", instructions="Be brief."
    )

    @agent.system_prompt
    def count(ctx: RunContext[int]) -> str:
        return f"There are {ctx.deps} goats."

    talk = Talk(agent, deps=7, **({} if given is None else {"instructions": given}))
    first = await talk.prompt("hi")
    await talk.prompt("and?")
    await talk.prompt("or?", first)
    assert len(model.heard) == 3
    for heard in model.heard:
        for text in ("You are a goat.", "There are 7 goats.", "Be brief.", *(["Speak French."] if given else [])):
            assert heard.count(text) == 1


async def test_a_system_prompt_in_the_conversation_is_not_sent_twice() -> None:
    """Seed: "Each branch receives its own copy of the conversation history"."""
    model = Listener()
    agent = Agent(FunctionModel(model), system_prompt="You are a goat.")
    history = (await agent.run("hi")).all_messages()
    tree = Conversation()
    tree.extend(adopted(history))
    await Talk(agent, tree).prompt("and?")
    assert [heard.count("You are a goat.") for heard in model.heard] == [1, 1]


# --- recombination --------------------------------------------------------------------------------------------------


ANSWERS = [Answer("a", "first", 1), Answer("c", "third", 3)]
CONCATENATED = "Response 1:\nfirst\n\nResponse 3:\nthird"


def judge_with(*answers: Any) -> FunctionModel:
    """Return a judge that chooses these options one after another; an exception is raised, text is said."""
    left = list(answers)

    def choose(_messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"option": answer})])
        return ModelResponse(parts=[TextPart(answer)])

    return FunctionModel(choose)


@pytest.mark.parametrize("method", ["llm_judge", "llm_vote", "llm_merge"])
@pytest.mark.parametrize("nonsense", [ValueError("no idea"), 2, 99, -1, "banana", " "])
async def test_a_model_without_a_verdict_costs_only_the_verdict(method: Recombination, nonsense: Any) -> None:
    """Seed: "API errors (proper error propagation)" and "continues with successful branches"."""
    if method == "llm_merge" and nonsense != " " and not isinstance(nonsense, Exception):
        return  # any text is a merge
    made = await recombine(method, ANSWERS, judge_with(nonsense))
    assert made.winner is None
    assert made.error is not None
    assert made.text.startswith(f"There is no verdict, because {method} failed: ")
    assert made.text.endswith(f"All answers follow.\n\n{CONCATENATED}")


async def test_votes_that_fail_leave_the_decision_to_the_others() -> None:
    """Seed: "continues with successful branches"."""
    made = await recombine("llm_vote", ANSWERS, judge_with(ValueError("no idea"), 3, 3))
    assert made.winner == 1
    assert made.text.startswith("Option 3 was chosen with 2 of 2 votes\n1 of 3 votes failed: ValueError: no idea")
    assert made.text.endswith("\n\nthird")


async def test_options_have_the_numbers_of_their_branches() -> None:
    """Seed: "Recombination: When requested, results are combined and included in the tool result"."""
    assert (await recombine("llm_judge", ANSWERS, judge_with(3))).text == "Option 3 was chosen\n\nthird"
    assert (await recombine("concatenate", ANSWERS, None)).text == CONCATENATED
