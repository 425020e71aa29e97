"""Detached: an overlay that is mounted already, where nobody sees it, until somebody wants to look.

Most of what a mount costs is what the kernel makes in the work directory. That can be done ahead, also while the
workspace still changes: of what lies below, such a mount has seen the topmost directory and nothing in it. It hangs on
a descriptor, goes with the process at the latest, and no child of that gets it.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from forkwise.linux.syscalls import fsmount, fsopen, move_mount

__all__ = [
    "Base",
    "DetachedMount",
    "Refusal",
    "Site",
    "View",
]


@dataclass(frozen=True, slots=True)
class Site:
    """Where a workspace and its state directory lie; both exist and both are absolute real paths."""

    workspace: str
    state: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a view cannot be had, and what would enable it."""

    reason: str
    remedy: str


class Base(ABC):
    """What a whole view's tree held when it was made, so that later deletions and replaced directories show."""

    @abstractmethod
    def directory(self, path: str) -> tuple[int, frozenset[str]] | None:
        """The inode number and the names of a directory ('' is the root), or None where there was no directory."""

    @abstractmethod
    def origin(self, path: str) -> int:
        """The inode number of the parent's directory that one was made from; 0 where that is not known, or no inode
        number of that filesystem lasts."""


class View(ABC):
    """One way of seeing a branch as an ordinary directory.

    ``home`` is the branch's own directory. ``lowers`` is what the branch was forked from, nearest first: the layers of
    the branches above it, then the workspace. For a whole view the first of them is already a complete tree.
    """

    name: ClassVar[str]
    whole: ClassVar[bool]
    #: Names of the files with which a layered view marks its layer, beside whiteouts and attributes.
    mark_files: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def refusal(self, site: Site) -> Refusal | None:
        """Why this user cannot have this view at this site; None where they can."""

    def refusal_if_asked(self, site: Site) -> Refusal | None:
        """The same for somebody who asked for this very view, and takes it also where only a sandbox can show it."""
        return self.refusal(site)

    @abstractmethod
    def make(self, home: str, lowers: Sequence[str]) -> None:
        """Put into the new directory ``home`` what a branch needs before anybody looks at it."""

    def dress(self, home: str, lower: str, ahead: DetachedMount | None = None) -> None:  # noqa: B027 - a whole tree has them
        """For a layered view: give what ``make`` put there the looks of the parent's own directory."""

    def bring_up_ahead(self, home: str, lower: str) -> DetachedMount | None:
        """Do of ``show`` what can be done before anybody looks; None where that is nothing."""
        return None

    @abstractmethod
    def show(self, home: str, lowers: Sequence[str], *, writable: bool, ahead: DetachedMount | None = None) -> str:
        """Where the branch is seen, brought up if it is not; ``writable`` is False for a frozen branch. ``ahead`` is
        what ``bring_up_ahead`` gave, for a branch that is writable."""

    @abstractmethod
    def seen(self, home: str) -> str | None:
        """Where the branch is seen if its view is up; a quick question that changes nothing."""

    @abstractmethod
    def hide(self, home: str) -> bool:
        """Take the view down. True where no process can write to the layer any more, so that it may be moved."""

    @abstractmethod
    def freeze(self, home: str, lowers: Sequence[str]) -> None:
        """Make the view read-only for whoever sees it; raises BranchError where files are open for writing."""

    def thaw(self, home: str, lowers: Sequence[str]) -> None:
        """Take back ``freeze``, now or at the next look."""
        self.hide(home)

    @abstractmethod
    def release(self, home: str) -> None:
        """Let go of everything but plain files (mounts, helper processes, subvolumes), so that ``home`` can go."""

    def flush(self, home: str) -> None:  # noqa: B027 - most views have nothing to do
        """See to it that all that was written through the view so far lies in the layer."""

    def base(self, home: str) -> Base | None:
        """For a whole view: what its tree held when it was made."""
        return None


_guard = threading.Lock()  # held by whoever forks: what is mounted is listed below, or not mounted yet


class DetachedMount:
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


_all: weakref.WeakSet[DetachedMount] = weakref.WeakSet()
os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_forget)
