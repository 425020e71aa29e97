"""Budgets in every unit (dollars, tokens, requests, time) and at every level (branch, tool, fork)."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.usage import RequestUsage, UsageLimits

from forkwise import BranchSpec, Budget, ForkCoordinator, Workspace
from forkwise.live.budget import BudgetTracker
from tests.live.worker import BEFORE, Priced, all_over, last_prompts, last_results, worker
from tests.modules.brain import Asked, call

pytestmark = pytest.mark.anyio

#: The tokens of a request to `Priced(0.35)`: the worth of 0.35 dollars, and one of input.
TOKENS = 70_001

ONE_OF_EACH = [Budget(usd=0.5), Budget(tokens=TOKENS + 10), Budget(requests=2)]


def named(budget: Budget) -> str:
    return next(kind for kind in ("usd", "tokens", "requests", "seconds") if getattr(budget, kind) is not None)


def scaled(budget: Budget, times: int) -> Budget:
    usd, tokens, requests = budget.usd, budget.tokens, budget.requests
    return Budget(usd and usd * times, tokens and tokens * times, requests and requests * times)


@pytest.mark.parametrize("budget", [*ONE_OF_EACH, Budget(seconds=8.0)], ids=named)
async def test_a_branch_that_any_of_them_stopped_can_be_picked(workspace: Workspace, budget: Budget) -> None:
    def think(asked: Asked) -> Any:
        if "write_file" in last_results(asked) and budget.seconds:
            return call("shell", command="sleep 600")
        return call("write_file", path=f"{asked.turn}.txt", text="paid for")

    coordinator = ForkCoordinator(worker(Priced(0.35, think)), workspace=workspace)
    await coordinator.fork([BranchSpec("a", "on and on", budget=budget)], parent_history=BEFORE)
    await all_over(coordinator)
    [status] = coordinator.inspect_branches()
    assert status.state == "budget_exhausted"
    result = await coordinator.merge_or_select("pick:a")
    assert "1.txt" in result.applied_paths
    assert "wrote 1.txt" in str(result.history_after_merge)


@pytest.mark.parametrize("budget", [scaled(one, 2) for one in ONE_OF_EACH], ids=named)
async def test_an_aggregate_is_overdrawn_by_one_request_at_most(workspace: Workspace, budget: Budget) -> None:
    model = Priced(0.35, lambda asked: call("write_file", path=f"{asked.turn}.txt", text="x"))
    coordinator = ForkCoordinator(worker(model), workspace=workspace)
    specs = [BranchSpec(label, "on and on") for label in "abc"]
    await coordinator.fork(specs, parent_history=BEFORE, aggregate_budget=budget)
    await all_over(coordinator)
    assert {s.state for s in coordinator.inspect_branches()} == {"aggregate_budget_exhausted"}
    spent = coordinator.fork_cost()
    requests = sum(cost.requests for cost in spent.per_branch.values())
    assert requests == model.calls
    most = {"usd": 3, "tokens": 3, "requests": 4}[named(budget)]  # two fit, and one may be in flight
    assert requests <= most
    await coordinator.aclose()


@pytest.mark.parametrize("budget", ONE_OF_EACH, ids=named)
@pytest.mark.parametrize("share", [True, False])
async def test_what_a_finished_branch_left_flows_to_one_that_runs(
    workspace: Workspace, budget: Budget, share: bool
) -> None:
    """The long branch needs three requests, more than its budget; the short branch leaves enough."""

    def think(asked: Asked) -> Any:
        if last_prompts(asked) == ["short"]:
            return "done"
        return "done" if asked.turn > 2 else call("wait")

    agent = Agent(Priced(0.35, think))
    coordinator = ForkCoordinator(agent, workspace=workspace)

    @agent.tool_plain
    async def wait() -> str:
        short = next(branch for branch in coordinator.branches.values() if branch.spec.label == "short")
        await asyncio.wait([short.task])
        return "waited"

    specs = [BranchSpec("short", "short", budget=scaled(budget, 4)), BranchSpec("long", "long", budget=budget)]
    await coordinator.fork(specs, parent_history=BEFORE, share_unspent=share)
    await all_over(coordinator)
    states = [s.state for s in coordinator.inspect_branches()]
    assert states == ["done", "done" if share else "budget_exhausted"]
    await coordinator.aclose()


@pytest.mark.parametrize("budget", [Budget(usd=0.5), Budget(tokens=TOKENS + 10)], ids=named)
async def test_a_tool_is_limited_in_what_its_own_agents_spend(workspace: Workspace, budget: Budget) -> None:
    inner = Agent(Priced(0.35, lambda asked: "found"))

    def think(asked: Asked) -> Any:
        return "done" if asked.turn > 4 else call("search")

    agent: Agent[Any, Any] = Agent(Priced(0.01, think))

    @agent.tool
    async def search(ctx: RunContext[Any]) -> str:
        return (await inner.run("look", usage=ctx.usage)).output

    coordinator = ForkCoordinator(agent, workspace=workspace)
    spec = BranchSpec("a", "look around", tool_budgets={"search": budget})
    await coordinator.fork([spec], parent_history=BEFORE)
    result = await coordinator.merge_or_select("pick:a")
    report = str(result.history_after_merge)
    assert report.count("content='found'") == 2
    assert "its budget in this branch is spent" in report
    [cost] = coordinator.fork_cost().per_branch.values()
    assert cost.cumulative_usd == pytest.approx(2 * 0.35 + 5 * 0.01, abs=0.02)


async def test_a_request_that_takes_more_tokens_than_are_left_is_not_sent(workspace: Workspace) -> None:
    model = Priced(0.05)
    coordinator = ForkCoordinator(worker(model), workspace=workspace)
    long = [*BEFORE[:1], ModelResponse(parts=[TextPart("x")], usage=RequestUsage(input_tokens=900_000))]
    spec = BranchSpec("a", "say hi", budget=Budget(tokens=100_000))
    await coordinator.fork([spec], parent_history=long)
    await all_over(coordinator)
    assert model.calls == 0
    [status] = coordinator.inspect_branches()
    assert status.state == "budget_exhausted"
    assert "900000 tokens at least" in (status.error or "")
    await coordinator.aclose()


async def test_the_limits_of_the_run_around_stay_where_they_are_lower(workspace: Workspace) -> None:
    model = Priced(0.35, lambda asked: call("write_file", path="x", text="x"))
    around = UsageLimits(cost_limit=Decimal("0.5"))
    coordinator = ForkCoordinator(worker(model), workspace=workspace, usage_limits=around)
    await coordinator.fork([BranchSpec("a", "on and on", budget_usd=50.0)], parent_history=BEFORE)
    await all_over(coordinator)
    assert model.calls == 2
    assert [s.state for s in coordinator.inspect_branches()] == ["budget_exhausted"]
    await coordinator.aclose()


def test_the_rest_of_a_budget_is_shared_by_running_branches() -> None:
    fork = BudgetTracker(shares_unspent=True)
    done, one, two = (BudgetTracker(Budget(usd=2.0, tokens=100, requests=5), parent=fork) for _ in range(3))
    with done.hold_open():
        done.usage.requests = 1
    assert (one.cap.requests, two.cap.requests, one.cap.tokens) == (9, 9, 200)
    one.usage.requests = 8  # three of the four shared ones
    assert two.cap.requests == 6
    assert done.cap == done.budget  # nothing flows to a finished branch
    assert (one.cap.usd, one.cap.seconds) == (4.0, None)
