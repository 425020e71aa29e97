"""Ends: forkwise's own open descriptors that lead somewhere: locks, pipes to sandboxes, the forkserver's socket.

A function's process is a fork of this one, made while other threads go on, and must have none of them: with a lock's it
could unlock, with the socket have anything started outside. So they are made and noted under one lock, which whoever
forks such a process holds too.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

__all__ = ["close", "close_all_except", "fork_lock", "pipe", "process_token", "socketpair", "track"]

_lock = threading.RLock()
_held: set[int] = set()
_process = object()


@contextmanager
def fork_lock() -> Iterator[None]:
    """While this is held no other thread makes descriptors here: all there are, are noted. For forking."""
    with _lock:
        yield


def track(made_by: Callable[[], int]) -> int:
    """A new descriptor, noted; a number below zero is none."""
    with _lock:
        fd = made_by()
        if fd >= 0:
            _held.add(fd)
        return fd


def pipe() -> tuple[int, int]:
    """os.pipe, with both ends noted."""
    with _lock:
        both = os.pipe()
        _held.update(both)
        return both


def socketpair() -> tuple[int, int]:
    """Two connected sockets, as descriptors, both noted."""
    with _lock:
        one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        both = one.detach(), other.detach()
        _held.update(both)
        return both


def close(*fds: int) -> None:
    """Close descriptors that were noted; numbers below zero are none."""
    with _lock:
        for fd in fds:
            if fd >= 0:
                _held.discard(fd)
                os.close(fd)


def close_all_except(*, but: set[int]) -> None:
    """In a function's process: close all of them but those."""
    for fd in _held - but:
        with suppress(OSError):
            os.close(fd)
    _held.intersection_update(but)


def process_token() -> object:
    """Something that is another in every fork; a number is not, where a fork has one of another PID namespace."""
    return _process


def _be_forked() -> None:
    """In a fork, whoever made it: the lock may have been held by a thread that is not there."""
    global _lock, _process
    _lock, _process = threading.RLock(), object()


os.register_at_fork(after_in_child=_be_forked)
