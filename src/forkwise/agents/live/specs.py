"""What is asked of a fork: its branches, what they share with the parent, what they may spend, how one is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from forkwise.fork.landing import ConflictPolicy

__all__ = [
    "BranchIsolation",
    "BranchSpec",
    "Budget",
    "ConflictPolicy",
    "JudgeDomain",
    "JudgingMode",
    "MergeKind",
    "MergeStrategy",
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
