"""Agents that fork themselves: with any agent and deps, over the real clients, within a turn and across turns."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.test import TestModel
from pydantic_ai.workspaces import WorkspaceRef

from forkwise import (
    BranchSpec,
    DeepAgentDeps,
    ForkCoordinator,
    InMemoryCheckpointStore,
    LiveForkCapability,
    LocalBackend,
    StateBackend,
    Workspace,
    create_deep_agent,
    rewind,
)
from forkwise.fork.agent_workspace import agent_workspace
from tests.leftovers import processes_about
from tests.live.worker import all_over, driver, last_prompts, last_results, work, worker
from tests.modules.brain import Asked, Brain, call
from tests.modules.conftest import Thinking

pytestmark = pytest.mark.anyio

SPECS = [
    {"label": "a", "steer": "write name.txt whimsical"},
    {"label": "b", "steer": "write name.txt technical"},
]


def pick(label: str) -> Any:
    return lambda ids: f"pick:{ids[label]}"


async def test_an_agent_forks_itself_and_continues_as_the_winner(any_brain: Thinking, workspace: Workspace) -> None:
    """Over the real clients too: the provider rejects no message list."""
    brain = any_brain(driver(SPECS, pick("b")))
    agent = worker(brain, capabilities=[LiveForkCapability(workspace=workspace)], system_prompt="Be brief.")
    result = await agent.run("task")
    assert result.output == "continued"
    assert (workspace.path / "name.txt").read_text() == "technical"
    prompts = [
        part.content
        for message in result.all_messages()
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, UserPromptPart)
    ]
    assert prompts[:2] == ["task", "write name.txt technical"]  # the winner's prompts, not the loser's
    assert "done: write name.txt technical" in str(result.all_messages())
    assert "whimsical" not in str(result.new_messages()[3:])
    again = await agent.run("say goodbye", message_history=result.all_messages())
    assert again.output == "goodbye"


async def test_a_fork_in_the_first_turn_keeps_the_task(any_brain: Thinking, workspace: Workspace) -> None:
    seen: list[list[str]] = []

    def think(asked: Asked) -> Any:
        if "You are now" in str(asked.results):
            seen.append(asked.prompts)
            return "seen"
        if last_prompts(asked) == ["task"]:
            return [call("fork_run", specs=[{"label": "x", "steer": "this way"}]), call("shell", command="echo beside")]
        return driver(SPECS, pick("x"))(asked)

    brain = any_brain(think)
    agent = worker(brain, capabilities=[LiveForkCapability(workspace=workspace)])
    await agent.run("task")
    assert seen == [["task", "this way"]]


async def test_the_guides_quick_start(any_brain: Thinking) -> None:
    pitches = [
        {"label": "whimsical", "steer": "say Moonbeam: five sentences."},
        {"label": "technical", "steer": "say LockKit: five sentences."},
    ]
    store = InMemoryCheckpointStore()
    agent = create_deep_agent(
        any_brain(driver(pitches, pick("technical"))).model, forking=LiveForkCapability(), include_checkpoints=True
    )
    deps = DeepAgentDeps(backend=StateBackend(), checkpoint_store=store)
    result = await agent.run("task", deps=deps)
    assert result.output == "continued"
    assert "LockKit: five sentences." in str(result.all_messages())
    labels = [checkpoint.label for checkpoint in await store.list_all()]
    fork = deps.fork_coordinator.fork_id
    assert labels.index(f"fork:{fork}") < labels.index(f"post-fork:{fork}")


async def test_going_back_before_and_after_a_fork_with_the_files(workspace: Workspace) -> None:
    store = InMemoryCheckpointStore()
    agent = create_deep_agent(Brain(decide=_writer), forking=True)
    deps = DeepAgentDeps(backend=LocalBackend(workspace), checkpoint_store=store)
    await agent.run("warm up", deps=deps)
    coordinator: ForkCoordinator = deps.fork_coordinator
    handle = await coordinator.fork([BranchSpec("a", "write")], parent_history=[])
    merged = await coordinator.merge_or_select("pick:a")
    made = workspace.path / "made.txt"
    assert made.read_text() == "by a branch"
    back = await rewind(store, f"fork:{handle.fork_id}", deps.backend, merged.history_after_merge)
    assert not made.exists()
    assert back.messages == []
    forth = await rewind(store, f"post-fork:{handle.fork_id}", deps.backend)
    assert made.read_text() == "by a branch"
    assert forth.messages == merged.history_after_merge


def _writer(asked: Asked) -> Any:
    if last_prompts(asked) == ["write"]:
        return call("write", path="made.txt", content="by a branch")
    return "done"


@dataclass
class Own:
    """Deps without any field for forks."""

    name: str


async def test_anybodys_deps_are_shared_with_the_branches(workspace: Workspace) -> None:
    names: list[str] = []
    agent = Agent(
        Brain(decide=_looker),
        deps_type=Own,
        capabilities=[LiveForkCapability(workspace=workspace)],
    )

    @agent.tool
    async def look(ctx: RunContext[Own]) -> str:
        names.append(ctx.deps.name)
        return "looked"

    await agent.run("task", deps=Own("mine"))
    assert names == ["mine"]


def _looker(asked: Asked) -> Any:
    if last_prompts(asked)[-1:] == ["look"]:
        return call("look")
    if "look" in last_results(asked):
        return "looked"
    return driver([{"label": "a", "steer": "look"}], pick("a"))(asked)


async def test_a_fork_that_a_turn_left_is_there_in_the_next(workspace: Workspace) -> None:
    def leave(asked: Asked) -> Any:
        if "fork_run" in last_results(asked) and "Forked" in last_results(asked)["fork_run"]:
            return "I leave it to you"
        if last_prompts(asked) == ["and now?"]:
            return call("inspect_branches")
        return driver(SPECS, pick("a"))(asked)

    capability = LiveForkCapability(workspace=workspace)
    agent = worker(Brain(decide=leave), capabilities=[capability])
    first = await agent.run("task")
    assert first.output == "I leave it to you"
    coordinator = capability.coordinator
    assert coordinator is not None
    assert not coordinator.is_resolved
    await all_over(coordinator)
    second = await agent.run("and now?", message_history=first.all_messages())
    assert second.output == "continued"
    assert capability.coordinator is coordinator
    assert coordinator.is_resolved
    assert (workspace.path / "name.txt").read_text() == "whimsical"
    await agent.run("say hi", message_history=second.all_messages())
    assert capability.coordinator is not coordinator  # resolved: the next turn gets a new one


async def test_concurrent_runs_share_nothing(workspace: Workspace) -> None:
    capability = LiveForkCapability(workspace=workspace)
    agent = worker(Brain(decide=driver([{"label": "a", "steer": "say hi"}], pick("a"))), capabilities=[capability])
    deps = [DeepAgentDeps(), DeepAgentDeps()]
    results = await asyncio.gather(*(agent.run("task", deps=one) for one in deps))
    assert [r.output for r in results] == ["continued", "continued"]
    assert deps[0].fork_coordinator is not deps[1].fork_coordinator
    assert deps[0].fork_coordinator.fork_id != deps[1].fork_coordinator.fork_id


async def test_cancelling_the_parent_ends_its_branches(workspace: Workspace) -> None:
    def busy(asked: Asked) -> Any:
        if "Forked" in last_results(asked).get("fork_run", ""):
            return call("shell", command="sleep 3611")
        return driver([{"label": "a", "steer": "run sleep 3612"}], pick("a"))(asked)

    capability = LiveForkCapability(workspace=workspace)
    agent = worker(Brain(decide=busy), capabilities=[capability])
    before = asyncio.all_tasks()
    run = asyncio.create_task(agent.run("task"))
    while not (processes_about("sleep 3611") and processes_about("sleep 3612")):
        await asyncio.sleep(0.01)
    coordinator = capability.coordinator
    assert coordinator is not None
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert coordinator.is_resolved
    assert [status.state for status in coordinator.inspect_branches()] == ["terminated"]
    assert asyncio.all_tasks() == before


async def test_ten_branches_cancelled_in_the_middle_of_commands(workspace: Workspace) -> None:
    """Nothing is left: no process, mount or task (the fixture checks)."""
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    before = asyncio.all_tasks()
    specs = [BranchSpec(str(n), "run echo > begun && (sleep 100 & sleep 100)") for n in range(10)]
    await coordinator.fork(specs, parent_history=[])
    runtimes = list(coordinator.branches.values())
    while not all((runtime.attempt.own_branch.path / "begun").exists() for runtime in runtimes):
        await asyncio.sleep(0.02)
    await coordinator.aclose()
    assert {status.state for status in coordinator.inspect_branches()} == {"terminated"}
    assert asyncio.all_tasks() == before


async def test_a_branch_of_an_agent_forks_itself(workspace: Workspace) -> None:
    """A nested fork, by the tools alone; its merge is part of the branch."""
    inner = [{"label": "deep", "steer": "write deep.txt inside"}]

    def think(asked: Asked) -> Any:
        prompts, results = last_prompts(asked), last_results(asked)
        if prompts == ["dive"]:
            return call("fork_run", specs=inner)
        if "Forked" in results.get("fork_run", "") or "inspect_branches" in results:
            report = results.get("inspect_branches", "running")
            if "running" in report:
                return call("inspect_branches")
            return call("merge_or_select", action=f"pick:{report.split()[1]}")
        if prompts == ["task"]:
            return call("fork_run", specs=[{"label": "outer", "steer": "dive"}])
        if prompts and prompts[-1].startswith("[Merged"):
            return "continued"
        return work(asked)

    agent = worker(Brain(decide=think), capabilities=[LiveForkCapability(workspace=workspace)])
    result = await agent.run("task")
    assert result.output == "continued"
    assert (workspace.path / "deep.txt").read_text() == "inside"


async def test_a_fork_too_deep_is_a_tool_result(workspace: Workspace) -> None:
    def think(asked: Asked) -> Any:
        results = last_results(asked)
        if "failed" in results.get("fork_run", ""):
            return results["fork_run"]
        return driver([{"label": "a", "steer": "task"}], pick("a"))(asked)

    agent = worker(Brain(decide=think), capabilities=[LiveForkCapability(workspace=workspace, max_depth=0)])
    result = await agent.run("task")
    assert result.output.startswith("fork_run failed: this agent runs 0 forks deep")


async def test_messages_of_a_run_are_kept_without_copies(workspace: Workspace) -> None:
    capability = LiveForkCapability(workspace=workspace)
    agent = worker(capabilities=[capability])
    result = await agent.run("write x.txt y")
    coordinator = capability.coordinator
    assert coordinator is not None
    latest = coordinator.capability.latest_messages
    assert [m.kind for m in latest] == ["request", "response", "request"]
    assert all(a is b for a, b in zip(latest, result.all_messages(), strict=False))
    latest.clear()
    assert coordinator.capability.latest_messages


async def test_approvals_of_the_parent_are_left_to_its_caller(workspace: Workspace) -> None:
    from pydantic_ai import DeferredToolRequests

    agent = worker(capabilities=[LiveForkCapability(workspace=workspace)], output_type=[str, DeferredToolRequests])
    result = await agent.run("ask it")
    assert isinstance(result.output, DeferredToolRequests)
    assert [type(part) for part in result.all_messages()[-1].parts] != [ToolReturnPart]


@pytest.mark.parametrize("name", ["#a-branch-that-was-merged", ""])
async def test_a_history_that_names_a_merged_branch_continues_in_its_directory(workspace: Workspace, name: str) -> None:
    """Seed: "This allows later modification or continuation": the merged branch's reference is kept, and its files."""
    ref = agent_workspace(workspace).ref
    assert ref is not None
    merged = ModelResponse(
        parts=[TextPart("done")], workspace_ref=WorkspaceRef(provider=ref.provider, id=ref.id + name)
    )
    read: list[str] = []

    async def note(ctx: RunContext[None]) -> str:
        read.append(await ctx.workspace.read_text("a.txt"))
        return "Be brief."

    agent = Agent(TestModel(), instructions=note, capabilities=[LiveForkCapability(workspace=workspace)])
    history = [ModelRequest(parts=[UserPromptPart("task")]), merged]
    for _ in range(2):
        done = await agent.run("and?", message_history=history)
        history = done.all_messages()
        assert done.response.workspace_ref == merged.workspace_ref
    assert read == ["one\n"] * 2


async def test_a_history_of_another_directory_is_not_answered(workspace: Workspace) -> None:
    """Seed: "Each branch runs in isolation": a reference to other files is never replaced by these files."""
    other = WorkspaceRef(provider="elsewhere", id="machine#a")
    capability = LiveForkCapability(workspace=workspace)
    assert capability.get_workspace(cast("RunContext[Any]", None), ref=other) is None
