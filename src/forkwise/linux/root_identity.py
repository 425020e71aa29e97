"""The identity of a workspace's directory, which distinguishes it from another one that was moved to the same path.

A branch and a record of a commit describe changes to one directory. Applied to another one, they would overwrite and
delete the files of the same names there. So both record the identity of the directory they belong to.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from forkwise.linux.process_id import boot_id
from forkwise.linux.syscalls import birth_time, file_handle, filesystem_magic
from forkwise.linux.trees import open_root

__all__ = ["RootIdentity"]

_OVERLAYFS = 0x794C7630


@dataclass(frozen=True, slots=True)
class RootIdentity:
    """One directory: its device and inode number, its birth time (0: unknown), and the filesystem's handle for it.

    The handle is the most reliable part: a filesystem never reuses one, and it survives a restart, after which a device
    number may differ. Filesystems without handles have an empty one. On overlayfs the birth time is left out, because
    it changes when a directory is copied up.
    """

    device: int
    inode: int
    born: int
    handle: str
    boot: str

    @classmethod
    def of(cls, path: str) -> RootIdentity:
        """Return the identity of the directory that is at a path now."""
        fd = open_root(path)
        try:
            found = os.fstat(fd)
            handle = file_handle(fd, "")
            is_copied_up = handle is None and filesystem_magic(path) == _OVERLAYFS
            born = 0 if is_copied_up else birth_time(fd)
            return cls(found.st_dev, found.st_ino, born, (handle or b"").hex(), boot_id())
        finally:
            os.close(fd)

    def is_at(self, path: str) -> bool:
        """Return whether the same directory is at a path now."""
        try:
            if self.handle and (found := _find_handle(path)) is not None:
                return (self.inode, self.handle) == found
            now = RootIdentity.of(path)
        except OSError:
            return False
        if self.handle and now.handle:
            return (self.inode, self.handle) == (now.inode, now.handle)
        if self.born and now.born and self.born != now.born:
            return False
        # Device numbers, and inode numbers on overlayfs and FUSE, are valid only until the next restart.
        return self.boot != now.boot or (self.device, self.inode) == (now.device, now.inode)

    def is_open_as(self, fd: int) -> bool:
        """Return whether a descriptor, opened since ``is_at`` was called, refers to the same directory."""
        return os.fstat(fd).st_ino == self.inode or self.boot != boot_id()

    def dump(self) -> list[Any]:
        """Return the identity as a list for JSON."""
        return [self.device, self.inode, self.born, self.handle, self.boot]

    @classmethod
    def load(cls, row: object) -> RootIdentity:
        """Build it from what ``dump`` returned; raise ValueError if that is not possible."""
        if type(row) is not list or [type(part) for part in row] != [int, int, int, str, str]:
            raise ValueError("its root is not the identity of a directory")
        return cls(*row)


def _find_handle(path: str) -> tuple[int, str] | None:
    """Return the inode number and the handle of the directory at a path; None if its filesystem has no handles."""
    fd = open_root(path)
    try:
        handle = file_handle(fd, "")
        return None if handle is None else (os.fstat(fd).st_ino, handle.hex())
    finally:
        os.close(fd)
