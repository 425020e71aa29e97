"""Work that blocks, in a thread of its own, awaited by an asyncio program.

Not by asyncio's own executor: that has a few threads more than there are processors, so that the next job waits for
one of those to end, and a program that ends waits for all of them.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

__all__ = ["before_leaving", "call", "in_thread", "to_its_end"]

P = ParamSpec("P")
T = TypeVar("T")
_PAUSES = (0.01, 0.05, 0.2, 0.5)  # seconds between attempts to start a thread


def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Call a function in a new thread, with this task's context variables; the future has what comes of it.

    Cancelled, the future is done and the thread goes on, unheard. Nor does the thread keep the program from ending.

    >>> async def main() -> tuple[int, int]:
    ...     return await in_thread(divmod, 7, 2)
    >>> asyncio.run(main())
    (3, 1)
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:
        try:
            value = context.run(function, *args, **kwargs)
        except StopIteration as error:
            _tell(loop, _fail, future, _not_a_generators_end(error))
        except BaseException as error:  # noqa: BLE001 - it is raised where the future is awaited
            _tell(loop, _fail, future, error)
        else:
            _tell(loop, _succeed, future, value)

    _start(threading.Thread(target=work, name=f"forkwise {getattr(function, '__name__', 'work')}", daemon=True))
    return future


def _start(thread: threading.Thread) -> None:
    """Where the system has no more threads just now, a little later."""
    for pause in _PAUSES:
        try:
            thread.start()
        except RuntimeError:
            time.sleep(pause)
        else:
            return
    thread.start()


async def call(function: Callable[..., Any], *args: Any) -> Any:
    """Call what somebody gave, be it ``async``, plain, or plain with something to await in the end.

    >>> asyncio.run(call(divmod, 7, 2))
    (3, 1)
    """
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    value = await in_thread(function, *args)
    return await value if inspect.isawaitable(value) else value


async def to_its_end(work: asyncio.Future[T]) -> T:
    """Wait for what must not be left halfway. Who is cancelled while waiting waits all the same."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    return work.result()


async def before_leaving(work: asyncio.Future[T]) -> T:
    """Wait for what must not be left halfway. Who is cancelled while waiting leaves when it is done."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        with suppress(BaseException):  # whatever becomes of it, being cancelled is what is told
            await to_its_end(work)
        raise


def _tell(loop: asyncio.AbstractEventLoop, how: Callable[..., None], *what: object) -> None:
    with suppress(RuntimeError):  # the loop is closed, and with it whoever wanted to know
        loop.call_soon_threadsafe(how, *what)


def _succeed(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _not_a_generators_end(error: StopIteration) -> RuntimeError:
    """What Python makes of it in a coroutine; a future refuses it, and would never be done."""
    told = RuntimeError("a function in a thread raised StopIteration")
    told.__cause__ = error
    return told
