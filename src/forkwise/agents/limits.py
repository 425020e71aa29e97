"""Limits: what a call and all the branches below it may use together.

Each call has bounds of its own, inside those of the call that it is a branch of; what is used counts in all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from pydantic_ai.messages import ModelResponse

from forkwise.errors import LimitError

__all__ = ["Bounds", "Place"]


@dataclass
class Bounds:
    """The limits of a call, and what was used of them by it and by all below it."""

    name: str
    outer: Bounds | None
    max_depth: int
    max_branches: int | None
    max_parallel: int | None
    budget: float | None
    branches: int = 0
    spent: Decimal = Decimal(0)
    places: asyncio.Semaphore | None = field(init=False)

    def __post_init__(self) -> None:
        self.places = asyncio.Semaphore(self.max_parallel) if self.max_parallel is not None else None

    @property
    def depth(self) -> int:
        """How many calls this one is below the first."""
        return 0 if self.outer is None else self.outer.depth + 1

    def admit_branch(self) -> None:
        """Count a branch of this call, or raise LimitError where it would be one too many, or too deep."""
        for bounds in self._outwards():
            if self.depth + 1 - bounds.depth > bounds.max_depth:
                raise LimitError(
                    f"{bounds.name} allows {bounds.max_depth} levels of branches, and this would be one more",
                    limit="max_depth",
                )
            if bounds.max_branches is not None and bounds.branches >= bounds.max_branches:
                raise LimitError(f"{bounds.name} has had all its {bounds.max_branches} branches", limit="max_branches")
        for bounds in self._outwards():
            bounds.branches += 1

    def place(self) -> Place:
        """Where this call works: it takes one of the places that all it is inside of have for their branches."""
        taken = [b.places for b in self._outwards() if b is not self and b.places is not None]
        return Place(taken[::-1])

    def check_budget(self) -> None:
        """Raise LimitError where there is nothing left to spend."""
        for bounds in self._outwards():
            if bounds.budget is not None and bounds.spent >= Decimal(str(bounds.budget)):
                raise LimitError(f"{bounds.name} has spent ${bounds.spent} of its ${bounds.budget}", limit="budget")

    def charge(self, response: ModelResponse) -> None:
        """Count what a response cost, in all bounds. Where there is a budget, a model without a price is an error."""
        if all(bounds.budget is None for bounds in self._outwards()):
            return
        try:
            cost = response.usage.cost if response.usage.cost is not None else response.cost().total_price
        except (LookupError, ValueError, AssertionError) as error:
            raise LimitError(
                f"there is a budget, and nobody knows what {response.model_name} costs: {error}", limit="budget"
            ) from error
        for bounds in self._outwards():
            bounds.spent += Decimal(cost)

    def _outwards(self) -> Iterator[Bounds]:
        bounds: Bounds | None = self
        while bounds is not None:
            yield bounds
            bounds = bounds.outer


class Place:
    """A place to work among others. Whoever waits for branches of its own lends its place meanwhile: else they and it
    would wait for each other."""

    def __init__(self, semaphores: Sequence[asyncio.Semaphore]) -> None:
        self._semaphores = semaphores
        self._held: list[asyncio.Semaphore] = []

    async def take(self) -> None:
        """Have the place, once there is one."""
        for semaphore in self._semaphores[len(self._held) :]:
            await semaphore.acquire()
            self._held.append(semaphore)

    def lend(self) -> None:
        """Give it away, until it is taken again."""
        while self._held:
            self._held.pop().release()
