"""JudgeAgent: a model that picks the branch to keep.

What a judge may answer is limited to the branches there are: a name that is none of them goes back to it, and if it
insists, the verdict says so with no confidence at all. A judge never ends a run. What somebody else's judge says is
made sound by `heard`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, BeforeValidator, Field, create_model
from pydantic_ai import Agent, AgentRunResultEvent, UnexpectedModelBehavior
from pydantic_ai.messages import (
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import Model
from pydantic_ai.usage import RunUsage
from pydantic_core import from_json

from forkwise.agents.live.diff_report import BranchDiffReport
from forkwise.agents.live.judge_prompt import JUDGE_PROMPTS, build_judge_prompt
from forkwise.agents.live.specs import JudgeDomain
from forkwise.agents.live.verdict import BranchOutcome, JudgeVerdict
from forkwise.agents.local import is_local, local_model
from forkwise.sandbox.threads import in_thread

__all__ = ["Judge", "JudgeAgent", "VerdictDraft", "evidence_first", "heard", "name_of"]

_TRIES = 3
_BRIEF = 240  # characters of reasoning that a model gets which does not always know when to stop


class Judge(Protocol):
    """Whatever judges a fork: one model, pairs of branches on one, or what somebody else wrote."""

    async def evaluate(
        self, goal: str, diff_report: BranchDiffReport, outcomes: Sequence[BranchOutcome]
    ) -> tuple[JudgeVerdict, RunUsage]:
        """The verdict, and what it took."""
        ...


@dataclass(frozen=True, slots=True)
class VerdictDraft:
    """As much of a verdict as a judge has said so far; the last has the ``verdict`` itself, and what it cost."""

    winner_branch_id: str | None = None
    confidence: float | None = None
    reasoning: str = ""
    verdict: JudgeVerdict | None = None
    usage: RunUsage | None = None


class JudgeAgent:
    """A judge on one model, ``"local"`` for the one that needs no key. ``domain`` is what it is told to look at.

    The local one is small, and says only which branch, how sure it is and why in a sentence or two.

    The connections of a model that is given by its name are closed after each verdict; those of a model that was made
    elsewhere are left to whoever made it.

    >>> JudgeAgent("test", domain="code").agent.output_type
    <class 'forkwise.agents.live.verdict.JudgeVerdict'>
    """

    def __init__(self, model: Model | str, *, domain: JudgeDomain = "general", instructions: str | None = None) -> None:
        self._opens = isinstance(model, str)
        self._is_brief = is_local(model)
        self.agent: Agent[None, JudgeVerdict] = Agent(
            local_model() if is_local(model) else model,
            output_type=JudgeVerdict,
            instructions=instructions or JUDGE_PROMPTS[domain],
            retries=_TRIES,
        )

    @property
    def name(self) -> str:
        """The model that judges, as records of its verdicts name it."""
        model = self.agent.model
        return model.model_id if isinstance(model, Model) else str(model)

    async def evaluate(
        self, goal: str, diff_report: BranchDiffReport, outcomes: Sequence[BranchOutcome]
    ) -> tuple[JudgeVerdict, RunUsage]:
        """The verdict, and what it took. Errors of the provider are raised; what a judge says never is one."""
        usage = RunUsage()
        kind = _verdict_among(outcomes, is_brief=self._is_brief)
        prompt = await in_thread(build_judge_prompt, goal, diff_report, outcomes)
        async with self._connected():
            try:
                result = await self.agent.run(prompt, output_type=kind, usage=usage)
            except UnexpectedModelBehavior as error:
                return _no_verdict(outcomes, error), usage
        return _plain(result.output), usage

    async def stream(
        self, goal: str, diff_report: BranchDiffReport, outcomes: Sequence[BranchOutcome]
    ) -> AsyncIterator[VerdictDraft]:
        """The verdict while it is being said; a judge that is sent back begins anew. The last draft has all of it."""
        usage = RunUsage()
        kind = _verdict_among(outcomes, is_brief=self._is_brief)
        prompt = await in_thread(build_judge_prompt, goal, diff_report, outcomes)
        said = ""
        async with self._connected():
            try:
                async with self.agent.run_stream_events(prompt, output_type=kind, usage=usage) as events:
                    async for event in events:
                        if isinstance(event, AgentRunResultEvent):
                            yield _finished(_plain(event.result.output), usage)
                        elif isinstance(event, PartStartEvent):
                            said = _beginning(event.part)
                        elif isinstance(event, PartDeltaEvent) and (piece := _piece(event.delta)):
                            said += piece
                            yield _draft(said)
            except UnexpectedModelBehavior as error:
                yield _finished(_no_verdict(outcomes, error), usage)

    def _connected(self) -> AbstractAsyncContextManager[object]:
        return self.agent if self._opens else nullcontext()


def name_of(judge: Judge) -> str:
    """What records call a judge: its ``name``, where it has one, or what it is."""
    name = getattr(judge, "name", None)
    return name if isinstance(name, str) else type(judge).__name__


async def heard(
    judge: Judge, goal: str, diff_report: BranchDiffReport, outcomes: Sequence[BranchOutcome]
) -> tuple[JudgeVerdict, RunUsage]:
    """What a judge says, whoever wrote it: a branch that is none of the fork's, or a confidence that is no number from
    0 to 1, makes a verdict that nobody is sure of."""
    verdict, usage = await judge.evaluate(goal, diff_report, outcomes)
    caveats = list(verdict.caveats)
    if not (math.isfinite(verdict.confidence) and 0.0 <= verdict.confidence <= 1.0):
        caveats.append(f"the judge gave {verdict.confidence} as its confidence, which is not from 0 to 1")
        verdict = verdict.model_copy(update={"confidence": 0.0, "caveats": caveats})
    if all(outcome.branch_id != verdict.winner_branch_id for outcome in outcomes):
        caveats.append(f"the judge named {verdict.winner_branch_id!r}, which is no branch of this fork")
        best = evidence_first(outcomes)[0].branch_id
        verdict = verdict.model_copy(update={"winner_branch_id": best, "confidence": 0.0, "caveats": caveats})
    return verdict, usage


def evidence_first(outcomes: Sequence[BranchOutcome]) -> list[BranchOutcome]:
    """Branches by what is known of them without a judge: tests, errors, stuck loops and retries, then as given."""
    return sorted(
        outcomes,
        key=lambda o: (o.error_count, -(o.test_pass_ratio or 0.0), o.stuck_loop_hits, o.retry_count),
    )


def _verdict_among(outcomes: Sequence[BranchOutcome], *, is_brief: bool) -> type[BaseModel]:
    """The type of a verdict on these branches: no other can be named, and a label that only one has is its id."""
    if not outcomes:
        raise ValueError("there is no branch to judge")
    ids = tuple(outcome.branch_id for outcome in outcomes)
    labels = Counter(outcome.branch_label for outcome in outcomes)
    known = {o.branch_label: o.branch_id for o in outcomes if labels[o.branch_label] == 1} | {i: i for i in ids}

    def named(value: object) -> object:
        return known.get(value.strip(), value) if isinstance(value, str) else value

    def rejected(value: object) -> object:
        return {named(key): reason for key, reason in value.items()} if isinstance(value, dict) else value

    known_fields = JudgeVerdict.model_fields
    winner: Any = (
        Annotated[Literal[ids], BeforeValidator(named)],
        Field(description=known_fields["winner_branch_id"].description),
    )
    if is_brief:
        why: Any = (str, Field(max_length=_BRIEF, description=known_fields["reasoning"].description))
        sure: Any = (float, known_fields["confidence"])
        return create_model("JudgeVerdict", winner_branch_id=winner, confidence=sure, reasoning=why)
    reasons: Any = (Annotated[dict[str, str], BeforeValidator(rejected)], known_fields["rejected_with_reasons"])
    return create_model("JudgeVerdict", __base__=JudgeVerdict, winner_branch_id=winner, rejected_with_reasons=reasons)


def _plain(verdict: BaseModel) -> JudgeVerdict:
    return JudgeVerdict(**verdict.model_dump())


def _no_verdict(outcomes: Sequence[BranchOutcome], error: UnexpectedModelBehavior) -> JudgeVerdict:
    best = evidence_first(outcomes)[0]
    return JudgeVerdict(
        winner_branch_id=best.branch_id,
        confidence=0.0,
        reasoning=f"The judge named no branch of this fork ({error}); this one has the best tests and fewest errors.",
        caveats=["no judge stands behind this pick"],
    )


def _finished(verdict: JudgeVerdict, usage: RunUsage) -> VerdictDraft:
    return VerdictDraft(verdict.winner_branch_id, verdict.confidence, verdict.reasoning, verdict, usage)


def _beginning(part: object) -> str:
    """What a verdict begins with: an output comes as the arguments of a call, or from some models as text."""
    if isinstance(part, ToolCallPart):
        return part.args_as_json_str() if part.args else ""
    return part.content if isinstance(part, TextPart) else ""


def _piece(delta: object) -> str:
    """What follows."""
    if isinstance(delta, ToolCallPartDelta):
        return delta.args_delta if isinstance(delta.args_delta, str) else ""
    return delta.content_delta if isinstance(delta, TextPartDelta) else ""


def _draft(said: str) -> VerdictDraft:
    try:
        fields = from_json(said, allow_partial="trailing-strings")
    except ValueError:
        return VerdictDraft()
    if not isinstance(fields, dict):
        return VerdictDraft()
    winner, confidence, reasoning = (fields.get(n) for n in ("winner_branch_id", "confidence", "reasoning"))
    return VerdictDraft(
        winner if isinstance(winner, str) else None,
        float(confidence) if isinstance(confidence, int | float) and 0 <= confidence <= 1 else None,
        reasoning if isinstance(reasoning, str) else "",
    )
