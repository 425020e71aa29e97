"""The seven tools, as a model calls them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.models.test import TestModel
from pydantic_ai.usage import RunUsage

from forkwise import (
    BranchDiffReport,
    BranchSpec,
    ForkCoordinator,
    ForkCostSummary,
    LiveForkCapability,
    Workspace,
    create_fork_toolset,
)
from forkwise.live import fork_tools
from forkwise.live.fork_tools import NOT_ENABLED_MESSAGE, register_coordinator
from tests.live.worker import BEFORE, all_over, driver, last_prompts, last_results, worker
from tests.modules.brain import Asked, Brain, call

pytestmark = pytest.mark.anyio

TWO = [BranchSpec("a", "write x.txt 1"), BranchSpec("b", "write x.txt 2")]


def context(coordinator: ForkCoordinator | None, run: str = "test-run") -> RunContext[Any]:
    ctx: RunContext[Any] = RunContext(deps=None, model=TestModel(), usage=RunUsage(), run_id=run)
    if coordinator is not None:
        register_coordinator(run, coordinator)
    return ctx


@pytest.fixture
async def coordinator(workspace: Workspace) -> Any:
    made = ForkCoordinator(worker(), workspace=workspace)
    await made.fork(TWO, parent_history=BEFORE)
    await all_over(made)
    yield made
    await made.aclose()


def test_there_are_seven_with_the_guides_signatures() -> None:
    tools = create_fork_toolset().tools
    assert list(tools) == [
        "fork_run",
        "inspect_branches",
        "merge_or_select",
        "terminate_branch",
        "delete_file",
        "diff_branches",
        "fork_cost",
    ]
    assert create_fork_toolset().id == "deep-forking"
    schemas = {name: tool.function_schema.json_schema for name, tool in tools.items()}
    assert list(schemas["fork_run"]["properties"]) == ["specs", "isolation", "strategy", "aggregate_budget_usd"]
    assert schemas["fork_run"]["required"] == ["specs"]
    assert schemas["merge_or_select"]["required"] == ["action"]
    assert list(schemas["diff_branches"]["properties"]) == ["fork_id", "paths"]
    assert all(tool.description for tool in tools.values())


async def test_without_a_coordinator_they_say_so() -> None:
    ctx = context(None, "unknown-run")
    answers = [
        await fork_tools.fork_run(ctx, []),
        await fork_tools.inspect_branches(ctx),
        await fork_tools.merge_or_select(ctx, "abort"),
        await fork_tools.terminate_branch(ctx, "x"),
        await fork_tools.diff_branches(ctx, "x"),
        await fork_tools.fork_cost(ctx, "x"),
    ]
    assert set(answers) == {NOT_ENABLED_MESSAGE}
    assert (await fork_tools.delete_file(ctx, "x")).startswith("error")


async def test_refusals_are_tool_results(coordinator: ForkCoordinator) -> None:
    ctx = context(coordinator)
    assert (await fork_tools.fork_run(ctx, [{"label": "x"}])).startswith("fork_run failed: ")
    assert "not resolved" in await fork_tools.fork_run(ctx, [{"label": "x", "steer": "say hi"}])
    assert (await fork_tools.merge_or_select(ctx, "pick:zzz")).startswith("merge_or_select failed: there is no branch")
    assert (await fork_tools.terminate_branch(ctx, "zzz")).startswith("terminate_branch failed: ")
    assert isinstance(await fork_tools.diff_branches(ctx, "other"), str)
    assert isinstance(await fork_tools.fork_cost(ctx, "other"), str)
    unused = ForkCoordinator(worker())
    fresh = context(unused, "fresh")
    assert await fork_tools.inspect_branches(fresh) == "No active branches."
    assert await fork_tools.diff_branches(fresh, "x") == "There is no active fork: call fork_run first."


async def test_inspect_diff_and_cost(coordinator: ForkCoordinator) -> None:
    ctx = context(coordinator)
    fork = coordinator.fork_id
    assert fork is not None
    assert await fork_tools.inspect_branches(ctx) == f"- {fork}.1 (a): done\n- {fork}.2 (b): done"
    report = await fork_tools.diff_branches(ctx, fork)
    assert isinstance(report, BranchDiffReport)
    assert [(p.path, p.agreement) for p in report.paths] == [("x.txt", "split")]
    filtered = await fork_tools.diff_branches(ctx, fork, ["a.txt"])
    assert isinstance(filtered, BranchDiffReport)
    assert [(p.path, p.agreement) for p in filtered.paths] == [("a.txt", "unanimous_no_change")]
    cost = await fork_tools.fork_cost(ctx, fork)
    assert isinstance(cost, ForkCostSummary)
    assert [c.requests for c in cost.per_branch.values()] == [2, 2]
    assert await fork_tools.terminate_branch(ctx, f"{fork}.1") == f"Branch {fork}.1 terminated."


async def test_a_second_look_waits_for_a_change(workspace: Workspace) -> None:
    """An agent that polls makes one request for each branch that ends, not as many as it can."""
    specs = [{"label": "a", "steer": "run sleep 0.2"}, {"label": "b", "steer": "run sleep 0.4"}]
    brain = Brain(decide=driver(specs, lambda ids: "abort"))
    await worker(brain, capabilities=[LiveForkCapability(workspace=workspace)]).run("task")
    looks = [asked for asked in brain.asked if "inspect_branches" in last_results(asked)]
    assert len(looks) <= 3


async def test_a_file_is_deleted_in_a_branch_and_with_the_merge_in_the_parent(workspace: Workspace) -> None:
    def think(asked: Asked) -> Any:
        if last_prompts(asked) == ["tidy"]:
            return [call("delete_file", path="a.txt"), call("delete_file", path="nowhere.txt")]
        if "delete_file" in last_results(asked):
            return " | ".join(asked.results[-2:])
        return driver([{"label": "t", "steer": "tidy"}], lambda ids: f"pick:{ids['t']}")(asked)

    agent = worker(Brain(decide=think), capabilities=[LiveForkCapability(workspace=workspace)])
    result = await agent.run("task")
    assert result.output == "continued"
    assert "deleted: a.txt | error: 'nowhere.txt' does not exist in this branch" in str(result.all_messages())
    assert not (workspace.path / "a.txt").exists()


async def test_an_aborted_fork_leaves_the_run_as_it_was(workspace: Workspace) -> None:
    specs = [{"label": "a", "steer": "write x.txt 1"}]
    agent = worker(
        Brain(decide=driver(specs, lambda ids: "abort")), capabilities=[LiveForkCapability(workspace=workspace)]
    )
    result = await agent.run("task")
    assert result.output == "Fork aborted: 1 branches were dropped, and no files were changed."
    assert not (workspace.path / "x.txt").exists()


async def test_budgets_and_strategy_come_through_the_tool(workspace: Workspace) -> None:
    capability = LiveForkCapability(workspace=workspace)
    specs = [{"label": "a", "steer": "say hi", "budget_usd": 2.0}]
    think = driver(specs, lambda ids: "abort", aggregate_budget_usd=5.0, strategy={"kind": "manual"})
    await worker(Brain(decide=think), capabilities=[capability]).run("task")
    coordinator = capability.coordinator
    assert coordinator is not None
    assert coordinator.handle is not None
    assert coordinator.handle.merge_strategy.kind == "manual"
    cost = coordinator.fork_cost()
    assert cost.aggregate_budget_usd == 5.0
    assert [c.budget_usd for c in cost.per_branch.values()] == [2.0]


async def test_branches_run_on_the_model_that_the_run_was_given(workspace: Workspace) -> None:
    agent: Agent[Any, Any] = Agent(capabilities=[LiveForkCapability(workspace=workspace)])
    brain = Brain(decide=driver([{"label": "a", "steer": "say hi"}], lambda ids: f"pick:{ids['a']}"))
    result = await agent.run("task", model=brain)
    assert result.output == "continued"
