"""A stand-in for BranchFS: a FUSE filesystem in Python with BranchFS's layout, ioctls, control words and errors.

``install`` writes a program that is called like BranchFS's own binary. ``mounted`` mounts a directory with it, or with
the real binary that ``FORKWISE_BRANCHFS`` names.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tests.need import need, need_user_name

__all__ = ["BUILDS", "Build", "install", "mounted"]

#: Newer builds of BranchFS accept ioctls; those of February 2026 only text.
Build = Literal["ioctl", "text", "real"]

#: The builds to test with.
BUILDS: tuple[Build, ...] = ("ioctl", "text", *(["real"] if os.environ.get("FORKWISE_BRANCHFS") else []))

_PROGRAM = Path(__file__).with_name("__main__.py")
_USER_NAMESPACE = os.readlink("/proc/self/ns/user")


def install(directory: Path, build: Build = "ioctl") -> str:
    """Write the program ``branchfs`` into a directory. Return its path."""
    need(os.access("/dev/fuse", os.R_OK | os.W_OK), "/dev/fuse is not usable")
    need_user_name()
    is_outside = os.readlink("/proc/self/ns/user") == _USER_NAMESPACE
    need(
        is_outside,
        "an earlier test took this process into a user namespace, where fusermount3 fails",
    )
    program = directory / f"branchfs-{build}"
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} -P {_PROGRAM} --build {build} --default-storage {directory}/default "$@"\n'
    )
    program.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    return str(program)


@contextmanager
def mounted(directory: Path, build: Build = "ioctl") -> Iterator[Path]:
    """Mount ``directory/base`` at ``directory/mount``; yield the mount point."""
    program = os.environ["FORKWISE_BRANCHFS"] if build == "real" else install(directory, build)
    for name in ("base", "mount", "storage"):
        (directory / name).mkdir(exist_ok=True)
    storage = ["--storage", str(directory / "storage")]
    subprocess.run([program, "mount", "--base", directory / "base", *storage, directory / "mount"], check=True)
    try:
        yield directory / "mount"
    finally:
        subprocess.run([program, "unmount", *storage, directory / "mount"], check=True)
