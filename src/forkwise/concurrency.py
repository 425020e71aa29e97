"""The bridges between blocking and asynchronous code, one for each direction.

``run_in_thread`` runs blocking code from a coroutine, ``run_sync`` runs a coroutine from blocking code, ``post`` and
``run_on_loop`` reach an event loop of another thread, and ``finish`` awaits work that must not be abandoned halfway.
They live on the bottom floor because every other floor needs them.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import inspect
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

__all__ = [
    "CallResult",
    "LoopThread",
    "call_any",
    "finish",
    "finish_on_idle_loop",
    "finish_then_cancel",
    "is_loop_running",
    "post",
    "run_in_thread",
    "run_on_loop",
    "run_sync",
    "start_loop",
    "try_call",
]


P = ParamSpec("P")
T = TypeVar("T")
_RETRY_DELAYS_S = (0.01, 0.05, 0.2, 0.5)  # between attempts to start a thread
_SIGNAL_POLL_S = 0.1


# Blocking code, called from a coroutine.


def run_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Call a function in a new thread, with this task's context variables, and return a future of its result.

    Cancelling the future does not stop the thread; its result is then ignored. The thread is a daemon, so it does not
    keep the program from exiting.

    >>> async def main() -> tuple[int, int]:
    ...     return await run_in_thread(divmod, 7, 2)
    >>> asyncio.run(main())
    (3, 1)
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def work() -> None:  # if the loop is closed, nothing awaits the future any more
        try:
            value = context.run(function, *args, **kwargs)
        except StopIteration as error:
            post(loop, _fail, future, _wrap_stop_iteration(error))
        except BaseException as error:  # noqa: BLE001 - raised when the future is awaited
            post(loop, _fail, future, error)
        else:
            post(loop, _succeed, future, value)

    _start(threading.Thread(target=work, name=f"forkwise {getattr(function, '__name__', 'work')}", daemon=True))
    return future


def _start(thread: threading.Thread) -> None:
    """Start a thread, and retry for a moment if the system has reached its limit on threads."""
    for delay in _RETRY_DELAYS_S:
        try:
            thread.start()
        except RuntimeError:
            time.sleep(delay)
        else:
            return
    thread.start()


def _succeed(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _wrap_stop_iteration(error: StopIteration) -> RuntimeError:
    """Wrap StopIteration as Python does in a coroutine; a future refuses it and would never be done."""
    wrapped = RuntimeError("a function in a thread raised StopIteration")
    wrapped.__cause__ = error
    return wrapped


# An event loop, reached from another thread.


def post(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> bool:
    """Have an event loop call a function. Return False if the loop is closed, so that it never will."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        return False
    return True


def run_on_loop(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> asyncio.Future[T]:
    """Run a coroutine on the event loop of another thread; return a future of its result for this thread's loop."""
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, loop))


# A function of the user's, which may be blocking or asynchronous.


async def call_any(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function that is ``async``, blocking (in a thread), or blocking and returns an awaitable.

    >>> asyncio.run(call_any(divmod, 7, 2))
    (3, 1)
    """
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    value = await run_in_thread(function, *args)
    return await value if inspect.isawaitable(value) else value


@dataclass(frozen=True, slots=True)
class CallResult:
    """The ``value`` that a function returned, or the ``error`` that it raised."""

    value: Any = None
    error: BaseException | None = None

    def get(self) -> Any:
        """Return the value, or raise the error; an error that is not an Exception is wrapped in a RuntimeError."""
        if self.error is None:
            return self.value
        if isinstance(self.error, Exception):
            raise self.error
        raise RuntimeError(f"the function raised {type(self.error).__name__}") from self.error


async def try_call(function: Callable[..., Any], *args: Any) -> CallResult:
    """Call a function like ``call_any``, and return whatever it raises instead of raising it.

    Two exceptions are meant for the caller and are raised: CancelledError if this task was cancelled, and a
    KeyboardInterrupt in the event loop's own thread.

    >>> asyncio.run(try_call(divmod, 7, 0))
    CallResult(value=None, error=ZeroDivisionError('integer division or modulo by zero'))
    """
    if inspect.iscoroutinefunction(function):
        return await _try_await(function(*args))
    result = await run_in_thread(_try, function, *args)
    return await _try_await(result.value) if inspect.isawaitable(result.value) else result


def _try(function: Callable[..., Any], *args: Any) -> CallResult:
    try:
        return CallResult(function(*args))
    except BaseException as error:  # noqa: BLE001 - returned
        return CallResult(error=error)


async def _try_await(value: Any) -> CallResult:
    try:
        return CallResult(await value)
    except KeyboardInterrupt:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return CallResult(error=error)  # the function cancelled itself
    except BaseException as error:  # noqa: BLE001 - returned
        return CallResult(error=error)


# Work that must not be abandoned halfway.


async def finish(work: asyncio.Future[T]) -> T:
    """Await ``work`` to completion, ignoring cancellation."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])
    return work.result()


def finish_on_idle_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run ``work`` on a loop that has stopped, such as when the program exits. One that runs or is closed is left."""
    if not (loop.is_closed() or loop.is_running() or is_loop_running()):
        loop.run_until_complete(work())


async def finish_then_cancel(work: asyncio.Future[T]) -> T:
    """Await ``work`` to completion; if this task is cancelled meanwhile, raise CancelledError afterwards."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        with suppress(BaseException):  # the cancellation takes precedence over an error of the work
            await finish(work)
        raise


# A coroutine, run from blocking code.


_lock = threading.Lock()
_shared: asyncio.AbstractEventLoop | None = None
#: The loop for calls made by code that itself runs inside a blocking call on the shared loop.
_nested: contextvars.ContextVar[asyncio.AbstractEventLoop | None] = contextvars.ContextVar("_nested", default=None)


def is_loop_running() -> bool:
    """Return whether an event loop runs in this thread, so that code here must not block."""
    return _running_loop() is not None


def run_sync(
    coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None, *, alone: bool = False
) -> T:
    """Run a coroutine on an event loop in another thread, wait for it, and return its result.

    The loop is ``loop``, else one that all callers share: clients of model providers keep connections, and a
    connection belongs to one loop. With ``alone`` it is a new loop, closed afterwards with the tasks that are left on
    it: for a coroutine that runs the user's own async code. The coroutine has this thread's context variables. If this
    thread is interrupted while it waits, the coroutine is cancelled, and the interrupt is raised once its cleanup is
    done.

    >>> async def three() -> int:
    ...     return 3
    >>> run_sync(three())
    3
    """
    if alone:
        with _temporary_loop() as own:
            return _run_on(own, coroutine)
    if loop is None:
        nested = _nested.get()
        loop = nested if nested is not None and not nested.is_closed() else _shared_loop()
    if loop is not _running_loop():
        return _run_on(loop, coroutine)
    # This very thread runs the loop and is about to block it: the coroutine gets a loop of its own.
    with _temporary_loop() as other:
        token = _nested.set(other)
        try:
            return _run_on(other, coroutine)
        finally:
            _nested.reset(token)


def _run_on(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> T:
    outcome: Future[T] = Future()
    tasks: list[asyncio.Task[T]] = []

    def begin() -> None:
        tasks.append(loop.create_task(coroutine))
        tasks[0].add_done_callback(report)

    def cancel() -> None:
        tasks[0].cancel()

    def report(task: asyncio.Task[T]) -> None:
        _copy_result(task, outcome)

    loop.call_soon_threadsafe(begin)  # in a copy of this thread's context
    try:
        _wait_for(outcome)
    except BaseException:  # this thread was interrupted
        loop.call_soon_threadsafe(cancel)
        _wait_for(outcome)
        raise
    return outcome.result()


def _copy_result(task: asyncio.Task[T], outcome: Future[T]) -> None:
    if task.cancelled():
        outcome.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(task.result())


def _wait_for(outcome: Future[Any]) -> None:
    # Only the main thread runs signal handlers, but the kernel may deliver a signal to another thread, and a lock does
    # not wake up for that one: so the main thread wakes up now and then to check.
    timeout_s = _SIGNAL_POLL_S if threading.current_thread() is threading.main_thread() else None
    while not wait([outcome], timeout_s).done:
        pass


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _shared_loop() -> asyncio.AbstractEventLoop:
    global _shared
    with _lock:
        if _shared is None:
            _shared, stop = start_loop("forkwise loop")
            process_id = os.getpid()
            atexit.register(lambda: stop(1) if os.getpid() == process_id else None)
        return _shared


@contextmanager
def _temporary_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop, stop = start_loop("forkwise nested loop")
    try:
        yield loop
    finally:
        stop(None)


def start_loop(name: str) -> tuple[asyncio.AbstractEventLoop, Callable[[float | None], None]]:
    """Run a new event loop in a daemon thread; return it and a function that stops it, given a timeout in seconds."""
    started: Future[asyncio.AbstractEventLoop] = Future()

    def work() -> None:
        with asyncio.Runner() as runner:  # on exit it cancels the tasks that are left, and closes the loop
            loop = runner.get_loop()
            asyncio.set_event_loop(loop)
            started.set_result(loop)
            while True:
                try:
                    loop.run_forever()
                    return
                except (KeyboardInterrupt, SystemExit):
                    continue  # a task raised it, and the code that awaits the task receives it

    thread = threading.Thread(target=work, name=name, daemon=True)
    _start(thread)
    loop = started.result()

    def stop(timeout_s: float | None) -> None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout_s)

    return loop, stop


# Code of an object that has to run in one thread, called from any other.


#: The threads that wait for the code of this context to end, so that the code must not wait for them.
_waiting: contextvars.ContextVar[frozenset[int]] = contextvars.ContextVar("forkwise_waiting", default=frozenset())


class LoopThread:
    """A thread with an event loop of its own, in which all code of some object runs: some resources need that.

    A plain function blocks the loop. It finds no running loop, so that it may itself wait for a coroutine.
    """

    def __init__(self, name: str) -> None:
        self._loop, _ = start_loop(name)
        self._thread_id = asyncio.run_coroutine_threadsafe(_get_thread_id(), self._loop).result()
        self._plain_count = 0
        self._lock = threading.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether a plain function runs or waits for its turn."""
        return self._plain_count > 0

    @property
    def can_wait(self) -> bool:
        """Whether the calling code may wait for this thread: it runs elsewhere, and the thread does not wait for it."""
        return threading.get_ident() != self._thread_id and id(self) not in _waiting.get()

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a function in the thread. Cancellation cancels a coroutine; a plain function is abandoned."""
        tasks: list[asyncio.Task[Any]] = []
        outcome = self.submit(function, tasks)
        try:
            return await asyncio.wrap_future(outcome)
        except asyncio.CancelledError:
            # Called after the function was, because the loop calls in order: then its task is there.
            post(self._loop, lambda: [task.cancel() for task in tasks])
            raise

    def submit(self, function: Callable[[], Any], tasks: list[asyncio.Task[Any]] | None = None) -> Future[Any]:
        """Call a function in the thread, with this code's context variables. A task that awaits is put in ``tasks``."""
        outcome: Future[Any] = Future()
        outcome.set_running_or_notify_cancel()  # so that a cancelled waiter cannot cancel it
        context = contextvars.copy_context()
        is_plain = not inspect.iscoroutinefunction(function)
        if is_plain:
            self._count(1)

        def begin() -> None:
            try:
                value = context.run(self._call_plain, function) if is_plain else function()
            except StopIteration as error:  # no future can raise it
                outcome.set_exception(RuntimeError(f"StopIteration: {error}"))
                return
            except BaseException as error:  # noqa: BLE001 - raised to the waiting code
                outcome.set_exception(error)
                return
            if not inspect.isawaitable(value):
                outcome.set_result(value)
                return
            task = self._loop.create_task(_await(value), context=context)
            task.add_done_callback(lambda done: _copy_result(done, outcome))
            if tasks is not None:
                tasks.append(task)

        self._loop.call_soon_threadsafe(begin)
        return outcome

    def stop(self) -> None:
        """Stop the thread, after the function that runs in it."""
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _call_plain(self, function: Callable[[], Any]) -> Any:
        token = _waiting.set(_waiting.get() | {id(self)})
        asyncio.events._set_running_loop(None)
        try:
            return function()
        finally:
            asyncio.events._set_running_loop(self._loop)
            _waiting.reset(token)
            self._count(-1)

    def _count(self, difference: int) -> None:
        with self._lock:
            self._plain_count += difference


async def _get_thread_id() -> int:
    return threading.get_ident()


async def _await(value: Any) -> Any:
    return await value


def _reset_after_fork() -> None:
    """Forget the shared loop in a forked child: its thread is not there, and another may have held the lock."""
    global _lock, _shared
    _lock, _shared = threading.Lock(), None


os.register_at_fork(after_in_child=_reset_after_fork)
