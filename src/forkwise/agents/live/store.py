"""Where the handles of forks are kept: in memory, or in the ledger, where they outlive the process."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol, TypeVar, runtime_checkable

from forkwise.agents.live.fork_plan import KIND, ForkPlan
from forkwise.agents.live.status import ForkHandle
from forkwise.errors import ForkNotFoundError
from forkwise.files.workspace import Workspace
from forkwise.fork.clearing import abort_fork
from forkwise.ledger.opening import open_ledger
from forkwise.ledger.protocol import Ledger
from forkwise.ledger.record import ForkRecord
from forkwise.sandbox.threads import in_thread

__all__ = ["ForkStateStore", "InMemoryForkStateStore", "LedgerForkStore", "handle_of", "unfinished"]

T = TypeVar("T")


@runtime_checkable
class ForkStateStore(Protocol):
    """Keeps the handles of forks by their ids."""

    async def save(self, handle: ForkHandle) -> None:
        """Keep a handle."""
        ...

    async def get(self, fork_id: str) -> ForkHandle | None:
        """The handle of a fork, if it is known."""
        ...

    async def list_all(self) -> list[ForkHandle]:
        """All handles, the oldest first."""
        ...

    async def remove(self, fork_id: str) -> bool:
        """Forget a fork; whether it was known."""
        ...


class InMemoryForkStateStore:
    """Keeps handles as long as the process lives."""

    def __init__(self) -> None:
        self._handles: dict[str, ForkHandle] = {}

    async def save(self, handle: ForkHandle) -> None:
        """Keep a handle."""
        self._handles[handle.fork_id] = handle

    async def get(self, fork_id: str) -> ForkHandle | None:
        """The handle of a fork, if it is known."""
        return self._handles.get(fork_id)

    async def list_all(self) -> list[ForkHandle]:
        """All handles, the oldest first."""
        return list(self._handles.values())

    async def remove(self, fork_id: str) -> bool:
        """Forget a fork; whether it was known."""
        return self._handles.pop(fork_id, None) is not None


class LedgerForkStore:
    """The forks that the ledger of a workspace knows. It is the fork itself that writes there, with everything in it:
    handles, branches, conversations and costs. So nothing has to be saved here, and what a killed process left is
    found. ``ForkCoordinator.resume`` goes on with it."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    async def save(self, handle: ForkHandle) -> None:
        """See that the ledger knows a fork; ForkNotFoundError where it does not."""
        await in_thread(self._read, lambda ledger: ledger.fork(handle.fork_id))

    async def get(self, fork_id: str) -> ForkHandle | None:
        """The handle of a fork, if it is known."""
        try:
            return await in_thread(self._read, lambda ledger: handle_of(ledger, ledger.fork(fork_id)))
        except ForkNotFoundError:
            return None

    async def list_all(self) -> list[ForkHandle]:
        """All handles, the oldest first."""
        return await in_thread(self._read, lambda ledger: [handle_of(ledger, fork) for fork in _forks(ledger)])

    async def interrupted(self) -> list[ForkHandle]:
        """Those whose process was killed before they were decided, or before that was carried out; the oldest first."""
        return await in_thread(
            self._read,
            lambda ledger: [handle_of(ledger, fork) for fork in unfinished(ledger)],
        )

    async def remove(self, fork_id: str) -> bool:
        """Give up a fork that is not over, with its branches; whether it was known. What happened stays on record."""
        handle = await self.get(fork_id)
        if handle is None:
            return False
        await in_thread(abort_fork, self.workspace, handle.fork_id)
        return True

    def _read(self, what: Callable[[Ledger], T]) -> T:
        with open_ledger(self.workspace) as ledger:
            return what(ledger)


def unfinished(ledger: Ledger, inside: str | None = None) -> list[ForkRecord]:
    """The live forks whose process was killed before they were decided, or before that was carried out; the oldest
    first. Those made inside a branch of another are a part of that: they are had by that branch."""
    return [fork for fork in _forks(ledger) if fork.parent == inside and (_is_cut(fork) or _is_uncommitted(fork))]


def _forks(ledger: Ledger) -> list[ForkRecord]:
    return [fork for fork in reversed(ledger.forks()) if fork.kind == KIND]


def _is_cut(fork: ForkRecord) -> bool:
    return fork.state == "interrupted"


def _is_uncommitted(fork: ForkRecord) -> bool:
    return fork.stored == "resolved" and fork.commit is None and not fork.owner.alive


def handle_of(ledger: Ledger, fork: ForkRecord) -> ForkHandle:
    """What names a fork that the ledger knows."""
    plan = ForkPlan.from_json(fork.spec, fork.id)
    return ForkHandle(
        fork.id,
        plan.checkpoint,
        [attempt.id for attempt in ledger.attempts(fork.id)],
        plan.strategy,
        datetime.fromtimestamp(fork.started, UTC),
    )
