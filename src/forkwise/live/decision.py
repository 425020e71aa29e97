"""Resolving: what is known of the branches when a fork is to be decided, and what judges make of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.usage import RunUsage

from forkwise.concurrency import run_in_thread
from forkwise.fork.evaluation import Tests
from forkwise.live.branch_runtime import BranchRuntime
from forkwise.live.diff.build import build_diff_report
from forkwise.live.diff.diff_report import BranchDiffReport
from forkwise.live.judging.confidence import (
    MERGE_SIGNALS,
    Calibration,
    Evidence,
    Signal,
    compute_confidence,
    count_retry_parts,
    count_stuck_loop_hits,
    measure_signals,
    merge_confidence,
    track_record,
    votes_of,
)
from forkwise.live.judging.judge import Judge, JudgeAgent, ask_judge, name_of
from forkwise.live.judging.panel import PairwiseJudge, TournamentJudge, detect_judge_models, vote
from forkwise.live.judging.verdict import BranchOutcome, ConfidenceSignals, JudgeVerdict, ResolveOutcome
from forkwise.live.live_fork import LiveFork
from forkwise.live.merge import is_mergeable
from forkwise.live.values import MergeStrategy
from forkwise.testing.report import TestReport

if TYPE_CHECKING:
    from forkwise.live.coordinator import ForkDecider

__all__ = ["Decision", "decide", "goal_of", "judge_fork", "outcome_of", "run_tests", "strategy_key"]

#: What asks for the tests that a project makes plain.
AUTO = "auto"


@dataclass(frozen=True)
class Decision:
    """What a judge, or several, said of a fork, and how sure that is. ``judges`` are the names of those who gave the
    ``verdicts``."""

    verdict: JudgeVerdict
    verdicts: list[JudgeVerdict]
    signals: ConfidenceSignals
    effective_confidence: float
    merge_confidence: float
    measured: Mapping[str, float | None]
    usage: RunUsage
    judges: tuple[str, ...] = ()

    @property
    def cost_usd(self) -> float | None:
        """What the judges cost."""
        return None if self.usage.cost is None else float(self.usage.cost)


async def run_tests(
    branches: Sequence[BranchRuntime], command: str | None, timeout: float
) -> dict[str, TestReport | None]:
    """What the tests say of each branch, all at once; None where there are none, or they did not come to an end."""
    if command is None:
        return {}
    tests = Tests(None if command == AUTO else command, timeout=timeout)

    async def test(runtime: BranchRuntime) -> TestReport | None:
        if runtime.attempt.branch is None or runtime.coordinator.is_in_memory:
            return None
        report = await tests.test(runtime.attempt.branch)
        return report if report.is_signal and report.doubt is None else None

    reports = await asyncio.gather(*map(test, branches))
    return {runtime.id: report for runtime, report in zip(branches, reports, strict=True)}


def outcome_of(runtime: BranchRuntime, report: TestReport | None) -> BranchOutcome:
    """What a judge is told of a branch."""
    own = runtime.thread.own_messages()
    return BranchOutcome(
        branch_id=runtime.id,
        branch_label=runtime.spec.label,
        steer=runtime.spec.steer,
        final_assistant_message=runtime.thread.last_text,
        cost_usd=runtime.purse.spent.usd,
        turns=sum(isinstance(message, ModelResponse) for message in own),
        error_count=int(runtime.status.state != "done"),
        retry_count=count_retry_parts(own),
        stuck_loop_hits=count_stuck_loop_hits(own),
        test_pass_ratio=None if report is None else report.ratio,
        test_report=report,
        state=runtime.status.state,
    )


def goal_of(history: Sequence[ModelMessage]) -> str:
    """What a person asked for last."""
    for message in reversed(history):
        if isinstance(message, ModelRequest):
            for part in reversed(message.parts):
                if isinstance(part, UserPromptPart):
                    return part.content if isinstance(part.content, str) else " ".join(map(str, part.content))
    return ""


async def decide(
    strategy: MergeStrategy,
    goal: str,
    report: BranchDiffReport,
    outcomes: Sequence[BranchOutcome],
    *,
    judge: Any = None,
    signals: Sequence[Signal] | None = None,
    calibrations: Mapping[str, Calibration] | None = None,
) -> Decision:
    """Ask the judge, or the panel. ``judge`` is used instead of those that the strategy names. How often the picks of
    these judges held before, by their ``calibrations``, is one of the signals, unless others are given."""
    if strategy.kind == "vote":
        models = [judge] if judge is not None else strategy.judge_models or detect_judge_models(strategy.judge_model)
        found = await vote([_judge(model, strategy) for model in models], goal, report, outcomes)
        verdict, verdicts, usage, judges = found.verdict, list(found.verdicts), found.usage, found.judges
    else:
        chosen = _judge(strategy.judge_model if judge is None else judge, strategy)
        verdict, usage = await ask_judge(chosen, goal, report, outcomes)
        verdicts, judges = [verdict], (name_of(chosen),)
    evidence = Evidence(report, outcomes, verdict)
    measured = measure_signals(evidence)
    merge = merge_confidence(evidence, signals or [*MERGE_SIGNALS, track_record(calibrations or {}, *judges)])
    effective = compute_confidence(measured, verdict.confidence)
    return Decision(verdict, verdicts, measured, effective, merge.value, merge.measured, usage, judges)


async def judge_fork(coordinator: ForkDecider, live: LiveFork, strategy: MergeStrategy) -> ResolveOutcome:
    """What judges say of a fork whose branches are all over. A branch that failed, or never spoke, cannot win; where
    none is left there is no verdict."""
    branches = [runtime for runtime in live.branches.values() if is_mergeable(runtime)]
    if not branches:
        return ResolveOutcome(False, False, None, None, 0.0, None)
    reports, diff = await asyncio.gather(
        run_tests(branches, coordinator.test_command, coordinator.test_timeout_s),
        run_in_thread(build_diff_report, live.fork.id, branches),
    )
    outcomes = [outcome_of(runtime, reports.get(runtime.id)) for runtime in branches]
    for runtime, outcome in zip(branches, outcomes, strict=True):
        if outcome.test_report is not None:
            live.fork.ledger.record_tests(runtime.id, outcome.test_report.as_json())
    made = await decide(
        strategy,
        live.plan.goal,
        diff,
        outcomes,
        judge=coordinator.judge,
        signals=coordinator.signals,
        calibrations=await run_in_thread(Calibration.from_ledger, live.fork.ledger),
    )
    told = {"winner": made.verdict.winner_branch_id, "how": strategy.kind, "confidence": made.merge_confidence}
    live.fork.ledger.record_verdict(
        live.fork.id, told | {"reasoning": made.verdict.reasoning, "votes": votes_of(made.judges, made.verdicts)}
    )
    return ResolveOutcome(
        committed=False,
        auto_eligible=made.merge_confidence >= strategy.confidence_threshold,
        verdict=made.verdict,
        signals=made.signals,
        effective_confidence=made.effective_confidence,
        merge_result=None,
        judge_usage=made.usage,
        merge_confidence=made.merge_confidence,
        measured=made.measured,
        verdicts=made.verdicts,
        judge_cost_usd=made.cost_usd,
    )


def strategy_key(strategy: MergeStrategy) -> str:
    """What two strategies have in common that lead to the same question to the same judges."""
    how = "vote" if strategy.kind == "vote" else "judge"
    return f"{how} {replace(strategy, kind='manual')}"


def _judge(model: Any, strategy: MergeStrategy) -> Judge:
    judge: Judge = model if hasattr(model, "evaluate") else JudgeAgent(model, domain=strategy.domain)
    if strategy.judging == "pairwise":
        return PairwiseJudge(judge)
    return TournamentJudge(judge) if strategy.judging == "tournament" else judge
