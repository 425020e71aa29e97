"""What can be asked of a ledger: all that a face needs which shows and writes nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Literal

from forkwise.errors import ForkNotFoundError
from forkwise.ledger.record import AttemptRecord, Event, ForkRecord, ForkState, Summary

__all__ = ["Reading"]


class Reading(ABC):
    """The half of a ledger that answers.

    A fork is named by its id or by as much of its beginning as no other shares, an attempt by its fork and its number
    (``k3f9ab.2``). An id that is not known raises ForkNotFoundError, which names those that may have been meant.
    """

    def fork(self, fork: str) -> ForkRecord:
        """One fork."""
        record = self._fork(fork)
        if record is None:
            ids = self._fork_ids()
            near = sorted(name for name in ids if fork and name.startswith(fork))
            record = self._fork(near[0]) if len(near) == 1 else None
            if record is None:
                near = near or get_close_matches(fork, ids, n=3, cutoff=0.5)
                raise ForkNotFoundError(_unknown("fork", fork, near), subject=fork, near=near)
        return record

    def attempt(self, attempt: str) -> AttemptRecord:
        """One attempt."""
        record = self._attempt(attempt)
        if record is None:
            beginning, _, number = attempt.partition(".")
            fork = self.fork(beginning).id
            record = self._attempt(f"{fork}.{number}")
            if record is None:
                near = [a.id for a in self.attempts(fork)]
                raise ForkNotFoundError(_unknown("attempt", attempt, near), subject=attempt, near=near)
        return record

    @abstractmethod
    def forks(
        self, *, limit: int | None = None, state: ForkState | Literal["interrupted"] | None = None
    ) -> list[ForkRecord]:
        """Forks, the newest first."""

    @abstractmethod
    def attempts(self, fork: str) -> list[AttemptRecord]:
        """The attempts of a fork, in the order in which they were added."""

    @abstractmethod
    def children(self, attempt: str) -> list[ForkRecord]:
        """The forks that were made inside an attempt, the oldest first."""

    @abstractmethod
    def events(self, *, after: int = 0, fork: str | None = None, limit: int | None = None) -> list[Event]:
        """What happened after an event, of all forks or of one, the oldest first. Waits for nobody."""

    @abstractmethod
    def summaries(self, limit: int | None = None, *, outermost: bool = False) -> list[Summary]:
        """The newest forks as a list shows them, the newest first, at the cost of one query; with ``outermost`` none
        that was made inside another's attempt."""

    @abstractmethod
    def _fork(self, fork: str) -> ForkRecord | None:
        """The fork of exactly that id."""

    @abstractmethod
    def _attempt(self, attempt: str) -> AttemptRecord | None:
        """The attempt of exactly that id."""

    @abstractmethod
    def _fork_ids(self) -> list[str]:
        """The ids of all forks."""


def _unknown(noun: str, name: str, near: Sequence[str]) -> str:
    meant = f"; did you mean {', '.join(near[:5])}?" if near else ""
    return f"there is no {noun} {name!r} in the ledger{meant}"
