"""What a fork has cost: its branches, its judges, and what is left."""

from __future__ import annotations

from dataclasses import dataclass

from forkwise.agents.live.status import BranchState

__all__ = ["BranchCost", "ForkCostSummary"]


@dataclass(frozen=True)
class BranchCost:
    """What one branch has cost; ``cumulative_usd`` is None where its model has no known price."""

    branch_id: str
    branch_label: str
    cumulative_usd: float | None
    budget_usd: float | None
    remaining_usd: float | None
    state: BranchState
    tokens: int = 0
    requests: int = 0


@dataclass(frozen=True)
class ForkCostSummary:
    """What a fork has cost.

    ``aggregate_usd`` sums the branches whose cost is known, and is None where none is. ``judge_usd`` is what its
    judges cost, which is no part of the aggregate; None where no judge ran, or its model has no known price.
    """

    fork_id: str
    per_branch: dict[str, BranchCost]
    aggregate_usd: float | None
    aggregate_budget_usd: float | None
    aggregate_remaining_usd: float | None
    judge_usd: float | None = None
