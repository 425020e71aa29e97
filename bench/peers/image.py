"""Filesystems on an image in a file, so that the directory of the run need not be on one of them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from forkwise.linux.syscalls import MNT_DETACH, umount2

__all__ = ["is_supported", "mounted_image", "run_program"]

_SIZE = 4 << 30  # sparse


def is_supported(kind: str, *programs: str) -> bool:
    """Return whether a filesystem's tools are installed and the kernel supports it."""
    if not all(map(shutil.which, (f"mkfs.{kind}", *programs))) or not os.path.exists("/dev/loop-control"):
        return False
    with open("/proc/filesystems") as file:
        return any(line.split()[-1] == kind for line in file)


@contextmanager
def mounted_image(kind: str, image: str, mount: str) -> Iterator[str]:
    """Create a filesystem and mount it for the block; its loop device is detached with the mount."""
    with open(image, "wb") as file:
        file.truncate(_SIZE)
    run_program(f"mkfs.{kind}", "-q", image)
    os.mkdir(mount)
    run_program("mount", "-t", kind, "-o", "loop", image, mount)
    try:
        yield mount
    finally:
        umount2(mount, MNT_DETACH)
        os.unlink(image)


def run_program(*command: str) -> None:
    """Run a program that has to succeed."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
