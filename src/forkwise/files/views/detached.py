"""Detached: an overlay that is mounted already, where nobody sees it, until somebody wants to look.

Most of what a mount costs is what the kernel makes in the work directory. That can be done ahead, also while the
workspace still changes: of what lies below, such a mount has seen the topmost directory and nothing in it. It hangs on
a descriptor, goes with the process at the latest, and no child of that gets it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress

from forkwise.files.syscalls import fsmount, fsopen, move_mount

__all__ = ["Detached"]

_guard = threading.Lock()  # held by whoever forks: what is mounted is listed below, or not mounted yet


class Detached:
    """An overlay that hangs on a descriptor. ``layer`` is where its writes would land."""

    __slots__ = ("__weakref__", "_fd", "_stamp", "layer")

    def __init__(self, layer: str, options: Mapping[str, str | None]) -> None:
        self._fd = -1
        self.layer = layer
        ready = fsopen("overlay", options)
        try:
            with _guard:
                self._fd = fsmount(ready)
                _all.add(self)
        finally:
            os.close(ready)
        self._stamp = _stamp(layer)

    @staticmethod
    def count() -> int:
        """How many there are."""
        return len(_all)

    @property
    def root(self) -> str:
        """A path to what would be seen, for who may change that before anybody sees it; see ``changed``."""
        return f"/proc/self/fd/{self._fd}"

    def changed(self) -> None:
        """Take what the layer's own directory is now for what it has to be."""
        self._stamp = _stamp(self.layer)

    def attach(self, layer: str, view: str) -> bool:
        """Put it in its place, where all see it. False where that cannot be: since it was mounted somebody has written
        to the layer without it, or it belongs to the process that this one was forked from."""
        if self._fd < 0 or _stamp(layer) != self._stamp:
            return False
        try:
            move_mount(self._fd, view)
        except OSError:
            return False  # whoever mounts it the long way is told why
        finally:
            self.close()
        return True

    def close(self) -> None:
        """Let go of it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _all.discard(self)
            os.close(fd)

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):  # the interpreter is going
            self.close()


def _stamp(directory: str) -> tuple[int, int]:
    """What is another as soon as a name was put into an empty directory, or its metadata were changed."""
    found = os.stat(directory)
    return found.st_ino, found.st_ctime_ns


def _forget() -> None:
    for detached in list(_all):
        detached.close()
    _guard.release()


_all: weakref.WeakSet[Detached] = weakref.WeakSet()
os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_forget)
