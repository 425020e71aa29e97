"""Filesystems in image files, for tests that need btrfs, XFS or another device than the one the tests run on."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forkwise.files.store import trash
from forkwise.linux.syscalls import MNT_DETACH, mount, umount2
from tests.need import need

__all__ = ["loop_image", "mounted_tmpfs"]

_EXIT_TIMEOUT_S = 60.0


@contextmanager
def loop_image(fstype: str, size_mb: int, tmp_path: Path, options: str = "") -> Iterator[Path]:
    """Mount a new filesystem; at the end of the block, unmount it and detach its loop device."""
    need(os.geteuid() == 0, f"mounting a {fstype} image needs root")
    need(shutil.which(f"mkfs.{fstype}") is not None, f"mkfs.{fstype} is not installed")
    image = tmp_path / f"{fstype}.img"
    where = tmp_path / f"{fstype}.mnt"
    where.mkdir()
    with open(image, "wb") as file:
        file.truncate(size_mb << 20)
    subprocess.run([f"mkfs.{fstype}", "-q", str(image)], check=True, capture_output=True)
    # mount(8) makes the loop device detach itself with the last unmount, even if this process dies.
    wanted = ",".join(filter(None, ("loop", options)))
    done = subprocess.run(["mount", "-t", fstype, "-o", wanted, str(image), str(where)], capture_output=True, text=True)
    need(done.returncode == 0, f"a {fstype} image cannot be mounted here: {done.stderr.strip()}")
    try:
        yield where
    finally:
        _unmount(where)
        image.unlink()


@contextmanager
def mounted_tmpfs(where: Path) -> Iterator[None]:
    """Mount a tmpfs over an existing directory."""
    need(os.geteuid() == 0, "mounting a tmpfs needs root")
    mount("tmpfs", str(where), "tmpfs")
    try:
        yield
    finally:
        _unmount(where)


def _unmount(where: Path) -> None:
    trash.wait_until_empty()  # deletions in the background keep it busy
    deadline = time.monotonic() + _EXIT_TIMEOUT_S
    while True:
        try:
            umount2(str(where))
            return
        except OSError:
            # The kernel closes the files of a process that exits one by one: the pipe by which a FUSE server's exit is
            # noticed is closed before the directories that it serves.
            if time.monotonic() < deadline:
                time.sleep(0.005)
                continue
            # A file in it is still open. Unmount it anyway, and fail the test.
            umount2(str(where), MNT_DETACH)
            raise
