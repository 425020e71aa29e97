"""Spares: homes made ready before they are asked for, so that who makes many branches does not wait for each.

What costs most in making a branch is making its directories, its first file, and what the kernel makes for its view.
From the second branch of a workspace on, a process keeps a few in stock, made in the background while nobody is being
served. They go with the process, or when no branch was asked for in a while.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

from forkwise.files.store.branch_info import BranchInfo
from forkwise.files.store.record import Record
from forkwise.files.store.state import StateDir
from forkwise.files.store.trash import run_later
from forkwise.files.store.view import DetachedMount, View
from forkwise.linux.trees import open_root, remove_tree

__all__ = ["BranchPool", "PooledHome", "pool_paused"]

_STOCK = 16
_PAUSE = 0.0003  # seconds for whoever has just got a branch to look into it undisturbed
_PATIENCE = 3  # pauses
_LONGEST = 0.1  # seconds that it is put off while somebody is in a hurry
_IDLE = 60.0  # seconds after which a stock that nobody draws from is given up: its mounts hold their filesystem
_MOUNTS = 64  # more than so many are not kept ready: each is a descriptor, and a branch has it until it is looked at
_TICK = 900_000  # nanoseconds: the clock of no kernel ticks faster
_TOUCHES = 50
_serial = count()


_hurried: list[None] = []  # one for each who is


@contextmanager
def pool_paused() -> Iterator[None]:
    """Let no stock be filled while the block lasts, or not for long: it takes processors and the disk."""
    _hurried.append(None)
    try:
        yield
    finally:
        _hurried.pop()


class PooledHome:
    """A home in stock: the head it was made for, what the parent's directory was when it was dressed like it, the time
    it has as long as nothing is added to it, and its view as far as that is up."""

    __slots__ = ("ahead", "generation", "home", "looks", "untouched")

    def __init__(self, home: str, generation: int, looks: tuple[int, int, int], untouched: int) -> None:
        self.home = home
        self.generation = generation
        self.looks = looks
        self.untouched = untouched
        self.ahead: DetachedMount | None = None

    def fit(self, view: View, lower: str, head: int) -> None:
        """Make it, now, a branch of what the parent is at the commit ``head``; FileNotFoundError where it is gone."""
        if self.generation != head:
            BranchInfo.create_unstamped(self.home, view.name, head)
        BranchInfo.stamp(self.home)
        looks = _looks(lower)
        if looks == self.looks:
            return
        if looks[:2] != self.looks[:2] and self.ahead is not None:
            self.ahead.close()  # it is of a directory that is no longer the parent's
            self.ahead = None
        view.dress(self.home, lower, self.ahead)


class BranchPool:
    """The stock of one workspace and layered view."""

    def __init__(self, place: StateDir, view: View, lower: str) -> None:
        self._place = place
        self._view = view
        self._lower = lower
        self._ready: list[PooledHome] = []
        self._owner = os.getpid()
        self._asked = 0
        self._asked_at = 0.0
        self._is_filling = False
        self._is_watched = False
        self._is_fine: bool | None = None
        weakref.finalize(self, _clear, place.home(""), self._ready, self._owner)

    def take(self) -> PooledHome | None:
        """One of them; None where none is ready. Somebody's gc may have taken it. ``refill`` comes after."""
        if self._owner != os.getpid():
            return None  # a process forked since has them too
        self._asked += 1
        self._asked_at = time.monotonic()
        try:
            return self._ready.pop()
        except IndexError:
            return None

    def refill(self) -> None:
        """See to it that there are some again, soon: as many as were asked for so far, within reason."""
        wanted = min(self._asked, _STOCK)
        if wanted > 1 and len(self._ready) <= wanted * 3 // 4 and not self._is_filling and self._is_fine is not False:
            self._is_filling = True
            run_later(self._fill)

    def _fill(self) -> None:
        try:
            while len(self._ready) < min(self._asked, _STOCK) and self._is_fine is not False:
                self._wait_for_quiet()
                self._make_one()
        finally:
            self._is_filling = False
        if self._ready and not self._is_watched:
            self._is_watched = True
            _watch(weakref.ref(self))

    def _wait_for_quiet(self) -> None:
        begun = time.monotonic()
        while _hurried and time.monotonic() - begun < _LONGEST:
            time.sleep(_PAUSE)
        for _ in range(_PATIENCE):
            if time.monotonic() - self._asked_at >= _PAUSE:
                break
            time.sleep(_PAUSE)

    def _make_one(self) -> None:
        home = self._place.home(f".spare-{self._owner}-{next(_serial)}")
        generation = self._place.head
        os.mkdir(home, 0o700)
        spare = PooledHome(home, generation, _looks(self._lower), 0)
        try:
            self._view.make(home, [self._lower])
            Record.make_room(home)
            BranchInfo.create_unstamped(home, self._view.name, generation)
            if self._is_fine is None:
                self._is_fine = _has_fine_clock(home)
            if self._is_fine:
                if DetachedMount.count() < _MOUNTS:
                    spare.ahead = self._view.bring_up_ahead(home, self._lower)
                spare.untouched = os.stat(home).st_mtime_ns
                self._ready.append(spare)
                return
        except BaseException:
            _remove(self._place.home(""), [spare])
            raise
        _remove(self._place.home(""), [spare])

    def give_up(self) -> None:
        """Let the stock go, if nobody has asked for a branch in a while."""
        if time.monotonic() - self._asked_at < _IDLE:
            _watch(weakref.ref(self))
            return
        self._is_watched = False
        self._asked = 0
        gone = self._ready[:]
        del self._ready[: len(gone)]
        _remove(self._place.home(""), gone)


def _watch(stock: weakref.ref[BranchPool]) -> None:
    timer = threading.Timer(_IDLE, _look_after, [stock])
    timer.daemon = True
    timer.start()


def _look_after(stock: weakref.ref[BranchPool]) -> None:
    found = stock()
    if found is not None:
        run_later(found.give_up)


def _looks(directory: str) -> tuple[int, int, int]:
    """What is another as soon as anything of a directory is."""
    found = os.stat(directory)
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _has_fine_clock(home: str) -> bool:
    """Whether each change of a file that was looked at since the last has a time of its own: only then the time of a
    file tells the moment of a birth. A clock that ticks gives two the same, or such as are a whole tick apart."""
    before = os.stat(home).st_mtime_ns
    for _ in range(_TOUCHES):
        os.utime(home)
        after = os.stat(home).st_mtime_ns
        if after - before < _TICK:
            return after > before
        before = after
    return False


def _clear(branches: str, ready: list[PooledHome], owner: int) -> None:
    if owner == os.getpid():
        _remove(branches, ready)


def _remove(branches: str, spares: list[PooledHome]) -> None:
    for spare in spares:
        if spare.ahead is not None:
            spare.ahead.close()
    with suppress(OSError):  # somebody's gc has taken it
        parent = open_root(branches)
        try:
            for spare in spares:
                remove_tree(parent, os.path.basename(spare.home))
        finally:
            os.close(parent)
