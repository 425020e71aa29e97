"""fuse-overlayfs: the same layers, served by a process instead of the kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from forkwise.linux.syscalls import MNT_DETACH, umount2

__all__ = ["is_installed", "mount", "mounted", "unmount"]


def is_installed() -> bool:
    """Return whether it is installed and the kernel supports FUSE."""
    return shutil.which("fuse-overlayfs") is not None and os.path.exists("/dev/fuse")


def mount(directory: str, lower: str) -> str:
    """Create the directories of a branch in ``directory``, and mount it. Return the path of the mount."""
    for part in ("upper", "work", "view"):
        os.mkdir(f"{directory}/{part}")
    options = f"lowerdir={lower},upperdir={directory}/upper,workdir={directory}/work,volatile"
    subprocess.run(
        ["fuse-overlayfs", "-o", options, f"{directory}/view"],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return f"{directory}/view"


def unmount(directory: str) -> None:
    """Unmount a branch, which ends its server."""
    umount2(f"{directory}/view", MNT_DETACH)


@contextmanager
def mounted(directory: str, lower: str) -> Iterator[str]:
    """Mount a branch for the block."""
    yield mount(directory, lower)
    unmount(directory)
