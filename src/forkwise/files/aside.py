"""Aside: branches that are out of sight and could still be had back, as long as their process lives.

Whoever decided against a branch may be told to think again. Until then it is no branch: nobody sees it, it freezes no
parent and has no view. It goes when it is let go of, when its process ends, or, after a kill, when somebody collects.
"""

from __future__ import annotations

import atexit
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass

from forkwise.errors import BranchError, MountError
from forkwise.files.birth import Birth
from forkwise.files.branch import Branch
from forkwise.files.parent import Parent
from forkwise.files.state import locked
from forkwise.files.trash import discard, wait
from forkwise.files.views.protocol import View

__all__ = ["Aside", "set_aside"]


@dataclass(frozen=True, eq=False)
class Aside:
    """A branch that was set aside: what it was made from, its name, and where it lies."""

    parent: Parent
    name: str
    home: str
    view: View

    def bring_back(self) -> Branch:
        """Make it a branch again, as it was. Its parent may have been committed to since: see ``Branch.rebase``."""
        with locked(self.parent.place.state):
            self.parent.settle()
            self.parent.fork_begins()
            try:
                os.rename(self.home, self.parent.place.home(self.name))
            except FileNotFoundError:
                raise BranchError(f"{self.name} was let go of, and cannot be had back", branch=self.name) from None
        _here.discard(self)
        return Branch.open(self.parent, self.name)

    def let_go(self) -> None:
        """Drop it for good; what is gone already is gone."""
        _here.discard(self)
        with suppress(FileNotFoundError, MountError), locked(self.parent.place.state):
            self.view.release(self.home)
            discard(self.parent.place, self.home)


def set_aside(branch: Branch) -> Aside:
    """Take a branch out of sight. One that has branches of its own is refused."""
    with locked(branch.place.state):
        branch.settle()
        Birth.load(branch.home)
        if names := branch.place.names():
            raise BranchError(f"{branch.branch_path} has branches of its own: {', '.join(names)}", branch=branch.name)
        branch.view_kind.hide(branch.home)
        home = f"{branch.parent.place.path}/branches/.aside-{os.getpid()}-{secrets.token_hex(6)}"
        os.rename(branch.home, home)
        branch.parent.child_gone()
    kept = Aside(branch.parent, branch.name, home, branch.view_kind)
    _here.add(kept)
    return kept


_here: set[Aside] = set()


@atexit.register
def _let_all_go() -> None:
    mine = [aside for aside in _here if f".aside-{os.getpid()}-" in aside.home]
    for aside in mine:
        with suppress(OSError, BranchError):
            aside.let_go()
    if mine:
        wait()
