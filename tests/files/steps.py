"""Steps: the system calls that change something, counted, so that a process can be killed at exactly the Nth.

The calls are wrapped where Python passes them to the kernel: the functions of ``os`` and ``fcntl`` and the foreign
functions of ``forkwise.linux.syscalls`` and ``file_write``. A test compares the count with strace, to show that no
call is missed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from forkwise.linux import file_write, syscalls
from forkwise.linux import trees as copying

__all__ = ["CALLS", "Outcome", "Steps", "fork", "in_child"]

_OS = (
    *("chmod", "chown", "copy_file_range", "fchmod", "fchown", "fsync", "ftruncate", "link", "mkdir", "pwrite"),
    *("removexattr", "rename", "rmdir", "setxattr", "symlink", "truncate", "unlink", "utime", "write"),
)
_FOREIGN = ("_mount", "_renameat2", "_syncfs", "_umount2")
_CREATING = os.O_CREAT | os.O_TRUNC

#: The kernel's names of the calls, by the name they are counted under.
CALLS = {
    "chmod": ("chmod", "fchmod", "fchmodat", "fchmodat2"),
    "chown": ("chown", "lchown", "fchown", "fchownat"),
    "copy_file_range": ("copy_file_range",),
    "fsync": ("fsync", "fdatasync", "io_submit"),
    "ftruncate": ("ftruncate", "truncate", "fallocate"),
    "link": ("link", "linkat"),
    "mkdir": ("mkdir", "mkdirat"),
    "mknod": ("mknod", "mknodat"),
    "mount": ("mount",),
    "pwrite": ("pwrite64", "pwritev", "pwritev2"),
    "removexattr": ("removexattr", "lremovexattr", "fremovexattr"),
    "rename": ("rename", "renameat"),
    "renameat2": ("renameat2",),
    "sendfile": ("sendfile", "splice"),
    "setxattr": ("setxattr", "lsetxattr", "fsetxattr"),
    "symlink": ("symlink", "symlinkat"),
    "syncfs": ("syncfs", "sync"),
    "umount2": ("umount2",),
    "unlink": ("unlink", "unlinkat", "rmdir"),
    "utime": ("utimensat",),
    "write": ("write", "writev"),
}


class Steps:
    """Counts the calling thread's changes; at number ``at`` the process is killed, or the call fails with ``error``.

    Instead of a number, the point may be the rename of a path that ends in ``path``. With ``lasting``, every later call
    fails with ``error`` as well. ``flagless`` imitates a filesystem that supports only plain renames.
    """

    def __init__(
        self, at: int = 0, error: int = 0, *, path: str = "", lasting: bool = False, flagless: bool = False
    ) -> None:
        self.at = at
        self.path = path
        self.error = error
        self.lasting = lasting
        self.flagless = flagless
        self.seen: list[str] = []
        self._thread = threading.get_ident()

    @contextmanager
    def watched(self) -> Iterator[Steps]:
        """Count the calls inside the block."""
        kept = [(os, n, getattr(os, n)) for n in (*_OS, "open")]
        kept += [(syscalls, n, getattr(syscalls, n)) for n in _FOREIGN]
        kept += [(fcntl, "ioctl", fcntl.ioctl), (file_write, "_submit", file_write._submit)]
        try:
            for name in _OS:
                setattr(os, name, self._wrapped(name, getattr(os, name)))
            os.open = self._opening(os.open)
            fcntl.ioctl = self._cloning(fcntl.ioctl)
            file_write._submit = self._foreign("fsync", file_write._submit)
            for name in _FOREIGN:
                setattr(syscalls, name, self._foreign(name[1:], getattr(syscalls, name)))
            yield self
        finally:
            for module, name, function in kept:
                setattr(module, name, function)

    def _due(self, name: str, path: object = None) -> bool:
        """Count one call. Return True if it has to fail."""
        if threading.get_ident() != self._thread:
            return False
        self.seen.append(name)
        count = len(self.seen)
        if self.path and name == "rename" and str(path).endswith(self.path):
            self.at = count
        if not self.at or count < self.at or (count > self.at and not self.lasting):
            return False
        if not self.error:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            # The lock is touched to read the filesystem's clock, a varying number of times.
            reads_clock = name == "utime" and not kwargs
            if not reads_clock and self._due(name, args[0]):
                raise OSError(self.error, os.strerror(self.error), args[0] if isinstance(args[0], str) else None)
            return function(*args, **kwargs)

        return call

    def _opening(self, function: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if flags & _CREATING and self._due("open"):
                raise OSError(self.error, os.strerror(self.error), path)
            return function(path, flags, *args, **kwargs)

        return call

    def _cloning(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(fd: Any, request: int, *args: Any) -> Any:
            if request == copying.FICLONE and self._due("ioctl"):
                raise OSError(self.error, os.strerror(self.error))
            return function(fd, request, *args)

        return call

    def _foreign(self, name: str, function: Callable[..., int]) -> Callable[..., int]:
        def call(*args: Any) -> int:
            failure = errno.EINVAL if name == "renameat2" and self.flagless else 0
            if not failure and self._due(name):
                failure = self.error
            if failure:
                ctypes.set_errno(failure)
                return -1
            return function(*args)

        return call


@dataclass
class Outcome:
    """The end of a child: whether it was killed, or what it returned or raised."""

    killed: bool
    value: Any = None
    raised: BaseException | None = None
    calls: list[str] = field(default_factory=list)


def fork() -> int:
    """Call ``os.fork`` without Python's warning about threads: the background thread only deletes files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def in_child(job: Callable[[], Any], steps: Steps | None = None, *, user: int = 0, kill_after: float = -1) -> Outcome:
    """Run a job in a forked child, as ``user``; with ``kill_after`` kill it after that many seconds."""
    results, sending = os.pipe()
    beginning, telling = os.pipe()
    pid = fork()
    if pid == 0:
        try:
            os.close(results)
            os.close(beginning)
            _be(user)
            os.write(telling, b".")
            os.close(telling)
            outcome = _work(job, steps)
            if kill_after >= 0:
                signal.pause()
            _send(sending, outcome)
        finally:
            os._exit(0)
    os.close(sending)
    os.close(telling)
    os.read(beginning, 1)
    os.close(beginning)
    if kill_after >= 0:
        _wait_until(time.perf_counter() + kill_after)
        os.kill(pid, signal.SIGKILL)
    with open(results, "rb") as file:
        data = file.read()
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return Outcome(killed=True)
    outcome: Outcome = pickle.loads(data)
    return outcome


def _work(job: Callable[[], Any], steps: Steps | None) -> Outcome:
    watch = steps or Steps()
    watch._thread = threading.get_ident()
    outcome = Outcome(killed=False)
    with watch.watched():
        try:
            outcome.value = job()
        except BaseException as error:  # noqa: BLE001 - the parent judges it
            outcome.raised = error
    outcome.calls = watch.seen
    return outcome


def _send(fd: int, outcome: Outcome) -> None:
    try:
        data = pickle.dumps(outcome)
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - an exception with fields of its own is sent as its type and text
        assert outcome.raised is not None
        kind = next(k for k in type(outcome.raised).__mro__ if k.__module__ in ("forkwise.errors", "builtins"))
        outcome.raised = _plain(kind, str(outcome.raised))
        data = pickle.dumps(outcome)
    with open(fd, "wb") as file:
        file.write(data)


def _plain(kind: type[BaseException], text: str) -> BaseException:
    return kind(text)


def _be(user: int) -> None:
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def _wait_until(moment: float) -> None:
    """Wait with microsecond precision, which ``sleep`` does not have."""
    while (left := moment - time.perf_counter()) > 0:
        if left > 0.002:
            time.sleep(left - 0.002)
