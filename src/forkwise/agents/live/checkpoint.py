"""Checkpoint: a conversation and its files at one moment, and where such are kept."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, runtime_checkable

from pydantic_ai.messages import ModelMessage

__all__ = ["Checkpoint", "CheckpointStore", "FilesMark", "InMemoryCheckpointStore", "fork_from_checkpoint"]


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
