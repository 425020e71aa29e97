"""BranchFS, where FORKWISE_BRANCHFS names its binary."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from forkwise.files.views.branchfs import BranchFS, mount_branchfs, unmount_branchfs

__all__ = ["is_installed", "mounted"]


def is_installed() -> bool:
    """Whether a binary was named."""
    return bool(os.environ.get("FORKWISE_BRANCHFS"))


@contextmanager
def mounted(base: str, home: str) -> Iterator[BranchFS]:
    """A BranchFS over a directory, for as long as the block lasts; ``home`` is an empty directory."""
    binary = os.environ["FORKWISE_BRANCHFS"]
    where, storage = f"{home}/mount", f"{home}/storage"
    os.mkdir(where)
    os.mkdir(storage)
    filesystem = mount_branchfs(binary, base, where, storage)
    try:
        yield filesystem
    finally:
        unmount_branchfs(binary, where, storage)
