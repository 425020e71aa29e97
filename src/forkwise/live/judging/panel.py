"""Judges that ask other judges: pairwise, as a tournament, and a panel that votes.

A panel's models are chosen by the API keys in the environment.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, cycle, islice
from typing import NamedTuple

from pydantic_ai.usage import RunUsage

from forkwise.live.diff.diff_report import BranchDiffReport
from forkwise.live.judging.judge import Judge, ask_judge, name_of
from forkwise.live.judging.verdict import BranchOutcome, JudgeVerdict

__all__ = [
    "PANEL_SIZE",
    "NoVerdictError",
    "PairwiseJudge",
    "TournamentJudge",
    "Vote",
    "describe_failure",
    "detect_judge_models",
    "majority",
    "vote",
]


class _Match(NamedTuple):
    """Two branches judged in both orders."""

    ids: tuple[str, str]
    verdict: JudgeVerdict
    usage: RunUsage


class PairwiseJudge:
    """A judge that compares every pair of branches; most wins wins. n branches take n·(n−1) requests."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge

    @property
    def name(self) -> str:
        """The name under which its verdicts are recorded."""
        return f"{name_of(self.judge)}, pairwise"

    async def evaluate(
        self, goal: str, diff_report: BranchDiffReport, outcomes: Sequence[BranchOutcome]
    ) -> tuple[JudgeVerdict, RunUsage]:
        """Return the verdict and the usage of all matches."""
        pairs = list(combinations(outcomes, 2))
        played = await asyncio.gather(*(_play(self.judge, goal, diff_report, pair) for pair in pairs))
        scores = {outcome.branch_id: (0, 0.0) for outcome in outcomes}  # wins, and their summed confidence
        for match in played:
            wins, confidence = scores[match.verdict.winner_branch_id]
            scores[match.verdict.winner_branch_id] = (wins + 1, confidence + match.verdict.confidence)
        return _result(max(scores, key=lambda branch_id: scores[branch_id]), played)


class TournamentJudge:
    """A judge that compares branches in knock-out rounds; n branches take 2·(n−1) requests."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge

    @property
    def name(self) -> str:
        """The name under which its verdicts are recorded."""
        return f"{name_of(self.judge)}, tournament"

    async def evaluate(
        self, goal: str, diff_report: BranchDiffReport, outcomes: Sequence[BranchOutcome]
    ) -> tuple[JudgeVerdict, RunUsage]:
        """Return the verdict and the usage of all matches."""
        played: list[_Match] = []
        left = list(outcomes)
        while len(left) > 1:
            pairs = list(zip(left[::2], left[1::2], strict=False))
            matches = await asyncio.gather(*(_play(self.judge, goal, diff_report, pair) for pair in pairs))
            played += matches
            winners = {match.verdict.winner_branch_id for match in matches}
            unpaired = left[2 * len(pairs) :]
            left = [*unpaired, *(outcome for outcome in left if outcome.branch_id in winners)]
        return _result(left[0].branch_id, played)


async def _play(judge: Judge, goal: str, report: BranchDiffReport, pair: tuple[BranchOutcome, BranchOutcome]) -> _Match:
    """Judge a pair in both orders. A winner that changes with the order gets little confidence."""
    shown = _between(report, pair)
    (one, spent), (other, also) = await asyncio.gather(
        ask_judge(judge, goal, shown, pair), ask_judge(judge, goal, shown, pair[::-1])
    )
    ids = (pair[0].branch_id, pair[1].branch_id)
    surer, less = sorted((one, other), key=lambda verdict: -verdict.confidence)
    update: dict[str, object] = {"confidence": (one.confidence + other.confidence) / 2}
    if one.winner_branch_id != other.winner_branch_id:
        caveat = "the judge chose the other branch when the two were shown in the other order"
        update = {"confidence": (surer.confidence - less.confidence) / 2, "caveats": [*surer.caveats, caveat]}
    return _Match(ids, surer.model_copy(update=update), spent + also)


def _between(report: BranchDiffReport, pair: Sequence[BranchOutcome]) -> BranchDiffReport:
    """Return the part of a report that concerns these two branches."""
    ids = {outcome.branch_id for outcome in pair}
    paths = [
        replace(path, branches={branch_id: change for branch_id, change in path.branches.items() if branch_id in ids})
        for path in report.paths
    ]
    return replace(report, paths=[p for p in paths if any(c.operation != "untouched" for c in p.branches.values())])


def _result(best: str, played: Sequence[_Match]) -> tuple[JudgeVerdict, RunUsage]:
    """Merge the verdicts on pairs into one.

    Its confidence is the mean over the winner's matches; a lost match counts as 0.
    """
    own = [match.verdict for match in played if best in match.ids]
    won = [verdict for verdict in own if verdict.winner_branch_id == best]
    verdict = JudgeVerdict(
        winner_branch_id=best,
        confidence=sum(verdict.confidence for verdict in won) / len(own) if own else 1.0,
        reasoning=f"Won {len(won)} of {len(own)} matches. {' '.join(dict.fromkeys(v.reasoning for v in won))}".strip(),
        rejected_with_reasons={k: reason for v in won for k, reason in v.rejected_with_reasons.items() if k != best},
        caveats=list(dict.fromkeys(caveat for verdict in won for caveat in verdict.caveats)),
        recommended_followup=next((v.recommended_followup for v in won if v.recommended_followup), None),
    )
    return verdict, sum((match.usage for match in played), RunUsage())


#: The number of judges on a panel.
PANEL_SIZE = 3

_NATIVE = {
    "ANTHROPIC_API_KEY": "anthropic:claude-haiku-4-5-20251001",
    "OPENAI_API_KEY": "openai:gpt-5-mini",
    "MISTRAL_API_KEY": "mistral:mistral-small-latest",
    "GROQ_API_KEY": "groq:llama-3.3-70b-versatile",
    "CO_API_KEY": "cohere:command-r7b-12-2024",
    "COHERE_API_KEY": "cohere:command-r7b-12-2024",
}
_GOOGLE_KEYS = ("GOOGLE_API_KEY", "GEMINI_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY")
_GOOGLE = "google:gemini-2.5-flash"
_OPENROUTER = (
    "openrouter:anthropic/claude-haiku-4.5",
    "openrouter:openai/gpt-5-mini",
    "openrouter:google/gemini-2.5-flash",
)
_MAX_FAILURE = 300  # characters


@dataclass(frozen=True, slots=True)
class Vote:
    """The result of a panel.

    ``verdict`` is the majority's; ``verdicts`` are all of them, in the order of ``judges``. ``failures`` has a line for
    each judge that gave none.
    """

    verdict: JudgeVerdict
    verdicts: tuple[JudgeVerdict, ...]
    usage: RunUsage
    failures: tuple[str, ...] = ()
    judges: tuple[str, ...] = ()


def detect_judge_models(fallback: str, env: Mapping[str, str] | None = None) -> list[str]:
    """Return three models whose API keys are set, from as many vendors as possible; else the fallback three times.

    >>> detect_judge_models("test", {"OPENAI_API_KEY": "k", "GEMINI_API_KEY": "k"})
    ['openai:gpt-5-mini', 'google:gemini-2.5-flash', 'openai:gpt-5-mini']
    >>> detect_judge_models("test", {})
    ['test', 'test', 'test']
    """
    env = os.environ if env is None else env
    found = [model for key, model in _NATIVE.items() if env.get(key)]
    if any(env.get(key) for key in _GOOGLE_KEYS):
        found.append(_GOOGLE)
    if env.get("OPENROUTER_API_KEY"):
        found += _OPENROUTER
    return list(islice(cycle(dict.fromkeys(found or [fallback])), PANEL_SIZE))


async def vote(
    judges: Sequence[Judge], goal: str, diff_report: BranchDiffReport, outcomes: Sequence[BranchOutcome]
) -> Vote:
    """Ask all judges at once. One that fails has no vote. Raises NoVerdictError if none is left."""
    answers = await asyncio.gather(
        *(ask_judge(judge, goal, diff_report, outcomes) for judge in judges), return_exceptions=True
    )
    verdicts, names, failures, usage = [], [], [], RunUsage()
    for judge, answer in zip(judges, answers, strict=True):
        if isinstance(answer, Exception):
            failures.append(describe_failure(name_of(judge), answer))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            verdicts.append(answer[0])
            names.append(name_of(judge))
            usage += answer[1]
    if not verdicts:
        raise NoVerdictError(failures)
    return Vote(majority(verdicts), tuple(verdicts), usage, tuple(failures), tuple(names))


class NoVerdictError(Exception):
    """No judge gave a verdict; ``failures`` has a line for each."""

    def __init__(self, failures: Sequence[str]) -> None:
        super().__init__("; ".join(failures))
        self.failures = list(failures)


def describe_failure(judge: str, error: Exception) -> str:
    """Return a line that says why a judge gave no verdict."""
    lines = str(error).strip().splitlines() or ["no message"]
    return f"the judge {judge} gave no verdict: {type(error).__name__}: {lines[0]}"[:_MAX_FAILURE]


def majority(verdicts: Sequence[JudgeVerdict]) -> JudgeVerdict:
    """Return the verdict of the majority; a tie goes to the branch of the most confident judge.

    Its confidence is the mean of the judges who chose it, times their share of the votes.
    """
    if not verdicts:
        raise ValueError("there is no verdict to count")
    by_branch: dict[str, list[JudgeVerdict]] = {}
    for verdict in verdicts:
        by_branch.setdefault(verdict.winner_branch_id, []).append(verdict)
    winner, supporters = max(by_branch.items(), key=lambda item: (len(item[1]), max(v.confidence for v in item[1])))
    first = max(supporters, key=lambda verdict: verdict.confidence)
    return JudgeVerdict(
        winner_branch_id=winner,
        confidence=sum(verdict.confidence for verdict in supporters) / len(verdicts),
        reasoning=f"{len(supporters)} of {len(verdicts)} judges: {first.reasoning}",
        rejected_with_reasons={
            k: reason for v in reversed(supporters) for k, reason in v.rejected_with_reasons.items()
        },
        caveats=list(dict.fromkeys(caveat for verdict in supporters for caveat in verdict.caveats)),
        recommended_followup=first.recommended_followup,
    )
