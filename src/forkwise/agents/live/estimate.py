"""Estimates: what a request to a model will cost at least and at most, before it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from genai_prices import calc_price
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

__all__ = ["CostProjection", "RequestEstimate", "estimate_request", "price", "project_cost"]

#: Tokens of an answer of which nobody said how long it may be.
LONGEST_ANSWER = 32_000


@dataclass(frozen=True, slots=True)
class RequestEstimate:
    """What one request takes: ``tokens`` and ``usd`` at most, ``least_tokens`` and ``least_usd`` at least. None: it has
    no known price."""

    tokens: int = 0
    usd: float | None = None
    least_usd: float | None = None
    least_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CostProjection:
    """What a fork would cost if each of its branches made so many requests, by label and in all; None: no known price.

    ``first_usd`` is what it takes at least for every branch to make its first request.
    """

    per_branch: dict[str, float | None]
    total_usd: float | None
    first_usd: float | None


def estimate_request(
    model: Any, messages: Sequence[ModelMessage], settings: ModelSettings | None = None
) -> RequestEstimate:
    """What it takes to send these messages. What was measured last is known; a token of all that came since is a byte
    at least."""
    known = _measured(messages)
    new = _size(_since_measured(messages))
    answer = (settings or {}).get("max_tokens") or LONGEST_ANSWER
    most = RequestUsage(input_tokens=known + new, output_tokens=answer)
    least = RequestUsage(input_tokens=known, cache_read_tokens=known)
    return RequestEstimate(most.total_tokens, price(model, most), price(model, least), known)


def price(model: Any, usage: RequestUsage) -> float | None:
    """What a use of a model costs in dollars; None where nobody knows."""
    try:
        return float(calc_price(usage, model.model_name, provider_id=model.system).total_price)
    except (LookupError, ValueError, AttributeError):
        return None


def project_cost(
    models: dict[str, Any], messages: Sequence[ModelMessage], requests: int, answer: int
) -> CostProjection:
    """What branches would cost that begin with these messages and make so many requests, each answered by ``answer``
    tokens; the models are those of the branches, by their labels."""
    known = _measured(messages) or _size(messages) // 4
    per_branch: dict[str, float | None] = {}
    firsts = []
    for label, model in models.items():
        sums = [
            price(model, RequestUsage(input_tokens=known + number * answer, output_tokens=answer))
            for number in range(requests)
        ]
        per_branch[label] = None if None in sums else sum(filter(None, sums))
        firsts.append(price(model, RequestUsage(input_tokens=known, cache_read_tokens=known)))
    return CostProjection(per_branch, _total(per_branch.values()), _total(firsts))


def _total(sums: Iterable[float | None]) -> float | None:
    known = [one for one in sums if one is not None]
    return sum(known) if known else None


def _measured(messages: Sequence[ModelMessage]) -> int:
    """How many tokens the conversation had when it was measured last."""
    for message in reversed(messages):
        if isinstance(message, ModelResponse) and message.usage.total_tokens:
            return message.usage.total_tokens
    return 0


def _since_measured(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    for number in range(len(messages), 0, -1):
        message = messages[number - 1]
        if isinstance(message, ModelResponse) and message.usage.total_tokens:
            return messages[number:]
    return messages


def _size(messages: Sequence[ModelMessage]) -> int:
    """The bytes of all that messages say."""
    return sum(_bytes(part) for message in messages for part in message.parts) + sum(
        len(instructions.encode())
        for message in messages[-1:]
        if (instructions := getattr(message, "instructions", None))
    )


def _bytes(part: Any) -> int:
    said = part.args if isinstance(part, ToolCallPart) else getattr(part, "content", "")
    text = said if isinstance(said, str) else json.dumps(said, default=str)
    return len(text.encode())
