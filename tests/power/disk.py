"""A disk that records what is written to it: a FUSE file for a loop device, and a log of writes, flushes and marks.

Marks are lines that a scene writes to the file ``mark``, to say how far it is. After a number is written to the file
``fail``, that many writes and flushes of disks succeed, and all others fail until -1 is written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import mfusepy

from forkwise.linux.syscalls import MNT_DETACH, mount, umount2

__all__ = ["BLOCK", "Event", "Filesystem", "filesystem", "mount_disk", "read_log", "recorded", "write_image"]

#: The unit in which a disk loses writes.
BLOCK = 4096

_HEADER = struct.Struct("<cBQI")
_LOOP_CONFIGURE, _LOOP_GET_FREE, _LOOP_AUTOCLEAR = 0x4C0A, 0x4C82, 4
_SEEK_DATA, _SEEK_HOLE = os.SEEK_DATA, os.SEEK_HOLE

_SIZES_MB = {"ext4": 48, "xfs": 300, "btrfs": 128}
_OPTIONS = {"ext4": ["-E", "lazy_itable_init=0,lazy_journal_init=0"], "xfs": [], "btrfs": []}


@dataclass(frozen=True)
class Event:
    """One record of the log: a write (``w``), a flush (``f``) of the disk ``disk``, or a mark (``m``)."""

    kind: Literal["w", "f", "m"]
    disk: int
    offset: int
    data: bytes


@dataclass(frozen=True)
class Filesystem:
    """An empty filesystem: its type, its size in bytes, and its content where that is not zero."""

    fstype: str
    size: int
    content: Sequence[tuple[int, bytes]]


def filesystem(fstype: str, directory: Path) -> Filesystem:
    """Create a filesystem of a type in a temporary file, and read it."""
    image, size = directory / f"{fstype}.new", _SIZES_MB[fstype] << 20
    with open(image, "wb") as file:
        file.truncate(size)
    subprocess.run([f"mkfs.{fstype}", "-q", *_OPTIONS[fstype], str(image)], check=True, capture_output=True)
    content = []
    with open(image, "rb") as file:
        for start, end in _extents(file.fileno(), size):
            for offset in range(start, end, BLOCK):
                data = os.pread(file.fileno(), BLOCK, offset)
                if data.strip(b"\0"):
                    content.append((offset, data))
    image.unlink()
    return Filesystem(fstype, size, content)


def _extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, _SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = os.lseek(fd, start, _SEEK_HOLE)
        yield start - start % BLOCK, end


def write_image(path: Path, base: Filesystem, writes: Iterator[tuple[int, bytes]]) -> None:
    """Write a sparse image: an empty filesystem, and some writes after that."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, base.size)
        for offset, data in base.content:
            os.pwrite(fd, data, offset)
        for offset, data in writes:
            os.pwrite(fd, data, offset)
    finally:
        os.close(fd)


class _Recorder(mfusepy.Operations):
    """The files ``disk0``, ``disk1`` …, ``mark`` and ``fail``."""

    use_ns = True

    def __init__(self, disks: Sequence[int], log: int, ready: int) -> None:
        self.disks = {f"/disk{n}": (n, fd) for n, fd in enumerate(disks)}
        self.log = log
        self.ready = ready
        self.writes_left: int | None = None

    def init(self, path: str) -> None:
        os.close(self.ready)

    def _append(self, kind: bytes, disk: int, offset: int = 0, data: bytes = b"") -> None:
        os.writev(self.log, [_HEADER.pack(kind, disk, offset, len(data)), data])

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
        size = os.fstat(self.disks[path][1]).st_size if path in self.disks else 0
        return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": size}

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", ".."]

    def open(self, path: str, flags: int) -> int:
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(self.disks[path][1], size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        if path == "/mark":
            self._append(b"m", 0, 0, data)
        elif path == "/fail":
            self.writes_left = int(data) if int(data) >= 0 else None
        else:
            self._wear_out()
            disk, fd = self.disks[path]
            os.pwrite(fd, data, offset)
            self._append(b"w", disk, offset, data)
        return len(data)

    def _wear_out(self) -> None:
        """Fail like a broken disk, if it was told to after so many writes and flushes."""
        if self.writes_left == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.writes_left is not None:
            self.writes_left -= 1

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        if path in self.disks:
            self._wear_out()
            self._append(b"f", self.disks[path][0])
        return 0


@contextmanager
def recorded(directory: Path, bases: Sequence[Filesystem]) -> Iterator[Path]:
    """Serve disks with these filesystems from ``directory``; yield the directory of their files and of ``mark``."""
    files = directory / "files"
    files.mkdir()
    disks = []
    for number, base in enumerate(bases):
        backing = directory / f"backing{number}"
        write_image(backing, base, iter(()))
        disks.append(os.open(backing, os.O_RDWR | os.O_CLOEXEC))
    log = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    is_ready, ready = os.pipe()
    server = os.fork()
    if server == 0:
        try:
            os.close(is_ready)
            options = {"foreground": True, "nothreads": True, "fsname": "recorded"}
            mfusepy.FUSE(_Recorder(disks, log, ready), str(files), **options)
        finally:
            os._exit(1)
    os.close(ready)
    for fd in (*disks, log):
        os.close(fd)
    try:
        os.read(is_ready, 1)  # it is closed when the server has answered the kernel's first request, or has failed
        os.close(is_ready)
        assert os.path.ismount(files), "the recording FUSE filesystem could not be mounted"
        yield files
    finally:
        if os.path.ismount(files):
            umount2(str(files), MNT_DETACH)
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


def read_log(directory: Path) -> list[Event]:
    """Read the log of ``recorded``."""
    data = (directory / "log").read_bytes()
    events = []
    position = 0
    while position < len(data):
        kind, disk, offset, length = _HEADER.unpack_from(data, position)
        position += _HEADER.size
        events.append(Event(kind.decode(), disk, offset, data[position : position + length]))
        position += length
    return events


def _attach(image: Path) -> tuple[str, int]:
    """Attach a file to a free loop device, which is detached with its last user. Return its path and a descriptor."""
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        while True:
            device = f"/dev/loop{fcntl.ioctl(control, _LOOP_GET_FREE)}"
            fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
            # struct loop_config: fd, block size, struct loop_info64 with the flags at byte 52, 64 reserved bytes
            config = struct.pack("=II52xI176x64x", backing, 0, _LOOP_AUTOCLEAR)
            try:
                fcntl.ioctl(fd, _LOOP_CONFIGURE, config)
            except OSError as error:
                os.close(fd)
                if error.errno != errno.EBUSY:  # another process was faster
                    raise
            else:
                return device, fd
    finally:
        os.close(control)
        os.close(backing)


def mount_disk(image: Path, fstype: str, where: Path) -> None:
    """Mount an image."""
    device, fd = _attach(image)
    try:
        mount(device, str(where), fstype, _NO_ATIME, "nouuid" if fstype == "xfs" else None)
    finally:
        os.close(fd)


_NO_ATIME = 1024
