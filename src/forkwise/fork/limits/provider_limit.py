"""How many attempts use a provider of models at once, and how long one waits that was refused."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass

__all__ = ["ProviderLimit", "ProviderRules"]

_FIRST_WAIT = 5.0  # seconds until an attempt that its provider refused starts again; then twice as long, and so on
_LONGEST_WAIT = 600.0


@dataclass(frozen=True, slots=True)
class ProviderRules:
    """How the attempts of a fork treat providers of models: how many use one at once, None for any number.

    ``retries`` is how often an attempt starts again after a provider refused it because of too many requests.
    """

    at_once: int | None = None
    retries: int = 5

    def find_delay(self, count: int, asked_s: float) -> float | None:
        """Return the seconds to wait after ``count`` earlier waits; ``asked_s`` is what the provider asks for, or 0.

        None means that waiting is not worthwhile. Attempts that were refused together wait for different times.
        """
        if count >= self.retries or asked_s > _LONGEST_WAIT:
            return None
        if asked_s:
            return asked_s * random.uniform(1.0, 1.2)
        return float(min(_FIRST_WAIT * 2**count, _LONGEST_WAIT) * random.uniform(0.75, 1.25))


class ProviderLimit:
    """The attempts that use one provider at once: as many as allowed, and fewer after it has refused one.

    A refusal halves the limit, unless the refused attempt began before the last one; each attempt that is answered adds
    one.
    """

    def __init__(self, at_once: int | None) -> None:
        self._most = at_once
        self._at_once = at_once
        self._users: dict[str, int] = {}  # with the number of refusals when they began
        self._refusals = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def enter(self, attempt: str) -> None:
        """Wait until an attempt may use the provider."""
        while attempt not in self._users and self._at_once is not None and len(self._users) >= self._at_once:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                self._waiters.remove(waiter)
        self._users.setdefault(attempt, self._refusals)

    def leave(self, attempt: str, *, is_refused: bool = False) -> None:
        """Let another attempt use the provider, after it has answered this one or refused it."""
        if attempt not in self._users:
            return
        together = len(self._users)
        if self._users.pop(attempt) == self._refusals and is_refused:
            self._refusals += 1
            self._at_once = max(min(self._at_once or together, together) // 2, 1)
        elif not is_refused and self._at_once is not None and self._at_once != self._most:
            self._at_once += 1
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
