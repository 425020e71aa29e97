"""The values of judging: a judge's input per branch, its verdict, and the outcome of resolving a fork."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import BaseModel, Field
from pydantic_ai.usage import RunUsage

from forkwise.live.values import BranchState, MergeResult
from forkwise.testing.report import TestReport

__all__ = ["BranchOutcome", "ConfidenceSignals", "JudgeVerdict", "ResolveOutcome"]


class JudgeVerdict(BaseModel):
    """A judge's answer: the winner, its confidence and its reasons. Field descriptions are part of the prompt."""

    winner_branch_id: str = Field(description="The id of the branch whose work should be kept.")
    confidence: float = Field(ge=0.0, le=1.0, allow_inf_nan=False, description="How sure you are, from 0 to 1.")
    reasoning: str = Field(description="Why this branch, in a few sentences.")
    rejected_with_reasons: dict[str, str] = Field(
        default_factory=dict, description="The ids of the other branches, each with the reason why it was not chosen."
    )
    caveats: list[str] = Field(default_factory=list, description="Risks to know before the winner is merged.")
    recommended_followup: str | None = Field(default=None, description="What should be done next, if anything.")


@dataclass(frozen=True)
class ConfidenceSignals:
    """Evidence for the winner apart from the judge's confidence, each from 0 to 1.

    ``test_pass_ratio`` is None if no tests ran.
    """

    quality_spread: float
    test_pass_ratio: float | None
    internal_consistency: float


@dataclass(frozen=True)
class BranchOutcome:
    """A branch as a judge sees it, apart from its diff. The conversation itself is never included.

    ``test_report`` holds the counts and failures behind ``test_pass_ratio``. ``state`` is how the branch ended.
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
    """The outcome of resolving a fork.

    ``committed``: the winner is merged, see ``merge_result``. ``auto_eligible``: not merged, but the confidence is high
    enough that the caller may merge without asking. Neither: a person has to pick. ``effective_confidence`` comes from
    `compute_confidence`; ``merge_confidence`` is the value that decides about the merge. ``verdicts`` holds every
    judge's verdict if several voted, ``judge_failures`` a line for each judge that gave none.
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
    judge_failures: list[str] = field(default_factory=list)
