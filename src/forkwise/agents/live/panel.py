"""Panel: several judges that vote, found by the keys that are in the environment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from pydantic_ai.usage import RunUsage

from forkwise.agents.live.diff_report import BranchDiffReport
from forkwise.agents.live.judge import Judge, heard, name_of
from forkwise.agents.live.verdict import BranchOutcome, JudgeVerdict

__all__ = ["PANEL_SIZE", "Vote", "detect_judge_models", "majority", "vote"]

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
        *(heard(judge, goal, diff_report, outcomes) for judge in judges), return_exceptions=True
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
