"""BranchFS, if FORKWISE_BRANCHFS names its binary."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from forkwise.files.views.branchfs import BranchFS, mount_branchfs, unmount_branchfs

__all__ = ["is_installed", "mounted"]


def is_installed() -> bool:
    """Return whether a binary is named."""
    return bool(os.environ.get("FORKWISE_BRANCHFS"))


@contextmanager
def mounted(base: str, directory: str) -> Iterator[BranchFS]:
    """Mount a BranchFS over ``base`` for the block; ``directory`` is empty."""
    binary = os.environ["FORKWISE_BRANCHFS"]
    mount, storage = f"{directory}/mount", f"{directory}/storage"
    os.mkdir(mount)
    os.mkdir(storage)
    filesystem = mount_branchfs(binary, base, mount, storage)
    try:
        yield filesystem
    finally:
        unmount_branchfs(binary, mount, storage)
