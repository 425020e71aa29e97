"""BranchRuntime: a branch of a live fork while it is there: an attempt, with its conversation, files and purse."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.run import AgentRunResult
from pydantic_ai.workspaces import Workspace as AgentWorkspace

from forkwise.agents.live.checkpoint import CheckpointStore
from forkwise.agents.live.purse import Purse
from forkwise.agents.live.specs import BranchSpec
from forkwise.agents.live.status import BranchState, BranchStatus, PendingApprovalRequest
from forkwise.agents.live.thread import Thread
from forkwise.fork.attempt import Attempt

if TYPE_CHECKING:
    from forkwise.agents.live.coordinator import ForkCoordinator
    from forkwise.agents.live.left_inside import LeftInside

__all__ = ["BranchRuntime", "current_branch", "current_tool", "entered"]

_current: ContextVar[BranchRuntime | None] = ContextVar("forkwise_live_branch", default=None)


@dataclass(eq=False)
class BranchRuntime:
    """A branch: what was asked of it, where it stands, and what it has.

    ``task`` ends when the turn under way does, with what the agent gave; ``overlay`` is what it changed in its files,
    None once the fork is resolved. ``partial_history`` is what it had said before its last request. ``steering`` is
    what it is told with its next request. ``inner`` are those who fork the branch itself, ``checkpoints`` its own,
    where its deps have none, ``left`` what a killed process had open inside it,
    ``merged_inside`` what it had merged there without saying so.
    """

    spec: BranchSpec
    status: BranchStatus
    coordinator: ForkCoordinator = field(repr=False)
    attempt: Attempt
    thread: Thread = field(repr=False)
    purse: Purse = field(repr=False)
    deps: Any = field(default=None, repr=False)
    workspace: AgentWorkspace | None = field(default=None, repr=False)
    overlay: Any = field(default=None, repr=False)
    task: asyncio.Task[Any] = field(init=False, repr=False)
    result: AgentRunResult[Any] | None = field(default=None, repr=False)
    ready: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    partial_history: list[ModelMessage] = field(default_factory=list, repr=False)
    pending_approval: PendingApprovalRequest | None = None
    blocked_commands: list[str] = field(default_factory=list)
    steering: deque[str] = field(default_factory=deque)
    tool_purses: dict[str, Purse] = field(default_factory=dict, repr=False)
    inner: list[ForkCoordinator] = field(default_factory=list, repr=False)
    checkpoints: CheckpointStore | None = field(default=None, repr=False)
    left: LeftInside | None = field(default=None, repr=False)
    merged_inside: str | None = None
    is_looked_into: bool = False

    @property
    def id(self) -> str:
        """Its id, which is that of its attempt in the ledger."""
        return self.attempt.id

    @property
    def budget_usd(self) -> float | None:
        """What it may spend in dollars."""
        return self.purse.budget.usd

    @property
    def cost_tracker(self) -> Purse:
        """What it has spent."""
        return self.purse

    @property
    def is_running(self) -> bool:
        """Whether a turn is under way."""
        return self.status.state == "running"

    @property
    def depth(self) -> int:
        """How many branches around it, itself included."""
        return self.coordinator.depth + 1

    def run(self, turn: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a turn; nobody has to ask how it ended."""
        self.task = asyncio.create_task(turn)
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self.task

    def end(self, state: BranchState, error: str | None) -> None:
        """A turn is over."""
        self.status.state = state
        self.status.error = None if state == "done" else error
        self.status.last_activity_at = datetime.now(UTC)
        self.coordinator.note_status()

    async def close_inner(self) -> None:
        """Drop the forks that were made inside the branch and not decided."""
        for coordinator in self.inner:
            await coordinator.aclose()
        self.inner.clear()

    def close(self) -> None:
        """Let go of what the branch had while it was not decided."""
        self.overlay = self.workspace = None
        self.partial_history = []
        self.options = {}


#: The tool that is being carried out, in a branch.
current_tool: ContextVar[str | None] = ContextVar("forkwise_live_tool", default=None)


def current_branch() -> BranchRuntime | None:
    """The branch as a part of which the caller runs, if it does."""
    return _current.get()


def entered(runtime: BranchRuntime) -> None:
    """Whatever this task does from now on is part of a branch."""
    _current.set(runtime)
