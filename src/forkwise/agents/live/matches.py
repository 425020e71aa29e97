"""Matches: branches judged two at a time, all against all or until one is left.

Two diffs are easier to compare than ten, and whoever is shown first has an advantage; so every two are judged in both
orders, at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from pydantic_ai.usage import RunUsage

from forkwise.agents.live.diff_report import BranchDiffReport
from forkwise.agents.live.judge import Judge, heard, name_of
from forkwise.agents.live.verdict import BranchOutcome, JudgeVerdict

__all__ = ["PairwiseJudge", "TournamentJudge"]


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
        heard(judge, goal, shown, pair), heard(judge, goal, shown, pair[::-1])
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
