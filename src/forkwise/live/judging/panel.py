"""Panel: several judges that vote, found by the keys that are in the environment."""

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
    "PairwiseJudge",
    "TournamentJudge",
    "Vote",
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
    """Judges every two branches, and has the one that wins most; n branches take n·(n−1) requests."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge

    @property
    def name(self) -> str:
        """Who judges, and how."""
        return f"{name_of(self.judge)}, pairwise"

    async def evaluate(
        self, goal: str, diff_report: BranchDiffReport, outcomes: Sequence[BranchOutcome]
    ) -> tuple[JudgeVerdict, RunUsage]:
        """The verdict, and what all matches took."""
        pairs = list(combinations(outcomes, 2))
        played = await asyncio.gather(*(_play(self.judge, goal, diff_report, pair) for pair in pairs))
        scores = {outcome.branch_id: (0, 0.0) for outcome in outcomes}  # wins, and how sure they were
        for match in played:
            wins, sureness = scores[match.verdict.winner_branch_id]
            scores[match.verdict.winner_branch_id] = (wins + 1, sureness + match.verdict.confidence)
        return _result(max(scores, key=lambda branch_id: scores[branch_id]), played)


class TournamentJudge:
    """Judges two branches at a time, of which one goes on; n branches take 2·(n−1) requests."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge

    @property
    def name(self) -> str:
        """Who judges, and how."""
        return f"{name_of(self.judge)}, tournament"

    async def evaluate(
        self, goal: str, diff_report: BranchDiffReport, outcomes: Sequence[BranchOutcome]
    ) -> tuple[JudgeVerdict, RunUsage]:
        """The verdict, and what all matches took."""
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
    """A winner that changes with the order is none to be sure of."""
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
    """The part of a report that two branches have to do with."""
    ids = {outcome.branch_id for outcome in pair}
    paths = [
        replace(path, branches={branch_id: change for branch_id, change in path.branches.items() if branch_id in ids})
        for path in report.paths
    ]
    return replace(report, paths=[p for p in paths if any(c.operation != "untouched" for c in p.branches.values())])


def _result(best: str, played: Sequence[_Match]) -> tuple[JudgeVerdict, RunUsage]:
    """One verdict of those on pairs: as sure as the winner's matches are, those it lost counting nothing."""
    own = [match.verdict for match in played if best in match.ids]
    won = [verdict for verdict in own if verdict.winner_branch_id == best]
    verdict = JudgeVerdict(
        winner_branch_id=best,
        confidence=sum(verdict.confidence for verdict in won) / len(own) if own else 1.0,
        reasoning=f"Won {len(won)} of {len(own)} matches. {' '.join(dict.fromkeys(v.reasoning for v in won))}".strip(),
        rejected_with_reasons={k: why for v in won for k, why in v.rejected_with_reasons.items() if k != best},
        caveats=list(dict.fromkeys(caveat for verdict in won for caveat in verdict.caveats)),
        recommended_followup=next((v.recommended_followup for v in won if v.recommended_followup), None),
    )
    return verdict, sum((match.usage for match in played), RunUsage())


#: How many judges vote.
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


@dataclass(frozen=True, slots=True)
class Vote:
    """What a panel came to: the verdict of the majority, those of all, what they took, the judges that failed, and the
    names of those that did not, in the order of their verdicts."""

    verdict: JudgeVerdict
    verdicts: tuple[JudgeVerdict, ...]
    usage: RunUsage
    failures: tuple[Exception, ...] = ()
    judges: tuple[str, ...] = ()


def detect_judge_models(fallback: str, env: Mapping[str, str] | None = None) -> list[str]:
    """Three models whose keys are in the environment, of as many vendors as there are; else three times the fallback.

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
    """Let all judge at once. A judge whose provider fails has no vote; where all do, the first failure is raised."""
    answers = await asyncio.gather(
        *(ask_judge(judge, goal, diff_report, outcomes) for judge in judges), return_exceptions=True
    )
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    given = [answer for answer in answers if not isinstance(answer, BaseException)]
    names = [name_of(j) for j, answer in zip(judges, answers, strict=True) if not isinstance(answer, BaseException)]
    for failure in failures:
        if not given or not isinstance(failure, Exception):
            raise failure
    verdicts = tuple(verdict for verdict, _ in given)
    spent = sum((usage for _, usage in given), RunUsage())
    failed = tuple(f for f in failures if isinstance(f, Exception))
    return Vote(majority(verdicts), verdicts, spent, failed, tuple(names))


def majority(verdicts: Sequence[JudgeVerdict]) -> JudgeVerdict:
    """One verdict of several: the branch with most votes; of a tie, that of the judge who is most sure.

    Its confidence is the mean of those who chose it, times their share of the votes.
    """
    if not verdicts:
        raise ValueError("nobody voted")
    by_branch: dict[str, list[JudgeVerdict]] = {}
    for verdict in verdicts:
        by_branch.setdefault(verdict.winner_branch_id, []).append(verdict)
    winner, behind = max(by_branch.items(), key=lambda item: (len(item[1]), max(v.confidence for v in item[1])))
    first = max(behind, key=lambda verdict: verdict.confidence)
    return JudgeVerdict(
        winner_branch_id=winner,
        confidence=sum(verdict.confidence for verdict in behind) / len(verdicts),
        reasoning=f"{len(behind)} of {len(verdicts)} judges: {first.reasoning}",
        rejected_with_reasons={k: why for v in reversed(behind) for k, why in v.rejected_with_reasons.items()},
        caveats=list(dict.fromkeys(caveat for verdict in behind for caveat in verdict.caveats)),
        recommended_followup=first.recommended_followup,
    )
