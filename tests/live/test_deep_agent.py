"""The ready-made agent: its tools, on files in memory and in a directory, and messages to it while it runs."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.workspaces import WorkspaceRef

from forkwise import (
    BASE_PROMPT,
    BranchSpec,
    DeepAgentDeps,
    InMemoryCheckpointStore,
    InMemoryForkStateStore,
    LocalBackend,
    MessageQueue,
    StateBackend,
    Workspace,
    create_deep_agent,
)
from forkwise.fork.agent_workspace import agent_workspace
from forkwise.live.backends.backend import Backend
from forkwise.live.backends.branch_overlay import BranchOverlay
from forkwise.live.capability import LiveForkCapability
from forkwise.live.deps import Todo
from tests.leftovers import processes_about

pytestmark = pytest.mark.anyio


class Playing:
    """A model that calls one tool after the other, and records the results."""

    def __init__(self, *calls: tuple[str, dict[str, Any]]) -> None:
        self.calls = list(calls)
        self.requests: list[list[ModelMessage]] = []
        self.tools: list[str] = []

    def __call__(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.requests.append(list(messages))
        self.tools = [tool.name for tool in info.function_tools]
        if not self.calls:
            return ModelResponse(parts=[TextPart("done")])
        name, arguments = self.calls.pop(0)
        return ModelResponse(parts=[ToolCallPart(name, arguments)])

    @property
    def answers(self) -> list[str]:
        """The results of its tools, in order."""
        last = self.requests[-1]
        return [str(part.content) for m in last for part in m.parts if isinstance(part, ToolReturnPart)]


@pytest.fixture(params=["memory", "directory", "branch"])
def backend(request: pytest.FixtureRequest, workspace: Workspace) -> Any:
    (workspace.path / "a.txt").write_text("one\ntwo\n")
    if request.param == "memory":
        yield StateBackend({"a.txt": "one\ntwo\n"})
    elif request.param == "directory":
        yield LocalBackend(workspace)
    else:
        overlay = BranchOverlay(LocalBackend(workspace))
        yield overlay
        overlay.discard()


async def play(backend: Backend, *calls: tuple[str, dict[str, Any]], **options: Any) -> list[str]:
    """Return the results of tool calls."""
    model = Playing(*calls)
    agent = create_deep_agent(FunctionModel(model), **options)
    await agent.run("go", deps=DeepAgentDeps(backend))
    return model.answers


class TestTools:
    async def test_of_files(self, backend: Backend) -> None:
        answers = await play(
            backend,
            ("ls", {}),
            ("read", {"path": "a.txt"}),
            ("write", {"path": "src/b.py", "content": "import os\n"}),
            ("edit", {"path": "a.txt", "old_string": "two", "new_string": "2"}),
            ("glob", {"pattern": "**/*.py"}),
            ("grep", {"pattern": "import|2"}),
            ("delete", {"path": "a.txt"}),
            ("ls", {"path": "/"}),
        )
        assert answers == [
            "a.txt (8 bytes)",
            "     1\tone\n     2\ttwo",
            "wrote src/b.py",
            "edited a.txt (1 replaced)",
            "src/b.py (10 bytes)",
            "a.txt:2: 2\nsrc/b.py:1: import os",
            "deleted a.txt",
            "src/",
        ]

    async def test_say_what_went_wrong(self, backend: Backend) -> None:
        answers = await play(
            backend,
            ("read", {"path": "none"}),
            ("write", {"path": "../out", "content": ""}),
            ("edit", {"path": "a.txt", "old_string": "none", "new_string": ""}),
            ("delete", {"path": "none"}),
            ("delete", {"path": "../out"}),
            ("grep", {"pattern": "("}),
            ("read", {"path": "../out"}),
            ("ls", {"path": "../"}),
        )
        assert [a for a in answers if not a.startswith("Error: ")] == []

    async def test_that_find_nothing_say_so(self, backend: Backend) -> None:
        answers = await play(
            backend, ("ls", {"path": "none"}), ("glob", {"pattern": "*.rs"}), ("grep", {"pattern": "zzz"})
        )
        assert answers == ["nothing in none", "nothing matches *.rs", "nothing matches zzz"]

    async def test_execute(self, workspace: Workspace) -> None:
        answers = await play(LocalBackend(workspace), ("execute", {"command": "cat a.txt; exit 3"}))
        assert answers == ["one\n\nexit code: 3"]

    async def test_execute_can_be_left_out(self) -> None:
        model = Playing()
        await create_deep_agent(FunctionModel(model), include_execute=False).run("go", deps=DeepAgentDeps())
        assert model.tools == ["ls", "read", "write", "edit", "glob", "grep", "delete", "write_todos"]

    async def test_todos(self) -> None:
        deps = DeepAgentDeps(todos=[Todo("old")])
        todos = deps.todos
        model = Playing(("write_todos", {"todos": [{"content": "new", "status": "in_progress"}]}))
        await create_deep_agent(FunctionModel(model)).run("go", deps=deps)
        assert todos == [Todo("new", "in_progress")]
        assert model.answers == ["[in_progress] new"]

    async def test_names_that_are_not_utf_8_can_be_sent_to_a_provider(self, workspace: Workspace) -> None:
        (workspace.path / "caf\udce9").write_text("")
        answers = await play(LocalBackend(workspace), ("ls", {}))
        assert answers == ["a.txt (4 bytes)\ncaf\\udce9 (0 bytes)"]

    async def test_of_a_branch_that_is_gone_say_so(self, workspace: Workspace) -> None:
        branch = BranchOverlay(LocalBackend(workspace))
        branch.discard()
        answers = await play(
            branch, ("ls", {}), ("write", {"path": "a", "content": ""}), ("execute", {"command": "true"})
        )
        assert [a for a in answers if not (a.startswith("Error: ") and "aborted" in a)] == []


class TestCancelling:
    async def test_ends_the_command(self, workspace: Workspace) -> None:
        model = Playing(("execute", {"command": "sleep 3606"}))
        agent = create_deep_agent(FunctionModel(model))
        run = asyncio.create_task(agent.run("go", deps=DeepAgentDeps(LocalBackend(workspace))))
        while not processes_about("sleep 3606"):
            await asyncio.sleep(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert processes_about("sleep 3606") == []


class TestSpeakingToIt:
    async def test_reaches_the_next_request(self) -> None:
        deps = DeepAgentDeps()
        deps.message_queue.put("be brief")
        model = Playing(("ls", {}))
        await create_deep_agent(FunctionModel(model)).run("go", deps=deps)
        assert prompts(model.requests[0]) == ["go", "be brief"]
        assert len(deps.message_queue) == 0

    async def test_while_it_runs(self) -> None:
        deps = DeepAgentDeps()
        model = Playing(("speak", {}), ("ls", {}))
        agent = create_deep_agent(FunctionModel(model))

        @agent.tool
        async def speak(ctx: RunContext[DeepAgentDeps]) -> str:
            ctx.deps.message_queue.put("now")
            ctx.deps.message_queue.put("at the end", "when_idle")
            return "spoken"

        await agent.run("go", deps=deps)
        assert [prompts(request) for request in model.requests] == [
            ["go"],
            ["go", "now"],
            ["go", "now"],
            ["go", "now", "at the end"],
        ]

    async def test_what_comes_too_late_is_there_for_the_next_run(self) -> None:
        queue = MessageQueue()
        model = Playing()
        agent = create_deep_agent(FunctionModel(model))
        await agent.run("first", deps=DeepAgentDeps(message_queue=queue))
        queue.put("late")
        await agent.run("second", deps=DeepAgentDeps(message_queue=queue))
        assert prompts(model.requests[-1]) == ["second", "late"]


def prompts(messages: list[ModelMessage]) -> list[object]:
    """Return the user prompts."""
    return [part.content for message in messages for part in message.parts if isinstance(part, UserPromptPart)]


class TestItsWorkspace:
    async def test_is_that_of_its_backend(self, workspace: Workspace) -> None:
        backend = LocalBackend(workspace)
        model = Playing(("write", {"path": "b.txt", "content": "b"}), ("look", {}))
        agent = create_deep_agent(FunctionModel(model))

        @agent.tool
        async def look(ctx: RunContext[DeepAgentDeps]) -> str:
            return (await ctx.workspace.run("cat b.txt; pwd", shell=True)).stdout

        await agent.run("go", deps=DeepAgentDeps(backend))
        assert model.answers[-1] == f"b{workspace.path}\n"

    async def test_is_that_of_its_deps_though_the_conversation_was_in_a_branch(self, workspace: Workspace) -> None:
        branch = BranchOverlay(LocalBackend(workspace))
        agent = create_deep_agent(FunctionModel(Playing()))
        result = await agent.run("go", deps=DeepAgentDeps(branch))
        branch.discard()
        again = await agent.run(
            "go on", deps=DeepAgentDeps(LocalBackend(workspace)), message_history=result.all_messages()
        )
        assert await again.workspace.read_text("a.txt") == "one\n"

    async def test_may_be_another_that_is_given(self, workspace: Workspace) -> None:
        agent = create_deep_agent(FunctionModel(Playing()))
        result = await agent.run("go", deps=DeepAgentDeps(), workspace=agent_workspace(workspace))
        assert result.workspace.ref == agent_workspace(workspace).ref
        with pytest.raises(Exception, match="elsewhere"):
            await agent.run("go", deps=DeepAgentDeps(), workspace=WorkspaceRef(provider="elsewhere", id="1"))


class TestMakingOne:
    def test_options_are_those_of_an_agent(self) -> None:
        agent = create_deep_agent("test", name="mine", output_type=int, instructions="Be brief.")
        assert isinstance(agent, Agent)
        assert agent.name == "mine"

    async def test_instructions_come_after_its_own(self) -> None:
        model = Playing()
        await create_deep_agent(FunctionModel(model), instructions="Be brief.").run("go", deps=DeepAgentDeps())
        text = model.requests[0][0].instructions or ""  # type: ignore[union-attr]
        assert text.startswith("You work on files")
        assert text.endswith("Be brief.")
        assert "fork_run" not in text

    @pytest.mark.parametrize("forking", [True, LiveForkCapability(max_branches=3)])
    async def test_forking(self, forking: bool | LiveForkCapability) -> None:
        model = Playing()
        await create_deep_agent(FunctionModel(model), forking=forking).run("go", deps=DeepAgentDeps())
        assert "fork_run" in (model.requests[0][0].instructions or "")  # type: ignore[union-attr]
        assert {"read", "fork_run", "merge_or_select"} <= set(model.tools)


# The words of the guide and the API page


def test_an_unknown_keyword_is_refused_by_the_functions_own_name() -> None:
    """The guide's table of parameters is complete: a typing error must not pass for an option of another library."""
    with pytest.raises(
        TypeError, match=r"create_deep_agent\(\) got an unexpected keyword argument 'include_checkpoint'. Did"
    ):
        create_deep_agent("test", include_checkpoint=True)
    with pytest.raises(TypeError, match=r"create_deep_agent\(\) got an unexpected keyword argument 'deps_type'"):
        create_deep_agent("test", deps_type=int)
    assert create_deep_agent("test", name="namer").name == "namer"


@pytest.mark.parametrize("forking", ["yes", 1, None, LiveForkCapability])
def test_forking_is_a_flag_or_a_capability(forking: Any) -> None:
    """The guide: ``forking``: "bool | LiveForkCapability"."""
    with pytest.raises(TypeError, match="forking must be True, False or a LiveForkCapability"):
        create_deep_agent("test", forking=forking)


async def test_the_prompt_of_a_forking_agent_has_the_section_on_forking() -> None:
    """The guide: "BASE_PROMPT includes a ## Forking section that walks the agent through the protocol"."""
    assert "\n## Forking\n" in BASE_PROMPT
    for forking in (True, False):
        playing = Playing()
        await create_deep_agent(FunctionModel(playing), forking=forking).run("hello", deps=DeepAgentDeps())
        [request] = playing.requests[0]
        assert ("## Forking" in str(request.instructions)) == forking


async def test_a_store_that_is_none_reads_as_one_in_memory(workspace: Workspace) -> None:
    """The API page: store: "ForkStateStore | None", "None"; the guide: "InMemoryForkStateStore()"."""
    for capability in (LiveForkCapability(), LiveForkCapability(store=None)):
        assert isinstance(capability.store, InMemoryForkStateStore)
        assert capability.coordinator_for(Agent("test")).store is capability.store
    own = InMemoryForkStateStore()
    assert LiveForkCapability(store=own).store is own
    capability = LiveForkCapability(workspace=workspace)
    coordinator = capability.coordinator_for(Agent("test"))
    handle = await coordinator.fork([BranchSpec("a", "hello")], parent_history=[])
    assert await capability.store.get(handle.fork_id) == handle
    await coordinator.aclose()


async def test_a_store_given_to_the_agent_has_the_checkpoints_of_its_forks() -> None:
    """The guide: ``include_checkpoints=True`` "provides the rewind safety net", also if the deps have no store."""
    store = InMemoryCheckpointStore()
    specs = [{"label": "a", "steer": "answer"}]
    playing = Playing(("fork_run", {"specs": specs}), ("merge_or_select", {"action": "abort"}))
    agent = create_deep_agent(FunctionModel(playing), forking=True, include_checkpoints=True, checkpoint_store=store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await agent.run("fork", deps=DeepAgentDeps())
    assert any(checkpoint.label.startswith("fork:") for checkpoint in await store.list_all())
