"""Sight: where a branch that is to be put into a sandbox is seen from outside, if it is."""

from __future__ import annotations

import os

from forkwise.errors import BranchError
from forkwise.files import namespace
from forkwise.files.branch import Branch
from forkwise.files.owner import Owner
from forkwise.files.views.overlay import forgive_volatile, note_private, private_owners
from forkwise.files.workspace import Workspace

__all__ = ["is_private", "note_sandbox", "seen_at"]


def is_private(branch: Branch) -> bool:
    """Whether a branch can be mounted only where nobody else sees it, by a user who may not mount."""
    return branch.view == "overlay" and os.geteuid() != 0 and not namespace.is_entered()


def seen_at(branch: Branch | Workspace) -> str | None:
    """Where the host sees a branch; None where it is mounted inside, which only one sandbox may do at a time."""
    if isinstance(branch, Workspace) or not is_private(branch):
        return os.fspath(branch.path)
    if private_owners(branch.home):
        raise BranchError(
            f"{branch.branch_path} is in use by another sandbox, and mounted only there; wait for it, or make the "
            "branch with a view that every process sees (fuse, copy)",
            branch=branch.name,
        )
    forgive_volatile(branch.home)
    return None


def note_sandbox(branch: Branch | Workspace, pid: int) -> None:
    """Note that a sandbox has the branch mounted where nobody else sees it."""
    if isinstance(branch, Branch) and is_private(branch):
        note_private(branch.home, Owner.of(pid))
