"""The btrfs view: a branch is a snapshot of the workspace's subvolume, made at once however large that is.

A second, read-only snapshot in ``home/base`` tells later what the branch began with: the inode numbers of snapshots
are equal. The calls to btrfs are ioctls, so that neither its tools nor root are needed.
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
from forkwise.linux.trees import open_beneath, remove_tree

__all__ = ["BtrfsView", "SnapshotBase", "filesystem_id", "is_subvolume"]

_SNAP_DESTROY = 0x5000940F
_SNAP_CREATE_V2 = 0x50009417
_SUBVOL_GETFLAGS = 0x80089419
_SUBVOL_SETFLAGS = 0x4008941A
_FS_INFO = 0x8400941F
_READ_ONLY = 1 << 1
_SUBVOLUME_INODE = 256  # what the top of every subvolume has

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


class BtrfsView(WholeView):
    """A branch as a writable snapshot."""

    name: ClassVar[str] = "btrfs"

    def refusal(self, site: Site) -> Refusal | None:
        refused = state_refusal(site)
        if refused is not None:
            return refused
        found = filesystem_id(site.workspace)
        if found is None:
            return Refusal(f"{site.workspace} is not on btrfs", "keep it on btrfs, or take another view")
        if not is_subvolume(site.workspace):
            return Refusal(
                f"{site.workspace} is a directory, not a btrfs subvolume",
                "make it one (btrfs subvolume create, then cp -a --reflink), or take the reflink view",
            )
        if filesystem_id(site.state) != found:
            return Refusal(
                f"{site.state} is not on the btrfs filesystem of {site.workspace}, and a snapshot cannot leave that",
                "choose a state directory on the same btrfs filesystem",
            )
        if os.geteuid() not in (0, os.stat(site.workspace).st_uid):
            return Refusal(
                f"{site.workspace} belongs to somebody else, and only its owner may snapshot it",
                "run as its owner or as root, or take the reflink view",
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
                remedy="both must lie on one btrfs filesystem with space left, and this user must own the subvolume",
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
    """What a snapshot held when it was made, read from its read-only twin."""

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
        return 0 if found is None else found[0]  # a snapshot's numbers are those of what it was made from


def filesystem_id(path: str) -> bytes | None:
    """Which btrfs filesystem a directory lies on; None where it is not on btrfs."""
    with _directory(path) as fd:
        info = bytearray(1024)
        try:
            fcntl.ioctl(fd, _FS_INFO, info)
        except OSError:
            return None
    return bytes(info[16:32])


def is_subvolume(path: str) -> bool:
    """Whether a directory is the top of a btrfs subvolume."""
    return os.stat(path).st_ino == _SUBVOLUME_INODE and filesystem_id(path) is not None


@contextmanager
def _directory(path: str) -> Iterator[int]:
    fd = os.open(path, _DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _snapshot(source: int, directory: int, name: str, *, flags: int) -> None:
    # struct btrfs_ioctl_vol_args_v2: fd, transid, flags, unused[4], name[4040]; bytes are too long for an ioctl here.
    arguments = struct.pack("=qQQ32x4040s", source, 0, flags, os.fsencode(name))
    fcntl.ioctl(directory, _SNAP_CREATE_V2, bytearray(arguments))


def _set_read_only(path: str, read_only: bool) -> None:
    with _directory(path) as fd:
        (flags,) = struct.unpack("=Q", fcntl.ioctl(fd, _SUBVOL_GETFLAGS, bytes(8)))
        wanted = flags | _READ_ONLY if read_only else flags & ~_READ_ONLY
        if wanted != flags:
            fcntl.ioctl(fd, _SUBVOL_SETFLAGS, struct.pack("=Q", wanted))


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
                # Not without root or the mount option user_subvol_rm_allowed, nor with subvolumes in it; but an empty
                # subvolume goes like any directory.
                remove_tree(above, name)
        except OSError as error:
            raise BranchError(
                f"the subvolume {path} could not be deleted: {error.filename or path}: {error.strerror}. "
                "Delete it as root with: btrfs subvolume delete",
                branch=os.path.basename(home),
                paths=[path],
            ) from error
