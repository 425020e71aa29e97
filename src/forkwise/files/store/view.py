"""The ``View`` protocol: the ways in which a branch appears as an ordinary directory, and overlays mounted in advance.

The lifecycle of a view: ``make`` (or a pooled home, see ``pool``), ``show``, any number of ``freeze`` and ``thaw``,
``hide`` before a commit, ``release`` before the home is removed. The implementations are in ``files/views``.
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

from forkwise.files.store.overlayfs import OVERLAY_MARKS
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
    """The paths of a workspace and its state directory; both exist, and both are absolute real paths."""

    workspace: str
    state: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a view is not available, and what would enable it."""

    reason: str
    remedy: str


class Base(ABC):
    """The content of a whole view's tree when it was created, to detect deletions and replaced directories later."""

    @abstractmethod
    def directory(self, path: str) -> tuple[int, frozenset[str]] | None:
        """Return the inode number and the names of a directory ('' is the root); None if there was no directory."""

    @abstractmethod
    def origin(self, path: str) -> int:
        """Return the inode number of the parent's directory that a directory was copied from.

        Return 0 if it is unknown, or if that filesystem does not keep inode numbers.
        """


class View(ABC):
    """One way to show a branch as an ordinary directory.

    ``home`` is the branch's own directory. ``lowers`` is what the branch was forked from, nearest first: the layers of
    its ancestors, then the workspace. For a whole view the first of them is already a complete tree.
    """

    name: ClassVar[str]
    whole: ClassVar[bool]
    #: Names of the files with which a layered view marks its layer, in addition to whiteouts and attributes.
    mark_files: ClassVar[frozenset[str]] = frozenset()
    mark_prefixes: ClassVar[tuple[str, ...]] = OVERLAY_MARKS
    #: Whether the workspace's own filesystem stores, commits and drops the branch (BranchFS, DaxFS).
    native: ClassVar[bool] = False
    #: Whether the end of a branch is also the end of the branches around it (DaxFS).
    ends_chain: ClassVar[bool] = False
    #: What this view lacks that all others have, as one sentence for the user; empty if nothing.
    limits: ClassVar[str] = ""

    @abstractmethod
    def refusal(self, site: Site) -> Refusal | None:
        """Return why this user cannot use this view at this site; None if it is available."""

    def refusal_if_requested(self, site: Site) -> Refusal | None:
        """Return the refusal if the user requested this view by name, even if only a sandbox can mount it."""
        return self.refusal(site)

    @abstractmethod
    def make(self, home: str, lowers: Sequence[str]) -> None:
        """Create in the new directory ``home`` what the branch needs before ``show``."""

    def copy_metadata(self, home: str, lower: str, premounted: DetachedMount | None = None) -> None:  # noqa: B027 - a whole tree has them
        """Copy the metadata of the parent's root directory to the layer that ``make`` created; for layered views."""

    def premount(self, home: str, lower: str) -> DetachedMount | None:
        """Mount the view in advance, detached, if that is possible."""
        return None

    @abstractmethod
    def show(self, home: str, lowers: Sequence[str], *, writable: bool, premounted: DetachedMount | None = None) -> str:
        """Return the path at which the branch is visible; mount the view if it is not.

        ``writable`` is False for a frozen branch. ``premounted`` is the result of ``premount``, for a writable branch.
        """

    @abstractmethod
    def visible_path(self, home: str) -> str | None:
        """Return the path at which the branch is visible, quickly; None if its view is not mounted."""

    @abstractmethod
    def hide(self, home: str) -> bool:
        """Unmount the view; return True if no process can write to the layer any more, so that it may be moved."""

    def hide_frozen(self, home: str) -> tuple[bool, int]:
        """Unmount the view of a frozen branch; return what ``hide`` returns, and a descriptor, -1 if there is none.

        The caller closes the descriptor in the background, because closing takes as long as the rest.
        """
        return self.hide(home), -1

    @abstractmethod
    def freeze(self, home: str, lowers: Sequence[str]) -> None:
        """Make the view read-only for all processes; raise BranchError if files are open for writing."""

    def thaw(self, home: str, lowers: Sequence[str]) -> None:
        """Revert ``freeze``, now or at the next ``show``."""
        self.hide(home)

    @abstractmethod
    def release(self, home: str) -> None:
        """Release all but plain files (mounts, helper processes, subvolumes), so that ``home`` can be deleted."""

    def put_back(self, home: str, lowers: Sequence[str], paths: Sequence[str]) -> bool:
        """Restore some paths of a branch that was never shown to the workspace's version, by changing its layer.

        Returns False and changes nothing if that is possible only through the view, as it is for all whole views.
        """
        return False

    def flush(self, home: str) -> None:  # noqa: B027 - most views have nothing to do
        """Make sure that everything written through the view so far is in the layer."""

    def base(self, home: str) -> Base | None:
        """Return the content of the tree when it was created; for whole views."""
        return None


_guard = threading.Lock()  # held during a fork, so that every detached mount is registered in _all


class DetachedMount:
    """An overlay mounted on a descriptor only, visible to no path until ``attach``; ``layer`` is its upper directory.

    Most of the cost of a mount is what the kernel creates in the work directory. That can be done in advance, even
    while the workspace still changes: such a mount has looked up the root of the lower directory and nothing in it. It
    is unmounted at the latest when the process exits, and no child process inherits it.
    """

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
        """Return the number of detached mounts."""
        return len(_all)

    @property
    def root(self) -> str:
        """A path to the root of the detached mount, for changes before ``attach``; call ``changed`` after them."""
        return f"/proc/self/fd/{self._fd}"

    def fileno(self) -> int:
        """Return the descriptor, for a process that attaches the mount in its own mount namespace."""
        return self._fd

    def changed(self) -> None:
        """Accept the current state of the layer's root directory as unchanged."""
        self._stamp = _stamp(self.layer)

    def attach(self, layer: str, view: str) -> bool:
        """Attach the mount at ``view``, visible to all processes; return False if that is not possible.

        It is not possible if a process has written to the layer directly since the mount was made, or if the mount
        belongs to the process from which this one was forked.
        """
        if self._fd < 0 or _stamp(layer) != self._stamp:
            return False
        try:
            move_mount(self._fd, view)
        except OSError:
            return False  # the ordinary mount that follows reports the reason
        finally:
            self.close()
        return True

    def close(self) -> None:
        """Close the descriptor, which unmounts a mount that was not attached."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            _all.discard(self)
            os.close(fd)

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):  # the interpreter is shutting down
            self.close()


def _stamp(directory: str) -> tuple[int, int]:
    """Return numbers that change as soon as a name is added to an empty directory, or its metadata changes."""
    found = os.stat(directory)
    return found.st_ino, found.st_ctime_ns


def _close_all_after_fork() -> None:
    for detached in list(_all):
        detached.close()
    _guard.release()


_all: weakref.WeakSet[DetachedMount] = weakref.WeakSet()
os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_close_all_after_fork)
