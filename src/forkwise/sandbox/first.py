"""The first process of a sandbox, once that is set up: it reaps, watches the clock, and tells how its command ended.

Its end is the end of everything in the sandbox. It runs nothing of the command's, and takes nothing from it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import Any

__all__ = ["failure", "tell", "watch"]

_LONGEST = 4096  # of a text in an outcome, which has to fit into a pipe that nobody reads yet
_HOUR = 3600.0


def watch(
    command: int, started: float, wall: float | None, awaited: set[signal.Signals], is_over: Callable[[], bool]
) -> dict[str, Any]:
    """Wait for the command, reaping whatever else ends here, for as long as it may take.

    ``awaited`` are blocked signals: SIGCHLD, and one upon which ``is_over`` is asked whether to go on.
    """
    cause, code = "exit", None
    while code is None:
        left = _HOUR if wall is None else started + wall - time.monotonic()
        if left <= 0:
            cause = "timeout"
            break
        came = signal.sigtimedwait(awaited, left)
        if came is not None and came.si_signo != signal.SIGCHLD and is_over():
            cause = "killed"
            break
        # The clock is looked at in between: whoever makes orphans fast enough could keep this loop busy for ever.
        while code is None and (wall is None or time.monotonic() < started + wall):
            try:
                pid, how = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == command:
                code = os.waitstatus_to_exitcode(how)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "cause": cause,
        "code": code,
        "wall": time.monotonic() - started,
        "cpu": used.ru_utime + used.ru_stime,
        "memory": used.ru_maxrss * 1024,
    }


def failure(error: BaseException, at: str = "") -> dict[str, Any]:
    """An outcome for a sandbox that did not come to run its command."""
    if isinstance(error, OSError):
        where = at or str(error.filename or "")
        return {"failed": error.strerror, "errno": error.errno, "at": where[:_LONGEST]}
    return {"failed": f"{type(error).__name__}: {error}"[:_LONGEST], "errno": 0, "at": at[:_LONGEST]}


def tell(status: int, outcome: dict[str, Any]) -> None:
    """Write an outcome where the parent reads it."""
    os.write(status, json.dumps(outcome).encode() + b"\n")
