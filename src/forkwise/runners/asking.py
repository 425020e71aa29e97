"""Asking a function that somebody gave: whatever it raises is its answer, and ends nothing but itself.

Not even what is meant to end a program: SystemExit out of one of many candidates is one candidate that failed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from forkwise.sandbox.threads import in_thread

__all__ = ["Answer", "ask"]


@dataclass(frozen=True, slots=True)
class Answer:
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


async def ask(function: Callable[..., Any], *args: Any) -> Answer:
    """Call a function, be it ``async``, plain (in a thread of its own), or plain with something to await in the end.

    What is raised here is meant for who asks: being cancelled, and a keyboard's interrupt, which comes where the event
    loop runs and not in a thread.

    >>> asyncio.run(ask(divmod, 7, 0))
    Answer(value=None, error=ZeroDivisionError('integer division or modulo by zero'))
    """
    if inspect.iscoroutinefunction(function):
        return await _awaited(function(*args))
    answer = await in_thread(_called, function, *args)
    return await _awaited(answer.value) if inspect.isawaitable(answer.value) else answer


def _called(function: Callable[..., Any], *args: Any) -> Answer:
    try:
        return Answer(function(*args))
    except BaseException as error:  # noqa: BLE001 - handed on
        return Answer(error=error)


async def _awaited(value: Any) -> Answer:
    try:
        return Answer(await value)
    except KeyboardInterrupt:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return Answer(error=error)  # it cancelled itself
    except BaseException as error:  # noqa: BLE001 - handed on
        return Answer(error=error)
