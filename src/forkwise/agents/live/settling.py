"""Settling a fork: the work of a branch made the parent's, and what that comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse

from forkwise.agents.live.cost import BranchCost, ForkCostSummary
from forkwise.agents.live.live_fork import LiveFork
from forkwise.agents.live.merging import FlushReport, MergeResult
from forkwise.agents.live.runtime import BranchRuntime
from forkwise.files.workspace import Workspace
from forkwise.ledger.opening import open_ledger
from forkwise.sandbox.threads import in_thread

__all__ = [
    "as_parents",
    "check_mergeable",
    "commit_branch",
    "costs_of",
    "is_mergeable",
    "merged",
    "override_winner",
]


def is_mergeable(runtime: BranchRuntime) -> bool:
    """Whether a branch has anything to be merged: it is done, or was stopped when it had begun to speak."""
    state = runtime.status.state
    return state == "done" or (state != "failed" and (bool(runtime.partial_history) or runtime.thread.has_spoken))


def check_mergeable(branches: Sequence[BranchRuntime], *, together: bool = False) -> None:
    """Raise RuntimeError, which says why, where a branch has nothing to be merged. One that failed after it had spoken
    cannot be picked, but its work can be put ``together`` with that of others."""
    for runtime in branches:
        if not is_mergeable(runtime) and not (together and runtime.thread.has_spoken):
            why = f": {runtime.status.error}" if runtime.status.error else ""
            raise RuntimeError(f"branch {runtime.id} cannot be merged, it is {runtime.status.state}{why}")


async def commit_branch(live: LiveFork, winner: BranchRuntime, how: str, detail: Mapping[str, Any]) -> MergeResult:
    """Decide for one branch."""
    forced = {} if winner.attempt.success else {"force": True}
    report = await live.commit(winner, how, {**detail, **forced})
    history = as_parents(winner.thread.history(), winner.thread.start.depth)
    return merged(live, [winner], history, report)


def costs_of(live: LiveFork, judge_usd: float | None) -> ForkCostSummary:
    """What a fork has cost."""
    costs = {}
    for runtime in live.branches.values():
        spent, cap = runtime.purse.spent, runtime.purse.cap.usd
        left = None if cap is None else max(0.0, cap - (spent.usd or 0.0))
        state = runtime.status.state
        costs[runtime.id] = BranchCost(
            runtime.id, runtime.spec.label, spent.usd, runtime.budget_usd, left, state, spent.tokens, spent.requests
        )
    total, cap = live.purse.spent.usd, live.purse.budget.usd
    left = None if cap is None else max(0.0, cap - (total or 0.0))
    return ForkCostSummary(live.fork.id, costs, total, cap, left, judge_usd)


async def override_winner(live: LiveFork, runtime: BranchRuntime) -> MergeResult:
    """Have a branch that lost by the word of a judge take the winner's place."""
    losers = live.losers
    if losers is None:
        raise RuntimeError(
            f"fork {live.fork.id} was not decided by a judge, or inside a branch: only what auto or vote merged into "
            "the agent's own files can be overridden"
        )
    if runtime.id not in losers.names or not is_mergeable(runtime):
        raise RuntimeError(f"branch {runtime.id} ({runtime.spec.label}) is what is there now, or has nothing to merge")
    report = await in_thread(losers.put_in_place, runtime.id, runtime.spec.label, live.plan.strategy.conflict_policy)
    history = as_parents(runtime.thread.history(), runtime.thread.start.depth)
    return merged(live, [runtime], history, report)


def merged(
    live: LiveFork, chosen: Sequence[BranchRuntime], history: list[ModelMessage], report: FlushReport
) -> MergeResult:
    """How a fork ended that was decided for some of its branches."""
    names = {runtime.id for runtime in chosen}
    commit = None
    if not live.ground.is_in_memory and isinstance(live.ground.parent, Workspace):
        with open_ledger(live.ground.parent) as ledger:
            commit = ledger.fork(live.fork.id).commit
    return MergeResult(
        fork_id=live.fork.id,
        winner_branch_id=chosen[0].id,
        discarded_branches=[name for name in live.branches if name not in names],
        history_after_merge=history,
        applied_paths=report.applied_paths,
        applied_changes=report.applied_changes,
        conflicts=report.conflicts,
        errors=report.errors,
        deleted_paths=report.deleted_paths,
        blocked_commands=[command for runtime in chosen for command in runtime.blocked_commands],
        conflict_contents=report.conflict_contents,
        kept_branch=report.kept_branch,
        combined_branches=[runtime.id for runtime in chosen] if len(chosen) > 1 else [],
        commit_id=None if commit is None else str(commit),
    )


def as_parents(history: Sequence[ModelMessage], before: int) -> list[ModelMessage]:
    """A branch's conversation as the parent's: what was said in the branch no longer names the branch's workspace."""
    return [
        replace(message, workspace_ref=None)
        if number >= before and isinstance(message, ModelResponse) and message.workspace_ref is not None
        else message
        for number, message in enumerate(history)
    ]
