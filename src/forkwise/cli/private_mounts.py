"""Kernel overlays for users who may not mount: when a verb goes into a namespace of its own for them.

A process that did so cannot come back, and nobody outside sees what it mounts. A command line can afford that, because
it ends when its verb is done; a library cannot do it to the program it lives in.
"""

from __future__ import annotations

import os
from pathlib import Path

from forkwise.files.branch import Branch
from forkwise.files.workspace import Workspace
from forkwise.linux import namespace

__all__ = ["WORSE", "enter_to_create", "is_private", "open_inside"]

WORSE = frozenset({"fuse", "reflink", "copy"})
"""Views that every process of the user sees, but that cost a daemon's round trips or a walk over every file."""


def enter_to_create(directory: Path, view: str | None) -> None:
    """Go into a namespace where a new branch would else get a worse view than the kernel's overlay."""
    if os.geteuid() == 0 or view not in (None, "overlay"):
        return
    if (view == "overlay" or Workspace(directory).fstype in WORSE) and namespace.available():
        namespace.enter()


def open_inside(directory: Path, name: str) -> Branch:
    """Open a branch from where its view can be brought up."""
    found = Workspace(directory).open(name)
    if os.geteuid() == 0 or found.view != "overlay" or not namespace.available():
        return found
    namespace.enter()
    return Workspace(directory).open(name)


def is_private(branch: Branch) -> bool:
    """Whether a branch is seen by this process and those it starts, and by nobody else."""
    return branch.view == "overlay" and namespace.is_entered()
