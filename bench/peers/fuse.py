"""fuse-overlayfs: the same layers, shown by a process instead of the kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from forkwise.linux.syscalls import MNT_DETACH, umount2

__all__ = ["is_installed", "mounted", "show", "take_down"]


def is_installed() -> bool:
    """Whether it is there and the kernel lets it serve."""
    return shutil.which("fuse-overlayfs") is not None and os.path.exists("/dev/fuse")


def show(home: str, lower: str) -> str:
    """Three directories and a server; ``home`` exists already. Gives where the mount is."""
    for part in ("upper", "work", "view"):
        os.mkdir(f"{home}/{part}")
    options = f"lowerdir={lower},upperdir={home}/upper,workdir={home}/work,volatile"
    subprocess.run(
        ["fuse-overlayfs", "-o", options, f"{home}/view"],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return f"{home}/view"


def take_down(home: str) -> None:
    """Unmount; the server ends with it."""
    umount2(f"{home}/view", MNT_DETACH)


@contextmanager
def mounted(home: str, lower: str) -> Iterator[str]:
    """A view for as long as the block lasts."""
    yield show(home, lower)
    take_down(home)
