"""Loops: where a coroutine runs that plain code waits for.

All plain calls share one event loop, in a thread of its own, whichever thread they are made in: the providers' clients
keep connections, and a connection belongs to one loop.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import inspect
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

__all__ = [
    "CallResult",
    "call_any",
    "finish",
    "finish_then_cancel",
    "is_loop_running",
    "run_in_thread",
    "run_on_shared_loop",
    "run_sync",
    "try_call",
]


P = ParamSpec("P")
T = TypeVar("T")
_PAUSES = (0.01, 0.05, 0.2, 0.5)  # seconds between attempts to start a thread


def run_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
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


async def call_any(function: Callable[..., Any], *args: Any) -> Any:
    """Call what somebody gave, be it ``async``, plain, or plain with something to await in the end.

    >>> asyncio.run(call(divmod, 7, 2))
    (3, 1)
    """
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    value = await run_in_thread(function, *args)
    return await value if inspect.isawaitable(value) else value


async def finish(work: asyncio.Future[T]) -> T:
    """Wait for what must not be left halfway. Who is cancelled while waiting waits all the same."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    return work.result()


async def finish_then_cancel(work: asyncio.Future[T]) -> T:
    """Wait for what must not be left halfway. Who is cancelled while waiting leaves when it is done."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        with suppress(BaseException):  # whatever becomes of it, being cancelled is what is told
            await finish(work)
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


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a function returned, or the ``error`` that it raised."""

    value: Any = None
    error: BaseException | None = None

    def get(self) -> Any:
        """The value. What was raised is raised again, as an Exception whatever it was."""
        if self.error is None:
            return self.value
        if isinstance(self.error, Exception):
            raise self.error
        raise RuntimeError(f"it raised {type(self.error).__name__}") from self.error


async def try_call(function: Callable[..., Any], *args: Any) -> CallResult:
    """Call a function, be it ``async``, plain (in a thread of its own), or plain with something to await in the end.

    What is raised here is meant for who asks: being cancelled, and a keyboard's interrupt, which comes where the event
    loop runs and not in a thread.

    >>> asyncio.run(ask(divmod, 7, 0))
    Answer(value=None, error=ZeroDivisionError('integer division or modulo by zero'))
    """
    if inspect.iscoroutinefunction(function):
        return await _awaited(function(*args))
    answer = await run_in_thread(_called, function, *args)
    return await _awaited(answer.value) if inspect.isawaitable(answer.value) else answer


def _called(function: Callable[..., Any], *args: Any) -> CallResult:
    try:
        return CallResult(function(*args))
    except BaseException as error:  # noqa: BLE001 - handed on
        return CallResult(error=error)


async def _awaited(value: Any) -> CallResult:
    try:
        return CallResult(await value)
    except KeyboardInterrupt:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return CallResult(error=error)  # it cancelled itself
    except BaseException as error:  # noqa: BLE001 - handed on
        return CallResult(error=error)


def run_sync(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
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


_lock = threading.Lock()
_shared: tuple[int, asyncio.AbstractEventLoop] | None = None  # of the process that made it


def is_loop_running() -> bool:
    """Whether an event loop runs in this thread, so that nothing here may wait."""
    return asyncio._get_running_loop() is not None


def run_on_shared_loop(coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop | None = None) -> Any:
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
        begun[0].add_done_callback(lambda task: _tell_outcome(task, outcome))

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


def _tell_outcome(task: asyncio.Task[Any], outcome: Future[Any]) -> None:
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
