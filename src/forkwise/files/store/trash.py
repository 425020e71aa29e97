"""Trash: what is gone by one rename and deleted afterwards, in the background, so that dropping a branch is quick.

Whatever a killed process left in the trash is deleted by the next one that empties it.
"""

from __future__ import annotations

import atexit
import os
import queue
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forkwise.files.store.state import StateDir
from forkwise.linux.trees import open_root, remove_tree

__all__ = ["deferred", "discard", "empty", "run_later", "wait_until_empty"]

_PATIENCE = 10.0  # seconds a process that ends gives to deletions still under way; the rest is found by gc


def discard(place: StateDir, path: str) -> None:
    """Take a directory of a place out of sight at once, and delete it later."""
    gone = f"{place.state}/trash/{secrets.token_hex(8)}"
    os.rename(path, gone)
    run_later(lambda: _delete(gone))


def empty(state: str) -> list[str]:
    """Delete all that lies in the trash now; gives what could not be (something is mounted there)."""
    left = []
    with os.scandir(f"{state}/trash") as entries:
        names = [e.name for e in entries]
    for name in names:
        left += _delete(f"{state}/trash/{name}")
    return left


def run_later(job: Callable[[], object]) -> None:
    """Run a job in this process's one background thread."""
    if _caller.held is None:
        _Background.get().jobs.put(job)
    else:
        _caller.held.append(job)


@contextmanager
def deferred() -> Iterator[None]:
    """Start what is put off inside the block when it is left, so that it takes no processor from who is in a hurry."""
    jobs: list[Callable[[], object]] = []
    before = _caller.held
    _caller.held = jobs
    try:
        yield
    finally:
        _caller.held = before
        for job in jobs:
            run_later(job)


def wait_until_empty() -> None:
    """Block until all that was put off so far has been done."""
    _Background.get().jobs.join()


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
    """What the calling thread holds back; None while it does not."""

    held: list[Callable[[], object]] | None = None


_caller = _Caller()


class _Background:
    """One daemon thread a process; a forked child starts its own when it first needs one."""

    _current: _Background | None = None

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.jobs: queue.Queue[Callable[[], object]] = queue.Queue()
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
            try:
                job()
            except OSError:
                pass  # the trash keeps what could not be deleted, and gc reports it
            finally:
                self.jobs.task_done()

    def _finish(self) -> None:
        if self.pid != os.getpid():
            return
        done = threading.Event()
        self.jobs.put(done.set)
        done.wait(_PATIENCE)
