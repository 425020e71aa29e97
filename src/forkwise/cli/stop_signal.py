"""Stop signals: an interrupt, a termination or a hang-up ends a command after an orderly clean-up.

The first one raises KeyboardInterrupt in the main thread, whichever of the three it is. Later ones are ignored: they
must not interrupt the clean-up. Only the program's entry point installs these handlers.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

__all__ = [
    "describe_stop_signal",
    "find_stop_signal",
    "forget_stop_signal",
    "ignore_stop_signals",
    "list_stop_signals",
    "raise_on_stop_signals",
    "run_until_stopped",
    "stop_signals_deferred",
]

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NAMES = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
_PAUSE_S = 0.001
_received: list[signal.Signals] = []
_is_installed = False
_is_deferred = False
_cancel: Callable[[], object] | None = None  # cancels the task that runs in an event loop
_is_swallowing = False  # whether Python is in sys.unraisablehook
_is_pending = False  # whether a signal came while they were deferred


def raise_on_stop_signals() -> None:
    """Raise KeyboardInterrupt on the first stop signal from now on, in the main thread, and ignore the others."""
    global _is_installed
    _is_installed = True
    sys.unraisablehook = _send_again
    for number in list_stop_signals():
        signal.signal(number, _raise_once)


def ignore_stop_signals() -> None:
    """Ignore stop signals while the process exits. The handler is a function, which child processes do not inherit."""
    for number in list_stop_signals() if _is_installed else ():
        signal.signal(number, _ignore)


def list_stop_signals() -> list[signal.Signals]:
    """List the stop signals that are not ignored; ``nohup``, for example, ignores the hang-up.

    Only the main thread can handle signals; in other threads the list is empty.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    return [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]


@contextmanager
def stop_signals_deferred() -> Iterator[None]:
    """Defer KeyboardInterrupt to the end of the block, for work that must not be left half done."""
    global _is_deferred, _is_pending
    was_deferred, _is_deferred = _is_deferred, True
    replaced = {number: signal.signal(number, _raise_once) for number in list_stop_signals()}
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)
        _is_deferred = was_deferred
        if _is_pending and not _is_deferred:
            _is_pending = False
            raise KeyboardInterrupt


def find_stop_signal() -> signal.Signals:
    """Return the signal that raised KeyboardInterrupt."""
    return _received[0] if _received else signal.SIGINT


def describe_stop_signal(number: signal.Signals) -> str:
    """Return the word that describes a command ended by this signal."""
    return _NAMES[number]


def forget_stop_signal() -> None:
    """Let the next stop signal raise KeyboardInterrupt again, in a session that an interrupt does not end."""
    _received.clear()


def run_until_stopped(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop; the first stop signal cancels it, then KeyboardInterrupt is raised."""
    import asyncio

    try:
        with stop_signals_deferred():  # inside the loop, KeyboardInterrupt could hit any task, or the loop itself
            return asyncio.run(_run_until_stopped(work))
    except asyncio.CancelledError:
        if not _received:
            raise
        raise KeyboardInterrupt from None


async def _run_until_stopped(work: Coroutine[Any, Any, T]) -> T:
    import asyncio

    from forkwise.concurrency import post

    global _cancel, _is_pending
    task = asyncio.ensure_future(work)
    _cancel = partial(post, asyncio.get_running_loop(), task.cancel)
    if _is_pending:  # the signal came before the loop started
        _is_pending = False
        _cancel()
    try:
        await asyncio.wait([task])
        return task.result()
    finally:
        _cancel = None


def _raise_once(number: int, _frame: object) -> None:
    global _is_pending
    if _received:
        return
    _received.append(signal.Signals(number))
    if _cancel is not None:
        _cancel()
    elif _is_deferred:
        _is_pending = True
    else:
        raise KeyboardInterrupt


def _send_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Send a signal again if Python could not raise KeyboardInterrupt for it, because it was closing a generator."""
    global _is_swallowing
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    _is_swallowing = True
    threading.Thread(target=_forget_and_send, args=[find_stop_signal()]).start()
    _is_swallowing = False  # must come last: Python runs signal handlers at calls, and would swallow this one too


def _forget_and_send(number: signal.Signals) -> None:
    while _is_swallowing:
        time.sleep(_PAUSE_S)
    forget_stop_signal()
    os.kill(os.getpid(), number)


def _ignore(_number: int, _frame: object) -> None:
    """Ignore a signal."""
