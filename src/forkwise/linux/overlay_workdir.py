"""The work directory of an overlayfs mount, which its owner must be able to remove afterwards."""

from __future__ import annotations

import os

__all__ = ["make_removable"]

_MADE_BY_KERNEL = ("work", "work/incompat", "work/incompat/volatile")


def make_removable(workdir_fd: int) -> None:
    """Give the owner access to the directories that the kernel makes in a work directory when it mounts an overlay.

    The kernel makes them with mode 000, so that ``rm -rf`` by an unprivileged owner fails at them. Changing the mode
    while the overlay is mounted is harmless: the kernel uses them with the credentials of the mount. Doing it right
    after the mount, not at unmount, covers a process that is killed. ``workdir_fd`` may be opened with ``O_PATH``, and
    has to be opened before the mount if that covers the work directory.
    """
    for name in _MADE_BY_KERNEL:
        try:
            os.chmod(name, 0o700, dir_fd=workdir_fd)
        except OSError:
            return  # a read-only mount makes none of them, one that is not volatile only the first
