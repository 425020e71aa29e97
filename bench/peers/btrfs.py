"""btrfs snapshots, on an image in a file, so that the directory of the run need not be a btrfs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from forkwise.linux.syscalls import MNT_DETACH, umount2

__all__ = ["is_installed", "mounted_image", "snapshot", "subvolume"]

_SIZE = 4 << 30  # sparse


def is_installed() -> bool:
    """Return whether its tools are installed and the kernel supports it."""
    if shutil.which("btrfs") is None or shutil.which("mkfs.btrfs") is None or not os.path.exists("/dev/loop-control"):
        return False
    with open("/proc/filesystems") as file:
        return any(line.split()[-1] == "btrfs" for line in file)


@contextmanager
def mounted_image(image: str, mount: str) -> Iterator[str]:
    """Create a btrfs and mount it for the block; its loop device is detached with the mount."""
    with open(image, "wb") as file:
        file.truncate(_SIZE)
    _run("mkfs.btrfs", "-q", image)
    os.mkdir(mount)
    _run("mount", "-t", "btrfs", "-o", "loop", image, mount)
    try:
        yield mount
    finally:
        umount2(mount, MNT_DETACH)
        os.unlink(image)


def subvolume(path: str, source: str) -> None:
    """Create a subvolume with a copy of the tree ``source``."""
    _run("btrfs", "subvolume", "create", path)
    _run("cp", "-a", f"{source}/.", path)
    _run("btrfs", "filesystem", "sync", path)


def snapshot(source: str, path: str) -> None:
    """Take a snapshot, the counterpart of a branch."""
    _run("btrfs", "subvolume", "snapshot", source, path)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
