"""A fork without files: its attempts have no branches, and its ledger is in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkwise.concurrency import finish
from forkwise.errors import ForkResolvedError
from forkwise.fork.candidate import describe_error, judge, to_json_data
from forkwise.fork.fork import Fork, ForkSettings, write_ends
from forkwise.fork.runner import run_function
from forkwise.ledger.memory_ledger import MemoryLedger

if TYPE_CHECKING:
    from forkwise.fork.attempt import Attempt
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import ForkRecord

__all__ = ["MemoryFork"]


class MemoryFork(Fork):
    """A fork whose attempts change nothing on disk. No other process can see it, and it ends with its process.

    The owner of the fork applies the winner's changes after `decide`. A fork inside an attempt of another one shares
    its ledger.
    """

    def __init__(self, kind: str, settings: ForkSettings | None = None, *, spec: dict[str, Any] | None = None) -> None:
        super().__init__(None, kind, settings, spec=spec)

    def _open_ledger(self) -> Ledger:
        return MemoryLedger() if self.inside is None else self.inside.fork.ledger

    def _open_record(self, ledger: Ledger) -> ForkRecord:
        return ledger.begin_fork(
            self.kind, workspace="", spec=self._spec, parent=None if self.inside is None else self.inside.id
        )

    def _start_polling(self) -> None:
        """Start nothing: no other process can send a request."""

    async def _execute(self, attempt: Attempt, branch: str) -> None:
        self.ledger.start_attempt(attempt.id)
        attempt.state = "running"
        try:
            assert attempt.candidate.function is not None
            end = await run_function(attempt.candidate.function, Path(), self.settings.timeout)
            attempt.value, attempt.wall = end.value, end.wall
            attempt.facts |= {"ending": end.ending, "wall": end.wall, "value": to_json_data(end.value)}
            judgement = judge(end, self.settings.timeout, has_feedback=attempt.candidate.has_feedback)
            attempt.state = "succeeded" if judgement.success else "faulted" if judgement.fault else "failed"
            attempt.reason, attempt.error, attempt.fault = judgement.reason, judgement.error, judgement.fault
        except Exception as error:  # noqa: BLE001 - such as a failed assertion: only this attempt fails
            attempt.state, attempt.reason, attempt.error = "failed", describe_error(error), error
        except BaseException as error:
            attempt.state, attempt.reason = "cancelled", str(error) or "cancelled"
            raise
        finally:
            await attempt.nested_runs.end()
            attempt.record_end()

    async def decide(self, winner: Attempt, how: str, detail: dict[str, Any] | None = None) -> None:
        """Resolve the fork and cancel the other attempts. Raises ForkResolvedError if it was resolved before."""
        if not self.ledger.resolve(self.id, how=how, winner=winner.id, detail=detail):
            raise ForkResolvedError(f"fork {self.id} was decided already", fork=self.id)
        self._is_over = True
        await finish(asyncio.ensure_future(self._end_others(winner)))

    async def _end_others(self, winner: Attempt) -> None:
        await self.cancel([attempt for attempt in self.attempts if attempt is not winner], "another attempt won")
        write_ends(self.attempts)
