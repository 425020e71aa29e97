"""Blocking: a coroutine run to its end by who has no event loop, or by who is inside one that then stands still.

Apart, because an interrupt by the keyboard has to reach it either way, and to be raised when it has.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

__all__ = ["block"]

T = TypeVar("T")


def block(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end. Interrupted, it has ended all that it began when the interrupt is raised.

    >>> async def answer() -> int:
    ...     return 42
    >>> block(answer)
    42
    """
    return _in_a_thread(make) if _is_in_a_loop() else asyncio.run(_heeding(make))


async def _heeding(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """An interrupt may come too late to stop something; it has come all the same."""
    value = await make()
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    return value


def _in_a_thread(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    done: Future[T] = Future()
    begun: Future[Callable[[], object]] = Future()

    async def main() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        begun.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
        return await _heeding(make)

    def work() -> None:
        try:
            done.set_result(asyncio.run(main()))
        except BaseException as error:  # noqa: BLE001 - raised again by who waits
            done.set_exception(error)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(work,), name="forkwise pattern", daemon=True).start()
    try:
        return done.result()
    except BaseException:
        if not done.done():  # it is who waits that was interrupted
            begun.result()()
            done.exception()
        raise


def _is_in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
