"""Parent: what branches are made from and commit into, a workspace or another branch."""

from __future__ import annotations

import os
import re
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Literal

from forkwise.errors import BranchError, BranchNotFoundError
from forkwise.files.birth import Birth
from forkwise.files.owner import Owner, boot_id
from forkwise.files.spares import Spare, Spares
from forkwise.files.state import Lock, Place, locked
from forkwise.files.transaction import recover
from forkwise.files.trash import discard
from forkwise.files.views.protocol import View

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.workspace import Workspace

__all__ = ["OnError", "OnSuccess", "Parent", "check_name", "check_outcomes"]

OnSuccess = Literal["commit"] | None
OnError = Literal["abort"] | None

_NAME = re.compile(r"[^./\x00-\x1f\x7f][^/\x00-\x1f\x7f]*\Z")
_LONGEST_NAME = 200
_serial = count()


class Parent(ABC):
    """Something with branches. ``target`` is the directory their commits change, ``lowers`` what they see beneath
    their own layer, nearest first."""

    place: Place
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
    def view_of_children(self) -> View:
        """The view that a branch made now gets."""

    @abstractmethod
    def fork_begins(self) -> None:
        """Called under the lock, before a branch is made from this."""

    @abstractmethod
    def commit_begins(self) -> None:
        """Called under the lock, before something is committed into this."""

    @abstractmethod
    def child_gone(self) -> None:
        """Called under the lock, after a branch was committed or aborted."""

    @property
    def is_interrupted(self) -> bool:
        """Whether a commit into this, or into what it was itself made from, was begun and not brought to its end."""
        return self.place.is_interrupted

    def resting(self) -> int | None:
        """The number of the last commit into this, while none is under way into it or into what it was made from."""
        return self.place.resting()

    def settle(self) -> None:
        """Take back such a commit. Called under the exclusive lock."""
        if self.place.is_interrupted:
            recover(self.place, self.target)

    def branch(self, name: str, on_success: OnSuccess = "commit", on_error: OnError = "abort") -> Branch:
        """Make a branch, at once and in constant time.

        Used as a context manager it commits when the block ends (``on_success=None``: stays open) and is aborted when
        the block raises (``on_error=None``: stays open).
        """
        from forkwise.files.branch import Branch  # noqa: PLC0415 - a branch is itself a parent

        check_name(name)
        check_outcomes(on_success, on_error)
        view = self.view_of_children()
        stock = self.spares(view)
        with locked(self.place.state, shared=True) as lock:
            head = self.resting()
            spare = None if head is None else self._make(name, view, lock, head, stock)
        if head is None:
            with locked(self.place.state) as lock:
                self.settle()
                spare = self._make(name, view, lock, self.place.head, stock)
        if stock is not None:
            stock.refill()
        return Branch(self, name, view, on_success, on_error, spare)

    def children(self) -> list[Branch]:
        """The branches made from this one and not yet committed or aborted, whichever process made them."""
        from forkwise.files.branch import Branch  # noqa: PLC0415

        found = []
        for name in self.place.names():
            try:
                found.append(Branch.open(self, name))
            except BranchNotFoundError:
                continue  # gone since the names were read
        return found

    def _make(self, name: str, view: View, lock: Lock, head: int, stock: Spares | None) -> Spare | None:
        """Make a branch's home; gives what it was made of, where that was in stock."""
        self.fork_begins()
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
            Birth(view.name, head, forked, made, time.time(), boot_id(), Owner.me()).save_first(home)
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

    def spares(self, view: View) -> Spares | None:
        """Homes that are kept ready; None where there are none of the kind."""
        return None


def _new_home(place: Place) -> str:
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
