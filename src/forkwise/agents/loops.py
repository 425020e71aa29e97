"""Loops: where a coroutine runs that plain code waits for.

All plain calls share one event loop, in a thread of its own, whichever thread they are made in: the providers' clients
keep connections, and a connection belongs to one loop.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

__all__ = ["is_in_loop", "waited_for"]

_lock = threading.Lock()
_shared: tuple[int, asyncio.AbstractEventLoop] | None = None  # of the process that made it


def is_in_loop() -> bool:
    """Whether an event loop runs in this thread, so that nothing here may wait."""
    return asyncio._get_running_loop() is not None


def waited_for(coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop | None = None) -> Any:
    """What a coroutine gives, by a loop that runs elsewhere: the one given, or that of all plain calls.

    Whoever is interrupted while waiting cancels it, and waits until it has cleaned up.

    >>> async def three() -> int:
    ...     return 3
    >>> waited_for(three())
    3
    """
    where = loop if loop is not None else _shared_loop()
    if where is asyncio._get_running_loop():
        with ThreadPoolExecutor(1) as elsewhere:
            return elsewhere.submit(contextvars.copy_context().run, asyncio.run, coroutine).result()
    outcome: Future[Any] = Future()
    begun: list[asyncio.Task[Any]] = []

    def begin() -> None:
        begun.append(where.create_task(coroutine))
        begun[0].add_done_callback(lambda task: _tell(task, outcome))

    def cancel() -> None:
        begun[0].cancel()

    where.call_soon_threadsafe(begin)
    try:
        return outcome.result()
    except BaseException:
        if not outcome.done():
            where.call_soon_threadsafe(cancel)
            wait([outcome])
        raise


def _tell(task: asyncio.Task[Any], outcome: Future[Any]) -> None:
    if task.cancelled():
        outcome.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


def _shared_loop() -> asyncio.AbstractEventLoop:
    global _shared
    with _lock:
        if _shared is None or _shared[0] != os.getpid():  # a fork has no threads but one
            _shared = os.getpid(), _new_loop()
        return _shared[1]


def _new_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()

    def work() -> None:
        asyncio.set_event_loop(loop)
        while not loop.is_closed():
            try:
                loop.run_forever()
                return
            except (KeyboardInterrupt, SystemExit):
                continue  # a task raised it, and whoever waits for that task is told

    thread = threading.Thread(target=work, name="forkwise loop", daemon=True)
    thread.start()

    def end() -> None:
        if os.getpid() == made_by:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(1)
            if not loop.is_running():
                loop.close()

    made_by = os.getpid()
    atexit.register(end)
    return loop
