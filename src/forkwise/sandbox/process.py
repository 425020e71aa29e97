"""A process in a sandbox, seen from outside: whether it runs, how it ended, and how to kill it with all descendants."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from forkwise.errors import NamespaceError, ProcessBranchError
from forkwise.linux import fds

if TYPE_CHECKING:
    from forkwise.sandbox.child import ForkedChild
    from forkwise.sandbox.limits import Supervision

__all__ = ["LANDLOCK_HINT", "Ending", "Finished", "SandboxProcess", "is_refusal", "signal_name"]

#: The remedy for a user who cannot or does not want to allow namespaces.
LANDLOCK_HINT = (
    "Allow that, or use Confinement(landlock_instead=True), on the command line --landlock-instead, which keeps writes "
    "in the branch without namespaces"
)

# A policy, a container's filter, a limit on namespaces, or a kernel without them; not a lack of memory.
_REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EUSERS, errno.ENOSYS, errno.EINVAL)

# A signal that another thread received does not interrupt poll(2) here, but its handler runs in this thread.
_MAX_WAIT_S = 1.0

Ending = Literal["exit", "signal", "timeout", "out of memory", "killed"]


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that ended: the fields of ``subprocess.CompletedProcess``, its ending and its cost.

    ``ending`` is ``exit``, ``signal``, ``timeout``, ``out of memory``, or ``killed`` by the caller or by a limit, which
    ``limit`` then names. ``wall`` and ``cpu`` are seconds, ``memory`` is the peak in bytes. ``enforced`` says what
    enforced each limit.
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
        """Raise subprocess.CalledProcessError unless the exit code is 0."""
        if self.returncode:
            raise subprocess.CalledProcessError(self.returncode, self.args, self.stdout, self.stderr)


class SandboxProcess:
    """A running sandbox.

    ``pid`` is the host's number of its init process. ``child`` is a child of this process inside the sandbox, which
    does not end until that child is reaped.
    """

    def __init__(
        self,
        pid: int,
        pidfd: int,
        status_fd: int,
        supervision: Supervision,
        kill_signal: int = signal.SIGKILL,
        child: ForkedChild | None = None,
    ) -> None:
        self.pid = pid
        self.status_fd = status_fd
        self.supervision = supervision
        self.child = child
        self.on_close: list[Callable[[], None]] = []  # closes what belongs to the sandbox, such as its network
        self.start_directory: str | None = None  # of the command, if it is not the workspace's own path
        self._pidfd = pidfd
        self._kill_signal = kill_signal
        self._status = b""
        self._started = time.monotonic()
        self._has_ended = False
        self._close_lock = threading.RLock()  # a closed descriptor's number may be reused by now

    def fileno(self) -> int:
        """Return a descriptor that is readable once the sandbox has ended, with everything in it."""
        return self._pidfd

    @property
    def alive(self) -> bool:
        """Whether any process of it still runs."""
        return not self._wait_for_end(0)

    def kill(self) -> None:
        """Kill it at once, with all descendants."""
        with self._close_lock, suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, self._kill_signal)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended. Return False after ``timeout`` seconds."""
        return self._wait_for_end(None if timeout is None else max(timeout, 0))

    def close(self) -> None:
        """Kill all that is left of it, and close its descriptors and control groups."""
        if self._pidfd >= 0:
            self.kill()
            self._wait_for_end(None)
            with self._close_lock:
                fds.close(self._pidfd, self.status_fd)
                self._pidfd = self.status_fd = -1
            self.supervision.close()
            for close in reversed(self.on_close):
                close()

    def read_status(self) -> bool:
        """Read what the sandbox reported. Return False at the end."""
        piece = os.read(self.status_fd, 65536)
        self._status += piece
        return bool(piece)

    def wait_until_ready(self) -> None:
        """Wait until the sandbox is set up. Raise NamespaceError if that failed. Its request had ``reports_ready``."""
        while not self._read_reports() and self.read_status():
            pass
        self._raise_failure()

    def start_command(self, start_writer_fd: int) -> None:
        """Write the go-ahead. Raise NamespaceError if the sandbox has ended because it could not be set up."""
        try:
            os.write(start_writer_fd, b"1")
        except BrokenPipeError:
            self.wait()
            self.read_outcome()  # a sandbox that was killed reports nothing, and ``collect`` returns that

    def read_outcome(self) -> dict[str, Any]:
        """Return the outcome that the sandbox reported. Raise if its command was never run."""
        while self.read_status():
            pass
        self._raise_failure()
        if outcomes := [line for line in self._read_reports() if "ready" not in line]:
            return dict(outcomes[-1])
        return {
            "cause": "killed",
            "code": -signal.SIGKILL,
            "wall": time.monotonic() - self._started,
            "cpu": 0.0,
            "memory": 0,
        }

    def _read_reports(self) -> list[dict[str, Any]]:
        """Return what was read of the sandbox's reports so far, without an incomplete last line."""
        return [json.loads(line) for line in self._status.splitlines(keepends=True) if line.endswith(b"\n")]

    def _raise_failure(self) -> None:
        failed = next((line for line in self._read_reports() if "failed" in line), None)
        if failed is None:
            return
        if failed.get("is_command"):
            raise ProcessBranchError(
                f"the command {failed['at']!r} could not be started: {failed['failed']}", errno=failed["errno"]
            )
        if failed["at"] == self.start_directory and failed["errno"] in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
            raise ProcessBranchError(
                f"the command was to start in {failed['at']}, which it cannot enter in its branch: {failed['failed']}",
                errno=failed["errno"],
            )
        at = f" at {failed['at']}" if failed["at"] else ""
        hint = "; forkwise doctor says what a container has to allow" if failed["at"] == "/proc" else ""
        if is_refusal(failed["errno"]):
            hint += f". {LANDLOCK_HINT}"
        raise NamespaceError(f"the sandbox could not be set up{at}: {failed['failed']}{hint}", errno=failed["errno"])

    def collect(self, args: Sequence[str], stdout: Any, stderr: Any) -> Finished:
        """Return the result of a sandbox that has ended."""
        self.supervision.read_usage()
        outcome = self.read_outcome()
        code = outcome["code"]
        if code is None and outcome["cause"] == "exit" and self.child is not None:
            code = self.child.code
        if code is None:
            code = -signal.SIGKILL
        ending: Ending = outcome["cause"]
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
            outcome["wall"],
            outcome["cpu"],
            self.supervision.peak_memory or outcome["memory"],
            limit,
            self.supervision.enforcement,
        )

    def _wait_for_end(self, timeout: float | None) -> bool:
        """Wait for the end, and kill the sandbox if it exceeds a limit."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._has_ended:
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            pause = self.supervision.interval or _MAX_WAIT_S
            if self._wait_once(pause if remaining is None else min(pause, remaining)):
                continue
            if self.supervision.is_exceeded():
                self.kill()
            if remaining == 0.0:
                break
        return self._has_ended

    def _wait_once(self, timeout: float) -> bool:
        """Wait for one end: that of this process's child in the sandbox, then that of the sandbox."""
        child = self.child if self.child is not None and self.child.pidfd >= 0 else None  # not reaped yet
        pidfd = self._pidfd if child is None else child.pidfd
        if pidfd < 0:
            raise ProcessBranchError("this sandbox is closed")
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if not poll.poll(timeout * 1000):
            return False
        if child is not None:
            child.reap()
        else:
            self._has_ended = True
        return True


def is_refusal(error_number: int | None) -> bool:
    """Return whether an error of a system call means that this machine does not allow namespaces, or mounts in them.

    >>> is_refusal(errno.EPERM), is_refusal(errno.ENOMEM), is_refusal(None)
    (True, False, False)
    """
    return error_number in _REFUSALS


def signal_name(number: int) -> str:
    """Return the name of a signal.

    >>> signal_name(9), signal_name(40)
    ('SIGKILL', 'signal 40')
    """
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"
