"""The work directory of an overlayfs mount, which its owner must be able to remove after the unmount."""

from __future__ import annotations

import os

__all__ = ["make_removable"]

_MADE_BY_KERNEL = ("work", "work/incompat", "work/incompat/volatile")


def make_removable(workdir_fd: int) -> None:
    """Give the owner access to the directories that the kernel creates in a work directory when it mounts an overlay.

    The kernel creates them with mode 000, so that ``rm -rf`` by an unprivileged owner fails. Changing the mode while
    the overlay is mounted is harmless: the kernel uses them with the credentials of the mount. Changing it right after
    the mount, not at unmount, covers a process that is killed. ``workdir_fd`` may be opened with ``O_PATH``, and has to
    be opened before the mount if the mount covers the work directory.
    """
    for name in _MADE_BY_KERNEL:
        try:
            os.chmod(name, 0o700, dir_fd=workdir_fd)
        except OSError:
            return  # a read-only mount creates none of them, a mount without "volatile" only the first
