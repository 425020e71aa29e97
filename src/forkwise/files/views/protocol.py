"""What every view of a branch offers: the one protocol that commits, forks and the command line know.

A view shows a branch as an ordinary directory. There are two families. *Layered* views (overlay, fuse) keep only what
changed, in overlayfs's format, in ``home/layer``. *Whole* views (btrfs, reflink, copy) keep a complete tree there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from forkwise.files.views.detached import Detached

__all__ = ["Base", "Refusal", "Site", "View"]


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

    def dress(self, home: str, lower: str, ahead: Detached | None = None) -> None:  # noqa: B027 - a whole tree has them
        """For a layered view: give what ``make`` put there the looks of the parent's own directory."""

    def bring_up_ahead(self, home: str, lower: str) -> Detached | None:
        """Do of ``show`` what can be done before anybody looks; None where that is nothing."""
        return None

    @abstractmethod
    def show(self, home: str, lowers: Sequence[str], *, writable: bool, ahead: Detached | None = None) -> str:
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
