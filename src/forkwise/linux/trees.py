"""Open, copy and remove trees by directory descriptor: no symlink is followed, no mount is crossed.

The views and the journal share this module, so that their copies preserve the same metadata. Each directory of a tree
is opened anew from the root, so neither the depth of a tree nor the limit on descriptors matters.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from forkwise.linux.syscalls import RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV, openat2
from forkwise.progress import Work, report

__all__ = [
    "FICLONE",
    "NOT_THERE",
    "SUBVOLUME_INODE",
    "CopiedTree",
    "EarlierCopy",
    "Identity",
    "closing_fd",
    "copy_entry",
    "copy_layer",
    "copy_tree",
    "find_btrfs_id",
    "join",
    "list_above",
    "list_extents",
    "mount_id",
    "open_beneath",
    "open_directory",
    "open_root",
    "proc_path",
    "remove_tree",
    "set_read_only",
    "stat_entry",
    "writable",
]


#: Errors of opening a directory that does not exist, is not a directory, or is on another mount.
NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV)

_RESOLVE = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV
_PIECE = 1000  # characters of a path opened at once: at most 4 bytes each, so always below PATH_MAX
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


# Open.


def join(directory: str, name: str) -> str:
    """Join two parts of a path relative to a root; the root itself is the empty string."""
    return f"{directory}/{name}" if directory else name


def list_above(path: str) -> list[str]:
    """List the directories above a path relative to a root, outermost first, without the root.

    >>> list_above("src/deep/a.py")
    ['src', 'src/deep']
    """
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def stat_entry(directory: int, name: str) -> os.stat_result | None:
    """Return the status of an entry, of a symlink its own; None if there is no such entry."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def proc_path(fd: int, name: str) -> str:
    """Return a path for calls that accept no directory descriptor, such as the xattr family."""
    return f"/proc/self/fd/{fd}/{name}"


def open_root(path: str) -> int:
    """Open the root directory of a tree with ``O_PATH``."""
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def open_directory(root: int, path: str, flags: int = os.O_RDONLY) -> int:
    """Open a directory below ``root``; the empty path is ``root`` itself."""
    return open_beneath(root, path, flags | os.O_DIRECTORY)


def open_beneath(directory: int, path: str, flags: int) -> int:
    """Open a path of any length below ``directory``; fail with ELOOP at a symlink, with EXDEV at a mount point."""
    here = directory
    try:
        while len(path) > _PIECE:
            cut = path.rindex("/", 0, _PIECE)
            deeper = _open_piece(here, path[:cut], os.O_PATH | os.O_DIRECTORY)
            path = path[cut + 1 :]
            if here != directory:
                os.close(here)
            here = deeper
        return _open_piece(here, path or ".", flags)
    finally:
        if here != directory:
            os.close(here)


@contextmanager
def writable(directory: int) -> Iterator[None]:
    """Make an open directory of this user's writable while the block runs, even if its mode forbids it."""
    mode = stat.S_IMODE(os.fstat(directory).st_mode)
    if os.geteuid() == 0 or mode & 0o300 == 0o300:
        yield
        return
    os.chmod(f"/proc/self/fd/{directory}", mode | 0o300)
    try:
        yield
    finally:
        os.chmod(f"/proc/self/fd/{directory}", mode)


def _open_piece(directory: int, path: str, flags: int) -> int:
    try:
        return openat2(directory, path, flags, _RESOLVE)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    # Linux before 5.6, or a seccomp filter that does not know openat2: open one component at a time.
    here = os.dup(directory)
    names = path.split("/")
    for depth, name in enumerate(names, start=1):
        step_flags = flags if depth == len(names) else os.O_PATH | os.O_DIRECTORY
        try:
            deeper = os.open(name, step_flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=here)
        finally:
            os.close(here)
        here = deeper
    # A path that leaves a mount on the way down never returns to it, so checking its end covers every component.
    if mount_id(here) != mount_id(directory):
        os.close(here)
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    return here


def mount_id(fd: int) -> bytes:
    """Return the ``mnt_id`` line of an open file, which identifies its mount."""
    with closing_fd(os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)) as info:
        return next(line for line in os.read(info, 4096).split(b"\n") if line.startswith(b"mnt_id:"))


@contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """Close a descriptor when the block ends."""
    try:
        yield fd
    finally:
        os.close(fd)


# Remove.

#: The inode number of the root of every btrfs subvolume.
SUBVOLUME_INODE = 256

_SUBVOL_GETFLAGS = 0x80089419
_SUBVOL_SETFLAGS = 0x4008941A
_SUBVOL_READ_ONLY = 1 << 1
_BTRFS_INFO = 0x8400941F


def find_btrfs_id(path: str) -> bytes | None:
    """Return the id of the btrfs filesystem of a directory; None if it is not on btrfs."""
    with closing_fd(os.open(path, _DIRECTORY | os.O_CLOEXEC)) as fd:
        info = bytearray(1024)
        try:
            fcntl.ioctl(fd, _BTRFS_INFO, info)
        except OSError:
            return None
    return bytes(info[16:32])


def set_read_only(subvolume: int, read_only: bool) -> None:
    """Make an open btrfs subvolume read-only, or writable again."""
    (flags,) = struct.unpack("=Q", fcntl.ioctl(subvolume, _SUBVOL_GETFLAGS, bytes(8)))
    wanted = flags | _SUBVOL_READ_ONLY if read_only else flags & ~_SUBVOL_READ_ONLY
    if wanted != flags:
        fcntl.ioctl(subvolume, _SUBVOL_SETFLAGS, struct.pack("=Q", wanted))


def remove_tree(parent_dir: int, name: str) -> list[str]:
    """Remove ``name`` with everything in it; return the paths that remain because they are mount points."""
    left: list[str] = []
    pending = [(name, False)]
    while pending:
        path, emptied = pending.pop()
        try:
            if emptied:
                _remove_directory(parent_dir, path, left)
            else:
                below = _empty_directory(parent_dir, path, left)
                if below is not None:
                    pending.append((path, True))
                    pending.extend((child, False) for child in below)
        except FileNotFoundError:
            continue  # another process removes it too
        except OSError as error:
            error.filename = path
            raise
    return left


def _empty_directory(root: int, path: str, left: list[str]) -> list[str] | None:
    """Unlink the files of one directory; return its directories, or None if ``path`` was unlinked or has to remain."""
    parent, _, name = path.rpartition("/")
    with closing_fd(open_beneath(root, parent, _DIRECTORY)) as above:
        if not stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
            _unlink(above, name, path, left)
            return None
        try:
            directory = _open_to_empty(above, name)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            left.append(path)
            return None
    below: list[str] = []
    with closing_fd(directory):
        with os.scandir(directory) as listing:
            entries = list(listing)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                below.append(f"{path}/{entry.name}")
            else:
                _unlink(directory, entry.name, f"{path}/{entry.name}", left)
    return below


def _open_to_empty(above: int, name: str) -> int:
    """Open a directory to empty it; give its owner the right to list and change it first.

    A read-only btrfs subvolume becomes writable.
    """
    with closing_fd(open_beneath(above, name, os.O_PATH | os.O_DIRECTORY)) as found:
        status = os.fstat(found)
        if status.st_ino == SUBVOLUME_INODE:
            with suppress(OSError), closing_fd(open_beneath(above, name, _DIRECTORY)) as subvolume:
                set_read_only(subvolume, False)  # fails on other filesystems, where the number means nothing
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o700 != 0o700:
            with suppress(PermissionError):
                os.chmod(f"/proc/self/fd/{found}", mode | 0o700)
    return open_beneath(above, name, _DIRECTORY)


def _unlink(directory: int, name: str, path: str, left: list[str]) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.EBUSY:  # the file is a mount point
            raise
        left.append(path)


def _remove_directory(root: int, path: str, left: list[str]) -> None:
    parent, _, name = path.rpartition("/")
    with closing_fd(open_beneath(root, parent, _DIRECTORY)) as above:
        try:
            os.rmdir(name, dir_fd=above)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or not any(entry.startswith(f"{path}/") for entry in left):
                raise


# Copy.


FICLONE = 0x40049409

_RANGE = 1 << 27  # bytes for one copy_file_range call: few calls, and still interruptible
_BUFFER = 1 << 20
_SETTLED_NS = 50_000_000  # a file changed again after this time gets a different ctime

# Attributes that overlayfs writes on the files of a layer; on a copy they would hide or redirect entries.
_OVERLAY_XATTRS = ("user.overlay.", "trusted.overlay.", "user.fuseoverlayfs.")
_PRIVILEGED_XATTRS = ("security.", "trusted.", "system.")


#: A file's inode number, ctime and size: all three are equal as long as the file was not changed.
Identity = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class EarlierCopy:
    """An earlier copy of the same tree: its root, and its files' paths by the identity of the original files."""

    root: int
    paths: Mapping[Identity, str]


@dataclass(frozen=True, slots=True)
class CopiedTree:
    """The content of a copied tree: every directory's inode number and names, by relative path.

    ``skipped`` lists the FIFOs, sockets, devices and files that are mount points, which are not copied. ``origins`` has
    the inode numbers of the original directories.
    """

    directories: Mapping[str, tuple[int, frozenset[str]]]
    skipped: tuple[str, ...]
    origins: Mapping[str, int]


def copy_entry(
    src_dir: int,
    src: str,
    dst_dir: int,
    dst: str,
    *,
    sync: bool = False,
    is_left: Callable[[str], bool] | None = None,
) -> None:
    """Copy one file, symlink or directory with everything in it to the new name ``dst``.

    FIFOs, sockets and devices are skipped, and so are paths relative to ``src`` for which ``is_left`` is true. With
    ``sync`` the content is on the disk when this returns; the caller has to sync ``dst_dir`` to make the new name
    durable. A failure leaves a partial copy.
    """
    found = os.stat(src, dir_fd=src_dir, follow_symlinks=False)
    if not stat.S_ISDIR(found.st_mode):
        with suppress(_SpecialFileError):
            _copy_leaf(found, src_dir, src, dst_dir, dst, reflink_only=False, sync=sync)
        return
    os.mkdir(dst, 0o700, dir_fd=dst_dir)
    with closing_fd(open_beneath(dst_dir, dst, _DIRECTORY)) as target:
        source = _enter(src_dir, src, os.fstat(src_dir).st_dev)
        if source is None:
            _set_metadata(target, found, {})
        else:
            with closing_fd(source):
                _TreeCopy(source, target, reflink_only=False, sync=sync, is_left=is_left).run()


def copy_layer(src_dir: int, dst_dir: int, earlier: EarlierCopy | None = None) -> dict[Identity, str]:
    """Copy an overlayfs layer to an empty directory, including its overlay attributes and whiteouts.

    Whiteouts and other special files become hard links. A file that has not changed since the ``earlier`` copy becomes
    a hard link to that copy, so neither may be written to afterwards. Return the paths by identity, for the next copy.
    """
    copy = _TreeCopy(src_dir, dst_dir, reflink_only=False, sync=False, is_layer=True, earlier=earlier)
    copy.run()
    return copy.copied


def copy_tree(src_dir: int, dst_dir: int, *, reflink_only: bool = False) -> CopiedTree:
    """Copy the content and the metadata of one open directory to another, empty one.

    Hard links within the tree stay hard links. A mount point or a nested subvolume becomes an empty directory. With
    ``reflink_only`` a file whose blocks cannot be shared raises OSError.
    """
    with report("Copying files to a branch") as work:
        copy = _TreeCopy(src_dir, dst_dir, reflink_only=reflink_only, sync=False)
        copy.work = work
        return copy.run()


def _enter(root: int, path: str, device: int) -> int | None:
    """Open a directory for reading; return None if it is on another filesystem or subvolume, or was removed."""
    try:
        fd = open_beneath(root, path, _DIRECTORY)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.ENOENT):
            return None
        raise
    if os.fstat(fd).st_dev == device:
        return fd
    os.close(fd)
    return None


class _SpecialFileError(Exception):
    """The entry is not a file, symlink or directory of this tree, so it is not copied."""


class _TreeCopy:
    """One copy of one tree, in progress."""

    def __init__(
        self,
        src: int,
        dst: int,
        *,
        reflink_only: bool,
        sync: bool,
        is_layer: bool = False,
        earlier: EarlierCopy | None = None,
        is_left: Callable[[str], bool] | None = None,
    ) -> None:
        self.is_left = is_left
        self.is_layer = is_layer
        self.earlier = earlier
        self.copied: dict[Identity, str] = {}
        self.src = src
        self.dst = dst
        self.reflink_only = reflink_only
        self.sync = sync
        self.device = os.fstat(src).st_dev
        self.directories: dict[str, tuple[int, frozenset[str]]] = {}
        self.origins: dict[str, int] = {}
        self.metadata: list[tuple[str, os.stat_result, dict[str, bytes]]] = []
        self.links: dict[tuple[int, int], tuple[str, str]] = {}
        self.skipped: list[str] = []
        self.work = Work("")

    def run(self) -> CopiedTree:
        pending = [("", os.fstat(self.src))]
        while pending:
            path, found = pending.pop()
            pending.extend(self._copy_directory(path, found))
            if path in self.directories:
                self.work.done += len(self.directories[path][1])
        # Last, because creating a name in a directory changes its times; and children before their parents, because
        # the parent's mode may forbid this user to enter it.
        for path, found, xattrs in reversed(self.metadata):
            with closing_fd(open_beneath(self.dst, path, _DIRECTORY)) as target:
                _set_metadata(target, found, xattrs)
                if self.sync:
                    os.fsync(target)
        return CopiedTree(self.directories, tuple(self.skipped), self.origins)

    def _copy_directory(self, path: str, found: os.stat_result) -> list[tuple[str, os.stat_result]]:
        """Copy the entries of one directory; create its subdirectories empty and return them, to be filled next."""
        below: list[tuple[str, os.stat_result]] = []
        names: set[str] = set()
        xattrs: dict[str, bytes] = {}
        with closing_fd(open_beneath(self.dst, path, _DIRECTORY)) as target:
            source = _enter(self.src, path, self.device)
            if source is not None:
                with closing_fd(source):
                    xattrs = _read_xattrs(source, keep_overlay=self.is_layer)
                    self.origins[path] = os.fstat(source).st_ino
                    for name in os.listdir(source):
                        entry = f"{path}/{name}" if path else name
                        if self.is_left is not None and self.is_left(entry):
                            continue
                        try:
                            child = self._copy_child(source, name, target, path)
                        except _SpecialFileError:
                            self.skipped.append(entry)
                            continue
                        except FileNotFoundError:
                            continue  # removed since it was listed
                        except OSError as error:
                            error.filename = entry
                            raise
                        names.add(name)
                        if stat.S_ISDIR(child.st_mode):
                            below.append((entry, child))
            self.directories[path] = os.fstat(target).st_ino, frozenset(names)
        self.metadata.append((path, found, xattrs))
        return below

    def _copy_child(self, source: int, name: str, target: int, path: str) -> os.stat_result:
        """Copy one entry of the directory ``path``; a directory is created but not filled."""
        found = os.stat(name, dir_fd=source, follow_symlinks=False)
        identity = found.st_dev, found.st_ino
        if stat.S_ISDIR(found.st_mode):
            os.mkdir(name, 0o700, dir_fd=target)
        elif found.st_nlink > 1 and identity in self.links:
            first_path, first_name = self.links[identity]
            with closing_fd(open_beneath(self.dst, first_path, _DIRECTORY)) as first:
                os.link(first_name, name, src_dir_fd=first, dst_dir_fd=target, follow_symlinks=False)
        else:
            if not self.is_layer:
                _copy_leaf(found, source, name, target, name, reflink_only=self.reflink_only, sync=self.sync)
            else:
                self._copy_layer_file(found, source, name, target, f"{path}/{name}" if path else name)
            if found.st_nlink > 1:
                self.links[identity] = path, name
        return found

    def _copy_layer_file(self, found: os.stat_result, source: int, name: str, target: int, path: str) -> None:
        identity = found.st_ino, found.st_ctime_ns, found.st_size
        if stat.S_ISREG(found.st_mode):
            known = None if self.earlier is None else self.earlier.paths.get(identity)
            if self.earlier is not None and known is not None:
                os.link(known, name, src_dir_fd=self.earlier.root, dst_dir_fd=target, follow_symlinks=False)
            else:
                _copy_file(source, name, target, name, reflink_only=False, sync=False, keep_overlay=True)
            if time.time_ns() - found.st_ctime_ns > _SETTLED_NS:
                self.copied[identity] = path
        elif stat.S_ISLNK(found.st_mode):
            _copy_symlink(found, source, name, target, name, keep_overlay=True)
        else:
            os.link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)


def _copy_leaf(
    found: os.stat_result, src_dir: int, src: str, dst_dir: int, dst: str, *, reflink_only: bool, sync: bool
) -> None:
    if stat.S_ISREG(found.st_mode):
        _copy_file(src_dir, src, dst_dir, dst, reflink_only=reflink_only, sync=sync)
    elif stat.S_ISLNK(found.st_mode):
        _copy_symlink(found, src_dir, src, dst_dir, dst)
    else:
        raise _SpecialFileError


def _copy_symlink(
    found: os.stat_result, src_dir: int, src: str, dst_dir: int, dst: str, *, keep_overlay: bool = False
) -> None:
    os.symlink(os.readlink(src, dir_fd=src_dir), dst, dir_fd=dst_dir)
    with suppress(PermissionError):
        os.chown(dst, found.st_uid, found.st_gid, dir_fd=dst_dir, follow_symlinks=False)
    # A symlink cannot be opened, and the xattr calls accept no directory descriptor.
    xattrs = _read_xattrs(f"/proc/self/fd/{src_dir}/{src}", keep_overlay=keep_overlay)
    _write_xattrs(f"/proc/self/fd/{dst_dir}/{dst}", xattrs)
    os.utime(dst, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=dst_dir, follow_symlinks=False)


def _copy_file(
    src_dir: int, src: str, dst_dir: int, dst: str, *, reflink_only: bool, sync: bool, keep_overlay: bool = False
) -> None:
    try:
        # O_NONBLOCK: the file may have become a FIFO since its stat.
        source = open_beneath(src_dir, src, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise _SpecialFileError from None
        raise
    with closing_fd(source):
        found = os.fstat(source)
        if not stat.S_ISREG(found.st_mode):
            raise _SpecialFileError
        created = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing_fd(os.open(dst, created, 0o600, dir_fd=dst_dir)) as target:
            if found.st_size:
                _copy_data(source, target, found.st_size, reflink_only=reflink_only)
            _set_metadata(target, found, _read_xattrs(source, keep_overlay=keep_overlay))
            if sync:
                os.fsync(target)


def _copy_data(source: int, target: int, size: int, *, reflink_only: bool) -> None:
    try:
        fcntl.ioctl(target, FICLONE, source)
        return
    except OSError:
        if reflink_only:
            raise
    os.ftruncate(target, size)
    for start, end in list_extents(source, size):
        _copy_range(source, target, start, end)


def list_extents(source: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a file that are not holes."""
    end = 0
    while end < size:
        try:
            start = os.lseek(source, end, os.SEEK_DATA)
            end = min(os.lseek(source, start, os.SEEK_HOLE), size)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # only a hole remains
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            start, end = end, size  # the filesystem does not support SEEK_DATA
        yield start, end


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    with suppress(OSError):  # what copy_file_range cannot copy is read and written below
        while start < end:
            copied = os.copy_file_range(source, target, min(end - start, _RANGE), start, start)
            if not copied:
                break
            start += copied
    while start < end:
        data = os.pread(source, min(end - start, _BUFFER), start)
        if not data:
            return  # the file was truncated meanwhile
        start += os.pwrite(target, data, start)


def _set_metadata(target: int, found: os.stat_result, xattrs: Mapping[str, bytes]) -> None:
    mode = stat.S_IMODE(found.st_mode)
    # Owner first: a change of owner clears the set-id bits and file capabilities.
    if not _set_owner(target, found.st_uid, found.st_gid) and stat.S_ISREG(found.st_mode):
        mode &= ~(stat.S_ISUID | stat.S_ISGID)  # they would grant the rights of a different user than before
    _write_xattrs(target, xattrs)
    os.chmod(target, mode)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _set_owner(target: int, uid: int, gid: int) -> bool:
    """Set a file's owner and group, or at least its group; return False if this user may not set both."""
    for owner in (uid, -1):
        try:
            os.chown(target, owner, gid)
            return owner == uid
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EINVAL):  # EINVAL: an id this user namespace does not have
                raise
    return False


def _read_xattrs(source: int | str, *, keep_overlay: bool = False) -> dict[str, bytes]:
    follow = isinstance(source, int)
    xattrs: dict[str, bytes] = {}
    try:
        names = os.listxattr(source, follow_symlinks=follow)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOSYS, errno.ENOENT):
            return xattrs
        raise
    for name in names:
        if name.startswith(_OVERLAY_XATTRS) and not keep_overlay:
            continue
        try:
            xattrs[name] = os.getxattr(source, name, follow_symlinks=follow)
        except OSError as error:
            if error.errno != errno.ENODATA and not _is_privilege_missing(name, error):
                raise
    return xattrs


def _write_xattrs(target: int | str, xattrs: Mapping[str, bytes]) -> None:
    for name, value in xattrs.items():
        try:
            os.setxattr(target, name, value, follow_symlinks=isinstance(target, int))
        except OSError as error:
            if not _is_privilege_missing(name, error):
                raise


def _is_privilege_missing(name: str, error: OSError) -> bool:
    return name.startswith(_PRIVILEGED_XATTRS) and error.errno in (errno.EPERM, errno.EACCES, errno.ENOTSUP)
