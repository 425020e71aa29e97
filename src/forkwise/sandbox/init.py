"""The init process of a sandbox after its setup: it reaps, watches the clock, and reports how the command ended.

Its end kills everything in the sandbox. It runs no code of the command and reads nothing from it.
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

__all__ = ["describe_failure", "kill_descendants", "report", "supervise"]

_MAX_TEXT = 4096  # characters: an outcome must fit into the pipe, which nobody reads yet
_READ_SIZE = 4096


def supervise(
    command: int | None,
    started: float,
    wall: float | None,
    *,
    signals: set[signal.Signals],
    end_pidfds: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """Wait for the command until its end or its time limit, and reap every other process that ends here.

    Return the outcome. ``signals`` are blocked signals: SIGCHLD, and possibly one that ends the sandbox. ``end_pidfds``
    are pidfds of processes whose end ends the sandbox, each with the cause to report: a function's process, which is
    not a child of this one, or the parent program. PR_SET_PDEATHSIG would not do: it watches a thread, and fires too
    early.
    """
    cause, code = "exit", None
    end_causes = end_pidfds or {}
    wake = _open_wakeup_fd(signals)
    poll = select.poll()
    for fd in (wake, *end_causes):
        poll.register(fd, select.POLLIN)
    while code is None:
        left = None if wall is None else started + wall - time.monotonic()
        if left is not None and left <= 0:
            cause = "timeout"
            break
        ready = dict(poll.poll(None if left is None else math.ceil(left * 1000)))
        if ended := [end_causes[fd] for fd in end_causes if fd in ready]:
            cause = ended[0]
            break
        if wake in ready and set(os.read(wake, _READ_SIZE)) - {signal.SIGCHLD}:
            cause = "killed"
            break
        # Check the clock between two reaps: a command that makes orphans fast enough could block this loop for ever.
        while code is None and (wall is None or time.monotonic() < started + wall):
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if command is not None:  # it was reaped elsewhere; there is nothing left to wait for
                    cause, code = "killed", -signal.SIGKILL
                break
            if pid == 0:
                break
            if pid == command:
                code = os.waitstatus_to_exitcode(wait_status)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "cause": cause,
        "code": code,
        "wall": time.monotonic() - started,
        "cpu": used.ru_utime + used.ru_stime,
        "memory": used.ru_maxrss * 1024,
    }


def _open_wakeup_fd(signals: set[signal.Signals]) -> int:
    """Return a descriptor from which the numbers of arriving signals are read."""
    wake, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    return wake


def kill_descendants() -> None:
    """Kill all descendants, generation by generation: orphans become children of this process, the subreaper."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = [int(pid) for pid in file.read().split()]
        if not children:
            return
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def describe_failure(error: BaseException, subject: str = "") -> dict[str, Any]:
    """Build the outcome of a sandbox that did not get to run its command."""
    if isinstance(error, OSError):
        filename = subject or str(error.filename or "")
        return {"failed": error.strerror, "errno": error.errno, "at": filename[:_MAX_TEXT]}
    return {"failed": f"{type(error).__name__}: {error}"[:_MAX_TEXT], "errno": 0, "at": subject[:_MAX_TEXT]}


def report(status_fd: int, outcome: dict[str, Any]) -> None:
    """Write an outcome to the pipe that the parent reads, if the parent is alive."""
    with suppress(BrokenPipeError):
        os.write(status_fd, json.dumps(outcome).encode() + b"\n")
