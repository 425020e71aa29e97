"""Purse: what a branch, or all branches of a fork together, may spend and have spent.

Purses lie in each other: a branch's in its fork's, and that of a fork made inside a branch in that branch's. Before a
request is sent it has to be let through by all of them. A purse lets it through while the request, at its upper
estimate, fits beside all that are under way; or, if it may not fit, alone. So it is overdrawn by one request at most.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from genai_prices import calc_price
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage, RunUsage

from forkwise.errors import BudgetExceededError
from forkwise.live.values import BranchState, Budget

__all__ = [
    "BudgetTracker",
    "CostProjection",
    "RequestEstimate",
    "Usage",
    "estimate_request",
    "price",
    "project_cost",
]


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


@dataclass(frozen=True, slots=True)
class Usage:
    """What was spent; ``usd`` is None where no price is known of any of it."""

    usd: float | None = None
    tokens: int = 0
    requests: int = 0

    def __add__(self, other: Usage) -> Usage:
        usd = None if self.usd is None and other.usd is None else (self.usd or 0.0) + (other.usd or 0.0)
        return Usage(usd, self.tokens + other.tokens, self.requests + other.requests)


class BudgetTracker:
    """A budget and what is spent of it: by ``usage``, which an agent's run counts up, and from the purses inside.

    ``state`` is what a branch is called that it stops. ``shares`` lets what finished branches left over flow to those
    that still run.
    """

    def __init__(
        self,
        budget: Budget = Budget(),  # noqa: B008 - it never changes
        state: BranchState = "budget_exhausted",
        above: BudgetTracker | None = None,
        *,
        shares: bool = False,
    ) -> None:
        self.budget = budget
        self.state = state
        self.above = above
        self.shares = shares
        self.usage = RunUsage()
        self.is_closed = False
        self._inside: list[BudgetTracker] = []
        self._under_way: list[RequestEstimate] = []
        self._waiting: list[asyncio.Future[None]] = []
        if above is not None:
            above._inside.append(self)

    @property
    def spent(self) -> Usage:
        """All that was spent, by those inside too."""
        cost = self.usage.cost
        total = Usage(None if cost is None else float(cost), self.usage.total_tokens, self.usage.requests)
        for purse in self._inside:
            total += purse.spent
        return total

    @property
    def cap(self) -> Budget:
        """What may be spent: the budget, and what flows in from those beside it that are done."""
        if self.above is None or not self.above.shares or self.is_closed or self.budget.is_unlimited:
            return self.budget
        mine, beside = _held(self.budget), [(_held(p.budget), _used(p.spent), p) for p in self.above._inside]
        caps = []
        for kind, own in enumerate(mine):
            flowing = [
                had - used[kind]
                for budget, used, purse in beside
                if purse is not self
                and (had := budget[kind]) is not None
                and (purse.is_closed or used[kind] > had)  # who took more than it had took it from what others left
            ]
            caps.append(None if own is None else own + max(0, sum(flowing)))
        usd, tokens, requests = caps
        return Budget(usd, _whole(tokens), _whole(requests), self.budget.seconds)

    @property
    def left_usd(self) -> float | None:
        """How many dollars are left; None where that is not limited."""
        cap = self.cap.usd
        return None if cap is None else cap - (self.spent.usd or 0.0)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of something."""
        cap, spent = self.cap, self.spent
        return (
            (cap.usd is not None and (spent.usd or 0.0) >= cap.usd)
            or (cap.tokens is not None and spent.tokens >= cap.tokens)
            or (cap.requests is not None and spent.requests >= cap.requests)
        )

    @property
    def limits_requests(self) -> bool:
        """Whether a request has to be estimated for it, or for one around it."""
        own = (self.budget.usd, self.budget.tokens, self.budget.requests)
        return own != (None, None, None) or (self.above is not None and self.above.limits_requests)

    async def admit(self, estimate: RequestEstimate) -> None:
        """Wait until a request may be sent; to be followed by ``settle``. Raises BudgetExceededError where it may not
        be sent at all: nothing is left, or less than it takes at least."""
        while True:
            self.check(estimate)
            if not self._under_way or self._has_room(estimate):
                break
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            await waiting
        self._under_way.append(estimate)
        if self.above is not None:
            try:
                await self.above.admit(estimate)
            except BaseException:
                self._end(estimate)
                raise

    def settle(self, estimate: RequestEstimate) -> None:
        """The request is over, whatever came of it."""
        self._end(estimate)
        if self.above is not None:
            self.above.settle(estimate)

    def check(self, estimate: RequestEstimate = RequestEstimate()) -> None:  # noqa: B008
        """Raise BudgetExceededError where nothing is left for a request that takes at least so much."""
        if self.is_empty:
            raise self._exceeded("it is spent")
        left = self.left_usd
        if left is not None and (estimate.least_usd or 0.0) > left:
            raise self._exceeded(f"the next request takes {estimate.least_usd:.4f} USD at least")
        tokens = self.cap.tokens
        if tokens is not None and estimate.least_tokens > tokens - self.spent.tokens:
            raise self._exceeded(f"the next request takes {estimate.least_tokens} tokens at least")

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Around all that may spend from it; what is left then may flow to others."""
        self.is_closed = False
        try:
            yield
        finally:
            self.is_closed = True
            self._wake(self.above)

    def _has_room(self, estimate: RequestEstimate) -> bool:
        cap, spent = self.cap, self.spent
        several = [*self._under_way, estimate]
        if cap.usd is not None and (spent.usd or 0.0) + sum(e.usd or 0.0 for e in several) > cap.usd:
            return False
        if cap.tokens is not None and spent.tokens + sum(e.tokens for e in several) > cap.tokens:
            return False
        return cap.requests is None or spent.requests + len(several) <= cap.requests

    def _end(self, estimate: RequestEstimate) -> None:
        self._under_way.remove(estimate)
        self._wake(self)

    @staticmethod
    def _wake(purse: BudgetTracker | None) -> None:
        if purse is not None:
            waiting, purse._waiting = purse._waiting, []
            for one in waiting:
                if not one.done():
                    one.set_result(None)

    def _exceeded(self, why: str) -> BudgetExceededError:
        spent, cap = self.spent, self.cap
        told = [
            f"{spent.usd or 0.0:.4f} of {cap.usd:.4f} USD" if cap.usd is not None else "",
            f"{spent.tokens} of {cap.tokens} tokens" if cap.tokens is not None else "",
            f"{spent.requests} of {cap.requests} requests" if cap.requests is not None else "",
        ]
        return BudgetExceededError(f"{', '.join(filter(None, told))}: {why}", state=self.state)


def _held(budget: Budget) -> tuple[float | None, ...]:
    return budget.usd, budget.tokens, budget.requests


def _used(spent: Usage) -> tuple[float, ...]:
    return spent.usd or 0.0, spent.tokens, spent.requests


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
