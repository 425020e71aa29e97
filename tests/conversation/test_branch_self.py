"""branch_self: the tree while branches run and after they end, fail or time out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext, UsageLimits
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from forkwise import Workspace
from forkwise.conversation.branch_self import BranchSelf, BranchSelfLimits, branch_self, read_prompts
from forkwise.conversation.conversation import IN_PROGRESS, Conversation
from forkwise.conversation.node import Node
from forkwise.conversation.store import StoredConversation
from forkwise.conversation.talk import Talk, text_of
from forkwise.ledger.sqlite import SqliteLedger

pytestmark = pytest.mark.anyio


def last_prompt(messages: list[ModelMessage]) -> str:
    for message in reversed(messages):
        for part in reversed(message.parts):
            if isinstance(part, UserPromptPart):
                return str(part.content)
    return ""


def returned(messages: list[ModelMessage]) -> dict[str, Any]:
    return {p.tool_name: p.content for p in messages[-1].parts if isinstance(p, ToolReturnPart)}


class Mind:
    """A model that answers each prompt from a table, and repeats the results of its tools."""

    def __init__(self, **says: Any) -> None:
        self.says = says
        self.requests: list[list[ModelMessage]] = []
        self.serial = 0

    async def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.requests.append(messages)
        Conversation().extend(messages)  # every request must follow the providers' rules
        prompt = last_prompt(messages).removeprefix("(self-prompt): ")
        say = self.says.get(prompt, f"answer to {prompt}")
        if isinstance(say, Exception):
            raise say
        if callable(say):
            say = await say(messages)
        if isinstance(say, str):
            return ModelResponse(parts=[TextPart(say)])
        got = returned(messages)
        if got and prompt == last_prompt([messages[-3]] if len(messages) > 2 else []).removeprefix("(self-prompt): "):
            return ModelResponse(parts=[TextPart(f"heard {got}")])
        calls = []
        for name, arguments in say:
            self.serial += 1
            calls.append(ToolCallPart(name, arguments, f"call_{self.serial}"))
        return ModelResponse(parts=[TextPart("calling"), *calls])


def agent(mind: Mind, **options: Any) -> tuple[Agent[None, str], BranchSelf]:
    tools = BranchSelf(**options)
    made = Agent(FunctionModel(mind), toolsets=[tools])

    @made.tool_plain
    def note(text: str) -> str:
        return f"noted {text}"

    return made, tools


def children(node: Node) -> list[str]:
    return [last_prompt([n.message]) for n in node.replies if n.message is not None]


def results(talk: Conversation, node: Node) -> list[Any]:
    return [p.content for p in talk.path(node)[-1].parts if isinstance(p, ToolReturnPart)]


def branching(*prompts: str, **options: Any) -> list[tuple[str, dict[str, Any]]]:
    return [("branch_self", {"self_prompts": list(prompts), **options})]


async def test_the_life_of_the_tree() -> None:
    seen: list[list[Any]] = []

    async def look(messages: list[ModelMessage]) -> str:
        seen.append(list(returned(messages).values()))
        return "response to it"

    mind = Mind(go=[*branching("task 1", "task 2", "task 3"), ("note", {"text": "x"})], **{"task 1": look})
    made, _ = agent(mind)
    talk = Talk(made)
    end = await talk.prompt("go")
    tree = talk.conversation
    caller = tree.node(2)
    assert [c.tool_name for c in caller.calls] == ["branch_self", "note"]
    assert children(caller)[:3] == ["(self-prompt): task 1", "(self-prompt): task 2", "(self-prompt): task 3"]
    assert len(caller.replies) == 4
    assert seen == [[IN_PROGRESS, IN_PROGRESS]]
    summary = "3 of 3 branches completed."
    for reply in caller.replies:
        assert results(tree, reply) == [summary, "noted x"]
    assert [text_of(way.replies[0]) for way in caller.replies[:3]] == [
        "response to it",
        "answer to task 2",
        "answer to task 3",
    ]
    assert end.depth == 4
    assert "branches completed" in text_of(end)
    assert tree.here is end


async def test_every_branch_can_be_gone_on_with() -> None:
    mind = Mind(go=branching("task 1", "task 2"))
    made, _ = agent(mind)
    talk = Talk(made)
    await talk.prompt("go")
    leaf = talk.conversation.node(2).replies[0].replies[0]
    later = await talk.prompt("and now?", at=leaf)
    assert text_of(later) == "answer to and now?"
    assert later.is_below(leaf)


async def test_twelve_prompts_add_twelve_children() -> None:
    prompts = [f"task {n}" for n in range(12)]
    for parallel in (True, False):
        mind = Mind(go=branching(*prompts, parallel=parallel))
        made, _ = agent(mind)
        talk = Talk(made)
        await talk.prompt("go")
        assert len(talk.conversation.node(2).replies) == 13
        assert len(talk.conversation) == 4 + 24


async def test_recursion_ends_at_its_depth() -> None:
    deeper = {f"level {n}": branching(f"level {n + 1}", allow_work=True) for n in range(5)}
    mind = Mind(**deeper)
    made, _ = agent(mind, max_depth=3)
    talk = Talk(made)
    end = await talk.prompt("level 0")
    said = [last_prompt([n.message]) for n in talk.conversation if n.message is not None]
    assert {f"(self-prompt): level {n}" for n in (1, 2, 3)} <= set(said)
    assert "(self-prompt): level 4" not in said
    deepest = max(talk.conversation, key=lambda node: node.depth)
    assert any("go no deeper" in str(m) for m in talk.conversation.path(deepest))
    assert "1 of 1 branches completed" in text_of(end)


async def test_a_branch_that_fails_is_told_and_the_others_count() -> None:
    mind = Mind(go=branching("good", "bad", recombine="concatenate"), bad=ValueError("out of ideas"))
    made, _ = agent(mind)
    talk = Talk(made)
    end = await talk.prompt("go")
    assert "1 of 2 branches completed" in text_of(end)
    assert "Branch 2 ('bad') failed: ValueError: out of ideas" in text_of(end)
    assert "Response 1:\\nanswer to good" in text_of(end)
    failed = talk.conversation.node(2).replies[1]
    mind.says.clear()
    assert text_of(await talk.go_on(failed)) == "answer to bad"


async def test_one_word_or_work() -> None:
    for allow_work in (False, True):
        mind = Mind(go=branching("use it", allow_work=allow_work), **{"use it": [("note", {"text": "y"})]})
        made, _ = agent(mind)
        talk = Talk(made)
        await talk.prompt("go")
        way = talk.conversation.node(2).replies[0]
        first = way.replies[0]
        assert first.calls[0].tool_name == "note"
        if allow_work:
            assert text_of(first.replies[0].replies[0]) == "heard {'note': 'noted y'}"
        else:
            assert first.replies == []
            assert first.results[first.calls[0].tool_call_id].content == "noted y"
            assert text_of(await talk.prompt("so?", at=first)) == "answer to so?"


@pytest.mark.parametrize("how", ["llm_merge", "llm_vote", "llm_judge"])
async def test_a_model_makes_one_of_several(how: str) -> None:
    asked: list[str] = []

    def judge(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(last_prompt(messages))
        assert len(messages) == 1
        if info.output_tools:
            return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"option": 2, "reason": "shorter"})])
        return ModelResponse(parts=[TextPart("both in one")])

    mind = Mind(go=branching("one", "two", recombine=how))
    made, _ = agent(mind, judge=FunctionModel(judge))
    end = await Talk(made).prompt("go")
    assert len(asked) == (3 if how == "llm_vote" else 1)
    assert "Option 2 (asked: two)" in asked[0]
    expected = "both in one" if how == "llm_merge" else "Option 2 was chosen"
    assert expected in text_of(end)
    if how == "llm_vote":
        assert "3 of 3 votes: shorter" in text_of(end)


async def test_limits_hold_over_the_whole_tree() -> None:
    mind = Mind(go=branching("a", "b", "c"))
    made, _ = agent(mind, max_branches=2)
    end = await Talk(made).prompt("go")
    assert "2 more branches can be made, not 3" in text_of(end) or "2 more branches" in str(mind.requests[-1])


async def test_a_branch_that_takes_too_long() -> None:
    async def slow(_: list[ModelMessage]) -> str:
        await asyncio.sleep(60)
        return "late"

    mind = Mind(go=branching("quick", "slow"), slow=slow)
    made, _ = agent(mind, timeout=0.2)
    end = await Talk(made).prompt("go")
    assert "1 of 2 branches completed" in text_of(end)
    assert "longer than 0.2 s" in text_of(end)


async def test_in_a_run_that_no_talk_started() -> None:
    mind = Mind(go=branching("task 1", "task 2"))
    made, tools = agent(mind)
    before = await made.run("hello")
    done = await made.run("go", message_history=before.all_messages())
    assert "2 of 2 branches completed" in done.output
    assert tools.conversation is not None
    assert len(tools.conversation.node(4).replies) == 2


async def test_for_programs() -> None:
    made, _ = agent(Mind())
    talk = Talk(made)
    start = await talk.prompt("hello")
    done = await branch_self(talk, ["one", "two"], recombine_by="concatenate", limits=BranchSelfLimits(max_parallel=1))
    assert [way.text for way in done.ways] == ["answer to one", "answer to two"]
    assert done.recombined.text == "Response 1:\nanswer to one\n\nResponse 2:\nanswer to two"
    assert talk.conversation.here is start


async def test_each_branch_has_files_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    workspace = Workspace(tmp_path / "w", state=tmp_path / "s")
    mind = Mind(
        go=branching("one", "two", allow_work=True, recombine="concatenate"),
        one=[("write", {"name": "one.txt"})],
        two=[("write", {"name": "two.txt"})],
    )
    made, _ = agent(mind, workspace=workspace)

    @made.tool
    async def write(ctx: RunContext[None], name: str) -> list[str]:
        await ctx.workspace.write_text(name, "content")
        return sorted(entry.path for entry in await ctx.workspace.list_dir("."))

    end = await Talk(made).prompt("go")
    assert "committed together (2 paths)" in text_of(end)
    assert sorted(p.name for p in (tmp_path / "w").iterdir()) == ["one.txt", "two.txt"]
    assert workspace.branches() == []
    seen = [returned(m)["write"] for m in mind.requests if "write" in returned(m)]
    assert sorted(len(names) for names in seen) == [1, 1]


def test_prompts_in_every_form() -> None:
    assert read_prompts(["a", "b"]) == ["a", "b"]
    assert read_prompts('["a, b", "c"]') == ["a, b", "c"]
    assert read_prompts("['Analyze data', 'Write summary']") == ["Analyze data", "Write summary"]
    assert read_prompts("do a, then b") == ["do a, then b"]
    for bad in ("[]", "['it's']", [], [" "], "[1]"):
        with pytest.raises(Exception, match="self_prompts"):
            read_prompts(bad)  # type: ignore[arg-type]


async def test_after_a_restart_every_branch_can_be_gone_on_with(tmp_path: Path) -> None:
    made, _ = agent(Mind(go=branching("task 1", "task 2")))
    with SqliteLedger(tmp_path) as ledger:
        saved = StoredConversation(Conversation(), ledger.conversations)
        await Talk(made, saved=saved).prompt("go")
    with SqliteLedger(tmp_path) as ledger:
        again = StoredConversation.load(ledger.conversations, saved.id)
        leaf = again.conversation.node(2).replies[1].replies[0]
        assert text_of(leaf) == "answer to task 2"
        assert text_of(await Talk(made, saved=again).prompt("and?", at=leaf)) == "answer to and?"
        assert len(StoredConversation.load(ledger.conversations, saved.id).conversation) == len(again.conversation)


async def test_work_that_never_ends_is_ended() -> None:
    mind = Mind(go=branching("use it", allow_work=True), **{"use it": [("note", {"text": "y"})]})
    made, _ = agent(mind)

    @made.tool_plain
    def again() -> str:
        return "again"

    async def restless(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        mind.serial += 1
        return ModelResponse(parts=[TextPart("more"), ToolCallPart("again", {}, f"call_{mind.serial}")])

    talk = Talk(Agent(FunctionModel(restless), tools=[again]), usage_limits=UsageLimits(request_limit=20))
    done = await branch_self(talk, ["go"], allow_work=True)
    assert done.ways[0].error is not None
    assert "request_limit of 20" in done.ways[0].error
    assert mind.serial == 20


async def test_a_prompt_above_a_tool_s_use_is_one_that_providers_take() -> None:
    mind = Mind(**{"use it": [("note", {"text": "y"})]})
    made, _ = agent(mind)
    talk = Talk(made)
    await talk.prompt("use it")
    caller = talk.conversation.node(2)
    assert [c.tool_name for c in caller.calls] == ["note"]
    told = await talk.prompt("rather this", at=caller)
    assert text_of(told) == "answer to rather this"
    assert results(talk.conversation, caller.replies[1]) == ["noted y"]


async def test_branches_off_a_long_conversation() -> None:
    made, _ = agent(Mind(go=branching("one", "two", "three", "four", "five")))
    talk = Talk(made)
    for number in range(500):
        talk.conversation.say(f"q {number}")
        talk.conversation.reply(f"a {number}")
    await talk.prompt("go")
    assert len(talk.conversation) == 1000 + 4 + 10
