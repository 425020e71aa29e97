"""ChangeWatch: waiting until a ledger may have changed.

SQLite announces nothing, so a process that waits for a change reads the ledger again and again. PostgreSQL announces
each change: a process that waits is woken, and seldom reads the ledger otherwise.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Self

__all__ = ["AnnouncedWatch", "ChangeWatch"]

_SHORTEST_S = 0.05  # between two returns: another process may write a thousand events a second


class ChangeWatch:
    """Waits for a change of a ledger that announces none: each wait lasts ``pace_s`` seconds."""

    #: Whether changes are announced, so that a wait ends with the next one.
    is_announced = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait(self, pace_s: float, longest_s: float = 2.0) -> None:
        """Wait until there may be a change: ``pace_s`` seconds, or until one is announced, but at most ``longest_s``.

        A change that is announced between two calls ends the second one at once. The death of an owner is not
        announced.
        """
        time.sleep(pace_s)

    async def wait_async(self, pace_s: float, longest_s: float = 2.0) -> None:
        """Wait as ``wait`` does, without blocking the event loop."""
        import asyncio  # noqa: PLC0415 - a command that lists forks does not load it

        await asyncio.sleep(pace_s)

    def close(self) -> None:
        """Stop watching."""


class AnnouncedWatch(ChangeWatch):
    """Waits for the next announced event, of one fork or all forks, and of some kinds or all kinds.

    The thread that receives announcements calls ``announce``; ``start`` is called before each wait, to make sure that
    such a thread runs.
    """

    is_announced = True

    def __init__(
        self,
        fork: str | None,
        kinds: Collection[str],
        start: Callable[[], None],
        close: Callable[[AnnouncedWatch], None],
    ) -> None:
        self._fork = fork
        self._kinds = frozenset(kinds)
        self._start = start
        self._close = close
        self._lock = threading.Lock()
        self._has_changed = False
        self._wake: Callable[[], object] | None = None
        self._returned_at = 0.0

    def announce(self, fork: str | None = None, kind: str | None = None) -> None:
        """End the current wait, or else the next one, if the event may be one of those watched; None means unknown."""
        is_other_fork = fork is not None and self._fork is not None and fork != self._fork
        if is_other_fork or (kind is not None and self._kinds and kind not in self._kinds):
            return
        with self._lock:
            self._has_changed = True
            wake, self._wake = self._wake, None
        if wake is not None:
            with suppress(RuntimeError):  # the event loop of the waiting task is closed
                wake()

    def wait(self, pace_s: float, longest_s: float = 2.0) -> None:
        self._start()
        changed = threading.Event()
        if not self._is_due(changed.set):
            changed.wait(max(longest_s, pace_s))
        time.sleep(self._finish())

    async def wait_async(self, pace_s: float, longest_s: float = 2.0) -> None:
        import asyncio  # noqa: PLC0415

        from forkwise.concurrency import post  # noqa: PLC0415 - it loads asyncio

        self._start()
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        if not self._is_due(lambda: post(loop, changed.set)):
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), max(longest_s, pace_s))
        await asyncio.sleep(self._finish())

    def close(self) -> None:
        self._close(self)

    def _is_due(self, wake: Callable[[], object]) -> bool:
        """Return whether a change was announced already; otherwise have ``wake`` called with the next one."""
        with self._lock:
            if not self._has_changed:
                self._wake = wake
            return self._has_changed

    def _finish(self) -> float:
        """End a wait; return how many seconds are left until the caller may look again."""
        with self._lock:
            self._has_changed, self._wake = False, None
        left = max(self._returned_at + _SHORTEST_S - time.monotonic(), 0.0)
        self._returned_at = time.monotonic() + left
        return left
