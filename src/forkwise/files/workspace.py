"""Workspace: the user's directory, and the root of its tree of branches.

Any directory will do: nothing has to be mounted or set up. Undo, gc and mounted filesystems are loaded on first use.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkwise.errors import BranchNotFoundError, ForkwiseWarning
from forkwise.files.branch import Branch, Parent
from forkwise.files.store.changes import Commit
from forkwise.files.store.pool import BranchPool
from forkwise.files.store.state import StateDir, is_ordinary, locate, locked
from forkwise.files.undo import finish_rewind, is_rewind_interrupted
from forkwise.files.views import choose
from forkwise.linux import fds, namespace
from forkwise.linux.root_identity import RootIdentity

if TYPE_CHECKING:
    from forkwise.files.gc import Collected
    from forkwise.files.store.view import View

__all__ = ["Workspace"]

_choice = fds.ForkSafeLock()  # so that only one thread probes the views when several create a first branch
_MANY = 1000  # entries of a workspace that take a moment to copy


class Workspace(Parent):
    """A directory that can be forked into branches.

    ``view`` selects how branches are shown (``overlay``, ``btrfs``, ``fuse``, ``reflink``, ``copy``); the default is
    the best one that works on this system. ``state`` is the directory for branches and history; by default forkwise
    chooses one (see ``$FORKWISE_STATE``). With ``durable=False`` commits skip the syncs, except those committed with
    ``durable=True``. With ``frozen=True`` new branches show the workspace as it was when they were created, whatever is
    edited there later; MountError if its filesystem has neither snapshots (btrfs) nor clones (XFS).
    ``allow_executable_config`` is the default for every ``Branch.commit`` through this object, including the commit of
    a pattern's winner.

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
        from forkwise.files.mounted import MountedWorkspace, find_branching_mount  # noqa: PLC0415 - rarely needed

        return super().__new__(MountedWorkspace if find_branching_mount(os.fspath(path)) else cls)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        view: str | None = None,
        state: str | os.PathLike[str] | None = None,
        durable: bool = True,
        frozen: bool = False,
        allow_executable_config: bool = False,
    ) -> None:
        self.site = locate(path, state)
        self.target = self.site.workspace
        self.state_dir = StateDir(self.site.state, self.site.state)
        self.durable = durable
        self.allow_executable_config = allow_executable_config
        self._view = choose(self.site, view, frozen=frozen) if view is not None or frozen else None
        self._pool: BranchPool | None = None
        _recover_if_interrupted(self)
        if is_rewind_interrupted(self):
            finish_rewind(self)

    @classmethod
    def mount(
        cls,
        base: str | os.PathLike[str],
        mountpoint: str | os.PathLike[str] | None = None,
        *,
        storage: str | os.PathLike[str] | None = None,
        branchfs_bin: str | os.PathLike[str] | None = None,
        binary: str | os.PathLike[str] | None = None,
    ) -> Workspace:
        """Mount a directory with BranchFS and open it; ``close``, or the end of a ``with`` block, unmounts it.

        Without ``mountpoint`` and ``storage`` the mount gets new directories, which ``close`` removes. ``branchfs_bin``
        (or ``binary``) defaults to ``$FORKWISE_BRANCHFS``, then to ``branchfs`` on the ``PATH``. Only BranchFS needs
        this: ``Workspace(path)`` opens any directory without a mount.
        """
        from forkwise.files.mounted import mount_workspace  # noqa: PLC0415

        return mount_workspace(base, mountpoint, branchfs_bin or binary, storage)

    def close(self) -> None:
        """Unmount the workspace if ``Workspace.mount`` mounted it; otherwise there is nothing to close."""

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Workspace {self.path}>"

    @property
    def path(self) -> Path:
        """The directory itself."""
        return Path(self.target)

    @property
    def state(self) -> Path:
        """The directory that holds its branches and its history."""
        return Path(self.site.state)

    @property
    def fstype(self) -> str:
        """The name of the view that new branches get."""
        return self.child_view().name

    @property
    def workspace(self) -> Workspace:
        """This workspace itself."""
        return self

    @property
    def branch_path(self) -> str:
        """The root of the tree of branches: always ``/main``."""
        return "/main"

    @property
    def lowers(self) -> list[str]:
        """Internal: the directories that a branch shows below its own layer, nearest first."""
        return [self.target]

    def open(self, name: str) -> Branch:
        """Open an existing branch by its name or its path (``a``, ``a/v1``, ``/main/a/v1``)."""
        parts = name.removeprefix("/main/").strip("/").split("/")
        found: Parent = self
        for part in parts:
            _recover_if_interrupted(found)
            found = Branch.open(found, part)
        if isinstance(found, Branch):
            return found
        raise BranchNotFoundError(f"{name!r} names no branch; give the name or the path of one", branch=name)

    def branches(self) -> list[Branch]:
        """List all open branches, whichever process created them; each comes before its nested branches."""
        return self._settled_branches(_recover_if_interrupted)

    def _settled_branches(self, recover: Callable[[Parent], None] = Parent._recover) -> list[Branch]:
        """List all open branches after rolling back interrupted commits. Call it under the exclusive lock."""
        found: list[Branch] = []
        pending: list[Parent] = [self]
        while pending:
            parent = pending.pop()
            recover(parent)
            children = parent.children()
            found += children
            pending += children
        return sorted(found, key=lambda b: b.branch_path)

    def history(self) -> list[Commit]:
        """List the commits, undos and redos, newest first."""
        from forkwise.files.undo import history  # noqa: PLC0415

        return history(self)

    def undo(self, commit: int | Commit | None = None) -> Commit:
        """Undo a commit, by default the last one that is not undone. Undoing an undo applies the commit again.

        Content, modes, times and symlinks are restored exactly. Raises ConflictError, and changes nothing, if one of
        the commit's paths was changed since.
        """
        from forkwise.files.undo import undo  # noqa: PLC0415

        return undo(self, commit.id if isinstance(commit, Commit) else commit)

    def gc(self, *, force: bool = False, keep: int = 50, dry_run: bool = False) -> Collected:
        """Remove the branches of dead processes, and the undo records of all but the last ``keep`` commits.

        A branch with uncommitted changes is listed but not removed, unless ``force`` is given.
        """
        from forkwise.files.gc import collect  # noqa: PLC0415

        return collect(self, force=force, keep=keep, dry_run=dry_run)

    def child_view(self) -> View:
        """Return the view that a branch created now gets. Internal."""
        if self._view is None:
            with _choice.hold():
                if self._view is None:
                    self._view = choose(self.site)
                    if self._view.name == "copy":
                        _warn_of_copies(self.target)
        return self._view

    def _pool_for(self, view: View) -> BranchPool | None:
        if self._pool is None and not view.whole:
            self._pool = BranchPool(self.state_dir, view, self.target)
        return self._pool

    def _root_identity(self) -> RootIdentity | None:
        return RootIdentity.of(self.target)

    def _before_fork(self) -> None:
        """Do nothing: a workspace stays writable while it has branches."""

    def _before_commit(self) -> None:
        """Do nothing: a workspace is a plain directory, with no view to take down."""

    def _after_child_removed(self) -> None:
        """Do nothing: a workspace was never frozen."""


def _warn_of_copies(target: str) -> None:
    """Warn if every branch will copy many files because no other view is available."""
    count = 0
    for _, directories, files in os.walk(target):
        count += len(directories) + len(files)
        if count >= _MANY:
            break
    else:
        return
    can_enter = os.geteuid() != 0 and namespace.available()
    remedy = (
        "call forkwise.enter_namespace() at the start of the program, while it has a single thread, for branches that "
        "cost nothing"
        if can_enter
        else "forkwise doctor lists the other views and what each of them needs"
    )
    warnings.warn(
        f"no view but copy is available for {target}: every branch copies all its files, which are more than "
        f"{_MANY:,}; {remedy}",
        ForkwiseWarning,
        stacklevel=4,
    )


def _recover_if_interrupted(parent: Parent) -> None:
    """Roll back an interrupted commit; take the lock only if there is one."""
    if parent._is_interrupted:
        with locked(parent.state_dir.state):
            parent._recover()
