"""Budgets of branches and forks: estimates of requests, trackers of what is spent, and the costs of a fork.

Trackers are nested: the tracker of a branch has its fork's as its parent, and a fork inside a branch has the branch's.
Before a request is sent, every tracker on the way up has to admit it. A tracker admits a request if its upper estimate
fits beside all requests in flight, or if none is in flight. A budget is thus overdrawn by one request at most.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from genai_prices import calc_price
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage, RunUsage

from forkwise.errors import BudgetExceededError
from forkwise.live.values import BranchCost, BranchState, Budget, ForkCostSummary

if TYPE_CHECKING:
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import AttemptRecord
    from forkwise.live.branch_runtime import BranchRuntime

__all__ = [
    "BudgetTracker",
    "CostProjection",
    "ForkBudget",
    "RequestEstimate",
    "Usage",
    "estimate_request",
    "price",
    "project_cost",
]


#: Output tokens assumed for a request whose settings have no ``max_tokens``.
DEFAULT_OUTPUT_TOKENS = 32_000


@dataclass(frozen=True, slots=True)
class RequestEstimate:
    """The estimated cost of one request.

    ``tokens`` and ``usd`` are upper bounds, ``least_tokens`` and ``least_usd`` lower bounds. Dollars are None if the
    model has no known price.
    """

    tokens: int = 0
    usd: float | None = None
    least_usd: float | None = None
    least_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CostProjection:
    """The projected cost of a fork, per branch label and in total; None if no price is known.

    ``first_usd`` is the least it costs to send the first request of every branch.
    """

    per_branch: dict[str, float | None]
    total_usd: float | None
    first_usd: float | None


def estimate_request(
    model: Any, messages: Sequence[ModelMessage], settings: ModelSettings | None = None
) -> RequestEstimate:
    """Estimate the cost of sending ``messages`` to ``model``.

    The tokens up to the last response are known from its usage. For newer messages the upper bound counts each byte as
    a token.
    """
    measured = _last_measured_tokens(messages)
    unmeasured = _count_bytes(_messages_since_measured(messages))
    output = (settings or {}).get("max_tokens") or DEFAULT_OUTPUT_TOKENS
    most = RequestUsage(input_tokens=measured + unmeasured, output_tokens=output)
    least = RequestUsage(input_tokens=measured, cache_read_tokens=measured)
    return RequestEstimate(most.total_tokens, price(model, most), price(model, least), measured)


def price(model: Any, usage: RequestUsage) -> float | None:
    """Return the price of ``usage`` in dollars; None if the model has no known price."""
    try:
        return float(calc_price(usage, model.model_name, provider_id=model.system).total_price)
    except (LookupError, ValueError, AttributeError):
        return None


def project_cost(
    models: dict[str, Any], messages: Sequence[ModelMessage], requests: int, output_tokens: int
) -> CostProjection:
    """Project the cost of branches that start with ``messages`` and make ``requests`` requests each.

    ``models`` maps labels to models; each response is assumed to have ``output_tokens`` tokens.
    """
    input_tokens = _last_measured_tokens(messages) or _count_bytes(messages) // 4
    per_branch: dict[str, float | None] = {}
    first_prices = []
    for label, model in models.items():
        prices = [
            price(model, RequestUsage(input_tokens=input_tokens + number * output_tokens, output_tokens=output_tokens))
            for number in range(requests)
        ]
        per_branch[label] = None if None in prices else sum(filter(None, prices))
        first_prices.append(price(model, RequestUsage(input_tokens=input_tokens, cache_read_tokens=input_tokens)))
    return CostProjection(per_branch, _sum_known(per_branch.values()), _sum_known(first_prices))


def _sum_known(amounts: Iterable[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def _last_measured_tokens(messages: Sequence[ModelMessage]) -> int:
    """Return the size of the conversation in tokens, as the last response with a usage reported it."""
    for message in reversed(messages):
        if isinstance(message, ModelResponse) and message.usage.total_tokens:
            return message.usage.total_tokens
    return 0


def _messages_since_measured(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    for number in range(len(messages), 0, -1):
        message = messages[number - 1]
        if isinstance(message, ModelResponse) and message.usage.total_tokens:
            return messages[number:]
    return messages


def _count_bytes(messages: Sequence[ModelMessage]) -> int:
    """Count the bytes of all parts, and of the instructions of the last message, which are the ones sent."""
    return sum(_count_part_bytes(part) for message in messages for part in message.parts) + sum(
        len(instructions.encode())
        for message in messages[-1:]
        if (instructions := getattr(message, "instructions", None))
    )


def _count_part_bytes(part: Any) -> int:
    content = part.args if isinstance(part, ToolCallPart) else getattr(part, "content", "")
    text = content if isinstance(content, str) else json.dumps(content, default=str)
    return len(text.encode())


@dataclass(frozen=True, slots=True)
class Usage:
    """The amounts spent; ``usd`` is None if no price of any part is known."""

    usd: float | None = None
    tokens: int = 0
    requests: int = 0

    def __add__(self, other: Usage) -> Usage:
        usd = None if self.usd is None and other.usd is None else (self.usd or 0.0) + (other.usd or 0.0)
        return Usage(usd, self.tokens + other.tokens, self.requests + other.requests)


class BudgetTracker:
    """A budget and what is spent of it: ``usage``, which an agent's run increments, and the child trackers' usage.

    ``state`` is the state of a branch that this budget stops. With ``shares_unspent``, what finished children left
    flows to the children that still run.
    """

    def __init__(
        self,
        budget: Budget = Budget(),  # noqa: B008 - immutable
        state: BranchState = "budget_exhausted",
        parent: BudgetTracker | None = None,
        *,
        shares_unspent: bool = False,
    ) -> None:
        self.budget = budget
        self.state = state
        self.parent = parent
        self.shares_unspent = shares_unspent
        self.usage = RunUsage()
        self.is_closed = False
        self._children: list[BudgetTracker] = []
        self._in_flight: list[RequestEstimate] = []
        self._waiters: list[asyncio.Future[None]] = []
        if parent is not None:
            parent._children.append(self)

    @property
    def spent(self) -> Usage:
        """The usage so far, including that of the child trackers."""
        cost = self.usage.cost
        total = Usage(None if cost is None else float(cost), self.usage.total_tokens, self.usage.requests)
        for child in self._children:
            total += child.spent
        return total

    @property
    def cap(self) -> Budget:
        """The limit: the budget, plus the unspent part of finished siblings' budgets if the parent shares it."""
        if self.parent is None or not self.parent.shares_unspent or self.is_closed or self.budget.is_unlimited:
            return self.budget
        siblings = [(_limits(t.budget), _amounts(t.spent), t) for t in self.parent._children if t is not self]
        caps = []
        for unit, limit in enumerate(_limits(self.budget)):
            unspent = [
                other - amounts[unit]
                for limits, amounts, sibling in siblings
                # a sibling above its limit took the excess from the shared amount, so its remainder is negative
                if (other := limits[unit]) is not None and (sibling.is_closed or amounts[unit] > other)
            ]
            caps.append(None if limit is None else limit + max(0, sum(unspent)))
        usd, tokens, requests = caps
        return Budget(usd, _to_int(tokens), _to_int(requests), self.budget.seconds)

    @property
    def remaining_usd(self) -> float | None:
        """The dollars left; None if dollars are not limited."""
        cap = self.cap.usd
        return None if cap is None else cap - (self.spent.usd or 0.0)

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left of at least one limited unit."""
        cap, spent = self.cap, self.spent
        return (
            (cap.usd is not None and (spent.usd or 0.0) >= cap.usd)
            or (cap.tokens is not None and spent.tokens >= cap.tokens)
            or (cap.requests is not None and spent.requests >= cap.requests)
        )

    @property
    def is_limited(self) -> bool:
        """Whether this budget or one above it limits requests, so that they have to be estimated."""
        own = (self.budget.usd, self.budget.tokens, self.budget.requests)
        return own != (None, None, None) or (self.parent is not None and self.parent.is_limited)

    async def admit(self, estimate: RequestEstimate) -> None:
        """Wait until the request may be sent; the caller has to call ``settle`` afterwards.

        Raises BudgetExceededError if nothing is left, or less than the request's lower estimate.
        """
        while True:
            self.check(estimate)
            if not self._in_flight or self._fits(estimate):
                break
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        self._in_flight.append(estimate)
        if self.parent is not None:
            try:
                await self.parent.admit(estimate)
            except BaseException:
                self._remove(estimate)
                raise

    def settle(self, estimate: RequestEstimate) -> None:
        """Remove an admitted request from the requests in flight, whether it succeeded or failed."""
        self._remove(estimate)
        if self.parent is not None:
            self.parent.settle(estimate)

    def check(self, estimate: RequestEstimate = RequestEstimate()) -> None:
        """Raise BudgetExceededError if less is left than the request's lower estimate."""
        if self.is_spent:
            raise self._exceeded_error("it is spent")
        remaining = self.remaining_usd
        if remaining is not None and (estimate.least_usd or 0.0) > remaining:
            raise self._exceeded_error(f"the next request takes {estimate.least_usd:.4f} USD at least")
        tokens = self.cap.tokens
        if tokens is not None and estimate.least_tokens > tokens - self.spent.tokens:
            raise self._exceeded_error(f"the next request takes {estimate.least_tokens} tokens at least")

    @contextmanager
    def hold_open(self) -> Iterator[None]:
        """Keep the tracker open during the block; afterwards its unspent amounts may flow to siblings."""
        self.is_closed = False
        try:
            yield
        finally:
            self.is_closed = True
            if self.parent is not None:
                self.parent._wake()

    def _fits(self, estimate: RequestEstimate) -> bool:
        cap, spent = self.cap, self.spent
        estimates = [*self._in_flight, estimate]
        if cap.usd is not None and (spent.usd or 0.0) + sum(e.usd or 0.0 for e in estimates) > cap.usd:
            return False
        if cap.tokens is not None and spent.tokens + sum(e.tokens for e in estimates) > cap.tokens:
            return False
        return cap.requests is None or spent.requests + len(estimates) <= cap.requests

    def _remove(self, estimate: RequestEstimate) -> None:
        self._in_flight.remove(estimate)
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _exceeded_error(self, reason: str) -> BudgetExceededError:
        spent, cap = self.spent, self.cap
        amounts = [
            f"{spent.usd or 0.0:.4f} of {cap.usd:.4f} USD" if cap.usd is not None else "",
            f"{spent.tokens} of {cap.tokens} tokens" if cap.tokens is not None else "",
            f"{spent.requests} of {cap.requests} requests" if cap.requests is not None else "",
        ]
        return BudgetExceededError(f"{', '.join(filter(None, amounts))}: {reason}", state=self.state)


def _limits(budget: Budget) -> tuple[float | None, ...]:
    return budget.usd, budget.tokens, budget.requests


def _amounts(spent: Usage) -> tuple[float, ...]:
    return spent.usd or 0.0, spent.tokens, spent.requests


def _to_int(number: float | None) -> int | None:
    return None if number is None else int(number)


class ForkBudget:
    """The budget and the usage of one fork and its branches. The ledger records the usage of each branch.

    ``tracker`` tracks the fork as a whole; ``parent`` is the tracker of the branch that the fork was started in.
    """

    def __init__(
        self, budget: Budget, ledger: Ledger, parent: BudgetTracker | None = None, *, shares_unspent: bool = False
    ) -> None:
        self.tracker = BudgetTracker(budget, "aggregate_budget_exhausted", parent, shares_unspent=shares_unspent)
        self._ledger = ledger

    @property
    def is_spent(self) -> bool:
        """Whether the branches have spent what they may spend together."""
        return self.tracker.is_spent

    def track_branch(self, branch_id: str, budget: Budget) -> BudgetTracker:
        """Return a tracker for a branch, which starts with what the ledger says the branch has spent before."""
        tracker = BudgetTracker(budget, parent=self.tracker)
        _count(tracker.usage, self._ledger.attempt(branch_id), 1)
        for fork in self._ledger.children(branch_id):
            for attempt in _attempts_below(self._ledger, fork.id):
                _count(tracker.usage, attempt, 1)
        return tracker

    def take_over(self, fork_id: str) -> None:
        """Remove what a resumed fork's branches spent from the parent's own usage: they get their own trackers."""
        if self.tracker.parent is not None:
            for attempt in _attempts_below(self._ledger, fork_id):
                _count(self.tracker.parent.usage, attempt, -1)

    def record(self, branch_id: str, tracker: BudgetTracker) -> None:
        """Write what a branch has spent so far into the ledger, with and without the forks inside the branch."""
        spent, usage = tracker.spent, tracker.usage
        total = {"usd": spent.usd, "tokens": spent.tokens, "requests": spent.requests}
        own = {"usd": None if usage.cost is None else float(usage.cost), "requests": usage.requests}
        tokens = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
        self._ledger.record_cost(branch_id, total | tokens | {"own": own | tokens})

    def summarize(
        self, fork_id: str, branches: Mapping[str, BranchRuntime], judge_usd: float | None
    ) -> ForkCostSummary:
        """Summarize the costs of the fork and of each branch."""
        costs = {}
        for runtime in branches.values():
            spent, cap = runtime.cost_tracker.spent, runtime.cost_tracker.cap.usd
            costs[runtime.id] = BranchCost(
                runtime.id,
                runtime.spec.label,
                spent.usd,
                runtime.budget_usd,
                _remaining(cap, spent.usd),
                runtime.status.state,
                spent.tokens,
                spent.requests,
            )
        total, cap = self.tracker.spent.usd, self.tracker.budget.usd
        return ForkCostSummary(fork_id, costs, total, cap, _remaining(cap, total), judge_usd)


def _remaining(cap: float | None, spent: float | None) -> float | None:
    return None if cap is None else max(0.0, cap - (spent or 0.0))


def _attempts_below(ledger: Ledger, fork_id: str) -> Iterator[AttemptRecord]:
    for attempt in ledger.attempts(fork_id):
        yield attempt
        for inner in ledger.children(attempt.id):
            yield from _attempts_below(ledger, inner.id)


def _count(usage: RunUsage, attempt: AttemptRecord, sign: int) -> None:
    cost = (attempt.cost or {}).get("own") or attempt.cost or {}
    usage.requests += sign * cost.get("requests", 0)
    usage.input_tokens += sign * cost.get("input_tokens", 0)
    usage.output_tokens += sign * cost.get("output_tokens", 0)
    if cost.get("usd") is not None:
        usage.cost = (usage.cost or Decimal(0)) + sign * Decimal(str(cost["usd"]))
