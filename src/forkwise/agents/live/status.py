"""Where a fork and its branches stand, as a face shows it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from forkwise.agents.live.specs import MergeStrategy

__all__ = ["FINAL_STATES", "BranchState", "BranchStatus", "ForkHandle", "PendingApprovalRequest"]

BranchState = Literal["running", "done", "failed", "terminated", "budget_exhausted", "aggregate_budget_exhausted"]

#: A branch in one of these does nothing more, unless it is told to go on.
FINAL_STATES: frozenset[BranchState] = frozenset(
    {"done", "failed", "terminated", "budget_exhausted", "aggregate_budget_exhausted"}
)


@dataclass
class BranchStatus:
    """Where one branch stands."""

    id: str
    label: str
    state: BranchState
    current_turn: int
    last_activity_at: datetime
    last_message_preview: str | None = None
    error: str | None = None


@dataclass
class ForkHandle:
    """Names a fork: its branches by their ids, how it is to be merged, and the checkpoint before it."""

    fork_id: str
    parent_checkpoint_id: str | None
    branches: list[str]
    merge_strategy: MergeStrategy
    created_at: datetime


@dataclass
class PendingApprovalRequest:
    """A branch waits for a person: put True or False into ``response`` to let it go on."""

    branch_id: str
    description: str
    response: asyncio.Queue[bool] = field(default_factory=lambda: asyncio.Queue(maxsize=1))
