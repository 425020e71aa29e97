"""Workspace: a directory somebody cares about. Any directory: nothing has to be mounted or set up."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkwise.errors import BranchNotFoundError
from forkwise.files.branch import Branch, Parent
from forkwise.files.store.changes import Commit
from forkwise.files.store.pool import BranchPool
from forkwise.files.store.state import StateDir, is_ordinary, locate, locked
from forkwise.files.store.view import View
from forkwise.files.undo import finish_rewind, is_rewind_interrupted
from forkwise.files.views import choose

if TYPE_CHECKING:
    from forkwise.files.gc import Collected

__all__ = ["Workspace"]


class Workspace(Parent):
    """A directory that can be forked into branches.

    ``view`` forces one way of seeing branches (``overlay``, ``btrfs``, ``fuse``, ``reflink``, ``copy``); by default the
    best that works here is taken. ``state`` says where branches and history are kept; by default that is found (see
    ``$FORKWISE_STATE``). ``durable=False`` makes commits skip the syncs unless told otherwise.

    >>> import tempfile, pathlib
    >>> project = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (project / "a.txt").write_text("one")
    >>> with Workspace(project).branch("attempt") as b:
    ...     _ = (b.path / "a.txt").write_text("two")
    >>> (project / "a.txt").read_text()
    'two'
    """

    def __new__(cls, path: str | os.PathLike[str], **_: Any) -> Workspace:
        if cls is not Workspace or not os.path.isdir(path) or is_ordinary(path):
            return super().__new__(cls)
        from forkwise.files.mounted import MountedWorkspace, find_driver  # noqa: PLC0415 - few need it

        return super().__new__(MountedWorkspace if find_driver(os.path.realpath(path)) else cls)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        view: str | None = None,
        state: str | os.PathLike[str] | None = None,
        durable: bool = True,
    ) -> None:
        self.site = locate(path, state)
        self.target = self.site.workspace
        self.place = StateDir(self.site.state, self.site.state)
        self.durable = durable
        self._view = None if view is None else choose(self.site, view)
        self._spares: BranchPool | None = None
        _settle(self)
        if is_rewind_interrupted(self):
            finish_rewind(self)

    @classmethod
    def mount(
        cls,
        base: str | os.PathLike[str],
        mountpoint: str | os.PathLike[str] | None = None,
        *,
        binary: str | os.PathLike[str] | None = None,
        storage: str | os.PathLike[str] | None = None,
    ) -> Workspace:
        """Mount a directory with a BranchFS binary (by default ``$FORKWISE_BRANCHFS`` or the one on the path) and open
        it. Nothing else here needs a mount: ``Workspace(path)`` opens any directory."""
        from forkwise.files.mounted import mount_branchfs  # noqa: PLC0415

        return cls(mount_branchfs(base, mountpoint, binary, storage))

    def __repr__(self) -> str:
        return f"<Workspace {self.path}>"

    @property
    def path(self) -> Path:
        """The directory itself."""
        return Path(self.target)

    @property
    def state(self) -> Path:
        """Where its branches and its history are kept."""
        return Path(self.site.state)

    @property
    def fstype(self) -> str:
        """The name of the view its new branches get."""
        return self.child_view().name

    @property
    def workspace(self) -> Workspace:
        return self

    @property
    def branch_path(self) -> str:
        return "/main"

    @property
    def lowers(self) -> list[str]:
        return [self.target]

    def open(self, name: str) -> Branch:
        """Open an existing branch by its name or its path (``a``, ``a/v1``, ``/main/a/v1``)."""
        parts = name.removeprefix("/main/").strip("/").split("/")
        found: Parent = self
        for part in parts:
            _settle(found)
            found = Branch.open(found, part)
        if isinstance(found, Branch):
            return found
        raise BranchNotFoundError("a branch has a name", branch=name)

    def branches(self) -> list[Branch]:
        """All branches, nested ones after what they were made from, whichever process made them."""
        return self.settled_branches(_settle)

    def settled_branches(self, settle: Callable[[Parent], None] = Parent.recover) -> list[Branch]:
        """The same, for who holds the exclusive lock already."""
        found: list[Branch] = []
        pending: list[Parent] = [self]
        while pending:
            parent = pending.pop()
            settle(parent)
            children = parent.children()
            found += children
            pending += children
        return sorted(found, key=lambda b: b.branch_path)

    def history(self) -> list[Commit]:
        """What was committed and undone, newest first."""
        from forkwise.files.undo import history  # noqa: PLC0415

        return history(self)

    def undo(self, commit: int | Commit | None = None) -> Commit:
        """Take back a commit, by default the last one that stands; the undo of an undo brings it back.

        Content, modes, times and symlinks are restored exactly. Refuses, with ConflictError and nothing changed, where
        somebody changed one of its paths since.
        """
        from forkwise.files.undo import undo  # noqa: PLC0415

        return undo(self, commit.id if isinstance(commit, Commit) else commit)

    def gc(self, *, force: bool = False, keep: int = 50, dry_run: bool = False) -> Collected:
        """Remove what dead processes left and the content of all but the last ``keep`` commits.

        A branch with uncommitted changes is listed and left, unless ``force`` is given.
        """
        from forkwise.files.gc import collect  # noqa: PLC0415

        return collect(self, force=force, keep=keep, dry_run=dry_run)

    def child_view(self) -> View:
        if self._view is None:
            self._view = choose(self.site)
        return self._view

    def spares(self, view: View) -> BranchPool | None:
        if self._spares is None and not view.whole:
            self._spares = BranchPool(self.place, view, self.target)
        return self._spares

    def before_fork(self) -> None:
        """Nothing to do: a workspace stays as writable as it is."""

    def before_commit(self) -> None:
        """Nothing to do: a workspace is a plain directory."""

    def after_child_removed(self) -> None:
        """Nothing to do: it was never frozen."""


def _settle(parent: Parent) -> None:
    """Take back what was interrupted; the lock is asked for only where something was."""
    if parent.is_interrupted:
        with locked(parent.place.state):
            parent.recover()
