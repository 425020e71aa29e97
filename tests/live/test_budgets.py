"""Budgets stop a branch before it overspends; its work until then is not lost."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage, RunUsage

from forkwise import BranchSpec, Budget, BudgetExceededError, ForkCoordinator, Workspace
from forkwise.conversation.conversation import Conversation
from forkwise.live.budget import BudgetTracker, RequestEstimate, Usage, estimate_request
from tests.live.worker import BEFORE, Priced, all_over, last_prompts, worker
from tests.modules.brain import Asked, Brain, call

pytestmark = pytest.mark.anyio

#: More steps than any budget allows.
BUSY = "; ".join(f"write {n}.txt {n}" for n in range(25))


def busy(label: str, **more: Any) -> BranchSpec:
    return BranchSpec(label, BUSY, **more)


async def test_a_cap_in_dollars_stops_the_run_and_not_the_bookkeeping_after_it(workspace: Workspace) -> None:
    """A regression: 25 of 25 calls ran with a cap of half a dollar, and cost 8.75."""
    model = Priced(0.35)
    coordinator = ForkCoordinator(worker(model), workspace=workspace)
    handle = await coordinator.fork([busy("a", budget_usd=0.5)], parent_history=BEFORE)
    await all_over(coordinator)
    [status] = coordinator.inspect_branches()
    assert status.state == "budget_exhausted"
    assert model.calls == 2
    cost = coordinator.fork_cost().per_branch[handle.branches[0]]
    assert cost.cumulative_usd == pytest.approx(0.7, abs=0.01)
    assert (cost.budget_usd, cost.remaining_usd, cost.requests) == (0.5, 0.0, 2)
    result = await coordinator.merge_or_select(f"pick:{handle.branches[0]}")
    assert (workspace.path / "0.txt").read_text() == "0"  # paid work is kept
    Conversation().extend(result.history_after_merge)
    assert "wrote 0.txt" in str(result.history_after_merge)


async def test_siblings_go_on(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(Priced(0.35)), workspace=workspace)
    await coordinator.fork([busy("a", budget_usd=0.5), BranchSpec("b", "say hi")], parent_history=BEFORE)
    await all_over(coordinator)
    assert [s.state for s in coordinator.inspect_branches()] == ["budget_exhausted", "done"]
    await coordinator.aclose()


@pytest.mark.parametrize("budget", [Budget(requests=3), Budget(tokens=600), Budget(seconds=0.3)])
async def test_other_budgets_stop_a_branch(workspace: Workspace, budget: Budget) -> None:
    seconds = 0.1 if budget.seconds else 0.0
    brain = Brain(decide=lambda asked: call("shell", command=f"sleep {seconds}"))
    coordinator = ForkCoordinator(worker(brain), workspace=workspace)
    await coordinator.fork([BranchSpec("a", "on and on", budget=budget)], parent_history=BEFORE)
    await all_over(coordinator)
    [status] = coordinator.inspect_branches()
    assert status.state == "budget_exhausted"
    assert len(brain.asked) == 3 if budget.requests else len(brain.asked) < 20
    await coordinator.aclose()


async def test_an_aggregate_is_overdrawn_by_one_request_at_most(workspace: Workspace) -> None:
    model = Priced(0.35, seconds=0.01)
    coordinator = ForkCoordinator(worker(model), workspace=workspace)
    specs = [busy(label, budget_usd=2.0) for label in "abc"]
    await coordinator.fork(specs, parent_history=BEFORE, aggregate_budget_usd=2.0)
    await all_over(coordinator)
    cost = coordinator.fork_cost()
    assert cost.aggregate_usd is not None
    assert 2.0 <= cost.aggregate_usd <= 2.0 + 0.36
    assert cost.aggregate_remaining_usd == 0.0
    assert {s.state for s in coordinator.inspect_branches()} == {"aggregate_budget_exhausted"}
    merged = await coordinator.merge_or_select("pick:b")
    assert coordinator.branches[merged.winner_branch_id].spec.label == "b"


async def test_an_aggregate_in_seconds_ends_all_that_run(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    specs = [BranchSpec("slow", "run sleep 100"), BranchSpec("quick", "say hi")]
    await coordinator.fork(specs, parent_history=BEFORE, aggregate_budget=Budget(seconds=8.0))
    await all_over(coordinator)
    assert [s.state for s in coordinator.inspect_branches()] == ["aggregate_budget_exhausted", "done"]
    await coordinator.aclose()


async def test_requests_that_may_not_fit_are_sent_one_after_the_other(workspace: Workspace) -> None:
    brain = Brain(decide=lambda asked: "done", seconds=0.02)
    coordinator = ForkCoordinator(Agent(brain), workspace=workspace)
    specs = [BranchSpec(str(n), "say hi") for n in range(4)]
    await coordinator.fork(specs, parent_history=BEFORE, aggregate_budget=Budget(tokens=40_000))
    await all_over(coordinator)
    assert brain.most_at_once == 1  # a response may have 32,000 tokens: two in flight could exceed the budget
    assert {s.state for s in coordinator.inspect_branches()} == {"done"}
    await coordinator.aclose()


async def test_requests_that_fit_are_sent_at_once(workspace: Workspace) -> None:
    under_way = 0
    all_there = asyncio.Event()

    async def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        nonlocal under_way
        under_way += 1
        if under_way == 4:
            all_there.set()
        async with asyncio.timeout(60):
            await all_there.wait()
        return ModelResponse(parts=[TextPart("done")])

    coordinator = ForkCoordinator(Agent(FunctionModel(think)), workspace=workspace)
    specs = [BranchSpec(str(n), "say hi") for n in range(4)]
    await coordinator.fork(specs, parent_history=BEFORE, aggregate_budget=Budget(tokens=200_000))
    await all_over(coordinator)
    assert {s.state for s in coordinator.inspect_branches()} == {"done"}
    await coordinator.aclose()


async def test_a_tool_has_a_budget_of_its_own(workspace: Workspace) -> None:
    """A tool with a spent budget is no longer executed; the branch continues."""
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    budget = {"write_file": Budget(requests=1)}
    await coordinator.fork(
        [BranchSpec("a", "write a.txt 1; write b.txt 2", tool_budgets=budget)], parent_history=BEFORE
    )
    result = await coordinator.merge_or_select("pick:a")
    assert result.applied_paths == ["a.txt"]
    assert "budget in this branch is spent" in str(result.history_after_merge)


async def test_a_tool_is_stopped_when_its_time_is_up(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    budget = {"shell": Budget(seconds=0.2)}
    await coordinator.fork([BranchSpec("a", "run sleep 100", tool_budgets=budget)], parent_history=BEFORE)
    result = await coordinator.merge_or_select("pick:a")
    assert "shell was stopped" in str(result.history_after_merge)


async def test_what_a_fork_would_cost_is_known_before(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(Priced(0.1)), workspace=workspace)
    long = [*BEFORE[:1], ModelResponse(parts=[TextPart("x")], usage=RequestUsage(input_tokens=900_000))]
    specs = [BranchSpec("a", "say hi"), BranchSpec("b", "say hi", model="test")]
    projection = coordinator.project_cost(specs, long, requests=2)
    assert projection.per_branch["b"] is None
    assert projection.total_usd == projection.per_branch["a"]
    assert projection.total_usd is not None
    assert 1.8 < projection.total_usd < 1.9  # twice 900,000 tokens at a dollar per million, plus the output
    with pytest.raises(ValueError, match="first requests"):
        await coordinator.fork(specs, parent_history=long, aggregate_budget_usd=0.05)
    assert coordinator.is_resolved


async def test_a_branch_that_cannot_pay_for_its_next_request_is_stopped_before_it(workspace: Workspace) -> None:
    model = Priced(0.05)
    coordinator = ForkCoordinator(worker(model), workspace=workspace)
    long = [*BEFORE[:1], ModelResponse(parts=[TextPart("x")], usage=RequestUsage(input_tokens=900_000))]
    await coordinator.fork([busy("a", budget_usd=0.08)], parent_history=long)
    await all_over(coordinator)
    assert model.calls == 0
    assert [s.state for s in coordinator.inspect_branches()] == ["budget_exhausted"]
    assert "at least" in (coordinator.inspect_branches()[0].error or "")
    await coordinator.aclose()


async def test_costs_of_nested_branches_count_for_the_outer_branch(workspace: Workspace) -> None:
    def think(asked: Asked) -> Any:
        return call("inside") if last_prompts(asked) == ["outer"] else "done"

    agent = Agent(Priced(0.35, think))
    spent: list[float | None] = []

    @agent.tool_plain
    async def inside() -> str:
        inner = ForkCoordinator(agent, workspace=workspace)
        await inner.fork([BranchSpec("a", "inner"), BranchSpec("b", "inner")], parent_history=[])
        await all_over(inner)
        await inner.aclose()
        return "back"

    coordinator = ForkCoordinator(agent, workspace=workspace)
    handle = await coordinator.fork([BranchSpec("x", "outer", budget_usd=5.0)], parent_history=[])
    await all_over(coordinator)
    spent.append(coordinator.fork_cost().per_branch[handle.branches[0]].cumulative_usd)
    assert spent == [pytest.approx(4 * 0.35, abs=0.01)]  # two of its own, and one of each nested branch
    await coordinator.aclose()


# BudgetTracker


async def test_a_tracker_waits_until_requests_in_flight_are_settled() -> None:
    tracker = BudgetTracker(Budget(usd=1.0))
    big = RequestEstimate(usd=0.9)
    await tracker.admit(big)
    second = asyncio.create_task(tracker.admit(RequestEstimate(usd=0.8)))
    await asyncio.sleep(0)
    assert not second.done()
    tracker.usage.cost = Decimal("0.1")
    tracker.settle(big)
    await second


async def test_a_spent_tracker_admits_nothing_and_wakes_waiters() -> None:
    fork = BudgetTracker(Budget(requests=2), "aggregate_budget_exhausted")
    branch = BudgetTracker(parent=fork)
    one = RequestEstimate()
    await branch.admit(one)
    await branch.admit(one)
    third = asyncio.create_task(branch.admit(one))
    await asyncio.sleep(0)
    branch.usage.requests = 2
    branch.settle(one)
    with pytest.raises(BudgetExceededError) as caught:
        await third
    assert caught.value.state == "aggregate_budget_exhausted"
    assert fork.spent == Usage(None, 0, 2)


def test_a_sum_of_unknown_prices_is_unknown() -> None:
    tracker = BudgetTracker()
    tracker.usage = RunUsage(input_tokens=3, requests=1)
    assert tracker.spent == Usage(None, 3, 1)
    assert tracker.spent + Usage(0.5, 1, 1) == Usage(0.5, 4, 2)


def test_an_estimate_is_an_upper_bound_of_new_tokens() -> None:
    model = Priced(0.1)
    measured = ModelResponse(parts=[TextPart("y" * 10_000)], usage=RequestUsage(input_tokens=1000, output_tokens=50))
    estimate = estimate_request(model, [*BEFORE, measured, BEFORE[0]], {"max_tokens": 100})
    assert estimate.tokens == 1050 + len("Name the library.") + 100
    assert estimate.usd is not None
    assert estimate.least_usd is not None
    assert 0 < estimate.least_usd < estimate.usd
    assert estimate_request(Brain(), BEFORE).usd is None
