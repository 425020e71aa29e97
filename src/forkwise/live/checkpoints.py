"""CheckpointCapability: saves checkpoints as an agent goes on, and lets the oldest go."""

from __future__ import annotations

import base64
import json
import os
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models import ModelRequestContext

from forkwise.concurrency import finish_then_cancel, run_in_thread
from forkwise.errors import BranchingError, CommitError
from forkwise.files.branch import Branch
from forkwise.files.shelf import drop_copy, is_duplicable, restore_copy, save_copy
from forkwise.files.store.changes import Commit
from forkwise.files.undo import rewind_to
from forkwise.live.backends.backend import Backend
from forkwise.live.backends.branch_overlay import MemoryOverlay
from forkwise.live.backends.local import PlaceBackend
from forkwise.live.backends.memory import StateBackend

__all__ = [
    "Checkpoint",
    "CheckpointCapability",
    "CheckpointFrequency",
    "CheckpointStore",
    "FileCheckpointStore",
    "FilesMark",
    "InMemoryCheckpointStore",
    "Rewound",
    "forget_mark",
    "fork_from_checkpoint",
    "mark_branch",
    "mark_files",
    "prune",
    "restore_files",
    "rewind",
    "save_checkpoint",
]


@dataclass(frozen=True)
class FilesMark:
    """Where files stood: of a directory the number of the last commit, of files in memory their contents. Of a branch
    its path and the name of a copy that it keeps of what it had changed, or, in memory, what it had changed (None:
    removed)."""

    workspace: str | None = None
    head: int = 0
    contents: Mapping[str, bytes] | None = None
    branch: str | None = None
    copy: str | None = None
    changes: Mapping[str, bytes | None] | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A moment that can be gone back to: the messages up to it, and where the files stood.

    ``label`` is for people; a fork's are ``fork:<id>`` and ``post-fork:<id>``. ``turn`` counts the requests to the
    model before it.
    """

    label: str
    messages: list[ModelMessage]
    turn: int = 0
    files: FilesMark | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def message_count(self) -> int:
        """How many messages it has."""
        return len(self.messages)


@runtime_checkable
class CheckpointStore(Protocol):
    """Where checkpoints are kept."""

    async def save(self, checkpoint: Checkpoint) -> None:
        """Keep one; one with the same id is replaced."""
        ...

    async def get(self, checkpoint_id: str) -> Checkpoint | None:
        """The one with an id."""
        ...

    async def get_by_label(self, label: str) -> Checkpoint | None:
        """The newest with a label."""
        ...

    async def list_all(self) -> list[Checkpoint]:
        """All of them, oldest first."""
        ...

    async def remove(self, checkpoint_id: str) -> bool:
        """Let go of one; False where there is none."""
        ...

    async def count(self) -> int:
        """How many there are."""
        ...

    async def clear(self) -> None:
        """Let go of all."""
        ...


class InMemoryCheckpointStore:
    """Checkpoints that last as long as this object."""

    def __init__(self) -> None:
        self._kept: dict[str, Checkpoint] = {}

    async def save(self, checkpoint: Checkpoint) -> None:
        """Keep one; one with the same id is replaced."""
        self._kept[checkpoint.id] = checkpoint

    async def get(self, checkpoint_id: str) -> Checkpoint | None:
        """The one with an id."""
        return self._kept.get(checkpoint_id)

    async def get_by_label(self, label: str) -> Checkpoint | None:
        """The newest with a label."""
        return next((c for c in reversed(await self.list_all()) if c.label == label), None)

    async def list_all(self) -> list[Checkpoint]:
        """All of them, oldest first."""
        return sorted(self._kept.values(), key=lambda checkpoint: checkpoint.created_at)

    async def remove(self, checkpoint_id: str) -> bool:
        """Let go of one; False where there is none."""
        return self._kept.pop(checkpoint_id, None) is not None

    async def count(self) -> int:
        """How many there are."""
        return len(self._kept)

    async def clear(self) -> None:
        """Let go of all."""
        self._kept.clear()


async def fork_from_checkpoint(store: CheckpointStore, checkpoint_id: str) -> list[ModelMessage]:
    """The messages to begin another conversation with, ``agent.run(…, message_history=…)``; the files stay as they are.

    Raises LookupError where there is no such checkpoint.
    """
    found = await store.get(checkpoint_id) or await store.get_by_label(checkpoint_id)
    if found is None:
        raise LookupError(f"there is no checkpoint {checkpoint_id!r}")
    return list(found.messages)


_FORMAT = 1


class FileCheckpointStore:
    """Checkpoints that outlive the process: JSON files in a directory, which is made.

    Each is there as a whole or not at all, whatever is killed. Contents of files in memory are in it; those of a
    directory are in that one's own history.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)

    async def save(self, checkpoint: Checkpoint) -> None:
        """Keep one; one with the same id is replaced."""
        await finish_then_cancel(run_in_thread(self._write, checkpoint))

    async def get(self, checkpoint_id: str) -> Checkpoint | None:
        """The one with an id."""
        return await run_in_thread(self._read, self._path(checkpoint_id))

    async def get_by_label(self, label: str) -> Checkpoint | None:
        """The newest with a label."""
        return next((c for c in reversed(await self.list_all()) if c.label == label), None)

    async def list_all(self) -> list[Checkpoint]:
        """All of them, oldest first."""
        return await run_in_thread(self._read_all)

    async def remove(self, checkpoint_id: str) -> bool:
        """Let go of one; False where there is none."""
        try:
            await finish_then_cancel(run_in_thread(self._path(checkpoint_id).unlink))
        except FileNotFoundError:
            return False
        return True

    async def count(self) -> int:
        """How many there are."""
        return len(await run_in_thread(self._paths))

    async def clear(self) -> None:
        """Let go of all."""
        for path in await run_in_thread(self._paths):
            await self.remove(path.stem)

    def _path(self, checkpoint_id: str) -> Path:
        if not checkpoint_id.isalnum():
            raise ValueError(f"{checkpoint_id!r} is no id of a checkpoint")
        return self._directory / f"{checkpoint_id}.json"

    def _paths(self) -> list[Path]:
        return [path for path in self._directory.glob("*.json") if path.stem.isalnum()]

    def _write(self, checkpoint: Checkpoint) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._directory, suffix=".new", delete=False) as file:
            file.write(json.dumps(_dump(checkpoint)).encode())
        os.replace(file.name, self._path(checkpoint.id))

    def _read(self, path: Path) -> Checkpoint | None:
        try:
            return _load(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None

    def _read_all(self) -> list[Checkpoint]:
        found = filter(None, map(self._read, self._paths()))
        return sorted(found, key=lambda checkpoint: checkpoint.created_at)


def _dump(checkpoint: Checkpoint) -> dict[str, Any]:
    files = checkpoint.files
    return {
        "format": _FORMAT,
        "id": checkpoint.id,
        "label": checkpoint.label,
        "turn": checkpoint.turn,
        "created_at": checkpoint.created_at.isoformat(),
        "metadata": dict(checkpoint.metadata),
        "messages": ModelMessagesTypeAdapter.dump_python(checkpoint.messages, mode="json"),
        "files": files
        and {
            "workspace": files.workspace,
            "head": files.head,
            "contents": _encoded(files.contents),
            "branch": files.branch,
            "copy": files.copy,
            "changes": _encoded(files.changes),
        },
    }


def _encoded(files: Mapping[str, bytes] | Mapping[str, bytes | None] | None) -> dict[str, str | None] | None:
    if files is None:
        return None
    return {path: None if content is None else base64.b64encode(content).decode() for path, content in files.items()}


def _load(data: dict[str, Any]) -> Checkpoint:
    files = data["files"]
    for name in ("contents", "changes"):
        if files is not None and files.get(name) is not None:
            files[name] = {p: None if c is None else base64.b64decode(c) for p, c in files[name].items()}
    return Checkpoint(
        label=data["label"],
        messages=ModelMessagesTypeAdapter.validate_python(data["messages"]),
        turn=data["turn"],
        files=None if files is None else FilesMark(**files),
        metadata=data["metadata"],
        id=data["id"],
        created_at=datetime.fromisoformat(data["created_at"]),
    )


@dataclass(frozen=True)
class Rewound:
    """What a rewind went back to. ``messages`` is what to go on with; ``commits`` is what it did to a directory;
    ``before`` is a checkpoint of what was there, to rewind to if this was not what was wanted."""

    checkpoint: Checkpoint
    messages: list[ModelMessage]
    commits: tuple[Commit, ...]
    before: Checkpoint


async def rewind(
    store: CheckpointStore, checkpoint: str, backend: Backend, messages: Sequence[ModelMessage] = ()
) -> Rewound:
    """Go back to a checkpoint, by its id or its label: its files are there again, its messages are given.

    ``messages`` are those of now; with the files as they are they become the checkpoint ``before``. Where the files
    cannot be had back (somebody changed them since, or too much was committed) nothing is changed and a CommitError
    says why. LookupError where there is no such checkpoint.
    """
    found = await store.get_by_label(checkpoint) or (await store.get(checkpoint) if checkpoint.isalnum() else None)
    if found is None:
        raise LookupError(f"there is no checkpoint {checkpoint!r}")
    before = Checkpoint(f"rewind:{found.label}", list(messages), files=await run_in_thread(mark_files, backend))
    await store.save(before)
    try:
        commits = await finish_then_cancel(run_in_thread(restore_files, backend, found.files))
    except BranchingError:
        await store.remove(before.id)
        raise
    return Rewound(found, list(found.messages), tuple(commits), before)


def mark_files(backend: Backend) -> FilesMark | None:
    """Where the files of a backend stand; None of those that cannot be had back: another's own backend, and a branch
    that is a whole tree."""
    if isinstance(backend, PlaceBackend):
        place = backend.place
        return mark_branch(place) if isinstance(place, Branch) else FilesMark(place.target, place.place.head)
    if isinstance(backend, MemoryOverlay):
        return FilesMark(changes=backend.layer)
    return FilesMark(contents=backend.files) if isinstance(backend, StateBackend) else None


def mark_branch(branch: Branch) -> FilesMark | None:
    """Where a branch stands: a copy is kept of what it changed."""
    if not is_duplicable(branch):
        return None
    return FilesMark(branch.workspace.target, branch=branch.branch_path, copy=save_copy(branch))


def forget_mark(backend: Backend, mark: FilesMark | None) -> None:
    """Let go of what was kept for a mark."""
    if isinstance(backend, PlaceBackend) and isinstance(backend.place, Branch) and mark is not None and mark.copy:
        drop_copy(backend.place, mark.copy)


def restore_files(backend: Backend, mark: FilesMark | None) -> list[Commit]:
    """Have files stand where they stood; gives what was done to a directory for it, all of it or nothing."""
    if mark is None:
        return []
    if isinstance(backend, StateBackend) and mark.contents is not None:
        now = backend.files
        gone: dict[str, bytes | None] = dict.fromkeys(now.keys() - mark.contents.keys())
        backend.replace(gone | {p: c for p, c in mark.contents.items() if now.get(p) != c})
        return []
    if isinstance(backend, MemoryOverlay) and mark.changes is not None:
        backend.restore(mark.changes)
        return []
    if not _is_of(backend, mark) or not isinstance(backend, PlaceBackend):
        where = mark.branch or mark.workspace or "memory"
        raise CommitError(f"the checkpoint is of the files in {where}, and not of these")
    if isinstance(backend.place, Branch):
        with backend.lock:
            restore_copy(backend.place, mark.copy or "")
        return []
    return rewind_to(backend.place, mark.head)


def _is_of(backend: Backend, mark: FilesMark) -> bool:
    if not isinstance(backend, PlaceBackend) or mark.workspace != backend.files.where:
        return False
    own = backend.place.branch_path if isinstance(backend.place, Branch) else None
    return mark.branch == own


CheckpointFrequency = Literal["every_tool", "every_turn", "manual_only"]


@dataclass
class CheckpointCapability(AbstractCapability[Any]):
    """Saves a checkpoint of conversation and files after the tools of a step have run (``every_tool``), or once for
    each prompt (``every_turn``). Each is one that an agent can go on from: no tool call in it is unanswered.

    They go into the ``checkpoint_store`` of the run's deps, or into ``store``. Beyond ``max_checkpoints`` the oldest
    are let go, but not the anchors of a fork that is open.
    """

    store: CheckpointStore | None = None
    frequency: CheckpointFrequency = "every_tool"
    max_checkpoints: int = 20

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Save one, where it is time to."""
        store = getattr(ctx.deps, "checkpoint_store", None) or self.store
        label = self._label(request_context.messages)
        if store is not None and label is not None:
            backend = getattr(ctx.deps, "backend", None)
            await save_checkpoint(store, label, request_context.messages, backend, turn=ctx.run_step)
            for gone in await prune(store, self.max_checkpoints, getattr(ctx.deps, "fork_coordinator", None)):
                if backend is not None:
                    await run_in_thread(forget_mark, backend, gone.files)
        return request_context

    def _label(self, messages: list[ModelMessage]) -> str | None:
        """What a checkpoint of these messages is called; None where none is due."""
        last = messages[-1] if messages else None
        if not isinstance(last, ModelRequest) or self.frequency == "manual_only":
            return None
        tools = [part.tool_name for part in last.parts if isinstance(part, ToolReturnPart)]
        if tools and self.frequency == "every_tool":
            return f"tool:{','.join(tools)}"
        return "turn" if any(isinstance(part, UserPromptPart) for part in last.parts) else None


async def save_checkpoint(
    store: CheckpointStore,
    label: str,
    messages: list[ModelMessage],
    backend: Backend | None = None,
    *,
    turn: int = 0,
) -> Checkpoint:
    """Keep a conversation and its files as they are now."""
    files = None if backend is None else await run_in_thread(mark_files, backend)
    checkpoint = Checkpoint(label, list(messages), turn, files)
    await store.save(checkpoint)
    return checkpoint


async def prune(store: CheckpointStore, most: int, coordinator: Any = None) -> list[Checkpoint]:
    """Let go of the oldest until there are no more than so many; not of the anchors of a coordinator's open fork. Gives
    those that went."""
    is_open = coordinator is not None and not coordinator.is_resolved
    anchors = {f"{kind}:{coordinator.fork_id}" for kind in ("fork", "post-fork")} if is_open else set()
    if await store.count() <= most:
        return []
    kept = await store.list_all()
    loose = [checkpoint for checkpoint in kept if checkpoint.label not in anchors]
    gone = loose[: max(0, len(kept) - most)]
    for checkpoint in gone:
        await store.remove(checkpoint.id)
    return gone
