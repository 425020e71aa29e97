"""Shelved branches and copies of a branch's layer: two ways to set work aside and restore it later.

``shelve`` hides a whole branch until it is unshelved, or until this process ends. ``save_copy`` saves a copy of the
layer in the branch's home; files unchanged since the last copy are hard links to it, so copies are never written to.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forkwise.errors import BranchError, BranchNotFoundError, MountError
from forkwise.files.branch import Branch, Parent
from forkwise.files.store.branch_info import BranchInfo
from forkwise.files.store.document import check_path
from forkwise.files.store.state import locked
from forkwise.files.store.trash import discard, wait_until_empty
from forkwise.linux.syscalls import RENAME_EXCHANGE, renameat2
from forkwise.linux.trees import EarlierCopy, Identity, copy_layer, open_root

if TYPE_CHECKING:
    from forkwise.files.store.view import View

_COPY = re.compile(r"[0-9a-f]{12}\Z", re.ASCII)

__all__ = [
    "ShelvedBranch",
    "copy_saved",
    "drop_copy",
    "is_duplicable",
    "list_copies",
    "restore_copy",
    "save_copy",
    "shelve",
]


@dataclass(frozen=True, eq=False)
class ShelvedBranch:
    """A shelved branch: its parent, its name, and the path of its hidden home."""

    parent: Parent
    name: str
    home: str
    view: View

    def unshelve(self) -> Branch:
        """Make it an open branch again. It is stale if a sibling was committed since: see ``Branch.rebase``."""
        with locked(self.parent.state_dir.state):
            self.parent._recover()
            self.parent._before_fork()
            try:
                os.rename(self.home, self.parent.state_dir.home(self.name))
            except FileNotFoundError:
                raise BranchError(
                    f"the shelved branch {self.name} was dropped and cannot be restored", branch=self.name
                ) from None
        _shelved.discard(self)
        return Branch.open(self.parent, self.name)

    def discard(self) -> None:
        """Drop it permanently; do nothing if it was dropped already."""
        _shelved.discard(self)
        with suppress(FileNotFoundError, MountError), locked(self.parent.state_dir.state):
            self.view.release(self.home)
            discard(self.parent.state_dir, self.home)


def shelve(branch: Branch) -> ShelvedBranch:
    """Hide a branch until it is unshelved.

    Raises BranchError if it has branches of its own, or if it is on BranchFS or DaxFS.
    """
    if branch.view_kind.native:
        raise BranchError(f"{branch.view} cannot hide the branch {branch.branch_path}", branch=branch.name)
    with locked(branch.state_dir.state):
        branch._recover()
        BranchInfo.load(branch.home)
        if names := branch.state_dir.names():
            raise BranchError(
                f"{branch.branch_path} has branches of its own: {', '.join(names)}; commit or abort those first",
                branch=branch.name,
            )
        branch.view_kind.hide(branch.home)
        home = f"{branch.parent.state_dir.path}/branches/.aside-{os.getpid()}-{secrets.token_hex(6)}"
        os.rename(branch.home, home)
        branch.parent._after_child_removed()
    shelved = ShelvedBranch(branch.parent, branch.name, home, branch.view_kind)
    _shelved.add(shelved)
    return shelved


_shelved: set[ShelvedBranch] = set()


@atexit.register
def _discard_all() -> None:
    """Drop the branches that this process shelved; a forked child leaves those of its parent alone."""
    own = [shelved for shelved in _shelved if f".aside-{os.getpid()}-" in shelved.home]
    for shelved in own:
        with suppress(OSError, BranchError):
            shelved.discard()
    if own:
        wait_until_empty()


def is_duplicable(branch: Branch) -> bool:
    """Return whether copies of a branch's layer can be saved; a view that keeps a whole tree is too large."""
    return not branch.view_kind.whole


def save_copy(branch: Branch) -> str:
    """Save a copy of a branch's changes. Return its name. No process may write to the branch meanwhile."""
    _require_duplicable(branch)
    branch.view_kind.flush(branch.home)
    name = secrets.token_hex(6)
    temporary = f"{_copies(branch)}/.{name}"
    os.makedirs(f"{temporary}/layer", mode=0o700)
    with (
        _open_last(branch) as earlier,
        _open_directory(branch.target) as source,
        _open_directory(f"{temporary}/layer") as target,
    ):
        copied = copy_layer(source, target, earlier)
    with open(f"{temporary}/index", "w") as file:
        json.dump([[*identity, path] for identity, path in copied.items()], file)
    os.rename(temporary, f"{_copies(branch)}/{name}")
    _set_last(branch, name)
    return name


def restore_copy(branch: Branch, name: str) -> None:
    """Restore a branch to a saved copy, which stays saved.

    One rename does it, so a kill leaves either the old or the restored state. Raises BranchError if the branch has
    branches of its own, or no such copy.
    """
    _require_duplicable(branch)
    saved, beside = f"{_copies(branch)}/{name}/layer", f"{_copies(branch)}/.{secrets.token_hex(6)}"
    if not _COPY.match(name) or not os.path.isdir(saved):
        raise BranchError(
            f"{branch.branch_path} has no saved copy {name!r}; it may have been dropped", branch=branch.name
        )
    os.mkdir(beside, 0o700)
    try:
        with _open_directory(saved) as source, _open_directory(beside) as target:
            copy_layer(source, target)
        with locked(branch.state_dir.state):
            branch._recover()
            BranchInfo.load(branch.home)
            if names := branch.state_dir.names():
                raise BranchError(
                    f"{branch.branch_path} has branches of its own: {', '.join(names)}; commit or abort those first",
                    branch=branch.name,
                )
            branch.view_kind.hide(branch.home)
            with _open_directory(branch.home) as home, _open_directory(_copies(branch)) as copies:
                renameat2(home, os.path.basename(branch.target), copies, os.path.basename(beside), RENAME_EXCHANGE)
    finally:
        with suppress(FileNotFoundError):
            discard(branch.state_dir, beside)


def drop_copy(branch: Branch, name: str) -> None:
    """Drop a saved copy; do nothing if it does not exist."""
    if not _COPY.match(name):
        return
    with suppress(FileNotFoundError):
        discard(branch.state_dir, f"{_copies(branch)}/{name}")


def list_copies(branch: Branch) -> set[str]:
    """Return the names of a branch's saved copies."""
    try:
        return {name for name in os.listdir(_copies(branch)) if _COPY.match(name)}
    except FileNotFoundError:
        return set()


def copy_saved(source: Branch, name: str, target: Branch) -> None:
    """Copy a saved copy to another branch of the same parent, under the same name."""
    _require_duplicable(target)
    if not _COPY.match(name):
        raise BranchError(f"{name!r} is not the name of a saved copy", branch=source.name)
    temporary = f"{_copies(target)}/.{name}"
    os.makedirs(f"{temporary}/layer", mode=0o700)
    with _open_directory(f"{_copies(source)}/{name}/layer") as saved, _open_directory(f"{temporary}/layer") as made:
        copy_layer(saved, made)
    os.rename(temporary, f"{_copies(target)}/{name}")


def _copies(branch: Branch) -> str:
    return f"{branch.home}/copies"


def _require_duplicable(branch: Branch) -> None:
    BranchInfo.load(branch.home)
    if not is_duplicable(branch):
        raise BranchError(
            f"{branch.branch_path} has the view {branch.view}, which keeps a whole tree: copies cannot be saved",
            branch=branch.name,
        )


def _set_last(branch: Branch, name: str) -> None:
    """Point the ``.last`` symlink at a copy, atomically."""
    beside = f"{_copies(branch)}/.{secrets.token_hex(6)}"
    os.symlink(name, beside)
    os.rename(beside, f"{_copies(branch)}/.last")


@contextmanager
def _open_last(branch: Branch) -> Iterator[EarlierCopy | None]:
    """Open the last saved copy; yield None if there is none."""
    try:
        name = os.readlink(f"{_copies(branch)}/.last")
        if not _COPY.match(name):
            raise ValueError("it names no copy")
        with open(f"{_copies(branch)}/{name}/index") as file:
            listed = json.load(file)
        paths: dict[Identity, str] = {(ino, at, size): check_path(path, "path") for ino, at, size, path in listed}
        root = open_root(f"{_copies(branch)}/{name}/layer")
    except (FileNotFoundError, ValueError, TypeError, RecursionError):  # without it, all files are copied
        yield None
        return
    try:
        yield EarlierCopy(root, paths)
    finally:
        os.close(root)


@contextmanager
def _open_directory(path: str) -> Iterator[int]:
    try:
        fd = open_root(path)
    except FileNotFoundError:
        raise BranchNotFoundError(f"{path} is gone: its branch was committed or aborted") from None
    try:
        yield fd
    finally:
        os.close(fd)
