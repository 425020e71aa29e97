"""Branch: an isolated copy-on-write line of work over a workspace or over another branch.

The object is a handle: all that matters lies in the branch's home on the disk, so any process can open any branch.
"""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from forkwise.errors import AbortError, BranchError, BranchNotFoundError, MountError
from forkwise.files.store.branch_info import BranchInfo
from forkwise.files.store.changes import Commit, Delta, OnConflict
from forkwise.files.store.journal import sync_filesystem
from forkwise.files.store.pool import BranchPool, PooledHome
from forkwise.files.store.record import RolledBack
from forkwise.files.store.scan import Scan, scan_layer
from forkwise.files.store.state import Lock, StateDir, locked
from forkwise.files.store.transaction import recover
from forkwise.files.store.trash import deferred, discard
from forkwise.files.store.view import View
from forkwise.linux.process_id import ProcessId, boot_id

if TYPE_CHECKING:
    from forkwise.files.rebase import Rebase
    from forkwise.files.workspace import Workspace
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
    """Something with branches. ``target`` is the directory their commits change, ``lowers`` what they see beneath
    their own layer, nearest first."""

    place: StateDir
    target: str

    @property
    @abstractmethod
    def workspace(self) -> Workspace:
        """The workspace at the bottom."""

    @property
    @abstractmethod
    def branch_path(self) -> str:
        """Where this stands in the tree of branches; the workspace is ``/main``."""

    @property
    @abstractmethod
    def lowers(self) -> list[str]:
        """What a branch of this one sees, nearest first."""

    @abstractmethod
    def child_view(self) -> View:
        """The view that a branch made now gets."""

    @abstractmethod
    def before_fork(self) -> None:
        """Called under the lock, before a branch is made from this."""

    @abstractmethod
    def before_commit(self) -> None:
        """Called under the lock, before something is committed into this."""

    @abstractmethod
    def after_child_removed(self) -> None:
        """Called under the lock, after a branch was committed or aborted."""

    @property
    def is_interrupted(self) -> bool:
        """Whether a commit into this, or into what it was itself made from, was begun and not brought to its end."""
        return self.place.is_interrupted

    def resting(self) -> int | None:
        """The number of the last commit into this, while none is under way into it or into what it was made from."""
        return self.place.settled_head()

    def recover(self) -> None:
        """Take back such a commit. Called under the exclusive lock."""
        if self.place.is_interrupted:
            recover(self.place, self.target)

    def branch(self, name: str, on_success: OnSuccess = "commit", on_error: OnError = "abort") -> Branch:
        """Make a branch, at once and in constant time.

        Used as a context manager it commits when the block ends (``on_success=None``: stays open) and is aborted when
        the block raises (``on_error=None``: stays open).
        """

        check_name(name)
        check_outcomes(on_success, on_error)
        view = self.child_view()
        stock = self.spares(view)
        with locked(self.place.state, shared=True) as lock:
            head = self.resting()
            spare = None if head is None else self._make(name, view, lock, head, stock)
        if head is None:
            with locked(self.place.state) as lock:
                self.recover()
                spare = self._make(name, view, lock, self.place.head, stock)
        if stock is not None:
            stock.refill()
        return Branch(self, name, view, on_success, on_error, spare)

    def children(self) -> list[Branch]:
        """The branches made from this one and not yet committed or aborted, whichever process made them."""

        found = []
        for name in self.place.names():
            try:
                found.append(Branch.open(self, name))
            except BranchNotFoundError:
                continue  # gone since the names were read
        return found

    def _make(self, name: str, view: View, lock: Lock, head: int, stock: BranchPool | None) -> PooledHome | None:
        """Make a branch's home; gives what it was made of, where that was in stock."""
        self.before_fork()
        spare = None if stock is None else stock.take()
        if spare is not None:
            try:
                spare.fit(view, self.target, head)
                self._publish(spare.home, name, view)
            except FileNotFoundError:  # somebody's gc has taken it
                self._drop(spare.home, view)
            else:
                return spare
        home = _new_home(self.place)
        try:
            forked = lock.now()
            view.make(home, self.lowers)
            made = lock.now() if view.whole else forked
            BranchInfo(view.name, head, forked, made, time.time(), boot_id(), ProcessId.current()).create(home)
        except BaseException:
            self._drop(home, view)
            raise
        self._publish(home, name, view)
        return None

    def _publish(self, home: str, name: str, view: View) -> None:
        try:
            os.rename(home, self.place.home(name))
        except BaseException as error:
            self._drop(home, view)
            if isinstance(error, OSError) and os.path.isdir(self.place.home(name)):
                raise BranchError(
                    f"there is already a branch {name!r}; commit or abort it, or choose another name", branch=name
                ) from error
            raise

    def _drop(self, home: str, view: View) -> None:
        if os.path.isdir(home):
            with suppress(FileNotFoundError):  # it was not yet far enough to have anything to release
                view.release(home)
            discard(self.place, home)

    def spares(self, view: View) -> BranchPool | None:
        """Homes that are kept ready; None where there are none of the kind."""
        return None


def _new_home(place: StateDir) -> str:
    home = place.home(f".new-{os.getpid()}-{next(_serial)}")
    try:
        os.mkdir(home, 0o700)
    except FileNotFoundError:
        place.make()
        os.mkdir(home, 0o700)
    return home


def check_outcomes(on_success: object, on_error: object) -> None:
    """Raise ValueError unless a branch can end like that."""
    if on_success not in ("commit", None) or on_error not in ("abort", None):
        raise ValueError("on_success takes 'commit' or None, on_error takes 'abort' or None")


def check_name(name: str) -> None:
    """Raise BranchError unless a name can be a branch's."""
    if not _NAME.match(name) or len(os.fsencode(name)) > _LONGEST_NAME:
        raise BranchError(
            f"{name!r} is no name for a branch: it must not be empty, start with a dot, hold a slash or a control "
            f"character, or be longer than {_LONGEST_NAME} bytes",
            branch=name,
        )


Status = Literal["open", "frozen", "stale", "committed", "aborted"]


class Branch(Parent):
    """An isolated view of a workspace: what is written at ``path`` is seen there and nowhere else, until it is
    committed into the parent, or aborted and gone.

    Made by ``Workspace.branch`` or ``Branch.branch``, opened by ``Workspace.open``.
    """

    __slots__ = (
        "_ahead",
        "_ended",
        "_on_error",
        "_on_success",
        "_untouched",
        "home",
        "name",
        "parent",
        "place",
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
        spare: PooledHome | None = None,
    ) -> None:
        self.parent = parent
        self.name = name
        self.home = parent.place.home(name)
        self.place = StateDir(self.home, parent.place.state)
        self.target = f"{self.home}/layer"
        self.view_kind = view
        self._on_success = on_success
        self._on_error = on_error
        self._ended: Literal["committed", "aborted"] | None = None
        # The time of its home as it was made, while that was not looked at since, and its view as far as that is up.
        self._untouched = 0 if spare is None else spare.untouched
        self._ahead = None if spare is None else spare.ahead

    @classmethod
    def open(cls, parent: Parent, name: str) -> Branch:
        """A handle on a branch that exists, whichever process made it."""
        from forkwise.files.views import view_named  # noqa: PLC0415

        return cls(parent, name, view_named(BranchInfo.load(parent.place.home(name)).view))

    def __repr__(self) -> str:
        return f"<Branch {self.branch_path} of {self.workspace.path} ({self.view})>"

    # What it is

    @property
    def workspace(self) -> Workspace:
        return self.parent.workspace

    @property
    def branch_path(self) -> str:
        """Its full path in the tree of branches, such as ``/main/strategy/variant``."""
        return f"{self.parent.branch_path}/{self.name}"

    @property
    def view(self) -> str:
        """The name of the view it is seen through."""
        return self.view_kind.name

    @property
    def path(self) -> Path:
        """The directory in which to work; it is brought up at the first look."""
        self._must_be_open()
        untouched, self._untouched = self._untouched, 0
        ahead, self._ahead = self._ahead, None
        try:
            seen = None if untouched else self.view_kind.seen(self.home)
        except FileNotFoundError:
            seen = None  # the branch is gone, or was being committed by a process that was killed
        if seen is None or self.is_frozen or self.resting() is None:
            with locked(self.place.state):
                try:
                    is_writable = bool(untouched) and os.stat(self.home).st_mtime_ns == untouched
                    if not is_writable:
                        self.recover()
                        is_writable = not self.is_frozen
                        ahead = None
                    seen = self.view_kind.show(self.home, self.parent.lowers, writable=is_writable, ahead=ahead)
                except (FileNotFoundError, MountError):
                    BranchInfo.load(self.home)  # says so, where the branch is gone
                    raise
        return Path(seen)

    @property
    def is_frozen(self) -> bool:
        """Whether it is read-only: because it was told to be, or because branches were made from it."""
        return os.path.exists(f"{self.home}/frozen") or bool(self.place.names())

    @property
    def status(self) -> Status:
        """``open``, ``frozen`` (read-only: it has branches of its own, or was told to be), ``stale`` (a sibling was
        committed first), ``committed`` or ``aborted``."""
        if self._ended:
            return self._ended
        if BranchInfo.load(self.home).generation != self.parent.place.head:
            return "stale"
        return "frozen" if self.is_frozen else "open"

    @property
    def created(self) -> datetime:
        """When it was made."""
        return datetime.fromtimestamp(BranchInfo.load(self.home).created, UTC)

    @property
    def owner_alive(self) -> bool:
        """Whether the process that made it still runs."""
        owner = BranchInfo.load(self.home).owner
        return owner is not None and owner.alive

    @property
    def kept(self) -> bool:
        """Whether it was told to outlive its process."""
        return BranchInfo.load(self.home).kept

    @property
    def lowers(self) -> list[str]:
        return [self.target] if self.view_kind.whole else [self.target, *self.parent.lowers]

    @property
    def commits_into_layer(self) -> bool:
        """Whether its commit is folded into another layer, instead of changing a plain directory."""
        return isinstance(self.parent, Branch) and not self.view_kind.whole

    # What it changed

    def delta(self) -> Delta:
        """What it changed against its parent, as a value. Costs what was changed, not what is there (in a layered
        view; a whole tree is looked through)."""
        with self._lock():
            return self.scan().delta()

    def diff(self) -> str:
        """What it changed, as unified text that ``git apply`` and ``patch -p1`` take."""
        from forkwise.files.versions import Versions, file_diffs  # noqa: PLC0415
        from forkwise.text.diff import unified  # noqa: PLC0415 - only who asks for text pays for it

        with self._lock(), Versions(self.target, self.parent.lowers) as versions:
            return unified(file_diffs(versions, self.scan()))

    def scan(self) -> Scan:
        """Read the layer against the parent. Called under the lock."""
        self.view_kind.flush(self.home)
        base = self.view_kind.base(self.home)
        taken_back = RolledBack.load(self.parent.place)
        if base is None:
            return scan_layer(self.target, self.parent.lowers, self.view_kind.mark_files, taken_back)
        from forkwise.files.store.scan import scan_tree  # noqa: PLC0415

        made = BranchInfo.load(self.home).made
        scan = scan_tree(self.target, self.parent.lowers, base, made, RolledBack.load(self.place))
        scan.taken_back = taken_back
        return scan

    # What becomes of it

    def commit(self, *, on_conflict: OnConflict = "refuse", durable: bool | None = None, trust: bool = False) -> Commit:
        """Apply what it changed to its parent, all of it or nothing, and end the branch.

        Raises BranchStaleError where a sibling was committed first (see ``rebase``), and ConflictError where somebody
        else changed the same paths in the parent since the fork; ``on_conflict`` decides those: ``ours`` takes the
        branch's, ``theirs`` keeps the parent's, ``merge`` merges text three ways. ``durable=False`` skips the syncs
        that make it hold over a power failure. ``trust=True`` accepts files that may have been torn by one.
        """
        from forkwise.files.commit import commit_branch  # noqa: PLC0415

        self._must_be_open()
        self._ahead = None
        durable = self.workspace.durable if durable is None else durable
        done = commit_branch(self, on_conflict=on_conflict, durable=durable, trust=trust)
        self._ended = "committed"
        return done

    def run(self, argv: Sequence[str], **options: Any) -> Finished:
        """Run a command in it, confined, with the branch at the workspace's own path; see forkwise.sandbox.run."""
        from forkwise.sandbox.run import run_in_branch  # noqa: PLC0415 (a higher floor, loaded on use)

        return run_in_branch(self, argv, **options)

    async def arun(self, argv: Sequence[str], **options: Any) -> Finished:
        """The same for asyncio programs; cancelled, it ends the command with all its descendants."""
        from forkwise.sandbox.run import arun_in_branch  # noqa: PLC0415 (a higher floor, loaded on use)

        return await arun_in_branch(self, argv, **options)

    def shell(self, argv: Sequence[str] = (), **options: Any) -> int:
        """Put a person into it: their shell, or a command, on this terminal. Gives the exit code."""
        from forkwise.sandbox.run import shell_in_branch  # noqa: PLC0415 (a higher floor, loaded on use)

        return shell_in_branch(self, argv, **options)

    def abort(self) -> None:
        """Drop the branch and all branches made from it. Quick, however much was changed."""
        self._must_be_open()
        self._ahead = None
        try:
            with deferred(), locked(self.place.state):
                self.recover()
                BranchInfo.load(self.home)
                self.remove()
                self.parent.after_child_removed()
        except OSError as error:
            raise AbortError(f"{self.branch_path} could not be aborted: {error}", branch=self.name) from error
        self._ended = "aborted"

    def rebase(self, *, merge: bool = True) -> Rebase:
        """Bring a stale branch onto what its parent is now.

        Text that both changed is merged three ways, unless ``merge=False``. What is not merged stays as the branch has
        it, comes back as ``Conflict`` values, and is refused by ``commit`` until the file is changed or
        ``on_conflict`` decides.
        """
        from forkwise.files.rebase import rebase_branch  # noqa: PLC0415

        self._must_be_open()
        return rebase_branch(self, merge=merge)

    def freeze(self) -> None:
        """Make it read-only, and its content safe on the disk, until ``thaw``."""
        with self._lock() as lock:
            self.view_kind.freeze(self.home, self.parent.lowers)
            self._sync(lock)
            os.close(os.open(f"{self.home}/frozen", os.O_CREAT | os.O_CLOEXEC, 0o600))

    def thaw(self) -> None:
        """Make a frozen branch writable again; not while branches made from it live."""
        with self._lock():
            if self.place.names():
                raise BranchError(f"{self.branch_path} has branches of its own; they come first", branch=self.name)
            with suppress(FileNotFoundError):
                os.unlink(f"{self.home}/frozen")
            self.after_child_removed()

    def keep(self) -> Branch:
        """Let it outlive this process and a loss of power: ``gc`` leaves it alone, the end of a ``with`` block too."""
        with self._lock() as lock:
            self._sync(lock, keep=True)
        self._on_success = self._on_error = None
        return self

    def hide(self) -> None:
        """Take its view down, for nobody works in it now; the next look brings it up again."""
        with self._lock():
            self.view_kind.hide(self.home)

    def _sync(self, lock: Lock, *, keep: bool = False) -> None:
        birth = BranchInfo.load(self.home)
        birth.synced = lock.now()
        birth.kept = birth.kept or keep
        sync_filesystem(self.target)
        birth.save(self.home)

    # As a context manager

    def __enter__(self) -> Branch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._ended:
            return
        if error is None:
            if self._on_success == "commit":
                self.commit()
        elif self._on_error == "abort":
            self.abort()

    # As a parent

    @property
    def is_interrupted(self) -> bool:
        return self.parent.is_interrupted or super().is_interrupted

    def resting(self) -> int | None:
        return None if self.parent.resting() is None else super().resting()

    def recover(self) -> None:
        self.parent.recover()  # which may be what brings this branch's own home back
        super().recover()

    def child_view(self) -> View:
        return self.view_kind

    def before_fork(self) -> None:
        self._must_be_open()
        BranchInfo.load(self.home)
        if not self.is_frozen:
            self.view_kind.freeze(self.home, self.parent.lowers)

    def before_commit(self) -> None:
        # Changing a layer underneath its mount is undefined, so it is taken down; the next look mounts it anew.
        self.view_kind.hide(self.home)

    def after_child_removed(self) -> None:
        if not self.is_frozen:
            self.view_kind.thaw(self.home, self.parent.lowers)

    # Under the lock

    def remove(self) -> None:
        """Take the branch and what was made from it out of sight. Called under the lock."""
        for name in self.place.names():
            Branch.open(self, name).remove()
        self.view_kind.release(self.home)
        discard(self.place, self.home)

    @contextmanager
    def _lock(self) -> Iterator[Lock]:
        self._must_be_open()
        with locked(self.place.state) as lock:
            self.recover()
            BranchInfo.load(self.home)
            yield lock

    def _must_be_open(self) -> None:
        if self._ended:
            raise BranchNotFoundError(f"{self.branch_path} was {self._ended}", branch=self.name)
