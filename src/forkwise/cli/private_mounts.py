"""Kernel overlays without root: a command enters a user and mount namespace of its own.

A process cannot leave such a namespace, and no other process sees its mounts. A command can afford that because it is
short-lived; a library must not do it to the program that imports it.
"""

from __future__ import annotations

import os
from pathlib import Path

from forkwise.files.branch import Branch
from forkwise.files.workspace import Workspace
from forkwise.linux import namespace

__all__ = ["WORSE", "enter_to_create", "is_private", "open_inside"]

WORSE = frozenset({"fuse", "reflink", "copy"})
"""Views that all processes can see, but that are slower than the overlay on each access or for each new branch."""


def enter_to_create(directory: Path, view: str | None) -> None:
    """Enter a namespace if a new branch would otherwise get a slower view than the kernel's overlay."""
    if os.geteuid() == 0 or view not in (None, "overlay"):
        return
    if (view == "overlay" or Workspace(directory).fstype in WORSE) and namespace.available():
        namespace.enter_namespace()


def open_inside(directory: Path, name: str) -> Branch:
    """Open a branch, entering a namespace first if its view can only be mounted there."""
    found = Workspace(directory).open(name)
    if os.geteuid() == 0 or found.view != "overlay" or not namespace.available():
        return found
    namespace.enter_namespace()
    return Workspace(directory).open(name)


def is_private(branch: Branch) -> bool:
    """Return whether only this process and its children see the branch."""
    return branch.view == "overlay" and namespace.is_entered()
