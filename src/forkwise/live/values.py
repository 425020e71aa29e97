"""What a branch did to its files, event by event, and what became of it in the parent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from forkwise.fork.resolve import ConflictPolicy

__all__ = [
    "FINAL_STATES",
    "BranchCost",
    "BranchIsolation",
    "BranchSpec",
    "BranchState",
    "BranchStatus",
    "Budget",
    "ConflictPolicy",
    "FileChange",
    "FileOperation",
    "FlushError",
    "FlushReport",
    "ForkCostSummary",
    "ForkHandle",
    "JudgeDomain",
    "JudgingMode",
    "MergeKind",
    "MergeResult",
    "MergeStrategy",
    "PendingApprovalRequest",
]


MergeKind = Literal["manual", "auto", "auto_with_fallback", "vote"]

#: What the branches worked on, and so what a judge is told to look at.
JudgeDomain = Literal["general", "code", "research", "prose"]

#: Whether a judge sees all branches at once, every two of them, or two at a time until one is left.
JudgingMode = Literal["all", "pairwise", "tournament"]


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be spent; None is as much as it takes."""

    usd: float | None = None
    tokens: int | None = None
    requests: int | None = None
    seconds: float | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether nothing is limited."""
        return self == Budget()


@dataclass(frozen=True)
class BranchSpec:
    """One branch of a fork, as it is asked for.

    ``steer`` is the first message of the branch. ``model`` and ``extra_instructions`` are what it runs with beside
    what the agent has. ``budget_usd`` is the cap in dollars; ``budget`` has all others, ``tool_budgets`` those of
    single tools, by name.

    >>> BranchSpec("a", "Try it with a cache.", budget_usd=2.0, budget=Budget(requests=20)).spending
    Budget(usd=2.0, tokens=None, requests=20, seconds=None)
    """

    label: str
    steer: str
    model: str | None = None
    budget_usd: float | None = None
    extra_instructions: str | None = None
    budget: Budget = Budget()
    tool_budgets: Mapping[str, Budget] = field(default_factory=dict)

    @property
    def spending(self) -> Budget:
        """All that limits the branch as a whole, ``budget_usd`` with it: the lower, where both cap the dollars."""
        caps = [cap for cap in (self.budget_usd, self.budget.usd) if cap is not None]
        return replace(self.budget, usd=min(caps, default=None))


@dataclass(frozen=True)
class BranchIsolation:
    """What a branch has of its own, and what it shares with the parent."""

    history: Literal["copy"] = "copy"
    backend: Literal["copy", "share_readonly", "share"] = "copy"
    memory: Literal["copy", "share"] = "copy"
    todos: Literal["copy", "share"] = "copy"
    message_queue: Literal["isolated", "shared"] = "isolated"
    team_bus: Literal["shared", "isolated"] = "shared"


@dataclass(frozen=True)
class MergeStrategy:
    """How a fork comes to one outcome.

    ``kind`` is ``manual`` (the caller picks), ``auto`` (a judge picks, and that is committed), ``auto_with_fallback``
    (a judge picks; the caller commits if the confidence reaches ``confidence_threshold``, else picks) or ``vote``
    (several judges, ``judge_models``, or those whose keys are in the environment; the majority is committed).
    """

    kind: MergeKind = "auto_with_fallback"
    judge_model: str = "anthropic:claude-haiku-4-5-20251001"
    judge_models: list[str] | None = None
    confidence_threshold: float = 0.80
    show_reasoning: bool = True
    domain: JudgeDomain = "general"
    judging: JudgingMode = "all"
    conflict_policy: ConflictPolicy = "keep_newer"

    def __post_init__(self) -> None:
        if self.judge_models is not None and not self.judge_models:
            raise ValueError("judge_models names no model: leave it None to have the judges found by their keys")


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


FileOperation = Literal["write", "edit", "delete", "mkdir", "rmdir"]


@dataclass(frozen=True)
class FileChange:
    """One write, edit or deletion in a branch, when it happened."""

    path: str
    op: FileOperation
    timestamp: datetime


@dataclass(frozen=True)
class FlushError:
    """A change that could not be made in the parent, and why."""

    path: str
    op: FileOperation
    message: str


@dataclass(frozen=True)
class FlushReport:
    """What became of a branch's changes in the parent.

    ``applied_changes`` counts operations, of which a path may have seen several. ``conflicts`` are paths that somebody
    else changed meanwhile; ``conflict_contents`` has the branch's version of each that was left alone (None: deleted
    there), so that nothing is lost; of a directory's files ``kept_branch`` names the branch that has those versions.
    """

    applied_paths: list[str]
    applied_changes: int
    conflicts: list[str]
    errors: list[FlushError]
    deleted_paths: list[str] = field(default_factory=list)
    conflict_contents: dict[str, bytes | None] = field(default_factory=dict)
    kept_branch: str | None = None


@dataclass
class MergeResult:
    """How a fork ended: the winner, the conversation to go on with, and what became of its files.

    The fields on files are those of `FlushReport`. ``blocked_commands`` are approvals the winner was refused.
    ``combined_branches`` are all whose work is in it, where several were combined; ``commit_id`` is what undoes it,
    where the parent is a workspace.
    """

    fork_id: str
    winner_branch_id: str
    discarded_branches: list[str]
    history_after_merge: list[Any]
    applied_paths: list[str] = field(default_factory=list)
    applied_changes: int = 0
    conflicts: list[str] = field(default_factory=list)
    errors: list[FlushError] = field(default_factory=list)
    deleted_paths: list[str] = field(default_factory=list)
    blocked_commands: list[str] = field(default_factory=list)
    conflict_contents: dict[str, bytes | None] = field(default_factory=dict)
    kept_branch: str | None = None
    combined_branches: list[str] = field(default_factory=list)
    commit_id: str | None = None
