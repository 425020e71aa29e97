"""Duplicating: copies of a branch's layer, to which the branch can go back.

They lie in the branch's home and go with it. A copy costs what changed since the last one; it is never written to.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from forkwise.errors import BranchError, BranchNotFoundError, MountError
from forkwise.files.branch import Branch, Parent
from forkwise.files.store.branch_info import BranchInfo
from forkwise.files.store.state import locked
from forkwise.files.store.trash import discard, wait_until_empty
from forkwise.files.store.view import View
from forkwise.linux.syscalls import RENAME_EXCHANGE, renameat2
from forkwise.linux.trees import Identity, Older, copy_layer, open_root

__all__ = [
    "ShelvedBranch",
    "drop_copy",
    "is_duplicable",
    "restore_copy",
    "save_copy",
    "shelve",
]


@dataclass(frozen=True, eq=False)
class ShelvedBranch:
    """A branch that was set aside: what it was made from, its name, and where it lies."""

    parent: Parent
    name: str
    home: str
    view: View

    def unshelve(self) -> Branch:
        """Make it a branch again, as it was. Its parent may have been committed to since: see ``Branch.rebase``."""
        with locked(self.parent.place.state):
            self.parent.recover()
            self.parent.before_fork()
            try:
                os.rename(self.home, self.parent.place.home(self.name))
            except FileNotFoundError:
                raise BranchError(f"{self.name} was let go of, and cannot be had back", branch=self.name) from None
        _here.discard(self)
        return Branch.open(self.parent, self.name)

    def discard(self) -> None:
        """Drop it for good; what is gone already is gone."""
        _here.discard(self)
        with suppress(FileNotFoundError, MountError), locked(self.parent.place.state):
            self.view.release(self.home)
            discard(self.parent.place, self.home)


def shelve(branch: Branch) -> ShelvedBranch:
    """Take a branch out of sight. One that has branches of its own is refused."""
    with locked(branch.place.state):
        branch.recover()
        BranchInfo.load(branch.home)
        if names := branch.place.names():
            raise BranchError(f"{branch.branch_path} has branches of its own: {', '.join(names)}", branch=branch.name)
        branch.view_kind.hide(branch.home)
        home = f"{branch.parent.place.path}/branches/.aside-{os.getpid()}-{secrets.token_hex(6)}"
        os.rename(branch.home, home)
        branch.parent.after_child_removed()
    kept = ShelvedBranch(branch.parent, branch.name, home, branch.view_kind)
    _here.add(kept)
    return kept


_here: set[ShelvedBranch] = set()


@atexit.register
def _let_all_go() -> None:
    mine = [aside for aside in _here if f".aside-{os.getpid()}-" in aside.home]
    for aside in mine:
        with suppress(OSError, BranchError):
            aside.discard()
    if mine:
        wait_until_empty()


def is_duplicable(branch: Branch) -> bool:
    """Whether copies of its layer can be kept; where a branch is a whole tree they would cost as much as that."""
    return not branch.view_kind.whole


def save_copy(branch: Branch) -> str:
    """Keep what a branch has changed so far; gives the name of the copy. Nobody is to write to the branch meanwhile."""
    _check(branch)
    branch.view_kind.flush(branch.home)
    name = secrets.token_hex(6)
    made = f"{_copies(branch)}/.{name}"
    os.makedirs(f"{made}/layer", mode=0o700)
    with _last(branch) as older, _opened(branch.target) as source, _opened(f"{made}/layer") as target:
        copied = copy_layer(source, target, older)
    with open(f"{made}/index", "w") as file:
        json.dump([[*identity, path] for identity, path in copied.items()], file)
    os.rename(made, f"{_copies(branch)}/{name}")
    _point_at(branch, name)
    return name


def restore_copy(branch: Branch, name: str) -> None:
    """Have a branch stand as it did when a copy was kept, which stays. One rename does it: killed at any moment, the
    branch is as before or as it was then. BranchError where it has branches of its own, or no such copy."""
    _check(branch)
    kept, beside = f"{_copies(branch)}/{name}/layer", f"{_copies(branch)}/.{secrets.token_hex(6)}"
    if not os.path.isdir(kept):
        raise BranchError(f"{branch.branch_path} has no copy {name!r} of what it was any more", branch=branch.name)
    os.mkdir(beside, 0o700)
    try:
        with _opened(kept) as source, _opened(beside) as target:
            copy_layer(source, target)
        with locked(branch.place.state):
            branch.recover()
            BranchInfo.load(branch.home)
            if names := branch.place.names():
                raise BranchError(
                    f"{branch.branch_path} has branches of its own: {', '.join(names)}; they come first",
                    branch=branch.name,
                )
            branch.view_kind.hide(branch.home)
            with _opened(branch.home) as home, _opened(_copies(branch)) as copies:
                renameat2(home, os.path.basename(branch.target), copies, os.path.basename(beside), RENAME_EXCHANGE)
    finally:
        with suppress(FileNotFoundError):
            discard(branch.place, beside)


def drop_copy(branch: Branch, name: str) -> None:
    """Let go of a copy; one that is gone is gone."""
    with suppress(FileNotFoundError):
        discard(branch.place, f"{_copies(branch)}/{name}")


def _copies(branch: Branch) -> str:
    return f"{branch.home}/copies"


def _check(branch: Branch) -> None:
    BranchInfo.load(branch.home)
    if not is_duplicable(branch):
        raise BranchError(
            f"{branch.branch_path} is a whole tree ({branch.view}), of which no copies are kept", branch=branch.name
        )


def _point_at(branch: Branch, name: str) -> None:
    beside = f"{_copies(branch)}/.{secrets.token_hex(6)}"
    os.symlink(name, beside)
    os.rename(beside, f"{_copies(branch)}/.last")


@contextmanager
def _last(branch: Branch) -> Iterator[Older | None]:
    """The last copy that was kept, if it is still there."""
    last = f"{_copies(branch)}/.last"
    try:
        with open(f"{last}/index") as file:
            paths: dict[Identity, str] = {(ino, at, size): path for ino, at, size, path in json.load(file)}
        root = open_root(os.path.realpath(f"{last}/layer"))
    except FileNotFoundError:
        yield None
        return
    try:
        yield Older(root, paths)
    finally:
        os.close(root)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    try:
        fd = open_root(path)
    except FileNotFoundError:
        raise BranchNotFoundError(f"{path} is gone: its branch was committed or aborted") from None
    try:
        yield fd
    finally:
        os.close(fd)
