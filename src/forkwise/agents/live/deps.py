"""DeepAgentDeps: what a ready-made agent works with, and how a branch gets its own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from forkwise.agents.live.backend import Backend
from forkwise.agents.live.checkpoint import CheckpointStore, InMemoryCheckpointStore
from forkwise.agents.live.local_backend import PlaceBackend
from forkwise.agents.live.message_queue import MessageQueue
from forkwise.agents.live.overlay_files import FilesOverlay
from forkwise.agents.live.overlay_memory import MemoryOverlay
from forkwise.agents.live.readonly_backend import ReadOnlyBackend
from forkwise.agents.live.specs import BranchIsolation
from forkwise.agents.live.state_backend import StateBackend

__all__ = ["DeepAgentDeps", "Todo", "clone_for_branch"]


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
