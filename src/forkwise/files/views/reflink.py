"""The reflink view: a branch is a clone of every file, which shares the file's blocks until one of the two is written.

It is separate from the copy view so that it is offered only if sharing works, and never falls back to a full copy.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from typing import ClassVar

from forkwise.files.store.view import Refusal, Site
from forkwise.files.views.whole import CopiedView, state_refusal
from forkwise.linux.trees import FICLONE, find_btrfs_id

__all__ = ["ReflinkView"]


class ReflinkView(CopiedView):
    """A branch as a tree of clones (XFS, btrfs, bcachefs)."""

    name: ClassVar[str] = "reflink"
    reflink_only: ClassVar[bool] = True

    def refusal(self, site: Site) -> Refusal | None:
        refused = state_refusal(site)
        if refused is not None:
            return refused
        if not _same_filesystem(site.workspace, site.state):
            return Refusal(
                f"{site.workspace} and {site.state} are on different filesystems, which cannot share blocks",
                "choose a state directory on the workspace's filesystem, or use the copy view",
            )
        try:
            _clone_within(site.state)
        except OSError as error:
            return Refusal(
                f"the filesystem of {site.state} cannot clone files ({error.strerror})",
                "move the workspace to XFS (made with reflink=1), btrfs or bcachefs, or use the copy view",
            )
        return None


def _same_filesystem(one: str, other: str) -> bool:
    if os.stat(one).st_dev == os.stat(other).st_dev:
        return True
    # The subvolumes of one btrfs filesystem have different device numbers, but can share blocks.
    found = find_btrfs_id(one)
    return found is not None and found == find_btrfs_id(other)


def _clone_within(directory: str) -> None:
    with tempfile.TemporaryFile(dir=directory) as source, tempfile.TemporaryFile(dir=directory) as target:
        source.write(b"\0" * 4096)
        source.flush()
        fcntl.ioctl(target.fileno(), FICLONE, source.fileno())
