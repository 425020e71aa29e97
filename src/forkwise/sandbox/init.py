"""The first process of a sandbox, once that is set up: it reaps, watches the clock, and tells how its command ended.

Its end is the end of everything in the sandbox. It runs nothing of the command's, and takes nothing from it.
"""

from __future__ import annotations

import json
import math
import os
import resource
import select
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

__all__ = ["failure", "kill_descendants", "report", "supervise"]

_LONGEST = 4096  # of a text in an outcome, which has to fit into a pipe that nobody reads yet
_MANY = 4096


def supervise(
    command: int | None,
    started: float,
    wall: float | None,
    *,
    awaited: set[signal.Signals],
    until: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """Wait for the command, reaping whatever else ends here, for as long as it may take.

    ``awaited`` are blocked signals: SIGCHLD, and one that is to end this. ``until`` are descriptors of processes whose
    end is the end of this, each with its cause: a function's, which is no child of this one, or that of the program
    which wanted it. That is not left to the kernel's death signal, which means a thread and comes too early.
    """
    cause, code = "exit", None
    others = until or {}
    wake = _wake_upon(awaited)
    poll = select.poll()
    for fd in (wake, *others):
        poll.register(fd, select.POLLIN)
    while code is None:
        left = None if wall is None else started + wall - time.monotonic()
        if left is not None and left <= 0:
            cause = "timeout"
            break
        ready = dict(poll.poll(None if left is None else math.ceil(left * 1000)))
        if ended := [others[fd] for fd in others if fd in ready]:
            cause = ended[0]
            break
        if wake in ready and set(os.read(wake, _MANY)) - {signal.SIGCHLD}:
            cause = "killed"
            break
        # The clock is looked at in between: whoever makes orphans fast enough could keep this loop busy for ever.
        while code is None and (wall is None or time.monotonic() < started + wall):
            try:
                pid, how = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if command is not None:  # somebody had it reaped; there is nothing left to wait for
                    cause, code = "killed", -signal.SIGKILL
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


def _wake_upon(signals: set[signal.Signals]) -> int:
    """A descriptor from which the numbers of signals are read as they come."""
    wake, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    return wake


def kill_descendants() -> None:
    """Kill all that is left, generation by generation: whoever loses its parent becomes a child of this process."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = [int(pid) for pid in file.read().split()]
        if not children:
            return
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def failure(error: BaseException, at: str = "") -> dict[str, Any]:
    """An outcome for a sandbox that did not come to run its command."""
    if isinstance(error, OSError):
        where = at or str(error.filename or "")
        return {"failed": error.strerror, "errno": error.errno, "at": where[:_LONGEST]}
    return {"failed": f"{type(error).__name__}: {error}"[:_LONGEST], "errno": 0, "at": at[:_LONGEST]}


def report(status: int, outcome: dict[str, Any]) -> None:
    """Write an outcome where the parent reads it, if there is a parent."""
    with suppress(BrokenPipeError):
        os.write(status, json.dumps(outcome).encode() + b"\n")
