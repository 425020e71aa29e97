"""The pool of branch homes that are prepared in the background, so that creating many branches is fast.

Most of the cost of a branch is creating its directories, its first file, and the kernel's part of its view. From the
second branch of a workspace on, a process keeps a few homes ready. They are removed when the process ends, or when no
branch was created for a while.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING

from forkwise.files.store.branch_info import BranchInfo
from forkwise.files.store.record import Record
from forkwise.files.store.trash import run_later
from forkwise.files.store.view import DetachedMount, View
from forkwise.linux.root_identity import RootIdentity
from forkwise.linux.trees import closing_fd, open_root, remove_tree

if TYPE_CHECKING:
    from forkwise.files.store.state import StateDir

__all__ = ["BranchPool", "PooledHome", "pool_paused"]

_CAPACITY = 16
_PAUSE_S = 0.0003  # leaves the processor to the caller that has just got a branch
_MAX_PAUSES = 3
_MAX_DELAY_S = 0.1  # how long ``pool_paused`` delays filling at most
_IDLE_S = 60.0  # without a new branch, until the pool is dropped: its mounts keep their filesystem busy
_MAX_MOUNTS = 64  # mounts kept ready: each is a descriptor, and a branch keeps it until its view is first used
_TICK_NS = 900_000  # no kernel's coarse clock ticks faster
_TOUCHES = 50
_serial = count()
_places: set[str] = set()  # directories of branches in which this process has prepared homes


_pauses: list[None] = []  # one for each ``pool_paused`` block that runs


@contextmanager
def pool_paused() -> Iterator[None]:
    """Delay the filling of pools, which uses processors and the disk, for a short time while the block runs."""
    _pauses.append(None)
    try:
        yield
    finally:
        _pauses.pop()


class PooledHome:
    """A prepared home.

    ``generation`` is the head that it was prepared for, ``parent_identity`` the state of the parent's directory whose
    metadata it has, ``root`` that directory, ``untouched`` its mtime as long as nothing is added to it, ``premounted``
    its view if that is mounted already.
    """

    __slots__ = ("generation", "home", "parent_identity", "premounted", "root", "untouched")

    def __init__(
        self, home: str, generation: int, parent_identity: tuple[int, int, int], root: RootIdentity, untouched: int
    ) -> None:
        self.home = home
        self.generation = generation
        self.parent_identity = parent_identity
        self.root = root
        self.untouched = untouched
        self.premounted: DetachedMount | None = None

    def fit(self, view: View, lower: str, head: int) -> None:
        """Turn the home into a branch of the parent at commit ``head``; raise FileNotFoundError if it was removed."""
        if self.generation != head:
            BranchInfo.create_unstamped(self.home, view.name, head, self.root)
        identity = _identify(lower)
        if identity == self.parent_identity:
            BranchInfo.stamp(self.home)
            return
        if not self.root.is_at(lower):
            BranchInfo.create_unstamped(self.home, view.name, head, RootIdentity.of(lower))
        BranchInfo.stamp(self.home)
        if identity[:2] != self.parent_identity[:2] and self.premounted is not None:
            self.premounted.close()  # the parent's directory was replaced by another
            self.premounted = None
        view.copy_metadata(self.home, lower, self.premounted)


class BranchPool:
    """The pool of one workspace and layered view."""

    def __init__(self, state_dir: StateDir, view: View, lower: str) -> None:
        self._state_dir = state_dir
        self._view = view
        self._lower = lower
        self._ready: list[PooledHome] = []
        self._owner = os.getpid()
        self._requests = 0
        self._requested_at = 0.0
        self._is_filling = False
        self._has_timer = False
        self._is_clock_fine: bool | None = None
        weakref.finalize(self, _clear, state_dir.home(""), self._ready, self._owner)

    def take(self) -> PooledHome | None:
        """Take a home; None if none is ready. Call ``refill`` afterwards. Another process's gc may have removed it."""
        if self._owner != os.getpid():
            return None  # the homes belong to the process from which this one was forked
        self._requests += 1
        self._requested_at = time.monotonic()
        try:
            return self._ready.pop()
        except IndexError:
            return None

    def refill(self) -> None:
        """Refill the pool in the background, with as many homes as were taken so far, up to its capacity."""
        wanted = min(self._requests, _CAPACITY)
        is_low = wanted > 1 and len(self._ready) <= wanted * 3 // 4
        if is_low and not self._is_filling and self._is_clock_fine is not False:
            self._is_filling = True
            run_later(self._fill)

    def _fill(self) -> None:
        try:
            while len(self._ready) < min(self._requests, _CAPACITY) and self._is_clock_fine is not False:
                self._wait_until_quiet()
                self._prepare_home()
        finally:
            self._is_filling = False
        if self._ready and not self._has_timer:
            self._has_timer = True
            _start_timer(weakref.ref(self))

    def _wait_until_quiet(self) -> None:
        started = time.monotonic()
        while _pauses and time.monotonic() - started < _MAX_DELAY_S:
            time.sleep(_PAUSE_S)
        for _ in range(_MAX_PAUSES):
            if time.monotonic() - self._requested_at >= _PAUSE_S:
                break
            time.sleep(_PAUSE_S)

    def _prepare_home(self) -> None:
        _places.add(self._state_dir.home(""))
        home = self._state_dir.home(f".spare-{self._owner}-{next(_serial)}")
        generation = self._state_dir.head
        os.mkdir(home, 0o700)
        identity, root = _identify(self._lower), RootIdentity.of(self._lower)
        pooled = PooledHome(home, generation, identity, root, 0)
        try:
            self._view.make(home, [self._lower])
            Record.prepare_directory(home)
            BranchInfo.create_unstamped(home, self._view.name, generation, pooled.root)
            if self._is_clock_fine is None:
                self._is_clock_fine = _has_fine_clock(home)
            if self._is_clock_fine:
                if DetachedMount.count() < _MAX_MOUNTS:
                    pooled.premounted = self._view.premount(home, self._lower)
                pooled.untouched = os.stat(home).st_mtime_ns
                self._ready.append(pooled)
                return
        except BaseException:
            _remove(self._state_dir.home(""), [pooled])
            raise
        _remove(self._state_dir.home(""), [pooled])

    def drop_if_idle(self) -> None:
        """Remove the homes if no branch was created in a while."""
        if time.monotonic() - self._requested_at < _IDLE_S:
            _start_timer(weakref.ref(self))
            return
        self._has_timer = False
        self._requests = 0
        dropped = self._ready[:]
        del self._ready[: len(dropped)]
        _remove(self._state_dir.home(""), dropped)


def _start_timer(pool: weakref.ref[BranchPool]) -> None:
    timer = threading.Timer(_IDLE_S, _check_idle, [pool])
    timer.daemon = True
    timer.start()


def _check_idle(pool: weakref.ref[BranchPool]) -> None:
    found = pool()
    if found is not None:
        run_later(found.drop_if_idle)


def _identify(directory: str) -> tuple[int, int, int]:
    """Return numbers that change as soon as a directory is changed or replaced."""
    found = os.stat(directory)
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _has_fine_clock(home: str) -> bool:
    """Return whether timestamps are multigrain: each change of a file that was read since the last has its own time.

    Only then can the mtime of a file serve as the time of a fork. With a coarse clock, two changes have the same time,
    or times a whole tick apart.
    """
    before = os.stat(home).st_mtime_ns
    for _ in range(_TOUCHES):
        os.utime(home)
        after = os.stat(home).st_mtime_ns
        if after - before < _TICK_NS:
            return after > before
        before = after
    return False


def _clear(branches: str, ready: list[PooledHome], owner: int) -> None:
    if owner == os.getpid():
        _remove(branches, ready)


@atexit.register
def _remove_rest() -> None:
    """Remove what is left of pools whose removal a signal interrupted."""
    prefix = f".spare-{os.getpid()}-"
    for branches in _places:
        with suppress(OSError), closing_fd(open_root(branches)) as parent:
            for name in os.listdir(branches):
                if name.startswith(prefix):
                    remove_tree(parent, name)


def _remove(branches: str, homes: list[PooledHome]) -> None:
    for pooled in homes:
        if pooled.premounted is not None:
            pooled.premounted.close()
    with suppress(OSError):  # another process's gc has removed it
        parent = open_root(branches)
        try:
            for pooled in homes:
                remove_tree(parent, os.path.basename(pooled.home))
        finally:
            os.close(parent)
