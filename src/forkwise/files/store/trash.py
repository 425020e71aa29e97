"""The trash: one rename removes a directory, a background thread deletes it, so that dropping a branch is fast.

Entries that a killed process left in the trash are deleted by the next process that empties it.
"""

from __future__ import annotations

import atexit
import os
import queue
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from forkwise.errors import StateError
from forkwise.linux.trees import open_root, remove_tree

if TYPE_CHECKING:
    from forkwise.files.store.state import StateDir

__all__ = ["deferred", "discard", "empty", "run_later", "wait_until_empty"]

_EXIT_TIMEOUT_S = 10.0  # for deletions in progress when the process exits; gc deletes the rest
_EXPECTED = (OSError, StateError)  # what could not be deleted stays in the trash, and gc reports it


def discard(state_dir: StateDir, path: str) -> None:
    """Move a directory to the trash now, and delete it in the background."""
    trashed = f"{state_dir.state}/trash/{secrets.token_hex(8)}"
    os.rename(path, trashed)
    run_later(lambda: _delete(trashed))


def empty(state: str) -> list[str]:
    """Delete everything in the trash; return the paths that remain because they are mount points."""
    left = []
    with os.scandir(f"{state}/trash") as entries:
        names = [e.name for e in entries]
    for name in names:
        left += _delete(f"{state}/trash/{name}")
    return left


def run_later(job: Callable[[], object]) -> None:
    """Run a job in this process's background thread."""
    if _caller.held is None:
        _Background.get().jobs.put(job)
    else:
        _caller.held.append(job)


@contextmanager
def deferred() -> Iterator[None]:
    """Start the jobs of ``run_later`` only when the block ends, so that they do not slow it down."""
    jobs: list[Callable[[], object]] = []
    before = _caller.held
    _caller.held = jobs
    try:
        yield
    finally:
        _caller.held = before
        if jobs:
            run_later(lambda: _run_all(jobs))  # as one: each job wakes the thread, which waits for the caller's locks


def _run_all(jobs: list[Callable[[], object]]) -> None:
    for job in jobs:
        with suppress(*_EXPECTED):
            job()


def wait_until_empty() -> None:
    """Block until all jobs so far, and the jobs that they start, are done."""
    jobs = _Background.get().jobs
    while True:
        done = threading.Event()
        jobs.put(done.set)
        done.wait()
        if jobs.empty():
            return


def _delete(path: str) -> list[str]:
    try:
        parent = open_root(os.path.dirname(path))
    except FileNotFoundError:
        return []  # the state directory itself was deleted meanwhile
    try:
        return remove_tree(parent, os.path.basename(path))
    finally:
        os.close(parent)


class _Caller(threading.local):
    """The jobs that the calling thread defers; None while it defers none."""

    held: list[Callable[[], object]] | None = None


_caller = _Caller()


class _Background:
    """The daemon thread of a process; a forked child starts its own when it first needs one."""

    _current: _Background | None = None

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.jobs: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="forkwise-trash", daemon=True).start()
        atexit.register(self._finish)

    @classmethod
    def get(cls) -> _Background:
        if cls._current is None or cls._current.pid != os.getpid():
            cls._current = cls()
        return cls._current

    def _work(self) -> None:
        while True:
            job = self.jobs.get()
            with suppress(*_EXPECTED):
                job()

    def _finish(self) -> None:
        if self.pid != os.getpid():
            return
        done = threading.Event()
        self.jobs.put(done.set)
        done.wait(_EXIT_TIMEOUT_S)
