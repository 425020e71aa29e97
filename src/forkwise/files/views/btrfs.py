"""The btrfs view: a branch is a snapshot of the workspace's subvolume, created in constant time.

A second, read-only snapshot in ``home/base`` keeps the original content of the branch; snapshots share their inode
numbers. Btrfs is called by ioctl, so that neither its tools nor root are needed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from forkwise.errors import BranchError, MountError
from forkwise.files.store.view import Base, Refusal, Site
from forkwise.files.views.whole import WholeView, layer_of, state_refusal
from forkwise.linux.trees import SUBVOLUME_INODE, find_btrfs_id, open_beneath, remove_tree, set_read_only

__all__ = ["BtrfsView", "SnapshotBase", "is_subvolume"]

_SNAP_DESTROY = 0x5000940F
_SNAP_CREATE_V2 = 0x50009417
_READ_ONLY = 1 << 1

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


class BtrfsView(WholeView):
    """A branch as a writable snapshot."""

    name: ClassVar[str] = "btrfs"

    def refusal(self, site: Site) -> Refusal | None:
        refused = state_refusal(site)
        if refused is not None:
            return refused
        found = find_btrfs_id(site.workspace)
        if found is None:
            return Refusal(f"{site.workspace} is not on btrfs", "move it to btrfs, or use another view")
        if not is_subvolume(site.workspace):
            return Refusal(
                f"{site.workspace} is a directory, not a btrfs subvolume",
                "make it one (btrfs subvolume create, then cp -a --reflink), or use the reflink view",
            )
        if find_btrfs_id(site.state) != found:
            return Refusal(
                f"{site.state} is not on the btrfs filesystem of {site.workspace}, and a snapshot cannot leave it",
                "choose a state directory on the same btrfs filesystem",
            )
        if os.geteuid() not in (0, os.stat(site.workspace).st_uid):
            return Refusal(
                f"{site.workspace} belongs to another user, and only its owner may snapshot it",
                "run as its owner or as root, or use the reflink view",
            )
        return None

    def make(self, home: str, lowers: Sequence[str]) -> None:
        try:
            with _directory(lowers[0]) as source, _directory(home) as target:
                _snapshot(source, target, "base", flags=_READ_ONLY)
                with _directory(f"{home}/base") as base:
                    _snapshot(base, target, "layer", flags=0)
        except OSError as error:
            raise MountError(
                f"{lowers[0]} could not be snapshotted into {home}: {error.strerror}",
                view=self.name,
                reason=error.strerror or "",
                remedy="both must be on one btrfs filesystem with free space, and this user must own the subvolume",
            ) from error

    def release(self, home: str) -> None:
        for name in ("layer", "base"):
            _delete_subvolume(home, name)

    def base(self, home: str) -> Base:
        return SnapshotBase(home)

    def _protect(self, home: str) -> None:
        _set_read_only(layer_of(home), True)

    def _unprotect(self, home: str) -> None:
        _set_read_only(layer_of(home), False)


class SnapshotBase(Base):
    """The original content of a snapshot, read from the read-only snapshot."""

    def __init__(self, home: str) -> None:
        self.home = home

    def directory(self, path: str) -> tuple[int, frozenset[str]] | None:
        with _directory(f"{self.home}/base") as base:
            try:
                found = open_beneath(base, path, _DIRECTORY)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    return None
                raise
            try:
                return os.fstat(found).st_ino, frozenset(os.listdir(found))
            finally:
                os.close(found)

    def origin(self, path: str) -> int:
        found = self.directory(path)
        return 0 if found is None else found[0]  # a snapshot has the inode numbers of its source


def is_subvolume(path: str) -> bool:
    """Return whether a directory is the root of a btrfs subvolume."""
    return os.stat(path).st_ino == SUBVOLUME_INODE and find_btrfs_id(path) is not None


@contextmanager
def _directory(path: str) -> Iterator[int]:
    fd = os.open(path, _DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _snapshot(source: int, directory: int, name: str, *, flags: int) -> None:
    # struct btrfs_ioctl_vol_args_v2: fd, transid, flags, unused[4], name[4040]. fcntl.ioctl limits bytes to 1024, so
    # it gets a bytearray.
    arguments = struct.pack("=qQQ32x4040s", source, 0, flags, os.fsencode(name))
    fcntl.ioctl(directory, _SNAP_CREATE_V2, bytearray(arguments))


def _set_read_only(path: str, read_only: bool) -> None:
    with _directory(path) as fd:
        set_read_only(fd, read_only)


def _delete_subvolume(home: str, name: str) -> None:
    path = f"{home}/{name}"
    if not os.path.isdir(path) or not is_subvolume(path):
        return
    with _directory(home) as above:
        try:
            _set_read_only(path, False)
            try:
                # struct btrfs_ioctl_vol_args: fd, name[4088]
                fcntl.ioctl(above, _SNAP_DESTROY, bytearray(struct.pack("=q4088s", 0, os.fsencode(name))))
            except OSError:
                # It needs root or the mount option user_subvol_rm_allowed, and no nested subvolume; but an empty
                # subvolume can be removed like any directory.
                remove_tree(above, name)
        except OSError as error:
            raise BranchError(
                f"the subvolume {path} could not be deleted: {error.filename or path}: {error.strerror}. "
                "Delete it as root with: btrfs subvolume delete",
                branch=os.path.basename(home),
                paths=[path],
            ) from error
