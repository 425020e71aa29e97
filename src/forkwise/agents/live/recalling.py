"""Recalling: a live fork that another process left, taken over from what the ledger has of it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from forkwise.agents.live.fork_plan import KIND, ForkPlan
from forkwise.agents.live.ground import ground_for
from forkwise.agents.live.live_fork import LiveFork, recall_cost, reopen
from forkwise.agents.live.merging import MergeResult
from forkwise.agents.live.status import ForkHandle
from forkwise.agents.live.thread import Thread
from forkwise.conversation.saving import Saved
from forkwise.errors import ForkNotFoundError
from forkwise.files.workspace import Workspace
from forkwise.fork.picking import complete
from forkwise.ledger.opening import open_ledger
from forkwise.ledger.protocol import Ledger
from forkwise.ledger.record import ForkRecord
from forkwise.sandbox.threads import in_thread

if TYPE_CHECKING:
    from forkwise.agents.live.coordinator import ForkCoordinator

__all__ = ["recalled"]


async def recalled(coordinator: ForkCoordinator, fork_id: str | None) -> ForkHandle:
    """Have a coordinator go on with a fork, by default the last that a killed process left."""
    raise NotImplementedError
