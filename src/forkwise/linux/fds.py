"""Registry of the descriptors that a forked child must not inherit: locks, pipes to sandboxes, the forkserver's socket.

A function's process is forked from this one while other threads run. With a lock's descriptor it could unlock, with the
forkserver's socket it could start processes outside of its sandbox. So descriptors are created and registered under one
lock, which the code that forks holds too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

__all__ = [
    "ForkSafeLock",
    "close",
    "close_all_except",
    "fork_lock",
    "pipe",
    "process_token",
    "receive",
    "socketpair",
    "track",
]

_lock = threading.RLock()
_held: set[int] = set()
_process = object()


class ForkSafeLock:
    """A lock between the threads of one process; a forked child has its own, which is free.

    A thread that does not exist in the child may have held the parent's.
    """

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock."""
        with self._lock:
            yield


@contextmanager
def fork_lock() -> Iterator[None]:
    """Hold the lock under which descriptors are created, so that a fork sees all of them registered."""
    with _lock:
        yield


def track(open_fd: Callable[[], int]) -> int:
    """Call a function that opens a descriptor, and register the result; a negative one is not registered."""
    with _lock:
        fd = open_fd()
        if fd >= 0:
            _held.add(fd)
        return fd


def pipe() -> tuple[int, int]:
    """Call os.pipe and register both ends."""
    with _lock:
        both = os.pipe()
        _held.update(both)
        return both


def socketpair() -> tuple[int, int]:
    """Create two connected sockets, register them, and return their descriptors."""
    import socket  # noqa: PLC0415 - only who starts sandboxes needs it

    with _lock:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        both = one.detach(), other.detach()
        _held.update(both)
        return both


def receive(opened: socket.socket, size: int, most_fds: int) -> tuple[bytes, list[int]]:
    """Call socket.recv_fds and register the descriptors that were received."""
    from socket import recv_fds  # noqa: PLC0415 - as above

    with _lock:
        message, received, _, _ = recv_fds(opened, size, most_fds)
        _held.update(received)
        return message, list(received)


def close(*fds: int) -> None:
    """Close descriptors that are still registered; others are skipped.

    So closing one twice is safe: a signal handler that raises may interrupt a caller before it forgets the number it
    has just closed, and by the second close that number may belong to another file.
    """
    with _lock:
        for fd in fds:
            if fd in _held:
                _held.discard(fd)
                os.close(fd)


def close_all_except(*, but: set[int]) -> None:
    """Close all registered descriptors except ``but``; called in a forked child."""
    for fd in _held - but:
        with suppress(OSError):
            os.close(fd)
    _held.intersection_update(but)


def process_token() -> object:
    """Return an object that differs in every forked child, unlike a PID, which another PID namespace may reuse."""
    return _process


def _reset_after_fork() -> None:
    """Replace the lock in a forked child: a thread that does not exist there may have held it."""
    global _lock, _process
    _lock, _process = threading.RLock(), object()


os.register_at_fork(after_in_child=_reset_after_fork)
