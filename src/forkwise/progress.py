"""Progress: long work reports what it is and how much is done, to a listener in this process, if there is one.

``report`` begins a piece of work. Without a listener it costs one comparison, and one addition for each item.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["ProgressListener", "Work", "listen", "report"]


class Work:
    """A piece of work: what it is, how many items of it are done, and how many there are, if that is known."""

    __slots__ = ("description", "done", "started", "total")

    def __init__(self, description: str, total: int | None = None) -> None:
        self.description = description
        self.total = total
        self.done = 0
        self.started = time.monotonic()


class ProgressListener(Protocol):
    """Is called when work begins and when it ends, in the thread that does the work."""

    def begin(self, work: Work) -> None:
        """Handle the start of a piece of work, whose ``done`` grows from now on."""

    def end(self, work: Work) -> None:
        """Handle the end of a piece of work, whether it succeeded or not."""


_listeners: list[ProgressListener] = []
_lock = threading.Lock()
_unheard = Work("")


@contextmanager
def report(description: str, total: int | None = None) -> Iterator[Work]:
    """Report the block as a piece of work, and yield that; the block adds its finished items to ``done``."""
    if not _listeners:
        yield _unheard
        return
    work, listener = Work(description, total), _listeners[-1]
    listener.begin(work)
    try:
        yield work
    finally:
        listener.end(work)


@contextmanager
def listen(listener: ProgressListener) -> Iterator[None]:
    """Call ``listener`` for all work that begins while the block runs; it replaces any earlier listener."""
    with _lock:
        _listeners.append(listener)
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(listener)
