"""Replacements of the user's files by those of an attempt: each is read and written by descriptor, and atomically.

A file that another process changed meanwhile is left as it is; so is one that the attempt replaced with a link.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from contextlib import suppress

from forkwise.linux import fds
from forkwise.linux.file_write import write_all
from forkwise.linux.trees import closing_fd, open_beneath, open_directory, open_root, stat_entry

__all__ = [
    "BLOCK",
    "Replacement",
    "SkippedError",
    "create_directory",
    "make_directories",
    "open_own",
    "open_regular",
    "stat_below",
]

BLOCK = 1 << 20
"""Bytes read at a time."""


class SkippedError(Exception):
    """The file is not taken; the message says why."""


def open_regular(root: int, path: str, largest: int) -> int:
    """Open a file of an attempt for reading; raise SkippedError unless it is an ordinary one within the limit."""
    try:
        fd = open_beneath(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise SkippedError("it is a symbolic link") from None
        if error.errno == errno.ENXIO:
            raise SkippedError("it is not a regular file") from None
        raise
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(fd)
        raise SkippedError("it is not a regular file with one name")
    if status.st_size > largest:
        os.close(fd)
        raise SkippedError(f"it is larger than {largest >> 20} MiB")
    return fd


def stat_below(root: int, path: str) -> os.stat_result | None:
    """Return the status of what is at a path of an attempt, following no links; None if that cannot be read."""
    with suppress(OSError), closing_fd(open_beneath(root, path, os.O_PATH | os.O_NOFOLLOW)) as fd:
        return os.fstat(fd)
    return None


def open_own(directory: int, name: str) -> int:
    """Open a file of the user's for reading."""
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)


def create_directory(path: str) -> list[str]:
    """Create a directory, following no links below one that exists. Return the new ones, deepest first."""
    top, new = path, []
    while not os.path.isdir(top):
        new.append(top)
        top = os.path.dirname(top)
    with closing_fd(open_root(top)) as root:
        os.close(make_directories(root, os.path.relpath(path, top)))
    return new


def make_directories(root: int, path: str) -> int:
    """Open a directory below ``root`` without following links; create what is missing."""
    here = open_directory(root, "")
    for name in filter(None, path.split("/")):
        try:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=here)
                _inherit_owner(here, name)
            deeper = open_directory(here, name)
        finally:
            os.close(here)
        here = deeper
    return here


def _inherit_owner(directory: int, name: str) -> None:
    """Give a directory that root made in another user's home to that user."""
    owner = os.fstat(directory)
    if os.geteuid() == 0 and owner.st_uid:
        os.chown(name, owner.st_uid, owner.st_gid, dir_fd=directory, follow_symlinks=False)


class Replacement:
    """A new file that atomically replaces an existing one, if there is one and nobody changed it meanwhile."""

    def __init__(self, directory: int, name: str, before: os.stat_result | None) -> None:
        self.directory = directory
        self.name = name
        self.before = before
        self.temporary: str | None = None
        self.fd = -1

    def __enter__(self) -> Replacement:
        try:
            # A file without a name (O_TMPFILE) disappears after a kill. Not every filesystem supports it.
            self.fd = fds.track(
                lambda: os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=self.directory)
            )
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
                raise
            self.temporary = self._new_name()
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
            self.fd = fds.track(lambda: os.open(str(self.temporary), flags, 0o600, dir_fd=self.directory))
        owner = self.before or os.fstat(self.directory)
        if os.geteuid() == 0 and owner.st_uid:
            os.fchown(self.fd, owner.st_uid, owner.st_gid)
        return self

    def __exit__(self, *_: object) -> None:
        if self.temporary is not None:
            with suppress(FileNotFoundError):
                os.unlink(self.temporary, dir_fd=self.directory)
        fds.close(self.fd)

    def _new_name(self) -> str:
        return f".forkwise-{os.getpid()}-{secrets.token_hex(4)}"

    def copy(self, source: int, size: int) -> None:
        """Copy the first ``size`` bytes of an open file; raise SkippedError if it has become shorter."""
        offset = 0
        while offset < size:
            block = os.pread(source, min(BLOCK, size - offset), offset)
            if not block:
                raise SkippedError("it was truncated while it was copied")
            self.write(block)
            offset += len(block)

    def write(self, data: bytes) -> None:
        """Append bytes."""
        write_all(self.fd, data)

    def publish(self) -> None:
        """Sync the file and give it its name; raise SkippedError if the file that it replaces was changed."""
        os.fsync(self.fd)
        name = self.temporary
        if self.before is None:
            self._require_unchanged()
            self._link(self.name, name)
            return
        if name is None:
            name = self.temporary = self._new_name()
            os.link(f"/proc/self/fd/{self.fd}", name, dst_dir_fd=self.directory, follow_symlinks=True)
        self._require_unchanged()
        os.rename(name, self.name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        self.temporary = None

    def _link(self, name: str, temporary: str | None) -> None:
        try:
            if temporary is None:
                os.link(f"/proc/self/fd/{self.fd}", name, dst_dir_fd=self.directory, follow_symlinks=True)
            else:
                os.link(temporary, name, src_dir_fd=self.directory, dst_dir_fd=self.directory, follow_symlinks=False)
        except FileExistsError:
            raise SkippedError("another process created a file of that name") from None

    def _require_unchanged(self) -> None:
        now = stat_entry(self.directory, self.name)
        if _identify(now) != _identify(self.before):
            raise SkippedError("another process changed the file of that name")


def _identify(status: os.stat_result | None) -> tuple[int, int, int, int] | None:
    return None if status is None else (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
