"""Within: explorations that an attempt started, on whatever event loop, and that end when the attempt does.

A thread cannot be killed, and one that is left behind may itself be exploring: what it started in sandboxes, and
the branches it made, are ended from here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress

from forkwise.errors import ForkResolvedError

__all__ = ["Within"]

_PATIENCE = 5.0  # seconds for them to end in; most of what they have to do is to kill


class Within:
    """The explorations inside one attempt; any thread may begin one, until they are ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going: dict[Future[None], Callable[[], object]] = {}
        self._is_over = False

    @contextmanager
    def going(self) -> Iterator[None]:
        """Around an exploration, in the task that does it, which may be cancelled from now on."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        done: Future[None] = Future()
        with self._lock:
            if self._is_over:
                raise ForkResolvedError("the attempt that this was to be a part of is over")
            self._going[done] = lambda: loop.call_soon_threadsafe(task.cancel, "the attempt it was part of is over")
        try:
            yield
        finally:
            with self._lock:
                del self._going[done]
            done.set_result(None)

    async def end(self) -> None:
        """Cancel what goes on, wait until that has ended, and let nothing else begin."""
        with self._lock:
            self._is_over = True
            going = dict(self._going)
        for cancel in going.values():
            with suppress(RuntimeError):  # its event loop is closed
                cancel()
        if going:
            await asyncio.wait([asyncio.wrap_future(done) for done in going], timeout=_PATIENCE)
