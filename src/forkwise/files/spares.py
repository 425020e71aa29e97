"""Spares: homes made ready before they are asked for, so that who makes many branches does not wait for each.

What costs most in making a branch is making its directories. From the second branch of a workspace on, a process keeps
a few empty ones in stock, made in the background; they go with it.
"""

from __future__ import annotations

import os
import time
import weakref
from contextlib import suppress
from itertools import count

from forkwise.files.trash import later
from forkwise.files.views.protocol import View

__all__ = ["Spares"]

_STOCK = 8
_PAUSE = 0.002  # seconds for whoever has just got a branch to look into it undisturbed
_serial = count()


class Spares:
    """The stock of one workspace and view."""

    def __init__(self, branches: str, view: View) -> None:
        self._branches = branches
        self._view = view
        self._ready: list[str] = []
        self._asked = 0
        weakref.finalize(self, _clear, self._ready)

    def take(self) -> str | None:
        """A home with the view's directories in it; None where none is ready."""
        self._asked += 1
        if self._asked > 1 and len(self._ready) < _STOCK // 2:
            later(self._fill)
        with suppress(IndexError):
            return self._ready.pop()
        return None

    def _fill(self) -> None:
        time.sleep(_PAUSE)
        while len(self._ready) < _STOCK:
            home = f"{self._branches}/.spare-{os.getpid()}-{next(_serial)}"
            os.mkdir(home, 0o700)
            if not self._view.prepare(home):
                os.rmdir(home)
                return
            self._ready.append(home)


def _clear(ready: list[str]) -> None:
    for home in ready:
        with suppress(OSError):  # somebody's gc has taken it
            for name in os.listdir(home):
                os.rmdir(f"{home}/{name}")
            os.rmdir(home)
