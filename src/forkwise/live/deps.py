"""`DeepAgentDeps`: the deps of a ready-made agent, and how they are cloned for a branch."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from forkwise.live.backends.branch_overlay import FilesOverlay, MemoryOverlay
from forkwise.live.backends.foreign import adapt_backend, find_directory
from forkwise.live.backends.local import ReadOnlyBackend
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


#: When to deliver a message: with the next request, or when the agent would otherwise be done.
Urgency = Literal["asap", "when_idle"]


class MessageQueue:
    """Messages to an agent, which any thread may put. Those not delivered by the end of a run wait for the next.

    >>> queue = MessageQueue()
    >>> queue.put("make them shorter"); len(queue)
    1
    >>> queue.drain(), len(queue)
    ([('make them shorter', 'asap')], 0)
    """

    def __init__(self) -> None:
        self._messages: deque[tuple[str, Urgency]] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    def __bool__(self) -> bool:
        return True

    def put(self, message: str, urgency: Urgency = "asap") -> None:
        """Put a message for the agent."""
        self._messages.append((message, urgency))

    def drain(self) -> list[tuple[str, Urgency]]:
        """Remove and return all messages, the oldest first."""
        drained = []
        while self._messages:
            drained.append(self._messages.popleft())
        return drained


@dataclass
class Todo:
    """An item of the agent's todo list."""

    content: str
    status: Literal["pending", "in_progress", "completed"] = "pending"


@dataclass
class DeepAgentDeps:
    """The deps of an agent of `create_deep_agent`.

    ``backend`` has the files: a `StateBackend`, a `LocalBackend`, or any object with the methods of such a backend,
    which may be async (see `adapt_backend`). ``message_queue`` takes messages while the agent runs.
    ``fork_coordinator`` is set by live forking and holds the unresolved fork. ``branch_id`` and ``fork_depth`` are set
    in a branch.
    """

    backend: Any = field(default_factory=StateBackend)
    todos: list[Todo] = field(default_factory=list)
    message_queue: MessageQueue = field(default_factory=MessageQueue)
    checkpoint_store: CheckpointStore | None = None
    fork_coordinator: Any = None
    team_bus: Any = None
    branch_id: str | None = None
    fork_depth: int = 0


def clone_for_branch(deps: DeepAgentDeps, isolation: BranchIsolation, label: str = "branch") -> DeepAgentDeps:
    """Clone deps for a branch: copy or share each field as ``isolation`` says.

    A copied backend is a `BranchOverlay`; over a directory, this creates a branch on disk. A branch starts with an
    empty todo list unless todos are shared, and has a checkpoint store of its own.
    """
    backend = deps.backend
    if isolation.backend == "copy":
        is_memory = find_directory(deps.backend) is None
        backend = MemoryOverlay(deps.backend, label) if is_memory else FilesOverlay(deps.backend, label)
    elif isolation.backend == "share_readonly":
        backend = ReadOnlyBackend(adapt_backend(deps.backend))
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
