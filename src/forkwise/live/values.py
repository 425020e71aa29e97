"""The values of live forking: specs and strategies, states and handles, costs, and the results of a merge.

They have no behaviour and import nothing of the package that runs something, so every other module may use them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal

from forkwise.files.store.changes import ConflictPolicy

__all__ = [
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

#: The kind of work the branches do; it selects the criteria in the judge's prompt.
JudgeDomain = Literal["general", "code", "research", "prose"]

#: How a judge compares branches: all at once, every pair, or a knockout of pairs.
JudgingMode = Literal["all", "pairwise", "tournament"]


@dataclass(frozen=True, slots=True)
class Budget:
    """A spending limit per unit; None means unlimited."""

    usd: float | None = None
    tokens: int | None = None
    requests: int | None = None
    seconds: float | None = None

    @property
    def is_unlimited(self) -> bool:
        """Whether no unit is limited."""
        return self == Budget()


@dataclass(frozen=True)
class BranchSpec:
    """The request for one branch of a fork.

    ``steer`` is the first message of the branch. ``model`` replaces the agent's model, ``extra_instructions`` add to
    its instructions. ``budget_usd`` limits dollars, ``budget`` any unit, ``tool_budgets`` single tools by name.

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
        """The budget of the whole branch: ``budget``, with the lower of both dollar limits."""
        caps = [cap for cap in (self.budget_usd, self.budget.usd) if cap is not None]
        return replace(self.budget, usd=min(caps, default=None))


@dataclass(frozen=True)
class BranchIsolation:
    """The parts that a branch copies, and those that it shares with the parent."""

    history: Literal["copy"] = "copy"
    backend: Literal["copy", "share_readonly", "share"] = "copy"
    memory: Literal["copy", "share"] = "copy"
    todos: Literal["copy", "share"] = "copy"
    message_queue: Literal["isolated", "shared"] = "isolated"
    team_bus: Literal["shared", "isolated"] = "shared"


@dataclass(frozen=True)
class MergeStrategy:
    """How a fork is resolved.

    ``kind`` is ``manual`` (the caller picks), ``auto`` (a judge picks, and its pick is committed),
    ``auto_with_fallback`` (a judge picks; the caller commits if the confidence reaches ``confidence_threshold``, and
    picks otherwise) or ``vote`` (several judges vote and the majority is committed; the judges are ``judge_models``, or
    the models whose API keys are in the environment).
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
            raise ValueError("judge_models is empty: name a model, or pass None to find judges by the API keys")


BranchState = Literal[
    "running", "done", "failed", "terminated", "budget_exhausted", "aggregate_budget_exhausted", "faulted"
]


@dataclass
class BranchStatus:
    """The current status of one branch."""

    id: str
    label: str
    state: BranchState
    current_turn: int
    last_activity_at: datetime
    last_message_preview: str | None = None
    error: str | None = None


@dataclass
class ForkHandle:
    """The identity of a fork: its id, branch ids, merge strategy, and the checkpoint saved before it."""

    fork_id: str
    parent_checkpoint_id: str | None
    branches: list[str]
    merge_strategy: MergeStrategy
    created_at: datetime


@dataclass
class PendingApprovalRequest:
    """A branch that waits for an approval: put True or False into ``response`` to let it continue."""

    branch_id: str
    description: str
    response: asyncio.Queue[bool] = field(default_factory=lambda: asyncio.Queue(maxsize=1))


@dataclass(frozen=True)
class BranchCost:
    """The cost of one branch; ``cumulative_usd`` is None if its model has no known price."""

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
    """The cost of a fork.

    ``aggregate_usd`` sums the branches whose cost is known; None if no cost is known. ``judge_usd`` is the cost of the
    judges, which the aggregate does not include; None if no judge ran or its model has no known price.
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
    """One write, edit or deletion in a branch, with its time."""

    path: str
    op: FileOperation
    timestamp: datetime


@dataclass(frozen=True)
class FlushError:
    """A change that could not be applied to the parent, and why."""

    path: str
    op: FileOperation
    message: str


@dataclass(frozen=True)
class FlushReport:
    """The result of applying a branch's changes to the parent.

    ``applied_changes`` counts operations; one path may have several. ``conflicts`` are paths that another writer
    changed in the parent meanwhile. ``conflict_contents`` holds the branch's version of each conflict that was not
    applied (None: the branch deleted it), so that nothing is lost; on disk ``kept_branch`` names the branch that has
    those versions. ``left_repositories`` says which work in git repositories a combination does not have.
    """

    applied_paths: list[str]
    applied_changes: int
    conflicts: list[str]
    errors: list[FlushError]
    deleted_paths: list[str] = field(default_factory=list)
    conflict_contents: dict[str, bytes | None] = field(default_factory=dict)
    kept_branch: str | None = None
    left_repositories: list[str] = field(default_factory=list)


@dataclass
class MergeResult:
    """The result of a merge: the winner, the conversation to continue with, and the changes to the files.

    The fields on files are those of `FlushReport`. ``blocked_commands`` are the tool calls whose approval was denied.
    ``combined_branches`` lists the branches of a combination. ``commit_id`` is the commit to undo, if the parent is a
    workspace.
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
    left_repositories: list[str] = field(default_factory=list)
