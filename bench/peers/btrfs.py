"""btrfs snapshots, on an image in a file where the ground itself is no btrfs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from forkwise.linux.syscalls import MNT_DETACH, umount2

__all__ = ["is_installed", "mounted_image", "snapshot", "subvolume"]

_SIZE = 4 << 30  # sparse: it takes what is written


def is_installed() -> bool:
    """Whether its tools are there and the kernel knows it."""
    if shutil.which("btrfs") is None or shutil.which("mkfs.btrfs") is None or not os.path.exists("/dev/loop-control"):
        return False
    with open("/proc/filesystems") as file:
        return any(line.split()[-1] == "btrfs" for line in file)


@contextmanager
def mounted_image(image: str, where: str) -> Iterator[str]:
    """A new btrfs; its loop device goes with the mount."""
    with open(image, "wb") as file:
        file.truncate(_SIZE)
    _run("mkfs.btrfs", "-q", image)
    os.mkdir(where)
    _run("mount", "-t", "btrfs", "-o", "loop", image, where)
    try:
        yield where
    finally:
        umount2(where, MNT_DETACH)
        os.unlink(image)


def subvolume(path: str, source: str) -> None:
    """A subvolume with a copy of a tree in it."""
    _run("btrfs", "subvolume", "create", path)
    _run("cp", "-a", f"{source}/.", path)
    _run("btrfs", "filesystem", "sync", path)


def snapshot(source: str, path: str) -> None:
    """What stands for making a branch."""
    _run("btrfs", "subvolume", "snapshot", source, path)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
