"""A process in a sandbox, seen from outside: whether it runs, how it ended, and the one way to end it for good."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from forkwise.errors import NamespaceError, ProcessBranchError
from forkwise.linux import fds
from forkwise.sandbox.child import ForkedChild
from forkwise.sandbox.limits import Supervision
from forkwise.sandbox.network import Uplink

__all__ = ["Ending", "Finished", "SandboxProcess", "signal_name"]

_LONGEST = 1.0  # seconds of a wait: a signal that another thread was chosen for does not end it, and has a handler here

Ending = Literal["exit", "signal", "timeout", "out of memory", "killed"]


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that ended: what ``subprocess.CompletedProcess`` has, and what it cost.

    ``ending`` says how: by itself (``exit``), by a ``signal``, by ``timeout``, ``out of memory``, or ``killed`` by
    whoever started it or by a limit, which ``limit`` then names. ``wall`` and ``cpu`` are seconds, ``memory`` the most
    bytes it held. ``enforced`` says what enforced each limit that was asked for.
    """

    args: Sequence[str]
    returncode: int
    stdout: Any
    stderr: Any
    ending: Ending
    wall: float
    cpu: float
    memory: int
    limit: str | None = None
    enforced: Mapping[str, str | None] = field(default_factory=dict)

    def check_returncode(self) -> None:
        """Raise subprocess.CalledProcessError unless it ended well."""
        if self.returncode:
            raise subprocess.CalledProcessError(self.returncode, self.args, self.stdout, self.stderr)


class SandboxProcess:
    """A running sandbox. ``pid`` is its first process as the host numbers it. ``offspring`` is a child of this process
    in it, without whose being reaped it does not end."""

    def __init__(
        self,
        pid: int,
        pidfd: int,
        status: int,
        supervision: Supervision,
        ended_by: int = signal.SIGKILL,
        offspring: ForkedChild | None = None,
    ) -> None:
        self.pid = pid
        self.status = status
        self.supervision = supervision
        self.offspring = offspring
        self.uplink: Uplink | None = None
        self._pidfd = pidfd
        self._ended_by = ended_by
        self._told = b""
        self._started = time.monotonic()
        self._gone = False
        self._closing = threading.RLock()  # a number that was closed may be another process's by now

    def fileno(self) -> int:
        """Readable when the sandbox is gone, with everything in it."""
        return self._pidfd

    @property
    def alive(self) -> bool:
        """Whether anything of it still runs."""
        return not self._is_gone(0)

    def kill(self) -> None:
        """End it at once, with all descendants, whatever they do about it."""
        with self._closing, suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, self._ended_by)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is gone; False where that takes longer than ``timeout`` seconds."""
        return self._is_gone(None if timeout is None else max(timeout, 0))

    def close(self) -> None:
        """Make sure that nothing of it is left, and let go of it."""
        if self._pidfd >= 0:
            self.kill()
            self._is_gone(None)
            with self._closing:
                fds.close(self._pidfd, self.status)
                self._pidfd = self.status = -1
            self.supervision.close()
            if self.uplink is not None:
                self.uplink.close()

    def read_status(self) -> bool:
        """Take in what the sandbox tells of itself; False when it has told all."""
        said = os.read(self.status, 65536)
        self._told += said
        return bool(said)

    def outcome(self) -> dict[str, Any]:
        """What the sandbox told of its end; raises where it never came to run its command."""
        while self.read_status():
            pass
        lines = [json.loads(line) for line in self._told.splitlines(keepends=True) if line.endswith(b"\n")]
        failed = next((line for line in lines if "failed" in line), None)
        if failed is not None and failed.get("is_command"):
            raise ProcessBranchError(
                f"the command {failed['at']!r} could not be started: {failed['failed']}", errno=failed["errno"]
            )
        if failed is not None:
            at = f" at {failed['at']}" if failed["at"] else ""
            hint = "; forkwise doctor says what a container has to grant" if failed["at"] == "/proc" else ""
            raise NamespaceError(f"the sandbox could not be set up{at}: {failed['failed']}{hint}")
        if lines:
            return dict(lines[-1])
        return {
            "cause": "killed",
            "code": -signal.SIGKILL,
            "wall": time.monotonic() - self._started,
            "cpu": 0.0,
            "memory": 0,
        }

    def finished(self, args: Sequence[str], stdout: Any, stderr: Any) -> Finished:
        """The whole story of a sandbox that is gone."""
        self.supervision.read_usage()
        told = self.outcome()
        code = told["code"]
        if code is None and told["cause"] == "exit" and self.offspring is not None:
            code = self.offspring.code
        if code is None:
            code = -signal.SIGKILL
        ending: Ending = told["cause"]
        limit = self.supervision.exceeded
        if self.supervision.ran_out_of_memory:
            ending, limit = "out of memory", "memory"
        elif limit is not None:
            ending = "killed"
        elif ending == "timeout":
            limit = "wall"
        elif ending == "exit" and code < 0:
            ending = "signal"
        return Finished(
            args,
            code,
            stdout,
            stderr,
            ending,
            told["wall"],
            told["cpu"],
            self.supervision.peak_memory or told["memory"],
            limit,
            self.supervision.enforcement,
        )

    def _is_gone(self, timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._gone:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            pause = self.supervision.interval or _LONGEST
            if self._look(pause if left is None else min(pause, left)):
                continue
            if self.supervision.is_exceeded():
                self.kill()
            if left == 0.0:
                break
        return self._gone

    def _look(self, timeout: float) -> bool:
        """Whether something of it ended: it itself, or this process's child in it."""
        child = self.offspring
        unreaped = child is not None and child.pidfd >= 0
        awaited = child.pidfd if child is not None and unreaped else self._pidfd
        if awaited < 0:
            raise ProcessBranchError("this sandbox was closed")
        poll = select.poll()
        poll.register(awaited, select.POLLIN)
        if not poll.poll(timeout * 1000):
            return False
        if child is not None and unreaped:
            child.reap()
        else:
            self._gone = True
        return True


def signal_name(number: int) -> str:
    """A signal as people know it.

    >>> signal_name(9), signal_name(40)
    ('SIGKILL', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:  # most of those for real-time use have no name
        return f"signal {number}"
