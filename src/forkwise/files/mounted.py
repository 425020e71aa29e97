"""Workspaces on a BranchFS or DaxFS mount: the filesystem itself creates, commits and drops their branches.

forkwise records every branch in the state directory, outside the mount, like any other branch: its name, its owner, the
number of its parent's last commit. Only the files belong to the filesystem, which has no undo; ``limits`` of its view
says what else it lacks.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal, NoReturn, Protocol

from forkwise.errors import (
    BranchError,
    BranchNotFoundError,
    ForkwiseWarning,
    MountError,
    StateError,
)
from forkwise.files.branch import Branch, OnError, OnSuccess, Parent
from forkwise.files.commit import check_committable
from forkwise.files.executable_config import check_executable_config
from forkwise.files.store.branch_info import BranchInfo
from forkwise.files.store.record import Record, load_interrupted
from forkwise.files.store.scan import Scan, compare_trees
from forkwise.files.store.state import StateDir, locate, locked
from forkwise.files.store.transaction import as_commit_error
from forkwise.files.store.trash import deferred, discard
from forkwise.files.store.view import DetachedMount, Refusal, Site, View
from forkwise.files.versions import find_executables
from forkwise.files.views import branchfs, daxfs
from forkwise.files.workspace import Workspace
from forkwise.linux.mountinfo import mounts
from forkwise.linux.scratch_directory import create_scratch_directory

if TYPE_CHECKING:
    from forkwise.files.gc import Collected
    from forkwise.files.store.changes import Commit, OnConflict
    from forkwise.files.store.pool import PooledHome
    from forkwise.git.ignore_rules import Ignore

__all__ = [
    "BranchfsView",
    "DaxfsView",
    "Driver",
    "MountedBranch",
    "MountedView",
    "MountedWorkspace",
    "find_abandoned_branches",
    "find_branching_mount",
    "mount_workspace",
    "release_abandoned_mount",
]


class Driver(Protocol):
    """The operations of a branching filesystem. Its branches have names of their own."""

    mount: str

    def path(self, name: str) -> str: ...
    def split(self, path: str) -> tuple[str | None, str]: ...
    def exists(self, name: str) -> bool: ...
    def is_own_name(self, name: str) -> bool: ...
    def create(self, name: str, parent: str | None = None) -> str: ...
    def commit(self, name: str) -> None: ...
    def abort(self, name: str, *, nested: bool = False) -> None: ...


# Symbolic links in a branch's home that record data in their targets: the filesystem's name for the branch, its name
# for the branch it was forked from unless that is main, and the path at which the branch is visible.
_NAME, _PARENT, _PATH = "mount-branch", "mount-parent", "mount-path"


class MountedView(View):
    """A branch that the workspace's own filesystem shows."""

    whole: ClassVar[bool] = True
    native: ClassVar[bool] = True

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def refusal(self, site: Site) -> Refusal | None:
        return None

    def make(self, home: str, lowers: Sequence[str]) -> None:
        parent, inside = self.driver.split(lowers[0])
        name = self.driver.create(f"branch-{secrets.token_hex(8)}", parent)
        try:
            os.symlink(name, f"{home}/{_NAME}")
            if parent is not None:
                os.symlink(parent, f"{home}/{_PARENT}")
            os.symlink(os.path.join(self.driver.path(name), inside).rstrip("/"), f"{home}/{_PATH}")
        except BaseException:
            self.driver.abort(name, nested=parent is not None)
            raise

    def show(self, home: str, lowers: Sequence[str], *, writable: bool, premounted: DetachedMount | None = None) -> str:
        path = self.visible_path(home)
        if path is None:
            raise BranchNotFoundError(self.describe_gone(home), branch=os.path.basename(home))
        return path

    def visible_path(self, home: str) -> str | None:
        path = self.target(home)
        return path if os.path.isdir(path) else None

    def hide(self, home: str) -> bool:
        return False

    def freeze(self, home: str, lowers: Sequence[str]) -> None:
        """Do nothing: a branch with branches of its own stays writable, and these see what is written to it."""

    def release(self, home: str) -> None:
        if self.is_gone(home):
            return
        self.driver.abort(os.readlink(f"{home}/{_NAME}"), nested=os.path.lexists(f"{home}/{_PARENT}"))

    def target(self, home: str) -> str:
        """Return the path at which the filesystem shows a branch, whether the branch exists or not."""
        return os.readlink(f"{home}/{_PATH}")

    def is_gone(self, home: str) -> bool:
        """Return whether the filesystem no longer has the branch."""
        try:
            return not self.driver.exists(os.readlink(f"{home}/{_NAME}"))
        except FileNotFoundError:
            return True

    def describe_gone(self, home: str) -> str:
        """Return the message for a branch that the filesystem no longer has."""
        return (
            f"there is no branch {os.path.basename(home)!r} any more: it was committed or aborted without forkwise, or "
            f"{self.driver.mount} was mounted again"
        )


class BranchfsView(MountedView):
    """A branch of BranchFS."""

    name: ClassVar[str] = "branchfs"
    limits: ClassVar[str] = (
        "BranchFS commits and drops the branches itself: a commit cannot be undone and does not list its paths, "
        "directories that stayed empty are not part of it, and a diff has to compare both trees"
    )


class DaxfsView(MountedView):
    """A branch of DaxFS."""

    name: ClassVar[str] = "daxfs"
    ends_chain: ClassVar[bool] = True
    limits: ClassVar[str] = (
        "DaxFS commits and drops the branches itself: a commit cannot be undone, does not list its paths, includes the "
        "branches around the committed one, and is visible only in branches and mounts created later; tests run in the "
        "branch itself, and a diff has to compare both trees"
    )


def find_branching_mount(path: str) -> tuple[type[MountedView], str] | None:
    """Find the branching filesystem that contains a path.

    Return its view and its mount point; None if the path is on another filesystem.
    """
    if (mount := branchfs.find_mount(path)) is not None:
        return BranchfsView, mount
    if (mount := daxfs.find_mount(path)) is not None:
        return DaxfsView, mount
    return None


class _MountedParent(Parent):
    """A workspace or a branch on a branching filesystem, as the parent of branches."""

    def _child(
        self,
        name: str,
        view: View,
        on_success: OnSuccess = None,
        on_error: OnError = None,
        pooled: PooledHome | None = None,
    ) -> Branch:
        return MountedBranch(self, name, view, on_success, on_error)

    def _open_child(self, name: str) -> Branch:
        home, view = self.state_dir.home(name), _view_of(self)
        BranchInfo.load(home)
        if view.is_gone(home):
            raise BranchNotFoundError(view.describe_gone(home), branch=name)
        return MountedBranch(self, name, view)

    def _discard_unusable(self, home: str) -> bool:
        if os.path.isdir(home):
            discard(self.state_dir, home)
        return True

    def _recover(self) -> None:
        """Finish the record of a commit that was interrupted: it has happened if its branch no longer exists."""
        state_dir = self.state_dir
        if not state_dir.is_interrupted:
            return
        number = state_dir.head + 1
        history = state_dir.history(number)
        record = load_interrupted(state_dir, history)
        if record is None or record.home is None or not _view_of(self).is_gone(state_dir.home(record.home)):
            if os.path.isdir(history):
                discard(state_dir, history)
            state_dir.settle()
            return
        if state_dir.settled_head() is not None:
            state_dir.begin()
        state_dir.advance(number, settled=True)
        if os.path.isdir(state_dir.home(record.home)):
            discard(state_dir, state_dir.home(record.home))


class MountedWorkspace(_MountedParent, Workspace):
    """A workspace on a BranchFS or DaxFS mount. ``Workspace(path)`` creates one if ``path`` is on such a mount.

    ``path`` may also be a directory below the mount point, or the directory of a branch: new branches then show that
    directory, and are forked from that branch.
    """

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
        found = find_branching_mount(os.fspath(path))
        assert found is not None
        kind, mount = found
        if frozen:
            raise MountError(
                f"branches of {os.fspath(path)} cannot be frozen: {kind.name} decides what they show of later edits",
                view=kind.name,
                reason=f"the workspace is on a {kind.name} mount",
                remedy=f"open the directory {kind.name} was mounted from, on btrfs or XFS",
            )
        if view is not None and view != kind.name:
            raise MountError(
                f"{os.fspath(path)} is on a {kind.name} mount, which has its own branches: the view {view} is not "
                "available",
                view=view,
                reason=f"the workspace is on a {kind.name} mount",
                remedy=f"leave the view out, or open the directory {kind.name} was mounted from",
            )
        self.site = locate(path, state, outside=mount)
        self.target = self.site.workspace
        self.state_dir = StateDir(self.site.state, self.site.state)
        self.durable = durable
        self.allow_executable_config = allow_executable_config
        driver = branchfs.BranchFS(mount) if kind is BranchfsView else daxfs.DaxFS(mount, f"{self.site.state}/daxfs")
        self._view = kind(driver)
        self._pool = None
        self._own_mount: _OwnMount | None = None
        if self._is_interrupted:
            with locked(self.state_dir.state):
                self._recover()

    def history(self) -> list[Commit]:
        return [replace(commit, note=self.child_view().limits) for commit in super().history()]

    def undo(self, commit: int | Commit | None = None) -> Commit:
        """Raise BranchError: the filesystem keeps nothing of what a commit replaced."""
        _refuse(self, "undo a commit")

    def gc(self, *, force: bool = False, keep: int = 50, dry_run: bool = False) -> Collected:
        if not dry_run:
            with locked(self.state_dir.state):
                self._recover()
                _release_abandoned(self)
        return super().gc(force=force, keep=keep, dry_run=dry_run)

    def close(self) -> None:
        if self._own_mount is not None:
            self._own_mount.close(self)
            self._own_mount = None


class MountedBranch(_MountedParent, Branch):
    """A branch on a BranchFS or DaxFS mount."""

    __slots__ = ("_committed_with",)

    def __init__(
        self, parent: Parent, name: str, view: View, on_success: OnSuccess = None, on_error: OnError = None
    ) -> None:
        super().__init__(parent, name, view, on_success, on_error)
        self.target = _view_of(self).target(self.home)
        self._committed_with: Commit | None = None  # DaxFS: the commit of a branch inside it

    @property
    def is_frozen(self) -> bool:
        """Always False: the filesystem cannot make a branch read-only."""
        return False

    def commit(
        self,
        *,
        on_conflict: OnConflict = "refuse",
        durable: bool | None = None,
        trust: bool = False,
        rebased: bool = False,
        allow_executable_config: bool | None = None,
        ignore: Ignore | None = None,
    ) -> Commit:
        """Have the filesystem merge the branch into its parent; the result names no paths.

        A stale branch is refused here, because a build of BranchFS might commit it. On DaxFS the commit includes the
        branches around this one; calling ``commit`` on those afterwards returns the same commit. If a confined program
        wrote to the branch, both trees are compared first, to find executable configuration. The filesystem commits
        everything: ``ignore`` is refused.
        """
        if on_conflict not in ("refuse", "ours", "theirs", "merge"):
            raise ValueError(f"on_conflict takes refuse, ours, theirs or merge, not {on_conflict!r}")
        if ignore:
            _refuse(self, "commit a part of a branch")
        if self._committed_with is not None:
            return self._committed_with
        self._require_open()
        view = _view_of(self)
        with deferred(), as_commit_error(f"{self.branch_path} was not committed"), locked(self.state_dir.state):
            self._recover()
            chain = self._list_chain()
            for branch in chain:
                branch._check_committable(chain)
            allow = allow_executable_config
            _check_executables(chain, allow=self.workspace.allow_executable_config if allow is None else allow)
            outermost = chain[-1]
            commit = _record_commit(outermost, lambda: view.driver.commit(os.readlink(f"{self.home}/{_NAME}")))
            try:
                if view.ends_chain:
                    for left in reversed(outermost._list_tree()):
                        if not view.is_gone(left.home):
                            view.driver.abort(os.readlink(f"{left.home}/{_NAME}"), nested=True)
                discard(outermost.parent.state_dir, outermost.home)
            except (OSError, BranchError) as error:
                # The commit is done: an exception would say that it failed.
                warnings.warn(
                    f"{self.branch_path} was committed, but cleaning up failed: {error}", ForkwiseWarning, stacklevel=2
                )
        for branch in chain:
            branch._ended = "committed"
            branch._committed_with = None if branch is self else commit
        return commit

    def _list_chain(self) -> list[MountedBranch]:
        """List the branches that a commit ends: this one, and on DaxFS all around it, the outermost last."""
        chain = [self]
        while _view_of(self).ends_chain and isinstance(chain[-1].parent, MountedBranch):
            chain.append(chain[-1].parent)
        return chain

    def _check_committable(self, chain: Sequence[MountedBranch]) -> None:
        info = BranchInfo.load(self.home)
        if _view_of(self).is_gone(self.home):
            raise BranchNotFoundError(_view_of(self).describe_gone(self.home), branch=self.name)
        inner = [child.name for child in self.children()] if self is chain[0] else []
        check_committable(self, info, inner, "abort it and fork again")

    def _scan(self) -> Scan:
        """Compare the branch's tree with its parent's, because the filesystem does not report what was changed."""
        return compare_trees(self.target, self.parent.lowers[0], _view_of(self).driver.is_own_name)

    def rebase(self, *, merge: bool = True) -> NoReturn:
        _refuse(self, "rebase a branch")

    def freeze(self) -> NoReturn:
        _refuse(self, "make a branch read-only")

    def thaw(self) -> NoReturn:
        _refuse(self, "make a branch read-only")

    def _recover(self) -> None:
        self.parent._recover()  # may find that this branch was committed
        super()._recover()


def _check_executables(chain: Sequence[MountedBranch], *, allow: bool) -> None:
    """Raise ExecutableConfigError if one of the branches that a commit ends brings such files into the workspace.

    If the commit ends in another branch, that becomes one to which a confined program has written.
    """
    confined = [branch for branch in chain if branch.is_confined]
    parent = chain[-1].parent
    if confined and isinstance(parent, Branch):
        parent.mark_confined()
    elif not allow:
        for branch in confined:
            check_executable_config(branch, find_executables(branch, branch._scan()))


def _record_commit(branch: MountedBranch, carry_out: Callable[[], None]) -> Commit:
    """Record the commit of a branch in its parent's history around the filesystem's own commit.

    If that raises, nothing is recorded. After a kill in between, ``_recover`` finds out whether it happened.
    """
    state_dir = branch.parent.state_dir
    number = state_dir.head + 1
    history = state_dir.history(number)
    record = Record(
        number=number,
        kind="commit",
        branch=branch.branch_path,
        at=time.time(),
        durable=False,
        layer=None,
        side=f"history/{number}",
        home=branch.name,
    )
    state_dir.make()
    state_dir.begin()
    try:
        os.mkdir(history, 0o700)
        record.save(history, sync=False)
        carry_out()
    except BaseException:
        if os.path.isdir(history):
            discard(state_dir, history)
        state_dir.settle()
        raise
    state_dir.advance(number, settled=True)
    return replace(record.commit(), note=branch.view_kind.limits)


def _release_abandoned(parent: Parent) -> None:
    """Discard the records of branches that the filesystem no longer has, and the branches without a complete record.

    Called under the lock. Branches are created only under it, so an incomplete record belongs to a dead process.
    """
    view = _view_of(parent)
    branches = f"{parent.state_dir.path}/branches"
    for name in os.listdir(branches) if os.path.isdir(branches) else []:
        home = parent.state_dir.home(name)
        if name.startswith(".new-"):
            view.release(home)
        elif not name.startswith(".") and view.is_gone(home):
            discard(parent.state_dir, home)
    for child in parent.children():
        _release_abandoned(child)


def _view_of(parent: Parent) -> MountedView:
    view = parent.child_view()
    assert isinstance(view, MountedView)
    return view


def _refuse(parent: Parent, operation: str) -> NoReturn:
    raise BranchError(
        f"{parent.child_view().name} cannot {operation}; to let forkwise do it, open the directory that is mounted at "
        f"{_view_of(parent).driver.mount} as a workspace"
    )


class _OwnMount:
    """A BranchFS mount that this process created; ``directory`` holds the parts that forkwise created for it."""

    def __init__(
        self, binary: str, mountpoint: str, storage: str, directory: str, lock_fd: int, *, is_storage_own: bool
    ) -> None:
        self.binary = binary
        self.mountpoint = mountpoint
        self.storage = storage
        self.directory = directory
        self.lock_fd = lock_fd
        self.is_storage_own = is_storage_own

    def close(self, workspace: Workspace) -> None:
        """Unmount it, and remove what forkwise created for it unless a branch was kept."""
        kept = [branch.branch_path for branch in workspace.branches() if branch.kept]
        branchfs.unmount_branchfs(self.binary, self.mountpoint, self.storage)
        if not kept or not self.is_storage_own:
            shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self.lock_fd)
        if kept and self.is_storage_own:
            warnings.warn(
                f"{', '.join(kept)} was kept, but {self.mountpoint} is unmounted: BranchFS has its files in "
                f"{self.storage}, which is not removed",
                ForkwiseWarning,
                stacklevel=3,
            )


def find_abandoned_branches(directory: str) -> Literal["none", "some", "kept"]:
    """Return whether the directory of a BranchFS mount, whose process has ended, holds no, some or kept branches.

    If the caller of ``Workspace.mount`` chose the mount point, only that workspace knows its branches, so the directory
    counts as having some.
    """
    if os.path.islink(f"{directory}/mount"):
        return "some"
    try:
        keys = os.listdir(f"{directory}/state")
    except FileNotFoundError:
        return "none"
    found: Literal["none", "some", "kept"] = "none"
    for state_dir in (StateDir(f"{directory}/state/{key}", "") for key in keys):
        for name in state_dir.names():
            found = "some"
            with suppress(BranchNotFoundError, StateError):
                if BranchInfo.load(state_dir.home(name)).kept:
                    return "kept"
    return found


def release_abandoned_mount(directory: str) -> bool:
    """Unmount the BranchFS mount of a killed process; return False if that is left to the user.

    The server of BranchFS outlives the process, and a mount point that the caller of ``Workspace.mount`` chose may be
    in use.
    """
    mountpoint = f"{directory}/mount"
    if os.path.islink(mountpoint):
        return not _is_mounted_at(os.readlink(mountpoint))
    if _is_mounted_at(mountpoint):
        branchfs.detach_branchfs(mountpoint)
    return True


def _is_mounted_at(path: str) -> bool:
    """Return whether anything is mounted at a path; its filesystem may no longer answer."""
    return any(mount.point == path for mount in mounts())


def mount_workspace(
    base: str | os.PathLike[str],
    mountpoint: str | os.PathLike[str] | None,
    binary: str | os.PathLike[str] | None,
    storage: str | os.PathLike[str] | None,
) -> MountedWorkspace:
    """Mount a directory with a BranchFS binary and open it; ``close`` unmounts it again.

    Without ``storage`` the mount gets a new one: BranchFS's default is shared by all mounts, and a second mount of it
    shows the files of the first.
    """
    program = os.fspath(binary) if binary else os.environ.get("FORKWISE_BRANCHFS") or shutil.which("branchfs")
    if not program or not shutil.which(program):
        raise MountError(
            f"{os.fspath(base)} cannot be mounted: there is no BranchFS binary {program or ''}".rstrip(),
            view="branchfs",
            reason="no BranchFS binary",
            remedy="pass branchfs_bin=, set FORKWISE_BRANCHFS, or open the directory itself: Workspace(path) needs no "
            "mount",
        )
    target = None if mountpoint is None else os.path.abspath(mountpoint)
    if target is not None and branchfs.find_mount(target) == os.path.realpath(target):
        raise MountError(
            f"{target} is a BranchFS mount already",
            view="branchfs",
            reason="already mounted",
            remedy=f"open it with Workspace({target!r}), or choose another mount point",
        )
    directory, lock_fd = create_scratch_directory("branchfs")
    own = _OwnMount(
        program,
        target or f"{directory}/mount",
        os.path.abspath(storage) if storage is not None else f"{directory}/storage",
        directory,
        lock_fd,
        is_storage_own=storage is None,
    )
    try:
        if target is not None:
            os.symlink(target, f"{directory}/mount")  # tells gc where to look
        for path in (own.mountpoint, own.storage):
            os.makedirs(path, exist_ok=True)
        mounted = branchfs.mount_branchfs(program, os.path.abspath(base), own.mountpoint, own.storage)
        try:
            workspace = MountedWorkspace(mounted.mount, state=f"{directory}/state" if target is None else None)
        except BaseException:
            branchfs.unmount_branchfs(program, own.mountpoint, own.storage)
            raise
    except BaseException:
        with suppress(OSError):
            shutil.rmtree(directory)
        os.close(lock_fd)
        raise
    workspace._own_mount = own
    return workspace
