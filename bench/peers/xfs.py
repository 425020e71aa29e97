"""Clones of files on XFS, on an image in a file, so that the directory of the run need not be an XFS."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from forkwise.linux.syscalls import MNT_DETACH, umount2

__all__ = ["clone", "is_installed", "mounted_image"]

_SIZE = 4 << 30  # sparse


def is_installed() -> bool:
    """Return whether its tools are installed and the kernel supports it."""
    if shutil.which("mkfs.xfs") is None or not os.path.exists("/dev/loop-control"):
        return False
    with open("/proc/filesystems") as file:
        return any(line.split()[-1] == "xfs" for line in file)


@contextmanager
def mounted_image(image: str, mount: str) -> Iterator[str]:
    """Create an XFS and mount it for the block; its loop device is detached with the mount."""
    with open(image, "wb") as file:
        file.truncate(_SIZE)
    _run("mkfs.xfs", "-q", image)
    os.mkdir(mount)
    _run("mount", "-t", "xfs", "-o", "loop", image, mount)
    try:
        yield mount
    finally:
        umount2(mount, MNT_DETACH)
        os.unlink(image)


def clone(source: str, path: str) -> None:
    """Clone a directory with cp."""
    _run("cp", "-r", "--reflink=always", source, path)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
