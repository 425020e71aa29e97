"""Checkpoints of a conversation and its files: their stores, the rewind to one, and `CheckpointCapability`.

The capability saves checkpoints while an agent runs, and removes the oldest.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import warnings
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
from forkwise.errors import BranchingError, CommitError, ForkwiseWarning, StateError
from forkwise.files.branch import Branch
from forkwise.files.shelf import drop_copy, is_duplicable, restore_copy, save_copy
from forkwise.files.store.changes import Commit
from forkwise.files.undo import rewind_to
from forkwise.linux.file_write import replace_file
from forkwise.live.backends.backend import Backend
from forkwise.live.backends.branch_overlay import MemoryOverlay
from forkwise.live.backends.local import DiskBackend
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
    """A saved state of files, which `restore_files` restores.

    Of a workspace it is the number of the last commit (``head``), of files in memory their ``contents``. Of a branch on
    disk it is the ``branch`` path and the name of a ``copy`` of its changes, of a branch in memory the ``changes``
    themselves (None: deleted).
    """

    workspace: str | None = None
    head: int = 0
    contents: Mapping[str, bytes] | None = None
    branch: str | None = None
    copy: str | None = None
    changes: Mapping[str, bytes | None] | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A state to rewind to: the messages so far, and the state of the files.

    ``label`` is for display; the checkpoints of a fork are labelled ``fork:<id>`` and ``post-fork:<id>``. ``turn``
    counts the requests to the model before the checkpoint.
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
        """The number of messages."""
        return len(self.messages)


@runtime_checkable
class CheckpointStore(Protocol):
    """A store of checkpoints."""

    async def save(self, checkpoint: Checkpoint) -> None:
        """Save a checkpoint, replacing one with the same id."""
        ...

    async def get(self, checkpoint_id: str) -> Checkpoint | None:
        """Return the checkpoint with an id; None if there is none."""
        ...

    async def get_by_label(self, label: str) -> Checkpoint | None:
        """Return the newest checkpoint with a label; None if there is none."""
        ...

    async def list_all(self) -> list[Checkpoint]:
        """Return all checkpoints, the oldest first."""
        ...

    async def remove(self, checkpoint_id: str) -> bool:
        """Remove a checkpoint. Return whether it existed."""
        ...

    async def count(self) -> int:
        """Return the number of checkpoints."""
        ...

    async def clear(self) -> None:
        """Remove all checkpoints."""
        ...


class InMemoryCheckpointStore:
    """A store of checkpoints in memory."""

    def __init__(self) -> None:
        self._checkpoints: dict[str, Checkpoint] = {}

    async def save(self, checkpoint: Checkpoint) -> None:
        """Save a checkpoint, replacing one with the same id."""
        self._checkpoints[checkpoint.id] = checkpoint

    async def get(self, checkpoint_id: str) -> Checkpoint | None:
        """Return the checkpoint with an id; None if there is none."""
        return self._checkpoints.get(checkpoint_id)

    async def get_by_label(self, label: str) -> Checkpoint | None:
        """Return the newest checkpoint with a label; None if there is none."""
        return next((c for c in reversed(await self.list_all()) if c.label == label), None)

    async def list_all(self) -> list[Checkpoint]:
        """Return all checkpoints, the oldest first."""
        return sorted(self._checkpoints.values(), key=lambda checkpoint: checkpoint.created_at)

    async def remove(self, checkpoint_id: str) -> bool:
        """Remove a checkpoint. Return whether it existed."""
        return self._checkpoints.pop(checkpoint_id, None) is not None

    async def count(self) -> int:
        """Return the number of checkpoints."""
        return len(self._checkpoints)

    async def clear(self) -> None:
        """Remove all checkpoints."""
        self._checkpoints.clear()


async def fork_from_checkpoint(store: CheckpointStore, checkpoint_id: str) -> list[ModelMessage]:
    """Return the messages of a checkpoint, by id or label, to start another conversation with.

    Pass them as ``agent.run(…, message_history=…)``; the files are not changed. Raises LookupError if there is no such
    checkpoint.
    """
    found = await store.get(checkpoint_id) or await store.get_by_label(checkpoint_id)
    if found is None:
        raise LookupError(f"there is no checkpoint {checkpoint_id!r}")
    return list(found.messages)


_FORMAT = 1


class FileCheckpointStore:
    """A store of checkpoints as JSON files in a directory, which is created if needed.

    Each file is replaced atomically. It includes the contents of files in memory; the contents of a workspace are in
    the workspace's own history.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)

    async def save(self, checkpoint: Checkpoint) -> None:
        """Save a checkpoint, replacing one with the same id."""
        await finish_then_cancel(run_in_thread(self._write, checkpoint))

    async def get(self, checkpoint_id: str) -> Checkpoint | None:
        """Return the checkpoint with an id; None if there is none."""
        return await run_in_thread(self._read, self._path(checkpoint_id))

    async def get_by_label(self, label: str) -> Checkpoint | None:
        """Return the newest checkpoint with a label; None if there is none."""
        return next((c for c in reversed(await self.list_all()) if c.label == label), None)

    async def list_all(self) -> list[Checkpoint]:
        """Return all checkpoints, the oldest first."""
        return await run_in_thread(self._read_all)

    async def remove(self, checkpoint_id: str) -> bool:
        """Remove a checkpoint. Return whether it existed."""
        try:
            await finish_then_cancel(run_in_thread(self._path(checkpoint_id).unlink))
        except FileNotFoundError:
            return False
        return True

    async def count(self) -> int:
        """Return the number of checkpoints."""
        return len(await run_in_thread(self._paths))

    async def clear(self) -> None:
        """Remove all checkpoints."""
        for path in await run_in_thread(self._paths):
            await self.remove(path.stem)

    def _path(self, checkpoint_id: str) -> Path:
        if not checkpoint_id.isalnum():
            raise ValueError(f"{checkpoint_id!r} is not the id of a checkpoint: ids are alphanumeric")
        return self._directory / f"{checkpoint_id}.json"

    def _paths(self) -> list[Path]:
        return [path for path in self._directory.glob("*.json") if path.stem.isalnum()]

    def _write(self, checkpoint: Checkpoint) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        replace_file(self._path(checkpoint.id), json.dumps(_dump(checkpoint)))

    def _read(self, path: Path) -> Checkpoint | None:
        try:
            return _load(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            reason = f"it is no checkpoint ({str(error)[:200]})"
            raise StateError(str(path), reason, remedy="remove the file") from error

    def _read_all(self) -> list[Checkpoint]:
        found = []
        for path in self._paths():
            try:
                found.append(self._read(path))
            except StateError as error:
                warnings.warn(f"a checkpoint is left out: {error}", ForkwiseWarning, stacklevel=3)
        return sorted(filter(None, found), key=lambda checkpoint: checkpoint.created_at)


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
            "contents": _encode(files.contents),
            "branch": files.branch,
            "copy": files.copy,
            "changes": _encode(files.changes),
        },
    }


def _encode(files: Mapping[str, bytes] | Mapping[str, bytes | None] | None) -> dict[str, str | None] | None:
    if files is None:
        return None
    return {path: None if content is None else base64.b64encode(content).decode() for path, content in files.items()}


def _load(data: dict[str, Any]) -> Checkpoint:
    if data["format"] != _FORMAT:
        raise ValueError(f"its format is {str(data['format'])[:20]}; this forkwise reads format {_FORMAT}")
    texts = (data["label"], data["id"], data["created_at"])
    if any(type(text) is not str for text in texts) or type(data["turn"]) is not int:
        raise ValueError("one of its fields has another type")
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
    """The result of a rewind to ``checkpoint``.

    ``messages`` is the conversation to continue with. ``commits`` are the undo commits in a workspace. ``before`` is a
    checkpoint of the state before the rewind: a rewind to it undoes this one.
    """

    checkpoint: Checkpoint
    messages: list[ModelMessage]
    commits: tuple[Commit, ...]
    before: Checkpoint


async def rewind(
    store: CheckpointStore, checkpoint: str, backend: Backend, messages: Sequence[ModelMessage] = ()
) -> Rewound:
    """Rewind to a checkpoint, by id or label: restore its files, and return its messages.

    ``messages`` are the current ones; with the current files they become the checkpoint ``before``. Raises CommitError,
    with nothing changed, if the files cannot be restored (another writer changed them since, or commits are no longer
    undoable), and LookupError if there is no such checkpoint.
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
    """Save the state of a backend's files.

    Return None if it could not be restored: a custom backend, or a branch that is a whole tree.
    """
    if isinstance(backend, DiskBackend):
        source = backend.source
        return mark_branch(source) if isinstance(source, Branch) else FilesMark(source.target, source.state_dir.head)
    if isinstance(backend, MemoryOverlay):
        return FilesMark(changes=backend.layer)
    return FilesMark(contents=backend.files) if isinstance(backend, StateBackend) else None


def mark_branch(branch: Branch) -> FilesMark | None:
    """Save a copy of a branch's changes; return None if the branch is a whole tree."""
    if not is_duplicable(branch):
        return None
    return FilesMark(branch.workspace.target, branch=branch.branch_path, copy=save_copy(branch))


def forget_mark(backend: Backend, mark: FilesMark | None) -> None:
    """Drop the copy of a branch's changes that belongs to a mark."""
    if isinstance(backend, DiskBackend) and isinstance(backend.source, Branch) and mark is not None and mark.copy:
        drop_copy(backend.source, mark.copy)


def restore_files(backend: Backend, mark: FilesMark | None) -> list[Commit]:
    """Restore a saved state of files, entirely or not at all. Return the undo commits in a workspace."""
    if mark is None:
        return []
    if isinstance(backend, StateBackend) and mark.contents is not None:
        now = backend.files
        removed: dict[str, bytes | None] = dict.fromkeys(now.keys() - mark.contents.keys())
        backend.replace(removed | {p: c for p, c in mark.contents.items() if now.get(p) != c})
        return []
    if isinstance(backend, MemoryOverlay) and mark.changes is not None:
        backend.restore(mark.changes)
        return []
    if not _belongs_to(mark, backend) or not isinstance(backend, DiskBackend):
        origin = mark.branch or mark.workspace or "memory"
        raise CommitError(f"the checkpoint cannot be restored here: it is of the files in {origin}")
    if isinstance(backend.source, Branch):
        with backend.lock:
            restore_copy(backend.source, mark.copy or "")
        return []
    return rewind_to(backend.source, mark.head)


def _belongs_to(mark: FilesMark, backend: Backend) -> bool:
    if not isinstance(backend, DiskBackend) or mark.workspace != backend.files.workspace_path:
        return False
    own = backend.source.branch_path if isinstance(backend.source, Branch) else None
    return mark.branch == own


CheckpointFrequency = Literal["every_tool", "every_turn", "manual_only"]


@dataclass
class CheckpointCapability(AbstractCapability[Any]):
    """Saves checkpoints of the conversation and the files while an agent runs.

    It saves one after the tools of a step have run (``every_tool``), or one per prompt (``every_turn``). An agent can
    continue from each of them: no tool call is unanswered. They go into the ``checkpoint_store`` of the run's deps, or
    into ``store``. Beyond ``max_checkpoints`` the oldest are removed, except the anchors of an open fork.
    """

    store: CheckpointStore | None = None
    frequency: CheckpointFrequency = "every_tool"
    max_checkpoints: int = 20

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Save a checkpoint if one is due, and remove the oldest."""
        store = getattr(ctx.deps, "checkpoint_store", None) or self.store
        label = self._choose_label(request_context.messages)
        if store is not None and label is not None:
            backend = getattr(ctx.deps, "backend", None)
            await save_checkpoint(store, label, request_context.messages, backend, turn=ctx.run_step)
            coordinator = getattr(ctx.deps, "fork_coordinator", None)
            if coordinator is not None and coordinator.checkpoint_store is None:
                coordinator.checkpoint_store = store
            for removed in await prune(store, self.max_checkpoints, coordinator):
                if backend is not None:
                    await run_in_thread(forget_mark, backend, removed.files)
        return request_context

    def _choose_label(self, messages: list[ModelMessage]) -> str | None:
        """Return the label of a checkpoint of these messages; None if none is due."""
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
    """Save a checkpoint of a conversation and its files."""
    files = None if backend is None else await run_in_thread(mark_files, backend)
    checkpoint = Checkpoint(label, list(messages), turn, files)
    await store.save(checkpoint)
    return checkpoint


async def prune(store: CheckpointStore, max_checkpoints: int, coordinator: Any = None) -> list[Checkpoint]:
    """Remove the oldest checkpoints beyond ``max_checkpoints``, except the anchors of the coordinator's open fork.

    Return those that were removed.
    """
    is_open = coordinator is not None and not coordinator.is_resolved
    anchors = {f"{kind}:{coordinator.fork_id}" for kind in ("fork", "post-fork")} if is_open else set()
    if await store.count() <= max_checkpoints:
        return []
    checkpoints = await store.list_all()
    removable = [checkpoint for checkpoint in checkpoints if checkpoint.label not in anchors]
    removed = removable[: max(0, len(checkpoints) - max_checkpoints)]
    for checkpoint in removed:
        await store.remove(checkpoint.id)
    return removed
