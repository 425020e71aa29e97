"""Recombination: several answers made one, by writing them one after the other or by asking a model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.models import Model

__all__ = ["WAYS", "Answer", "Recombination", "Recombined", "recombine"]

Recombination = Literal["none", "concatenate", "llm_merge", "llm_vote", "llm_judge"]

WAYS: tuple[str, ...] = get_args(Recombination)
_JUDGES = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """One of several answers, and what was asked for it."""

    asked: str
    text: str


@dataclass(frozen=True, slots=True)
class Recombined:
    """What several answers became; ``winner`` is the number of the one that was chosen, where one was."""

    text: str
    winner: int | None = None


class _Choice(BaseModel):
    """Which answer is the best."""

    option: int = Field(description="the number of the best option, counted from 1")
    reason: str = Field(default="", description="why, in one sentence")


async def recombine(how: Recombination, answers: Sequence[Answer], model: Model | str | None) -> Recombined:
    """Make one of several answers. The model is asked in a conversation of its own, which has nothing to do with the
    one the answers come from."""
    if how not in WAYS:
        raise ValueError(f"answers are not recombined by {how!r}; there are {', '.join(WAYS)}")
    if how == "none" or not answers:
        return Recombined("")
    if how == "concatenate" or model is None:
        return Recombined("\n\n".join(f"Response {n}:\n{a.text}" for n, a in enumerate(answers, start=1)))
    if len(answers) == 1:
        return Recombined(answers[0].text, 0)
    if how == "llm_merge":
        asked = "Merge these answers into one that keeps what is right and useful in each, without repeating.\n\n"
        return Recombined(str((await Agent(model).run(asked + _listed(answers))).output))
    votes = await asyncio.gather(*(_choose(answers, model) for _ in range(_JUDGES if how == "llm_vote" else 1)))
    counted = Counter(vote.option for vote in votes)
    option = min(counted, key=lambda number: (-counted[number], number))
    reason = next(vote.reason for vote in votes if vote.option == option)
    tally = f" with {counted[option]} of {len(votes)} votes" if how == "llm_vote" else ""
    told = f"Option {option} was chosen{tally}{f': {reason}' if reason else ''}"
    return Recombined(f"{told}\n\n{answers[option - 1].text}", option - 1)


async def _choose(answers: Sequence[Answer], model: Model | str) -> _Choice:
    judge = Agent(model, output_type=_Choice)

    @judge.output_validator
    def in_range(choice: _Choice) -> _Choice:
        if not 1 <= choice.option <= len(answers):
            raise ModelRetry(f"there are options 1 to {len(answers)}")
        return choice

    return (await judge.run(f"Choose the best of these answers.\n\n{_listed(answers)}")).output


def _listed(answers: Sequence[Answer]) -> str:
    return "\n\n".join(f"Option {n} (asked: {a.asked})\n{a.text}" for n, a in enumerate(answers, start=1))
