"""Workspaces on a BranchFS or DaxFS mount: the filesystem itself creates, commits and drops their branches.

They have the interface of Workspace and Branch. Operations that these filesystems lack (history, undo, deltas, rebase)
raise BranchError.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, Protocol

from forkwise.errors import BranchError, BranchNotFoundError, BranchStaleError, MountError
from forkwise.files.branch import Branch, OnError, OnSuccess, Status, check_name, check_outcomes
from forkwise.files.store.changes import Commit, OnConflict
from forkwise.files.store.state import StateDir, locate
from forkwise.files.views import branchfs, daxfs
from forkwise.files.workspace import Workspace

__all__ = ["Driver", "MountedBranch", "MountedWorkspace", "find_driver", "mount_branchfs"]


class Driver(Protocol):
    """The operations of a branching filesystem."""

    mount: str

    def path(self, name: str) -> str: ...
    def create(self, name: str, parent: str | None = None) -> str: ...
    def commit(self, name: str) -> None: ...
    def abort(self, name: str) -> None: ...


def find_driver(path: str) -> tuple[str, Callable[[], Driver]] | None:
    """Find the branching filesystem that contains a directory.

    Return its name and a factory of its driver; None if the directory is on an ordinary filesystem.
    """
    mount = branchfs.find_mount(path)
    if mount is not None:
        return "branchfs", lambda: branchfs.BranchFS(mount)
    dax_mount = daxfs.find_mount(path)
    if dax_mount is not None:
        return "daxfs", lambda: daxfs.DaxFS(dax_mount, f"{locate(dax_mount).state}/daxfs")
    return None


def mount_branchfs(
    base: str | os.PathLike[str],
    mountpoint: str | os.PathLike[str] | None,
    binary: str | os.PathLike[str] | None,
    storage: str | os.PathLike[str] | None,
) -> str:
    """Mount a directory with a BranchFS binary. Return the mount point."""
    program = os.fspath(binary) if binary else os.environ.get("FORKWISE_BRANCHFS") or shutil.which("branchfs")
    if not program or not shutil.which(program):
        raise MountError(
            f"{os.fspath(base)} cannot be mounted: there is no BranchFS binary {program or ''}".rstrip(),
            view="branchfs",
            reason="no BranchFS binary",
            remedy="pass binary=, set FORKWISE_BRANCHFS, or open the directory itself: Workspace(path) needs no mount",
        )
    target = os.fspath(mountpoint) if mountpoint else tempfile.mkdtemp(prefix="forkwise-branchfs-")
    storage_path = None if storage is None else os.fspath(storage)
    return branchfs.mount_branchfs(program, os.fspath(base), target, storage_path).mount


class MountedWorkspace(Workspace):
    """A workspace on a BranchFS or DaxFS mount. ``Workspace(path)`` creates one if ``path`` is on such a mount."""

    def __init__(self, path: str | os.PathLike[str], *, view: str | None = None, **_: Any) -> None:
        found = find_driver(os.path.realpath(path))
        assert found is not None
        self._name, driver = found
        if view is not None and view != self._name:
            raise MountError(
                f"{os.fspath(path)} is a {self._name} mount, which has its own branches: the view {view} is not "
                "available",
                view=view,
                reason=f"the workspace is a {self._name} mount",
                remedy=f"leave the view out, or open the directory {self._name} was mounted from",
            )
        self.driver = driver()
        self.target = self.driver.mount
        self.durable = True
        self.generation = 0

    @property
    def state(self) -> Path:
        """The mount itself: the filesystem stores its branches."""
        return Path(self.target)

    @property
    def fstype(self) -> str:
        return self._name

    def branch(self, name: str, on_success: OnSuccess = "commit", on_error: OnError = "abort") -> Branch:
        return MountedBranch.make(self, name, on_success, on_error)

    def open(self, name: str) -> Branch:
        wanted = name.removeprefix("/main/").strip("/")
        if not os.path.isdir(self.driver.path(wanted)):
            raise BranchNotFoundError(f"there is no branch {wanted!r} on {self.target}", branch=wanted)
        return MountedBranch(self, wanted, wanted)

    def branches(self) -> list[Branch]:
        _cannot(self._name, "list its branches")

    def history(self) -> list[Commit]:
        _cannot(self._name, "report its commits")

    def undo(self, commit: int | Commit | None = None) -> Commit:
        _cannot(self._name, "undo a commit")

    def gc(self, *, force: bool = False, keep: int = 50, dry_run: bool = False) -> NoReturn:
        _cannot(self._name, "collect garbage")


class MountedBranch(Branch):
    """A branch on a BranchFS or DaxFS mount."""

    __slots__ = ("_children", "_generation", "driver_name")

    def __init__(
        self,
        parent: MountedWorkspace | MountedBranch,
        name: str,
        driver_name: str,
        on_success: OnSuccess = None,
        on_error: OnError = None,
    ) -> None:
        self.parent = parent
        self.name = name
        self.driver_name = driver_name
        self.home = self._driver.path(driver_name)
        self.state_dir = StateDir(self.home, self.home)
        self.target = self.home
        self._on_success = on_success
        self._on_error = on_error
        self._ended = None
        self._untouched = 0
        self._children = 0
        self._generation = parent.generation

    @classmethod
    def make(
        cls, parent: MountedWorkspace | MountedBranch, name: str, on_success: OnSuccess, on_error: OnError
    ) -> MountedBranch:
        """Create a branch through the filesystem's driver."""
        check_name(name)
        check_outcomes(on_success, on_error)
        above = parent.driver_name if isinstance(parent, MountedBranch) else None
        driver_name = _mounted(parent).driver.create(name, above)
        return cls(parent, name, driver_name, on_success, on_error)

    @property
    def _driver(self) -> Driver:
        return _mounted(self).driver

    @property
    def generation(self) -> int:
        """The number of branches that this process committed into it."""
        return self._children

    @generation.setter
    def generation(self, value: int) -> None:
        self._children = value

    @property
    def view(self) -> str:
        return self.workspace.fstype

    @property
    def path(self) -> Path:
        self._require_open()
        return Path(self.home)

    @property
    def is_frozen(self) -> bool:
        return False

    @property
    def status(self) -> Status:
        if self._ended:
            return self._ended
        return "open" if self._generation == _parent(self).generation else "stale"

    def branch(self, name: str, on_success: OnSuccess = "commit", on_error: OnError = "abort") -> Branch:
        self._require_open()
        return MountedBranch.make(self, name, on_success, on_error)

    def commit(self, *, on_conflict: OnConflict = "refuse", durable: bool | None = None, trust: bool = False) -> Commit:
        """Have the filesystem merge the branch into its parent; the result names no paths.

        Some BranchFS and DaxFS builds let a stale branch be written and committed after its sibling: refuse that here.
        """
        self._require_open()
        parent = _parent(self)
        if self._generation != parent.generation:
            raise BranchStaleError(f"{self.branch_path} is stale: a sibling was committed first", branch=self.name)
        self._driver.commit(self.driver_name)
        parent.generation += 1
        self._ended = "committed"
        return Commit(id=0, kind="commit", branch=self.branch_path, at=datetime.fromtimestamp(time.time(), UTC))

    def abort(self) -> None:
        self._require_open()
        self._driver.abort(self.driver_name)
        self._ended = "aborted"

    def keep(self) -> Branch:
        self._on_success = self._on_error = None
        return self

    def delta(self) -> NoReturn:
        _cannot(self.view, "report what a branch changed")

    def diff(self) -> NoReturn:
        _cannot(self.view, "report what a branch changed")

    def rebase(self, *, merge: bool = True) -> NoReturn:
        _cannot(self.view, "rebase a branch")

    def freeze(self) -> NoReturn:
        _cannot(self.view, "freeze a branch")

    def thaw(self) -> NoReturn:
        _cannot(self.view, "freeze a branch")


def _mounted(node: Branch | Workspace) -> MountedWorkspace:
    workspace = node.workspace
    assert isinstance(workspace, MountedWorkspace)
    return workspace


def _parent(branch: MountedBranch) -> MountedWorkspace | MountedBranch:
    parent = branch.parent
    assert isinstance(parent, MountedWorkspace | MountedBranch)
    return parent


def _cannot(filesystem: str, operation: str) -> NoReturn:
    raise BranchError(
        f"{filesystem} cannot {operation}; to let forkwise do it, open the directory it was mounted from as a workspace"
    )
