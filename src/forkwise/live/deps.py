"""DeepAgentDeps: what a ready-made agent works with, and how a branch gets its own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from forkwise.live.backends.backend import Backend
from forkwise.live.backends.branch_overlay import FilesOverlay, MemoryOverlay
from forkwise.live.backends.local import PlaceBackend, ReadOnlyBackend
from forkwise.live.backends.memory import StateBackend
from forkwise.live.checkpoints import CheckpointStore, InMemoryCheckpointStore
from forkwise.live.values import BranchIsolation

__all__ = [
    "DeepAgentDeps",
    "MessageQueue",
    "Todo",
    "Urgency",
    "clone_for_branch",
]


#: With the next request, or when the agent would otherwise be done.
Urgency = Literal["asap", "when_idle"]


class MessageQueue:
    """Messages that wait for an agent. Any thread may put one; what is not taken by the end of a run is there for the
    next.

    >>> queue = MessageQueue()
    >>> queue.put("make them shorter"); len(queue)
    1
    >>> queue.drain(), len(queue)
    ([('make them shorter', 'asap')], 0)
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, Urgency]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def __bool__(self) -> bool:
        return True

    def put(self, message: str, urgency: Urgency = "asap") -> None:
        """Say something to the agent."""
        self._waiting.append((message, urgency))

    def drain(self) -> list[tuple[str, Urgency]]:
        """Take all that waits, oldest first."""
        taken = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken


@dataclass
class Todo:
    """Something an agent has set itself to do."""

    content: str
    status: Literal["pending", "in_progress", "completed"] = "pending"


@dataclass
class DeepAgentDeps:
    """What an agent of `create_deep_agent` works with, given to each run as ``deps``.

    ``backend`` has its files. ``message_queue`` is how to speak to it while it runs. ``fork_coordinator`` is set by
    live forking and holds the fork that is not decided yet. ``branch_id`` and ``fork_depth`` are those of a branch.
    """

    backend: Backend = field(default_factory=StateBackend)
    todos: list[Todo] = field(default_factory=list)
    message_queue: MessageQueue = field(default_factory=MessageQueue)
    checkpoint_store: CheckpointStore | None = None
    fork_coordinator: Any = None
    team_bus: Any = None
    branch_id: str | None = None
    fork_depth: int = 0


def clone_for_branch(deps: DeepAgentDeps, isolation: BranchIsolation, label: str = "branch") -> DeepAgentDeps:
    """The deps of a branch, of the same class, with what the isolation says for itself and the rest shared.

    A copied backend is a `BranchOverlay`, which over a directory makes a branch on the disk. A branch starts with an
    empty list of todos unless they are shared, and keeps its checkpoints apart from the parent's.
    """
    backend: Backend = deps.backend
    if isolation.backend == "copy":
        parent = deps.backend
        backend = FilesOverlay(parent, label) if isinstance(parent, PlaceBackend) else MemoryOverlay(parent, label)
    elif isolation.backend == "share_readonly":
        backend = ReadOnlyBackend(deps.backend)
    return replace(
        deps,
        backend=backend,
        todos=deps.todos if isolation.todos == "share" else [],
        message_queue=deps.message_queue if isolation.message_queue == "shared" else MessageQueue(),
        checkpoint_store=None if deps.checkpoint_store is None else InMemoryCheckpointStore(),
        fork_coordinator=None,
        team_bus=deps.team_bus if isolation.team_bus == "shared" else None,
        fork_depth=deps.fork_depth + 1,
    )
