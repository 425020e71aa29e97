"""Spares: homes made ready before they are asked for, so that who makes many branches does not wait for each.

What costs most in making a branch is making its directories and its first file. From the second branch of a workspace
on, a process keeps a few in stock, made in the background; they go with it.
"""

from __future__ import annotations

import os
import time
import weakref
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from forkwise.files.beneath import open_root
from forkwise.files.birth import Birth
from forkwise.files.removing import remove_tree
from forkwise.files.state import Place
from forkwise.files.trash import later
from forkwise.files.views.protocol import View

__all__ = ["Spare", "Spares"]

_STOCK = 8
_PAUSE = 0.002  # seconds for whoever has just got a branch to look into it undisturbed
_TICK = 900_000  # nanoseconds: the clock of no kernel ticks faster
_serial = count()


class Spare(NamedTuple):
    """A home in stock: the head it was made for, what the parent's directory was when it was dressed like it, and the
    time it has as long as nothing is added to it."""

    home: str
    generation: int
    dressed_like: tuple[int, int, int]
    untouched: int

    def dress(self, view: View, lower: str) -> None:
        """Give it the looks that the parent's directory has now, if it had others when this was made."""
        if self.dressed_like != _looks(lower):
            view.dress(self.home, lower)


class Spares:
    """The stock of one workspace and layered view."""

    def __init__(self, place: Place, view: View, lower: str) -> None:
        self._place = place
        self._view = view
        self._lower = lower
        self._ready: list[Spare] = []
        self._owner = os.getpid()
        self._asked = 0
        weakref.finalize(self, _clear, place.home(""), self._ready, self._owner)

    def take(self, generation: int) -> Spare | None:
        """One that fits; None where none is ready. Somebody's gc may have taken it."""
        if self._owner != os.getpid():
            return None  # a process forked since has them too
        self._asked += 1
        if self._asked > 1 and len(self._ready) < _STOCK // 2:
            later(self._fill)
        with suppress(IndexError):
            spare = self._ready.pop()
            if spare.generation == generation:
                return spare
            later(lambda: _remove(self._place.home(""), [spare]))
        return None

    def _fill(self) -> None:
        time.sleep(_PAUSE)
        while len(self._ready) < _STOCK:
            home = self._place.home(f".spare-{self._owner}-{next(_serial)}")
            generation = self._place.head
            os.mkdir(home, 0o700)
            before = os.stat(home).st_mtime_ns
            seen = _looks(self._lower)
            self._view.make(home, [self._lower])
            Birth.write_ahead(home, self._view.name, generation)
            after = os.stat(home).st_mtime_ns
            if not 0 < after - before < _TICK:
                # A coarse clock, or one that has just ticked: only a fine one tells the moment of a birth.
                _remove(self._place.home(""), [Spare(home, generation, seen, after)])
                return
            self._ready.append(Spare(home, generation, seen, after))


def _looks(directory: str) -> tuple[int, int, int]:
    """What is another as soon as anything of a directory is."""
    found = os.stat(directory)
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _clear(branches: str, ready: list[Spare], owner: int) -> None:
    if owner == os.getpid():
        _remove(branches, ready)


def _remove(branches: str, spares: list[Spare]) -> None:
    with suppress(OSError):  # somebody's gc has taken it
        parent = open_root(branches)
        for spare in spares:
            remove_tree(parent, os.path.basename(spare.home))
        os.close(parent)
