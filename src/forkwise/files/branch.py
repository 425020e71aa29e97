"""Branch: an isolated copy-on-write version of a workspace or of another branch; Parent is what both have in common.

A Branch object is only a handle: its state is in the branch's home on disk, so any process can open any branch.
"""

from __future__ import annotations

import json
import os
import re
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, cast

from forkwise.errors import AbortError, BranchError, BranchNotFoundError, ForkwiseWarning, MountError, StateError
from forkwise.files.store.branch_info import BASES, IGNORE, BranchInfo, DataDirectories
from forkwise.files.store.journal import sync_filesystem
from forkwise.files.store.record import RolledBack
from forkwise.files.store.scan import Scan, scan_layer
from forkwise.files.store.state import Lock, StateDir, locked
from forkwise.files.store.transaction import recover
from forkwise.files.store.trash import deferred, discard
from forkwise.git.ignore_rules import IgnoreRules, check_ignore
from forkwise.linux.process_id import ProcessId, boot_id

if TYPE_CHECKING:
    from forkwise.files.rebase import Rebase
    from forkwise.files.store.changes import Commit, Delta, OnConflict
    from forkwise.files.store.pool import BranchPool, PooledHome
    from forkwise.files.store.view import View
    from forkwise.files.workspace import Workspace
    from forkwise.git.ignore_rules import Ignore
    from forkwise.linux.root_identity import RootIdentity
    from forkwise.sandbox.process import Finished

__all__ = [
    "Branch",
    "OnError",
    "OnSuccess",
    "Parent",
    "Status",
    "check_name",
    "check_outcomes",
]


OnSuccess = Literal["commit"] | None
OnError = Literal["abort"] | None

_NAME = re.compile(r"[^./\x00-\x1f\x7f][^/\x00-\x1f\x7f]*\Z")
_LONGEST_NAME = 200
_serial = count()


class Parent(ABC):
    """A workspace or a branch, as the parent of branches. ``target`` is the directory that their commits change."""

    state_dir: StateDir
    target: str

    @property
    @abstractmethod
    def workspace(self) -> Workspace:
        """The workspace at the root of the tree of branches."""

    @property
    @abstractmethod
    def branch_path(self) -> str:
        """The path in the tree of branches, such as ``/main/strategy``; the workspace is ``/main``."""

    @property
    @abstractmethod
    def lowers(self) -> list[str]:
        """Internal: the directories that a child shows below its own layer, nearest first."""

    @abstractmethod
    def child_view(self) -> View:
        """Return the view that a branch created now gets. Internal."""

    @abstractmethod
    def _before_fork(self) -> None:
        """Prepare for a new child. Called under the lock."""

    @abstractmethod
    def _before_commit(self) -> None:
        """Prepare for the commit of a child into this parent. Called under the lock."""

    @abstractmethod
    def _after_child_removed(self) -> None:
        """React to the commit or the abort of a child. Called under the lock."""

    @property
    def _is_interrupted(self) -> bool:
        """Whether a commit into this parent, or into a parent of it, was started and not finished."""
        return self.state_dir.is_interrupted

    def _settled_head(self) -> int | None:
        """Return the number of the last commit into this parent; None while one runs here or in one of its parents."""
        return self.state_dir.settled_head()

    def _recover(self) -> None:
        """Roll back a commit that was interrupted. Called under the exclusive lock."""
        if self.state_dir.is_interrupted:
            recover(self.state_dir, self.target)

    def branch(self, name: str, on_success: OnSuccess = "commit", on_error: OnError = "abort") -> Branch:
        """Create a branch, in constant time.

        As a context manager the branch is committed when the block ends (``on_success=None``: stays open) and aborted
        when the block raises (``on_error=None``: stays open). If a process died and left an open branch of that name,
        that branch is renamed, with a warning, if it has changes, and dropped otherwise.
        """
        check_name(name)
        check_outcomes(on_success, on_error)
        view = self.child_view()
        pool = self._pool_for(view)
        try:
            pooled = self._make_settled(name, view, pool)
        except BranchError:
            if not os.path.isdir(self.state_dir.home(name)) or not self._vacate(name):
                raise
            pooled = self._make_settled(name, view, pool)
        if pool is not None:
            pool.refill()
        return self._child(name, view, on_success, on_error, pooled)

    def _child(
        self,
        name: str,
        view: View,
        on_success: OnSuccess = None,
        on_error: OnError = None,
        pooled: PooledHome | None = None,
    ) -> Branch:
        """Return the handle of a branch forked from here."""
        return Branch(self, name, view, on_success, on_error, pooled)

    def _open_child(self, name: str) -> Branch:
        """Open an existing branch forked from here."""
        from forkwise.files.views import view_named  # noqa: PLC0415

        home = self.state_dir.home(name)
        try:
            view = view_named(BranchInfo.load(home).view)
        except MountError as error:
            raise StateError(f"{home}/branch.json", error.reason) from error
        return self._child(name, view)

    def children(self) -> list[Branch]:
        """List the open branches of this one, whichever process created them."""
        found = []
        for name in self.state_dir.names():
            try:
                found.append(Branch.open(self, name))
            except BranchNotFoundError:
                continue  # it was committed or aborted after the names were read
            except StateError as error:
                warnings.warn(f"the branch {name!r} is left out: {error}", ForkwiseWarning, stacklevel=3)
        return found

    def _vacate(self, name: str) -> bool:
        """Free the name of a branch whose process died; return False if the branch is kept or in use."""
        home = self.state_dir.home(name)
        with deferred(), locked(self.state_dir.state):
            self._recover()
            try:
                found = self._open_child(name)
            except (BranchNotFoundError, StateError):
                return self._discard_unusable(home)
            tree = found._list_tree()
            if any(one.kept or one.owner_alive for one in tree):
                return False
            if not any(one._has_changes() for one in tree):
                found._remove()
                self._after_child_removed()
                return True
            for one in tree:
                one.view_kind.hide(one.home)
            new_name = self._free_name(name)
            os.rename(home, self.state_dir.home(new_name))
            renamed = self._open_child(new_name)
            info = BranchInfo.load(renamed.home)
            info.kept = True
            info.save(renamed.home)
        warnings.warn(
            f"the process that created {found.branch_path} died before it committed or aborted the branch; its changes "
            f"are kept in {renamed.branch_path}: commit or abort that branch",
            ForkwiseWarning,
            stacklevel=3,
        )
        return True

    def _discard_unusable(self, home: str) -> bool:
        """Remove a home from which no branch can be opened, if that is safe; return whether its name is free.

        It is safe if the info is blank: the branch was created shortly before a power failure and was not kept.
        """
        if not os.path.isdir(home):
            return True
        if not BranchInfo.is_blank(home):
            return False
        from forkwise.files.gc import unmount_home  # noqa: PLC0415 - rarely needed

        unmount_home(home)
        discard(self.state_dir, home)
        return True

    def _free_name(self, name: str) -> str:
        """Return a name for an abandoned branch that no other branch has."""
        stem = os.fsencode(name)[: _LONGEST_NAME - 20].decode(errors="ignore")
        taken = set(self.state_dir.names())
        return next(free for n in count(1) if (free := f"{stem}-abandoned-{n}") not in taken)

    def _make_settled(self, name: str, view: View, pool: BranchPool | None) -> PooledHome | None:
        """Create a branch's home, after rolling back an interrupted commit; see ``_make``."""
        with locked(self.state_dir.state, shared=True) as lock:
            head = self._settled_head()
            if head is not None:
                return self._make(name, view, lock, head, pool)
        with locked(self.state_dir.state) as lock:
            self._recover()
            return self._make(name, view, lock, self.state_dir.head, pool)

    def _make(self, name: str, view: View, lock: Lock, head: int, pool: BranchPool | None) -> PooledHome | None:
        """Create a branch's home. Return the pooled home it was created from, if the pool had one."""
        self._before_fork()
        pooled = None if pool is None else pool.take()
        if pooled is not None:
            try:
                pooled.fit(view, self.target, head)
                self._publish(pooled.home, name, view)
            except FileNotFoundError:  # another process's gc removed it
                self._drop(pooled.home, view)
            else:
                return pooled
        home = _new_home(self.state_dir)
        try:
            forked = lock.now()
            view.make(home, self.lowers)
            made = lock.now() if view.whole else forked
            owner, root = ProcessId.current(), self._root_identity()
            BranchInfo(view.name, head, forked, made, time.time(), boot_id(), owner, root=root).create(home)
        except BaseException:
            self._drop(home, view)
            raise
        self._publish(home, name, view)
        return None

    def _publish(self, home: str, name: str, view: View) -> None:
        """Rename a finished home to the branch's name; on any error, drop it."""
        try:
            os.rename(home, self.state_dir.home(name))
        except BaseException as error:
            self._drop(home, view)
            if isinstance(error, OSError) and os.path.isdir(self.state_dir.home(name)):
                raise BranchError(
                    f"a branch {name!r} already exists; commit or abort it, or choose another name", branch=name
                ) from error
            raise

    def _drop(self, home: str, view: View) -> None:
        if os.path.isdir(home):
            with suppress(FileNotFoundError):  # the home is incomplete, and its view holds nothing to release
                view.release(home)
            discard(self.state_dir, home)

    def _root_identity(self) -> RootIdentity | None:
        """Return the identity of the directory that commits change; None if no other directory could take its place."""
        return None

    def _pool_for(self, view: View) -> BranchPool | None:
        """Return the pool of prepared homes for a view; None if this parent has no pool."""
        return None


def _new_home(state_dir: StateDir) -> str:
    home = state_dir.home(f".new-{os.getpid()}-{next(_serial)}")
    try:
        os.mkdir(home, 0o700)
    except FileNotFoundError:
        state_dir.make()
        os.mkdir(home, 0o700)
    return home


def check_outcomes(on_success: object, on_error: object) -> None:
    """Raise ValueError unless both values are valid for ``Parent.branch``."""
    if on_success not in ("commit", None) or on_error not in ("abort", None):
        raise ValueError("on_success takes 'commit' or None, on_error takes 'abort' or None")


def check_name(name: str) -> None:
    """Raise BranchError unless ``name`` is a valid name for a branch."""
    if not _NAME.match(name) or len(os.fsencode(name)) > _LONGEST_NAME:
        raise BranchError(
            f"{name!r} is not a valid branch name: it must not be empty, start with a dot, contain a slash or a "
            f"control character, or be longer than {_LONGEST_NAME} bytes",
            branch=name,
        )


Status = Literal["open", "frozen", "stale", "committed", "aborted"]


class Branch(Parent):
    """An isolated copy-on-write version of its parent, which is a workspace or another branch.

    Changes below ``path`` are visible only there, until ``commit`` applies them to the parent or ``abort`` drops them.
    Created by ``Workspace.branch`` or ``Branch.branch``, opened by ``Workspace.open``.
    """

    __slots__ = (
        "_ended",
        "_ignore",
        "_on_error",
        "_on_success",
        "_premounted",
        "_untouched",
        "home",
        "name",
        "parent",
        "state_dir",
        "target",
        "view_kind",
    )

    def __init__(
        self,
        parent: Parent,
        name: str,
        view: View,
        on_success: OnSuccess = None,
        on_error: OnError = None,
        pooled: PooledHome | None = None,
    ) -> None:
        self.parent = parent
        self.name = name
        self.home = parent.state_dir.home(name)
        self.state_dir = StateDir(self.home, parent.state_dir.state)
        self.target = f"{self.home}/layer"
        self.view_kind = view
        self._on_success = on_success
        self._on_error = on_error
        self._ended: Literal["committed", "aborted"] | None = None
        self._ignore: Ignore | None = None
        # Both are valid only until ``path`` is first used: the home's mtime as the pool left it, and the view as far as
        # the pool has prepared it.
        self._untouched = 0 if pooled is None else pooled.untouched
        self._premounted = None if pooled is None else pooled.premounted

    @classmethod
    def open(cls, parent: Parent, name: str) -> Branch:
        """Open the existing branch ``name`` of ``parent``, whichever process created it."""
        return parent._open_child(name)

    def __repr__(self) -> str:
        return f"<Branch {self.branch_path} of {self.workspace.path} ({self.view})>"

    # Properties

    @property
    def workspace(self) -> Workspace:
        """The workspace at the root of the tree of branches."""
        return self.parent.workspace

    @property
    def branch_path(self) -> str:
        """The full path in the tree of branches, such as ``/main/strategy/variant``."""
        return f"{self.parent.branch_path}/{self.name}"

    @property
    def view(self) -> str:
        """The name of the view that shows it."""
        return self.view_kind.name

    @property
    def path(self) -> Path:
        """The directory to work in. The first access mounts or creates the view."""
        self._require_open()
        untouched, self._untouched = self._untouched, 0
        premounted, self._premounted = self._premounted, None
        try:
            shown = None if untouched else self.view_kind.visible_path(self.home)
        except FileNotFoundError:
            shown = None  # the branch was dropped, or a process was killed while committing it
        if shown is None or self.is_frozen or self._settled_head() is None:
            with locked(self.state_dir.state):
                try:
                    is_writable = bool(untouched) and os.stat(self.home).st_mtime_ns == untouched
                    if not is_writable:
                        self._recover()
                        is_writable = not self.is_frozen
                        premounted = None
                    shown = self.view_kind.show(
                        self.home, self.parent.lowers, writable=is_writable, premounted=premounted
                    )
                except (FileNotFoundError, MountError):
                    BranchInfo.load(self.home)  # raises BranchNotFoundError if the branch was dropped
                    raise
        return Path(shown)

    @property
    def is_frozen(self) -> bool:
        """Whether it is read-only: after ``freeze``, or while it has branches of its own."""
        return os.path.exists(f"{self.home}/frozen") or bool(self.state_dir.names())

    @property
    def status(self) -> Status:
        """``open``, ``frozen``, ``stale``, ``committed`` or ``aborted``.

        A frozen branch is read-only: ``freeze`` was called, or it has branches of its own. A branch is stale once a
        sibling was committed.
        """
        if self._ended:
            return self._ended
        if BranchInfo.load(self.home).generation != self.parent.state_dir.head:
            return "stale"
        return "frozen" if self.is_frozen else "open"

    @property
    def created(self) -> datetime:
        """The time at which it was created."""
        return datetime.fromtimestamp(BranchInfo.load(self.home).created, UTC)

    @property
    def owner_alive(self) -> bool:
        """Whether the process that created it still runs."""
        owner = BranchInfo.load(self.home).owner
        return owner is not None and owner.alive

    @property
    def kept(self) -> bool:
        """Whether ``keep`` was called, so that it outlives its process."""
        return BranchInfo.load(self.home).kept

    @property
    def is_confined(self) -> bool:
        """Whether a confined program may have written to it; ``commit`` then refuses executable configuration."""
        return os.path.exists(f"{self.home}/confined")

    def mark_confined(self) -> None:
        """Record that a confined program may have written to it. Internal."""
        try:
            os.close(os.open(f"{self.home}/confined", os.O_CREAT | os.O_CLOEXEC, 0o600))
        except FileNotFoundError:
            BranchInfo.load(self.home)  # raises BranchNotFoundError
            raise

    @property
    def ignore(self) -> Ignore | None:
        """The changes that ``delta``, ``diff`` and ``commit`` leave out, see ``set_ignore``; None if there are none."""
        if callable(self._ignore):
            return self._ignore
        try:
            with open(f"{self.home}/{IGNORE}") as file:
                found = json.load(file)
            if isinstance(found, dict):
                found = IgnoreRules(tuple(found["litter"]))
            check_ignore(found)
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise StateError(f"{self.home}/{IGNORE}", str(error)) from error
        return cast("Ignore", found)

    def set_ignore(self, ignore: Ignore | None) -> None:
        """Leave out changed paths that are ignored: by git's rules (``git`` or IgnoreRules), a function, or globs.

        This is recorded with the branch, except a function, which this object keeps. A function is called with a path
        relative to the workspace; a glob without a slash matches a name at any depth. The rules of git are those of the
        workspace, not those of the branch; outside of a repository ``git`` stands for caches and byte code.
        """
        check_ignore(ignore)
        self._ignore = ignore
        path = f"{self.home}/{IGNORE}"
        if ignore is None or callable(ignore):
            with suppress(FileNotFoundError):
                os.unlink(path)
            return
        try:
            is_untouched = self._untouched and os.stat(self.home).st_mtime_ns == self._untouched
            with open(path, "w") as file:
                rules = {"litter": ignore.litter} if isinstance(ignore, IgnoreRules) else ignore
                json.dump(rules if isinstance(rules, str | dict) else list(rules), file)
            self._untouched = os.stat(self.home).st_mtime_ns if is_untouched else 0
        except FileNotFoundError:
            BranchInfo.load(self.home)  # raises BranchNotFoundError
            raise

    @property
    def data_directories(self) -> DataDirectories:
        """The data directories of servers in the branch. Internal."""
        return DataDirectories.load(self.home)

    def set_data_directories(self, data: DataDirectories) -> None:
        """Record which directories are data directories of servers. Internal."""
        try:
            is_untouched = self._untouched and os.stat(self.home).st_mtime_ns == self._untouched
            data.save(self.home)
            self._untouched = os.stat(self.home).st_mtime_ns if is_untouched else 0
        except FileNotFoundError:
            BranchInfo.load(self.home)  # raises BranchNotFoundError
            raise

    @property
    def lowers(self) -> list[str]:
        """Internal: the directories that a child shows below its own layer, nearest first."""
        return [self.target] if self.view_kind.whole else [self.target, *self.parent.lowers]

    @property
    def _commits_into_layer(self) -> bool:
        """Whether a commit merges its layer into the parent's layer, instead of changing a plain directory."""
        return isinstance(self.parent, Branch) and not self.view_kind.whole

    # Changes

    def delta(self, *, ignore: Ignore | None = None) -> Delta:
        """Return the changes against the parent, without those that ``ignore`` leaves out.

        What happened in git repositories is in its ``repository``.

        ``ignore`` takes what ``set_ignore`` takes, and defaults to what was set there; ``ignore=()`` returns all
        changes. In a layered view the cost depends only on the size of the changes; a view that keeps a whole tree is
        walked.
        """
        from forkwise.files.versions import find_executables, read_repositories  # noqa: PLC0415 - loaded on use

        with self._lock():
            scan = self._scan_kept(ignore)
            return scan.delta(find_executables(self, scan), read_repositories(self, scan))

    def diff(self, *, ignore: Ignore | None = None) -> str:
        """Return the changes as a unified diff that ``git apply`` and ``patch -p1`` accept; ``ignore`` as in delta."""
        from forkwise.files.versions import Versions, file_diffs  # noqa: PLC0415
        from forkwise.text.diff import unified  # noqa: PLC0415 - loaded on use

        with self._lock(), Versions.of(self) as versions:
            scan = self._scan_kept(ignore)
            return (scan.delta().databases if scan.data else "") + unified(file_diffs(versions, scan))

    def _scan_kept(self, ignore: Ignore | None) -> Scan:
        """Scan the changed files, except those left out by ``ignore`` or ``set_ignore``. Called under the lock."""
        from forkwise.files.versions import drop_repositories, find_ignored  # noqa: PLC0415 - loaded on use

        check_ignore(ignore)
        scan = drop_repositories(self, self._scan())
        return scan.without(find_ignored(self, scan, self.ignore if ignore is None else ignore))

    def _scan(self) -> Scan:
        """Compare the layer with the parent. Called under the lock."""
        scan = self._scan_files()
        scan.data, scan.parent = self.data_directories.whole, self.parent.target
        return scan

    def _scan_files(self) -> Scan:
        self.view_kind.flush(self.home)
        base = self.view_kind.base(self.home)
        rolled_back = RolledBack.load(self.parent.state_dir)
        if base is None:
            kind = self.view_kind
            scan = scan_layer(self.target, self.parent.lowers, kind.mark_files, kind.mark_prefixes, rolled_back)
            if os.path.isdir(f"{self.home}/{BASES}"):
                from forkwise.files.old_versions import note_deleted  # noqa: PLC0415 - loaded on use

                note_deleted(scan, self.home)
            return scan
        from forkwise.files.store.scan import scan_tree  # noqa: PLC0415

        info = BranchInfo.load(self.home)
        own = RolledBack.load(self.state_dir)
        scan = scan_tree(self.target, self.parent.lowers, base, info.made, own, info.set_back)
        scan.rolled_back = rolled_back
        return scan

    # Operations

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
        """Apply the changes to the parent, all of them or none, and end the branch.

        Raises BranchStaleError if a sibling was committed first (see ``rebase``), and ConflictError if the same paths
        were changed in the parent since the fork. ``on_conflict`` resolves such conflicts: ``ours`` takes the branch's
        version, ``theirs`` keeps the parent's, ``merge`` does a three-way merge of text. ``durable=False`` skips the
        syncs that let the commit survive a power failure. ``trust=True`` accepts files that a power failure may have
        left incomplete. With ``rebased=True``, ``on_conflict`` resolves only the conflicts that the last ``rebase``
        found: edits made since are refused.

        ``ignore``, as in ``delta``, leaves out changes in a commit to a workspace: those paths stay as they are there,
        and cause no conflicts. A commit into another branch takes everything; the commit of that branch leaves them
        out.

        Raises ExecutableConfigError if a confined program changed what the user's machine will run, such as git hooks,
        unless ``allow_executable_config`` is set, here or for the workspace.
        """
        from forkwise.files.commit import commit_branch  # noqa: PLC0415

        self._require_open()
        self._premounted = None
        durable = self.workspace.durable if durable is None else durable
        allow = self.workspace.allow_executable_config if allow_executable_config is None else allow_executable_config
        check_ignore(ignore)
        commit = commit_branch(
            self,
            ignore=self.ignore if ignore is None else ignore,
            on_conflict=on_conflict,
            durable=durable,
            trust=trust,
            rebased=rebased,
            allow_executable_config=allow,
        )
        self._ended = "committed"
        return commit

    def run(self, argv: Sequence[str], **options: Any) -> Finished:
        """Run a command confined to the branch, which it sees at the workspace's path; see ``forkwise.sandbox.run``."""
        from forkwise.sandbox.run import run_in_branch  # noqa: PLC0415 (a higher floor, loaded on use)

        return run_in_branch(self, argv, **options)

    async def arun(self, argv: Sequence[str], **options: Any) -> Finished:
        """Run a command like ``run``, from asyncio code. Cancelling it kills the command and all its descendants."""
        from forkwise.sandbox.run import arun_in_branch  # noqa: PLC0415 (a higher floor, loaded on use)

        return await arun_in_branch(self, argv, **options)

    def shell(self, argv: Sequence[str] = (), **options: Any) -> int:
        """Run the user's shell, or a command, in the branch on this terminal. Return the exit code."""
        from forkwise.sandbox.run import shell_in_branch  # noqa: PLC0415 (a higher floor, loaded on use)

        return shell_in_branch(self, argv, **options)

    def abort(self) -> None:
        """Drop the branch and all its branches. Returns quickly: files are deleted in the background."""
        self._require_open()
        self._premounted = None
        try:
            with deferred(), locked(self.state_dir.state):
                self._recover()
                BranchInfo.load(self.home)
                self._remove()
                self.parent._after_child_removed()
        except OSError as error:
            raise AbortError(f"{self.branch_path} could not be aborted: {error}", branch=self.name) from error
        self._ended = "aborted"

    def _abort_if_open(self) -> None:
        """Abort the branch unless it was committed or aborted before."""
        if self.status not in ("committed", "aborted"):
            self.abort()

    def rebase(self, *, merge: bool = True) -> Rebase:
        """Rebase a stale branch onto the current state of its parent.

        Text that both changed is merged three ways, unless ``merge=False``. A file that cannot be merged keeps the
        branch's version and is returned as a ``Conflict``; ``commit`` refuses it until the file is changed or
        ``on_conflict`` resolves it.
        """
        from forkwise.files.rebase import rebase_branch  # noqa: PLC0415

        self._require_open()
        return rebase_branch(self, merge=merge)

    def freeze(self) -> None:
        """Make it read-only until ``thaw``, and sync its content to disk."""
        with self._lock() as lock:
            self.view_kind.freeze(self.home, self.parent.lowers)
            self._sync(lock)
            os.close(os.open(f"{self.home}/frozen", os.O_CREAT | os.O_CLOEXEC, 0o600))

    def thaw(self) -> None:
        """Make a frozen branch writable again. Raises BranchError while it has branches of its own."""
        with self._lock():
            if self.state_dir.names():
                raise BranchError(
                    f"{self.branch_path} has branches of its own; commit or abort those first", branch=self.name
                )
            with suppress(FileNotFoundError):
                os.unlink(f"{self.home}/frozen")
            self._after_child_removed()

    def keep(self) -> Branch:
        """Sync it to disk and let it outlive this process: neither ``gc`` nor the end of a ``with`` block drops it."""
        if not self.view_kind.native:
            with suppress(OSError):  # such as a mount inside it: the branch is kept, and later edits are conflicts
                self.record_bases()
        with self._lock() as lock:
            self._sync(lock, keep=True)
        self._on_success = self._on_error = None
        return self

    def record_bases(self) -> Delta:
        """Record the parent's versions of the changed text files, so that later edits of these can be merged.

        Returns the delta. ``keep`` and the end of an attempt call this too. The cost depends on the size of the
        changes.
        """
        from forkwise.files.versions import record_bases  # noqa: PLC0415 - loaded on use

        return record_bases(self)

    def put_back(self, paths: Sequence[str]) -> bool:
        """Give a new branch the workspace's version of some paths, see ``View.put_back``. Internal."""
        with self._lock():
            is_shown = self.view_kind.visible_path(self.home) is not None
            return not is_shown and self.view_kind.put_back(self.home, self.parent.lowers, paths)

    def hide(self) -> None:
        """Unmount its view while it is not in use; the next access to ``path`` mounts it again."""
        with self._lock():
            self.view_kind.hide(self.home)

    def _sync(self, lock: Lock, *, keep: bool = False) -> None:
        """Sync the content, then record that: in this order, the record is true whenever the power fails."""
        info = BranchInfo.load(self.home)
        self.view_kind.flush(self.home)
        info.synced = lock.now()
        info.kept = info.kept or keep
        sync_filesystem(self.target)
        info.save(self.home)

    # Context manager

    def __enter__(self) -> Branch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._ended:
            return
        if error is None:
            if self._on_success == "commit":
                self.commit()
        elif self._on_error == "abort":
            self.abort()

    # Parent of other branches

    @property
    def _is_interrupted(self) -> bool:
        return self.parent._is_interrupted or super()._is_interrupted

    def _settled_head(self) -> int | None:
        return None if self.parent._settled_head() is None else super()._settled_head()

    def _recover(self) -> None:
        self.parent._recover()  # may restore this branch's own home
        super()._recover()

    def child_view(self) -> View:
        """Return the view that a branch created now gets. Internal."""
        return self.view_kind

    def _before_fork(self) -> None:
        self._require_open()
        BranchInfo.load(self.home)
        if not self.is_frozen:
            self.view_kind.freeze(self.home, self.parent.lowers)

    def _before_commit(self) -> None:
        # Changing a layer below a mounted overlayfs is undefined, so unmount; the next access to ``path`` mounts it.
        self.view_kind.hide(self.home)

    def _after_child_removed(self) -> None:
        if not self.is_frozen:
            self.view_kind.thaw(self.home, self.parent.lowers)

    # Under the lock

    def _list_tree(self) -> list[Branch]:
        """List this branch and all branches below it. Called under the lock."""
        return [self, *(below for child in self.children() for below in child._list_tree())]

    def _has_changes(self) -> bool:
        """Return whether it has changes; True if it cannot be read, for example because of a mount inside."""
        try:
            return bool(self._scan().delta())
        except (OSError, BranchError):
            return True

    def _remove(self) -> None:
        """Move the branch and all its branches to the trash. Called under the lock."""
        for child in self.children():
            child._remove()
        self.view_kind.release(self.home)
        discard(self.state_dir, self.home)

    @contextmanager
    def _lock(self) -> Iterator[Lock]:
        """Hold the exclusive lock, with interrupted commits rolled back and the branch known to exist."""
        self._require_open()
        with locked(self.state_dir.state) as lock:
            self._recover()
            BranchInfo.load(self.home)
            yield lock

    def _require_open(self) -> None:
        if self._ended:
            raise BranchNotFoundError(f"{self.branch_path} was {self._ended}", branch=self.name)
