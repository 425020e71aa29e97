"""branch_self: the tree while branches run and after they end, fail or time out."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
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
from forkwise.conversation.conversation import BRANCHING_IN_PROGRESS, IN_PROGRESS, Conversation
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
    """Seed: 'All branch user nodes share the same `tool_use_id`', and "Tool results sync across nodes"."""
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
    assert seen == [[BRANCHING_IN_PROGRESS, IN_PROGRESS]]
    summary = (
        "Successfully created 3 branches.\n\n"
        "Branch 1 ('task 1'):\nresponse to it\n\n"
        "Branch 2 ('task 2'):\nanswer to task 2\n\n"
        "Branch 3 ('task 3'):\nanswer to task 3"
    )
    for reply in caller.replies:
        assert results(tree, reply) == [summary, "noted x"]
    assert [text_of(way.replies[0]) for way in caller.replies[:3]] == [
        "response to it",
        "answer to task 2",
        "answer to task 3",
    ]
    assert end.depth == 4
    assert "Successfully created 3 branches" in text_of(end)
    assert tree.here is end


async def test_every_branch_can_be_continued() -> None:
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
    assert "Successfully created 1 branch." in text_of(end)


async def test_a_failed_branch_is_reported_and_the_others_count() -> None:
    mind = Mind(go=branching("good", "bad", recombine="concatenate"), bad=ValueError("out of ideas"))
    made, _ = agent(mind)
    talk = Talk(made)
    end = await talk.prompt("go")
    assert "Successfully created 2 branches; 1 of them failed." in text_of(end)
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
    assert "Successfully created 2 branches; 1 of them failed." in text_of(end)
    assert "longer than 0.2 s" in text_of(end)


async def test_in_a_run_that_no_talk_started() -> None:
    mind = Mind(go=branching("task 1", "task 2"))
    made, tools = agent(mind)
    before = await made.run("hello")
    done = await made.run("go", message_history=before.all_messages())
    assert "Successfully created 2 branches" in done.output
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
            read_prompts(bad)


async def test_after_a_restart_every_branch_can_be_continued(tmp_path: Path) -> None:
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
    report = await talk.prompt("rather this", at=caller)
    assert text_of(report) == "answer to rather this"
    assert results(talk.conversation, caller.replies[1]) == ["noted y"]


async def test_branches_off_a_long_conversation() -> None:
    made, _ = agent(Mind(go=branching("one", "two", "three", "four", "five")))
    talk = Talk(made)
    for number in range(500):
        talk.conversation.say(f"q {number}")
        talk.conversation.reply(f"a {number}")
    await talk.prompt("go")
    assert len(talk.conversation) == 1000 + 4 + 10


# --- what the agent receives ----------------------------------------------------------------------------------------


async def test_the_default_summary_has_every_answer() -> None:
    """Seed: 'content="Successfully created... and summary..."' and "A summary of branch execution results"."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompt = last_prompt(messages)
        if prompt.startswith("(self-prompt)"):
            return ModelResponse(parts=[TextPart(f"found {prompt[-1]}")])
        summary = str(returned(messages).get("branch_self", ""))
        if not all(f"found {n}" in summary for n in "123"):  # an agent that learns nothing branches again
            prompts = ["look at 1", "look at 2", "look at 3"]
            return ModelResponse(parts=[ToolCallPart("branch_self", {"self_prompts": prompts})])
        return ModelResponse(parts=[TextPart("I know all three.")])

    tools = BranchSelf()
    done = await Agent(FunctionModel(model), toolsets=[tools]).run("go")
    assert done.output == "I know all three."
    assert done.usage.requests == 5
    assert tools.conversation is not None
    assert len(tools.conversation.node(2).replies) == 3


async def test_a_long_answer_is_cut_and_the_summary_names_its_message(tmp_path: Path) -> None:
    """Seed: "Minimal Conversation Pollution", "Branch execution details are kept internal to the tool"."""
    mind = Mind(go=branching("long", "short"), long="x" * 50_000)
    made, _ = agent(mind)
    with SqliteLedger(tmp_path) as ledger:
        saved = StoredConversation(Conversation(), ledger.conversations)
        await Talk(made, saved=saved).prompt("go")
    tree = saved.conversation
    long, short = (reply.replies[0] for reply in tree.node(2).replies[:2])
    [summary] = results(tree, tree.node(2).replies[-1])
    assert len(summary) < 3000
    assert f"[48000 more characters in message {long.id} of conversation {saved.id}]" in summary
    assert summary.endswith("Branch 2 ('short'):\nanswer to short")
    assert text_of(short) == "answer to short"


async def test_fifty_branches_have_a_bounded_summary() -> None:
    """Seed: "Minimal Conversation Pollution"."""
    mind = Mind(go=branching(*(f"task {n}" for n in range(45))), **{f"task {n}": "y" * 9999 for n in range(45)})
    made, _ = agent(mind)
    done = await made.run("go", usage_limits=UsageLimits(request_limit=60))
    assert len(done.output) < 25_000
    assert "Branch 45 ('task 44')" in done.output


@pytest.mark.parametrize("how", ["concatenate", "llm_judge", "llm_merge"])
async def test_recombination_replaces_the_answers(how: str) -> None:
    """Seed: "When requested, results are combined and included in the tool result"."""

    def judge(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if info.output_tools:
            return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"option": 3})])
        return ModelResponse(parts=[TextPart("one of two")])

    mind = Mind(go=branching("one", "bad", "three", recombine=how), bad=ValueError("out of ideas"))
    made, _ = agent(mind, judge=FunctionModel(judge))
    talk = Talk(made)
    end = await talk.prompt("go")
    assert end.parent is not None
    [summary] = results(talk.conversation, end.parent)
    head = "Successfully created 3 branches; 1 of them failed.\n\nBranch 2 ('bad') failed: ValueError: out of ideas\n\n"
    # Numbers keep their branch when one fails.
    expected = {
        "concatenate": "Response 1:\nanswer to one\n\nResponse 3:\nanswer to three",
        "llm_judge": "Option 3 was chosen\n\nanswer to three",
        "llm_merge": "one of two",
    }
    assert summary == head + expected[how]


async def test_all_branches_fail() -> None:
    """Seed: "Individual branch failures (continues with successful branches)"."""
    made, _ = agent(Mind(go=branching("a", "b", recombine="llm_judge"), a=ValueError("no"), b=ValueError("never")))
    end = await Talk(made).prompt("go")
    assert "Successfully created 2 branches; 2 of them failed." in text_of(end)
    assert "Branch 2 ('b') failed: ValueError: never" in text_of(end)


async def test_an_answer_of_calls_alone() -> None:
    """Seed: 'Assistant: "response to task1"' is in the summary also if the response is a tool call."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if last_prompt(messages).startswith("(self-prompt)"):
            return ModelResponse(parts=[ToolCallPart("note", {"text": "y"}, "c2")])
        got = returned(messages)
        if got:
            return ModelResponse(parts=[TextPart(got["branch_self"])])
        return ModelResponse(parts=[ToolCallPart("branch_self", {"self_prompts": ["use it"]}, "c1")])

    made, _ = agent(Mind())
    end = await Talk(made, model=FunctionModel(model)).prompt("go")
    assert text_of(end).endswith('Branch 1 (\'use it\'):\ncalled note({"text":"y"}): noted y')


# --- runs -----------------------------------------------------------------------------------------------------------


async def test_an_agent_that_a_tool_runs_keeps_to_its_own_tree() -> None:
    """Seed: "Each branch becomes a direct child of the original assistant node that made the `branch_self` call"."""
    inner, inner_tools = agent(Mind(inside=branching("task 1", "task 2")))
    outer = Agent(FunctionModel(Mind(go=[("delegate", {})])), toolsets=[BranchSelf()])

    @outer.tool_plain
    async def delegate() -> str:
        return (await inner.run("inside")).output

    talk = Talk(outer)
    end = await talk.prompt("go")
    assert "Successfully created 2 branches" in text_of(end)
    assert len(talk.conversation) == 4
    assert inner_tools.conversation is not None
    assert len(inner_tools.conversation.node(2).replies) == 2


async def test_an_agent_that_runs_itself_in_a_tool_keeps_to_its_own_tree() -> None:
    """Seed: "Each branch becomes a direct child of the original assistant node that made the `branch_self` call"."""
    made, tools = agent(Mind(go=[("again", {})], inside=branching("task 1")))

    @made.tool_plain
    async def again() -> str:
        return (await made.run("inside")).output

    talk = Talk(made)
    assert "Successfully created 1 branch." in text_of(await talk.prompt("go"))
    assert len(talk.conversation) == 4
    assert tools.conversation is not talk.conversation


async def test_the_second_branching_of_a_run_keeps_the_branches_of_the_first() -> None:
    """Seed: "The individual branch conversations become part of the tree structure"."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if last_prompt(messages).startswith("(self-prompt)"):
            return ModelResponse(parts=[TextPart("done")])
        step = sum(isinstance(message, ModelResponse) for message in messages)
        if step == 2:
            return ModelResponse(parts=[TextPart("all done")])
        calls = [ToolCallPart("branch_self", {"self_prompts": [f"{n} {step}"]}, f"c{step}{n}") for n in "ab"]
        return ModelResponse(parts=list(calls))

    tools = BranchSelf()
    await Agent(FunctionModel(model), toolsets=[tools]).run("go")
    tree = tools.conversation
    assert tree is not None
    assert children(tree.node(2))[:2] == ["(self-prompt): a 0", "(self-prompt): b 0"]
    second = tree.node(2).replies[2].replies[0]
    assert children(second) == ["(self-prompt): a 1", "(self-prompt): b 1"]
    assert all("Successfully created 1 branch." in text for text in results(tree, tree.node(2).replies[0]))


async def test_max_branches_counts_per_run() -> None:
    """Seed: "Recursive branching is intended": the limit is that of one run with its branches, not of the toolset."""
    made, _ = agent(Mind(go=branching("a", "b")), max_branches=2)
    for _ in range(3):
        assert "Successfully created 2 branches" in (await made.run("go")).output
    talk = Talk(made)
    for _ in range(2):
        assert "Successfully created 2 branches" in text_of(await talk.prompt("go"))


async def test_branches_of_branches_count_in_their_run() -> None:
    """Seed: "Recursive branching is intended"."""
    deeper = {"go": branching("level 1", allow_work=True), "level 1": branching("x", "y", allow_work=True)}
    mind = Mind(**deeper)
    made, _ = agent(mind, max_branches=2)
    await Talk(made).prompt("go")
    assert any("1 more branches can be made, not 2" in str(request[-1]) for request in mind.requests)


async def test_malformed_arguments_are_answered_each_time() -> None:
    """Seed: "Malformed inputs (validation and error messages)"."""
    malformed: list[dict[str, Any]] = [
        {"self_prompts": "['it's'"},
        {"self_prompts": []},
        {"self_prompts": 7},
        {},
        {"self_prompts": ["a"], "recombine": "by magic"},
        {"self_prompts": ["a"], "allow_work": "perhaps"},
        {"self_prompts": [" "]},
    ]
    heard: list[str] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if last_prompt(messages).startswith("(self-prompt)"):
            return ModelResponse(parts=[TextPart("done")])
        heard.append(str(messages[-1].parts[0].content))
        step = sum(isinstance(message, ModelResponse) for message in messages)
        if step > len(malformed):
            return ModelResponse(parts=[TextPart("at last")])
        arguments = malformed[step] if step < len(malformed) else {"self_prompts": "['a']", "allow_work": "True"}
        return ModelResponse(parts=[ToolCallPart("branch_self", arguments)])

    done = await Agent(FunctionModel(model), toolsets=[BranchSelf()]).run("go")
    assert done.output == "at last"
    for text, expected in zip(
        heard[1:],
        ["looks like a list", "at least one prompt", "list", "required", "one of none", "bool", "non-empty", "Success"],
        strict=True,
    ):
        assert expected.lower() in text.lower()


class Plan(BaseModel):
    """The output of an agent."""

    steps: list[str]


async def test_branches_of_an_agent_with_an_output_type_have_answers() -> None:
    """Seed: "A summary of branch execution results (in a tool result)", also if a result is not text."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        prompt = last_prompt(messages)
        if prompt == "go" and not returned(messages):
            return ModelResponse(parts=[ToolCallPart("branch_self", {"self_prompts": ["one", "two"]}, "c")])
        steps = [prompt[-3:]] if prompt != "go" else list(map(str, returned(messages).values()))
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"steps": steps})])

    tools = BranchSelf()
    done = await Agent(FunctionModel(model), output_type=Plan, toolsets=[tools]).run("go")
    assert 'Branch 1 (\'one\'):\n{"steps":["one"]}' in done.output.steps[0]
    assert 'Branch 2 (\'two\'):\n{"steps":["two"]}' in done.output.steps[0]
    assert tools.conversation is not None
    assert text_of(tools.conversation.node(2).replies[0].replies[0]) == '{"steps":["one"]}'


async def test_branches_of_an_agent_with_an_output_function_have_its_result() -> None:
    """Seed: "A summary of branch execution results (in a tool result)", also if a result is not text."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"number": 6})])

    def times_seven(number: int) -> int:
        return number * 7

    talk = Talk(Agent(FunctionModel(model), output_type=times_seven))
    done = await branch_self(talk, ["one", "two"], recombine_by="concatenate")
    assert [way.text for way in done.ways] == ["42", "42"]


@pytest.mark.parametrize("how", ["llm_judge", "llm_merge"])
async def test_a_failed_verdict_costs_no_branch_and_no_file(how: str, tmp_path: Path) -> None:
    """Seed: "API errors (proper error propagation)"."""
    (tmp_path / "w").mkdir()
    workspace = Workspace(tmp_path / "w", state=tmp_path / "s")

    def judge(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        raise ConnectionError("no network")

    mind = Mind(
        go=branching("one", "two", allow_work=True, recombine=how),
        one=[("write", {"name": "one.txt"})],
        two=[("write", {"name": "two.txt"})],
    )
    made, _ = agent(mind, workspace=workspace, judge=FunctionModel(judge))

    @made.tool
    async def write(ctx: RunContext[None], name: str) -> str:
        await ctx.workspace.write_text(name, "content")
        return name

    talk = Talk(made)
    end = await talk.prompt("go")
    assert end.parent is not None
    [summary] = results(talk.conversation, end.parent)
    assert f"There is no verdict, because {how} failed: ConnectionError: no network" in summary
    assert "Response 1:\nheard {'write': 'one.txt'}\n\nResponse 2:\nheard {'write': 'two.txt'}" in summary
    assert "Files: kept in the branches" in summary
    assert [len(branch.delta()) for branch in workspace.branches()] == [1, 1]
    assert list((tmp_path / "w").iterdir()) == []
    for branch in workspace.branches():
        branch.abort()


async def test_files_that_cannot_be_forked_are_an_answer(tmp_path: Path) -> None:
    """Seed: "File system issues"."""
    (tmp_path / "w").mkdir()
    workspace = Workspace(tmp_path / "w", state=tmp_path / "s")
    parent = workspace.branch("parent")
    parent.abort()
    made, _ = agent(Mind(go=branching("one", "two")), workspace=parent)
    end = await Talk(made).prompt("go")
    assert "Error: no branches were created" in text_of(end)


async def test_branches_of_a_branch_start_with_its_files(tmp_path: Path) -> None:
    """Seed: "Recursive branching is intended"."""
    (tmp_path / "w").mkdir()
    workspace = Workspace(tmp_path / "w", state=tmp_path / "s")
    work = {"allow_work": True, "recombine": "concatenate"}
    mind = Mind(
        go=branching("outer", **work),
        outer=[("write", {"name": "outer.txt"}), *branching("inner", **work)],
        inner=[("write", {"name": "inner.txt"})],
    )
    made, _ = agent(mind, workspace=workspace)

    @made.tool(sequential=True)
    async def write(ctx: RunContext[None], name: str) -> list[str]:
        await ctx.workspace.write_text(name, "content")
        return sorted(entry.name for entry in await ctx.workspace.list_dir("."))

    await Talk(made).prompt("go")
    assert sorted(p.name for p in (tmp_path / "w").iterdir()) == ["inner.txt", "outer.txt"]
    seen = [returned(m)["write"] for m in mind.requests if "write" in returned(m)]
    assert ["inner.txt", "outer.txt"] in seen
    assert workspace.branches() == []
