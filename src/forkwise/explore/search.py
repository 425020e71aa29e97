"""Search: all the forks of one exploration, the first and those made inside its attempts, to any depth.

An attempt that is refined is forked itself. In the end the winner is committed into what it was made from, that into
what that was made from, and so on: only the last of these commits touches the workspace.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Protocol

from forkwise.files.branch import Branch
from forkwise.files.commit import Commit
from forkwise.fork.attempt import Attempt
from forkwise.fork.fork import Fork
from forkwise.sandbox.threads import in_thread

__all__ = ["Search", "Witness"]


class Witness(Protocol):
    """Somebody who looks on at an exploration, and decides nothing."""

    def begun(self, fork: str) -> None:
        """Called once, on the event loop, with the name of the first fork."""

    def winning(self, branch: Branch) -> None:
        """Called in a thread with the winner's branch, as it is about to be committed or to be held for a pick."""


class Search:
    """The forks of one exploration, as an async context manager. ``how`` and ``detail`` say, for the ledger, how the
    winner was found."""

    def __init__(self, fork: Fork, witness: Witness | None = None) -> None:
        self.fork = fork
        self._witness = witness
        self.how = "best score"
        self.detail: dict[str, Any] = {}
        self._inner: list[Fork] = []
        self._forks = AsyncExitStack()

    async def __aenter__(self) -> Search:
        await self._forks.enter_async_context(self.fork)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._forks.__aexit__(kind, error, at)

    @property
    def attempts(self) -> list[Attempt]:
        """All that was tried, the outer before the inner."""
        return [a for fork in (self.fork, *self._inner) for a in fork.attempts]

    async def inside(self, attempt: Attempt) -> Fork:
        """The fork of what an attempt made."""
        for fork in self._inner:
            if fork.inside is attempt:
                return fork
        known = [record.id for record in self.fork.ledger.children(attempt.id) if record.state == "interrupted"]
        fork = Fork(
            attempt.place,
            self.fork.kind,
            self.fork.settings,
            resume=known[-1] if known else None,
            inside=attempt,
        )
        await self._forks.enter_async_context(fork)
        self._inner.append(fork)
        return fork

    async def commit(self, winner: Attempt) -> Commit:
        """Commit a winner all the way to the workspace; whatever else was tried goes."""
        outermost = await self._fold(winner)
        await self._show(outermost)
        return await self.fork.resolve(outermost, self.how, self.detail)

    async def hold(self, favourite: Attempt | None) -> None:
        """Leave the choice between the attempts of the first fork to a person."""
        outermost = None if favourite is None else await self._fold(favourite)
        if outermost is not None:
            await self._show(outermost)
        await self.fork.hold(outermost, self.how)

    async def abort(self, reason: str) -> None:
        """Drop all of it."""
        for fork in reversed(self._inner):
            await fork.abort(reason)
        await self.fork.abort(reason)

    async def _show(self, winner: Attempt) -> None:
        if self._witness is not None:
            await in_thread(self._witness.winning, winner.place)

    async def _fold(self, winner: Attempt) -> Attempt:
        """Commit a winner up to the attempt of the first fork in which it was made; gives that."""
        chain = {winner.fork.id: winner}
        outermost = winner
        while outermost.fork is not self.fork:
            assert outermost.fork.inside is not None
            outermost = outermost.fork.inside
            chain[outermost.fork.id] = outermost
        for fork in reversed(self._inner):
            if fork.id in chain:
                await fork.resolve(chain[fork.id], self.how)
            else:
                await fork.abort("another attempt won")
        return outermost
