"""Budgets of running time, of dollars and of tokens, and the end of the attempts that use them up."""

from __future__ import annotations

import asyncio
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forkwise.concurrency import post
from forkwise.errors import ForkwiseWarning
from forkwise.text.phrases import format_usd

if TYPE_CHECKING:
    from forkwise.fork.candidate import OutputReader

__all__ = ["SpendBudget", "SpendLimits", "TimeBudget"]


class TimeBudget:
    """The running time that the candidates of a fork may use together; those of forks inside its attempts count too.

    Once it is used up, ``reason`` says so: candidates that still run are cancelled, and no others are to be started.
    Tests do not count. ``seconds=None`` is no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self.reason: str | None = None
        self._seconds = seconds
        self._left = 0.0 if seconds is None else seconds
        self._running: set[asyncio.Task[Any]] = set()
        self._settled_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def use(self, seconds: float) -> None:
        """Count time that was used before, by the process that ran the fork."""
        self._left -= seconds
        if self._seconds is not None and self._left <= 0:
            self._end()

    @contextmanager
    def spend(self) -> Iterator[None]:
        """Count the time of the block, and cancel the current task when nothing is left."""
        task = asyncio.current_task()
        if self._seconds is None or task is None:
            yield
            return
        self._settle()
        self._running.add(task)
        self._schedule()
        try:
            yield
        finally:
            self._settle()
            self._running.discard(task)
            self._schedule()

    def _settle(self) -> None:
        now = asyncio.get_running_loop().time()
        self._left -= (now - self._settled_at) * len(self._running)
        self._settled_at = now

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running and self.reason is None:
            wait_s = max(self._left, 0.0) / len(self._running)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._end)

    def _end(self) -> None:
        self.reason = f"the budget of {self._seconds:g} s of running time was used up"
        for task in list(self._running):
            task.cancel(self.reason)


@dataclass(frozen=True, slots=True)
class SpendLimits:
    """What the attempts of a fork may spend, together and each, in dollars and in tokens; None is no limit."""

    usd: float | None = None
    tokens: int | None = None
    attempt_usd: float | None = None
    attempt_tokens: int | None = None

    @property
    def is_in_dollars(self) -> bool:
        """Whether prices have to be known while attempts run."""
        return self.usd is not None or self.attempt_usd is not None

    def find_excess(self, usd: float, tokens: int, *, is_attempt: bool) -> str | None:
        """Return which limit an amount has reached, in words; None if none."""
        limits = (self.attempt_usd, self.attempt_tokens) if is_attempt else (self.usd, self.tokens)
        whose = "its budget" if is_attempt else "the budget"
        if limits[0] is not None and usd >= limits[0]:
            return f"{whose} of ${limits[0]:g} was used up ({format_usd(usd)})"
        if limits[1] is not None and tokens >= limits[1]:
            return f"{whose} of {limits[1]} tokens was used up ({tokens})"
        return None


class SpendBudget:
    """What the attempts of a fork have spent, as their output says, and the end of those that spend too much.

    Once it is used up, ``reason`` says so: candidates that still run are cancelled, and no others are to be started.
    """

    def __init__(self, limits: SpendLimits | None) -> None:
        self.limits = limits or SpendLimits()
        self.reason: str | None = None
        self._spent: dict[str, tuple[float, int]] = {}
        self._running: dict[str, asyncio.Task[Any]] = {}
        self._has_warned = False

    @property
    def is_limited(self) -> bool:
        """Whether there is any limit."""
        return self.limits != SpendLimits()

    @contextmanager
    def spend(self, attempt: str) -> Iterator[Callable[[OutputReader], None]]:
        """Cancel the block's task when too much is spent. Yield a function that checks the cost a reader has found.

        The function may be called in any thread.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def check(reader: OutputReader) -> None:
            cost = reader.find_cost(by_list=self.limits.is_in_dollars) or {}
            post(loop, self.use, attempt, cost)

        self._running[attempt] = task
        try:
            yield check
        finally:
            self._running.pop(attempt, None)

    def use(self, attempt: str, cost: Mapping[str, Any]) -> None:
        """Set what an attempt has spent so far, and end it, or all of them, if that is too much."""
        amounts = _read_amounts(cost)
        if amounts == self._spent.get(attempt):
            return
        self._spent[attempt] = amounts
        if self.limits.is_in_dollars and amounts[1] and cost.get("usd") is None and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"the price of what {attempt} uses is not known: a budget in dollars does not count it; name its "
                "model, or limit tokens",
                ForkwiseWarning,
                stacklevel=2,
            )
        excess = self.limits.find_excess(*amounts, is_attempt=True)
        if excess is not None and attempt in self._running:
            self._running[attempt].cancel(excess)
        usd, tokens = (sum(values) for values in zip(*self._spent.values(), strict=True))
        self.reason = self.reason or self.limits.find_excess(usd, int(tokens), is_attempt=False)
        if self.reason is not None:
            for task in list(self._running.values()):
                task.cancel(self.reason)


def _read_amounts(cost: Mapping[str, Any]) -> tuple[float, int]:
    usd = cost.get("usd")
    counts = [cost.get(name) for name in ("input_tokens", "output_tokens")]
    is_known = isinstance(usd, int | float) and math.isfinite(usd)
    return (float(usd) if is_known and usd else 0.0), sum(count for count in counts if isinstance(count, int))
