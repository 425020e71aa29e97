"""When attempts start: after the first one has shown that its agent can work, and a few at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forkwise.fork.candidate import Judgement

__all__ = ["Preparation", "StartGate"]

_PREPARED_AT_ONCE = 16


class StartGate:
    """Holds the attempts of one agent back until its first attempt shows that the agent can work at all.

    That is when the provider has answered it, when it is over, or after ``patience`` seconds. If the first attempt ends
    because the agent cannot start, ``reason`` says why, and the others are not started.
    """

    def __init__(self, first: str, patience: float = 3.0) -> None:
        self.reason: str | None = None
        self._first = first
        self._patience = patience
        self._opened = asyncio.Event()

    async def wait(self, attempt: str) -> None:
        """Wait until an attempt may start."""
        if attempt == self._first:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._opened.wait(), self._patience)

    def open(self, attempt: str, judgement: Judgement | None = None) -> None:
        """Let the other attempts start, or not, now that an attempt was answered or has ended."""
        if judgement is not None and judgement.blocks_others and self.reason is None:
            self.reason = f"not started: {attempt} ended with {judgement.reason}"
        self._opened.set()


class Preparation:
    """The attempts of a fork that are being prepared: a few at once, so that the first ones run meanwhile.

    Otherwise each of a thousand attempts would take its first step before any of them took its second, and the nodes of
    a cluster would wait until the last one was prepared.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_PREPARED_AT_ONCE)
        self._users: set[str] = set()

    async def enter(self, attempt: str) -> None:
        """Wait until an attempt may be prepared."""
        await self._free.acquire()
        self._users.add(attempt)

    def leave(self, attempt: str) -> None:
        """Let another attempt be prepared, because one runs now, or is over."""
        if attempt in self._users:
            self._users.remove(attempt)
            self._free.release()
