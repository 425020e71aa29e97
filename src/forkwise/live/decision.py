"""The decision on a fork by judges: tests and diffs of its branches, the verdict, and how far to trust it.

`Verdicts` remembers the outcomes for one fork, so that judges are asked once per strategy.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, UserPromptPart
from pydantic_ai.usage import RunUsage

from forkwise.concurrency import run_in_thread
from forkwise.errors import BranchingError, ForkwiseWarning
from forkwise.fork.evaluators.tests import Tests
from forkwise.fork.fault import find_fault
from forkwise.live.diff.build import build_diff_report
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
from forkwise.live.judging.judge import Judge, JudgeAgent, name_of
from forkwise.live.judging.panel import (
    NoVerdictError,
    PairwiseJudge,
    TournamentJudge,
    Vote,
    describe_failure,
    detect_judge_models,
    vote,
)
from forkwise.live.judging.verdict import BranchOutcome, ConfidenceSignals, JudgeVerdict, ResolveOutcome
from forkwise.live.merge import is_mergeable
from forkwise.telemetry import record_evaluation, span

if TYPE_CHECKING:
    from forkwise.live.branch_runtime import BranchRuntime
    from forkwise.live.diff.diff_report import BranchDiffReport
    from forkwise.live.live_fork import LiveFork
    from forkwise.live.values import MergeStrategy
    from forkwise.testing.baseline import Baseline
    from forkwise.testing.report import TestReport

__all__ = ["Decision", "JudgeSettings", "Verdicts", "build_tests", "decide", "find_goal", "judge_fork", "run_tests"]

#: The test command that stands for the project's own tests.
AUTO = "auto"


@dataclass(frozen=True)
class JudgeSettings:
    """How branches are judged.

    ``judge`` replaces the models that a strategy names, ``signals`` the default signals of the merge confidence.
    ``test_command`` runs in each branch, for ``test_timeout_s`` seconds at most.
    """

    judge: Any = None
    signals: Sequence[Signal] | None = None
    test_command: str | None = None
    test_timeout_s: float = 60.0


class Verdicts:
    """The judges' outcomes for one fork, by strategy, and their cost. They are valid until a branch runs again."""

    def __init__(self) -> None:
        self.cost_usd: float | None = None
        self._outcomes: dict[str, ResolveOutcome] = {}

    @property
    def last(self) -> JudgeVerdict | None:
        """The last verdict; None if no judge was asked, or no branch could win."""
        outcomes = list(self._outcomes.values())
        return outcomes[-1].verdict if outcomes else None

    @property
    def winners(self) -> list[str]:
        """The ids of the branches that judges chose."""
        return [o.verdict.winner_branch_id for o in self._outcomes.values() if o.verdict is not None]

    async def judge(self, live: LiveFork, strategy: MergeStrategy, settings: JudgeSettings) -> ResolveOutcome:
        """Return the outcome for a strategy; ask its judges only if they were not asked before."""
        key = _strategy_key(strategy)
        if key not in self._outcomes:
            outcome = await judge_fork(live, strategy, settings)
            if outcome.judge_failures and outcome.verdict is None:
                return outcome  # not kept: a judge may be available the next time
            self._outcomes[key] = outcome
            if outcome.judge_cost_usd is not None:
                self.cost_usd = (self.cost_usd or 0.0) + outcome.judge_cost_usd
        return self._outcomes[key]

    def invalidate(self) -> None:
        """Drop the outcomes, but not their cost: a branch is about to change."""
        self._outcomes.clear()


@dataclass(frozen=True)
class Decision:
    """The verdict on a fork, with the confidence in it.

    ``judges`` are the names of the judges of ``verdicts``, ``failures`` a line for each judge that gave no verdict.
    """

    verdict: JudgeVerdict
    verdicts: list[JudgeVerdict]
    signals: ConfidenceSignals
    effective_confidence: float
    merge_confidence: float
    measured: Mapping[str, float | None]
    usage: RunUsage
    judges: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()

    @property
    def cost_usd(self) -> float | None:
        """The cost of the judges in dollars; None if no price is known."""
        return None if self.usage.cost is None else float(self.usage.cost)


def build_tests(command: str | None, timeout_s: float) -> Tests | None:
    """Build the tests of a test command; None without one. Their baseline is measured once, when a fork is judged."""
    if command is None:
        return None
    return Tests(None if command == AUTO else command, timeout=timeout_s, baseline=False)


async def run_tests(
    branches: Sequence[BranchRuntime], command: str | None, timeout_s: float
) -> dict[str, TestReport | None]:
    """Test all branches at the same time. Return a report per branch id; None without tests or a valid result."""
    tests = build_tests(command, timeout_s)
    testable = [one for one in branches if one.attempt.branch is not None and not one.live_fork.source.is_in_memory]
    if tests is None or not testable:
        return {}
    baseline: Baseline | None = None
    with suppress(BranchingError):  # the command may fail on the base: the branches are then judged without a baseline
        baseline = await tests.measure(testable[0].attempt.fork.parent)

    async def test(runtime: BranchRuntime) -> TestReport | None:
        if runtime.attempt.branch is None or runtime not in testable:
            return None
        try:
            report = await tests.test(runtime.attempt.branch, baseline)
        except BranchingError as error:
            if find_fault(error) is None:
                raise
            warnings.warn(f"branch {runtime.id} could not be tested: {error}", ForkwiseWarning, stacklevel=2)
            return None
        return report if report.is_signal and report.doubt is None else None

    reports = await asyncio.gather(*map(test, branches))
    return {runtime.id: report for runtime, report in zip(branches, reports, strict=True)}


def _build_outcome(runtime: BranchRuntime, report: TestReport | None) -> BranchOutcome:
    """Build the summary of a branch for the judge."""
    own = runtime.thread.own_messages()
    return BranchOutcome(
        branch_id=runtime.id,
        branch_label=runtime.spec.label,
        steer=runtime.spec.steer,
        final_assistant_message=runtime.thread.last_text,
        cost_usd=runtime.cost_tracker.spent.usd,
        turns=sum(isinstance(message, ModelResponse) for message in own),
        error_count=int(runtime.status.state not in ("done", "faulted")),
        retry_count=count_retry_parts(own),
        stuck_loop_hits=count_stuck_loop_hits(own),
        test_pass_ratio=None if report is None else report.ratio,
        test_report=report,
        state=runtime.status.state,
    )


def find_goal(history: Sequence[ModelMessage]) -> str:
    """Return the last user prompt of a history."""
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
    """Ask the judge or the panel of a strategy.

    ``judge`` replaces the models that the strategy names. Unless ``signals`` are given, one signal is how often earlier
    picks of the same judges were kept, according to ``calibrations``. A judge that cannot be asked, for example because
    its package or its key is missing, has no vote. Raises NoVerdictError if none is left.
    """
    with span("judge") as judge_span:
        found = await _ask_judges(strategy, judge, goal, report, outcomes)
        for name, each in zip(found.judges, found.verdicts, strict=False):
            label, reason = each.winner_branch_id, each.reasoning
            record_evaluation(judge_span, name, score=each.confidence, label=label, explanation=reason)
    verdict, verdicts, usage, judges = found.verdict, list(found.verdicts), found.usage, found.judges
    if found.failures:
        verdict = verdict.model_copy(update={"caveats": [*verdict.caveats, *found.failures]})
    evidence = Evidence(report, outcomes, verdict)
    measured = measure_signals(evidence)
    merge = merge_confidence(evidence, signals or [*MERGE_SIGNALS, track_record(calibrations or {}, *judges)])
    effective = compute_confidence(measured, verdict.confidence)
    return Decision(verdict, verdicts, measured, effective, merge.value, merge.measured, usage, judges, found.failures)


async def _ask_judges(
    strategy: MergeStrategy, judge: Any, goal: str, report: BranchDiffReport, outcomes: Sequence[BranchOutcome]
) -> Vote:
    """Ask the judges of a strategy. One that cannot be asked has no vote. Raises NoVerdictError if none is left."""
    if judge is not None:
        models = [judge]
    elif strategy.kind == "vote":
        models = strategy.judge_models or detect_judge_models(strategy.judge_model)
    else:
        models = [strategy.judge_model]
    judges: list[Judge] = []
    failures: list[str] = []
    for model in models:
        try:
            judges.append(_build_judge(model, strategy))
        except Exception as error:  # noqa: BLE001 - a missing package or key, an unknown model
            failures.append(describe_failure(model if isinstance(model, str) else name_of(model), error))
    try:
        found = await vote(judges, goal, report, outcomes)
    except NoVerdictError as error:
        raise NoVerdictError(list(dict.fromkeys([*failures, *error.failures]))) from error
    verdict = found.verdict if strategy.kind == "vote" else found.verdicts[0]
    return replace(found, verdict=verdict, failures=tuple(dict.fromkeys([*failures, *found.failures])))


async def judge_fork(live: LiveFork, strategy: MergeStrategy, settings: JudgeSettings) -> ResolveOutcome:
    """Have judges decide between the branches of a fork, none of which runs.

    A branch that failed, or that has no response, cannot win; if no branch can, or if no judge can be asked, the
    outcome has no verdict.
    """
    branches = [runtime for runtime in live.branches.values() if is_mergeable(runtime)]
    if not branches:
        return ResolveOutcome(False, False, None, None, 0.0, None)
    reports, diff = await asyncio.gather(
        run_tests(branches, settings.test_command, settings.test_timeout_s),
        run_in_thread(build_diff_report, live.fork.id, branches),
    )
    outcomes = [_build_outcome(runtime, reports.get(runtime.id)) for runtime in branches]
    for runtime, outcome in zip(branches, outcomes, strict=True):
        if outcome.test_report is not None:
            live.fork.ledger.record_tests(runtime.id, outcome.test_report.as_json())
    try:
        decision = await decide(
            strategy,
            live.plan.goal,
            diff,
            outcomes,
            judge=settings.judge,
            signals=settings.signals,
            calibrations=await run_in_thread(Calibration.from_ledger, live.fork.ledger),
        )
    except NoVerdictError as error:
        return ResolveOutcome(False, False, None, None, 0.0, None, judge_failures=error.failures)
    live.fork.ledger.record_verdict(
        live.fork.id,
        {
            "winner": decision.verdict.winner_branch_id,
            "how": strategy.kind,
            "confidence": decision.merge_confidence,
            "reasoning": decision.verdict.reasoning,
            "votes": votes_of(decision.judges, decision.verdicts),
        },
    )
    return ResolveOutcome(
        committed=False,
        auto_eligible=decision.merge_confidence >= strategy.confidence_threshold,
        verdict=decision.verdict,
        signals=decision.signals,
        effective_confidence=decision.effective_confidence,
        merge_result=None,
        judge_usage=decision.usage,
        merge_confidence=decision.merge_confidence,
        measured=decision.measured,
        verdicts=decision.verdicts,
        judge_cost_usd=decision.cost_usd,
        judge_failures=list(decision.failures),
    )


def _strategy_key(strategy: MergeStrategy) -> str:
    """Return a key that is equal for strategies that ask the same judges the same question."""
    kind = "vote" if strategy.kind == "vote" else "judge"
    return f"{kind} {replace(strategy, kind='manual')}"


def _build_judge(model: Any, strategy: MergeStrategy) -> Judge:
    judge: Judge = model if hasattr(model, "evaluate") else JudgeAgent(model, domain=strategy.domain)
    if strategy.judging == "pairwise":
        return PairwiseJudge(judge)
    return TournamentJudge(judge) if strategy.judging == "tournament" else judge
