"""The manifest of a fork's mirror kept up to date: where its branches stand, for people and tools that look there.

Written by a thread of its own, so that nobody who runs branches waits for a disk; what changes meanwhile is written
with the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from forkwise.agents.live.materializer import ForkMaterializer
from forkwise.agents.live.status import BranchStatus
from forkwise.sandbox.threads import in_thread, to_its_end

__all__ = ["Manifest"]


class Manifest:
    """Writes the manifest of a mirror whenever it is told that a branch stands elsewhere."""

    def __init__(self, mirror: ForkMaterializer, statuses: Callable[[], Sequence[BranchStatus]]) -> None:
        self._mirror = mirror
        self._statuses = statuses
        self._is_due = False
        self._writing: asyncio.Task[None] | None = None

    def note(self) -> None:
        """A branch stands elsewhere."""
        self._is_due = True
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Write how it ended; nothing is written after that."""
        self.note()
        assert self._writing is not None
        await to_its_end(self._writing)

    async def _write(self) -> None:
        while self._is_due:
            self._is_due = False
            with suppress(OSError):  # such as a full disk: it is only to be looked at
                await in_thread(self._mirror.update_manifest, list(self._statuses()))
