"""FileCheckpointStore: checkpoints in a directory, one file each, for the next process."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic_ai.messages import ModelMessagesTypeAdapter

from forkwise.agents.live.checkpoint import Checkpoint, FilesMark
from forkwise.sandbox.threads import before_leaving, in_thread

__all__ = ["FileCheckpointStore"]

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
        await before_leaving(in_thread(self._write, checkpoint))

    async def get(self, checkpoint_id: str) -> Checkpoint | None:
        """The one with an id."""
        return await in_thread(self._read, self._path(checkpoint_id))

    async def get_by_label(self, label: str) -> Checkpoint | None:
        """The newest with a label."""
        return next((c for c in reversed(await self.list_all()) if c.label == label), None)

    async def list_all(self) -> list[Checkpoint]:
        """All of them, oldest first."""
        return await in_thread(self._read_all)

    async def remove(self, checkpoint_id: str) -> bool:
        """Let go of one; False where there is none."""
        try:
            await before_leaving(in_thread(self._path(checkpoint_id).unlink))
        except FileNotFoundError:
            return False
        return True

    async def count(self) -> int:
        """How many there are."""
        return len(await in_thread(self._paths))

    async def clear(self) -> None:
        """Let go of all."""
        for path in await in_thread(self._paths):
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
