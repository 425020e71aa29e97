"""Verdict: what a judge said of a fork, what it was told, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel, Field
from pydantic_ai.usage import RunUsage

from forkwise.live.values import BranchState, MergeResult
from forkwise.testing.report import TestReport

__all__ = ["BranchOutcome", "ConfidenceSignals", "JudgeVerdict", "ResolveOutcome"]


class JudgeVerdict(BaseModel):
    """What a judge said: the winner, how sure it is, and why."""

    winner_branch_id: str = Field(description="The id of the branch whose work should be kept.")
    confidence: float = Field(ge=0.0, le=1.0, allow_inf_nan=False, description="How sure you are of it, from 0 to 1.")
    reasoning: str = Field(description="Why this branch, in a few sentences.")
    rejected_with_reasons: dict[str, str] = Field(
        default_factory=dict, description="The ids of the other branches, each with why it was not chosen."
    )
    caveats: list[str] = Field(default_factory=list, description="What whoever merges the winner should know.")
    recommended_followup: str | None = Field(default=None, description="What should be done next, if anything.")


@dataclass(frozen=True)
class ConfidenceSignals:
    """What speaks for the winner beside the judge's word, each from 0 to 1; ``test_pass_ratio`` None: no tests ran."""

    quality_spread: float
    test_pass_ratio: float | None
    internal_consistency: float


@dataclass(frozen=True)
class BranchOutcome:
    """What a judge is told of a branch beside its diff; never the whole conversation.

    ``test_report`` has the counts and the failures behind ``test_pass_ratio``. ``state`` says how the branch ended.
    """

    branch_id: str
    branch_label: str
    steer: str
    final_assistant_message: str
    cost_usd: float | None
    turns: int
    error_count: int
    retry_count: int
    stuck_loop_hits: int
    test_pass_ratio: float | None = None
    test_report: TestReport | None = None
    state: BranchState | None = None


@dataclass(frozen=True)
class ResolveOutcome:
    """What came of resolving a fork.

    ``committed``: it is merged, see ``merge_result``. ``auto_eligible``: not merged, but sure enough that the caller
    may merge without asking. Neither: somebody has to pick. ``effective_confidence`` is what the guide's formula gives,
    ``merge_confidence`` what the decision to merge goes by. ``verdicts`` are those of all judges, where several voted.
    """

    committed: bool
    auto_eligible: bool
    verdict: JudgeVerdict | None
    signals: ConfidenceSignals | None
    effective_confidence: float
    merge_result: MergeResult | None
    judge_usage: RunUsage | None = None
    merge_confidence: float | None = None
    measured: Mapping[str, float | None] = field(default_factory=dict)
    verdicts: list[JudgeVerdict] = field(default_factory=list)
    judge_cost_usd: float | None = None
