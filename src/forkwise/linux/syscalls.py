"""System calls that the standard library lacks, each as a typed function that raises OSError.

Flags and errors pass through unchanged. They live in one module so that all foreign calls can be reviewed together.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping
from functools import lru_cache

__all__ = [
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWPID",
    "CLONE_NEWUSER",
    "CLONE_NEWUTS",
    "MNT_DETACH",
    "MS_BIND",
    "MS_PRIVATE",
    "MS_RDONLY",
    "MS_REC",
    "MS_REMOUNT",
    "RENAME_EXCHANGE",
    "RENAME_NOREPLACE",
    "RESOLVE_BENEATH",
    "RESOLVE_NO_SYMLINKS",
    "RESOLVE_NO_XDEV",
    "birth_time",
    "fanotify_init",
    "fanotify_mark",
    "file_handle",
    "filesystem_magic",
    "fsmount",
    "fsopen",
    "mount",
    "mount_setattr",
    "move_mount",
    "open_by_handle_at",
    "openat2",
    "ptrace",
    "renameat2",
    "setns",
    "syncfs",
    "umount2",
    "unshare",
]

MS_RDONLY = 1
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

# The same numbers on every architecture: they were added after the tables were unified.
_MOVE_MOUNT = 429
_FSOPEN = 430
_FSCONFIG = 431
_FSMOUNT = 432
_OPENAT2 = 437
_MOUNT_SETATTR = 442

_SET_FLAG, _SET_STRING, _CREATE = 0, 1, 6  # commands of fsconfig(2)
_CLOEXEC = 1
_FROM_DESCRIPTOR = 4
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_STATX_BTIME = 0x800

_libc = ctypes.CDLL(None, use_errno=True)
_mount = _libc.mount
_mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_umount2 = _libc.umount2
_umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
_renameat2 = _libc.renameat2
_renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
_unshare = _libc.unshare
_unshare.argtypes = [ctypes.c_int]
_setns = _libc.setns
_setns.argtypes = [ctypes.c_int, ctypes.c_int]
_syncfs = _libc.syncfs
_syncfs.argtypes = [ctypes.c_int]
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


_name_to_handle_at = _libc.name_to_handle_at
_name_to_handle_at.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
_statfs = _libc.statfs
_statfs.argtypes = [ctypes.c_char_p, ctypes.c_void_p]


_ptrace = _libc.ptrace
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_ptrace.restype = ctypes.c_long

_statx = getattr(_libc, "statx", None)  # musl has it since 1.2.5
if _statx is not None:
    _statx.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p]


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


_HOW_SIZE = ctypes.sizeof(_OpenHow)
_openat2 = _libc["syscall"]  # a prototype of its own: this is the call that commits and scans make most often
_openat2.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]
_openat2.restype = ctypes.c_long


def _failure(*names: str | bytes | None) -> OSError:
    number = ctypes.get_errno()
    shown = [os.fsdecode(n) for n in names if n is not None]
    if len(shown) == 2:
        return OSError(number, os.strerror(number), shown[0], None, shown[1])
    return OSError(number, os.strerror(number), *shown)


def mount(source: str, target: str, fstype: str | None, flags: int = 0, data: str | None = None) -> None:
    """Call mount(2)."""
    kind = None if fstype is None else fstype.encode()
    options = None if data is None else os.fsencode(data)
    if _mount(os.fsencode(source), os.fsencode(target), kind, flags, options):
        raise _failure(target)


def fsopen(fstype: str, options: Mapping[str, str | None]) -> int:
    """Configure a filesystem with fsopen(2) and fsconfig(2), and return a descriptor for ``fsmount``.

    An option without a value is None; the kernel refuses a value of more than 255 bytes.
    """
    fd = int(_syscall(_FSOPEN, fstype.encode(), _CLOEXEC))
    if fd < 0:
        raise _failure(fstype)
    try:
        for name, value in options.items():
            text = None if value is None else os.fsencode(value)
            if _syscall(_FSCONFIG, fd, _SET_FLAG if text is None else _SET_STRING, name.encode(), text, 0):
                raise _failure(name)
        if _syscall(_FSCONFIG, fd, _CREATE, None, None, 0):
            raise _failure(fstype)
    except BaseException:
        os.close(fd)
        raise
    return fd


def fsmount(fd: int) -> int:
    """Call fsmount(2): create a detached mount of what ``fsopen`` configured, and return its descriptor.

    Closing the descriptor unmounts it, unless ``move_mount`` attached it before.
    """
    mount_fd = int(_syscall(_FSMOUNT, fd, _CLOEXEC, 0))
    if mount_fd < 0:
        raise _failure()
    return mount_fd


def move_mount(fd: int, target: str) -> None:
    """Call move_mount(2): attach a detached mount at ``target``."""
    if _syscall(_MOVE_MOUNT, fd, b"", _AT_FDCWD, os.fsencode(target), _FROM_DESCRIPTOR):
        raise _failure(target)


class _MountAttributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns_fd")]


def mount_setattr(path: str, *, add: int = 0, drop: int = 0, recursively: bool = False) -> None:
    """Call mount_setattr(2): change attributes of the mount at ``path``, and of all mounts below if ``recursively``."""
    wanted = _MountAttributes(add, drop, 0, 0)
    flags, size = _AT_RECURSIVE if recursively else 0, ctypes.c_size_t(ctypes.sizeof(wanted))
    if _syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, ctypes.byref(wanted), size):
        raise _failure(path)


def umount2(target: str, flags: int = 0) -> None:
    """Call umount2(2)."""
    if _umount2(os.fsencode(target), flags):
        raise _failure(target)


def renameat2(old_dir: int, old: str, new_dir: int, new: str, flags: int) -> None:
    """Call renameat2(2); ``old`` and ``new`` are relative to the two directory descriptors."""
    source = os.fsencode(old)
    if _renameat2(old_dir, source, new_dir, source if new == old else os.fsencode(new), flags):
        raise _failure(old, new)


def openat2(directory: int, path: str, flags: int, resolve: int) -> int:
    """Call openat2(2) to open an existing path, and return the descriptor."""
    fd: int = _openat2(_OPENAT2, directory, os.fsencode(path), _open_how(flags, resolve), _HOW_SIZE)
    if fd < 0:
        raise _failure(path)
    return fd


@lru_cache(maxsize=32)
def _open_how(flags: int, resolve: int) -> _OpenHow:
    return ctypes.pointer(_OpenHow(flags | os.O_CLOEXEC, 0, resolve))  # type: ignore[return-value]


_LARGEST_HANDLE = 128  # bytes: MAX_HANDLE_SZ
_HANDLE_HEADER = struct.Struct("=Ii")  # of struct file_handle: size, type
_EMPTY_HANDLE = _HANDLE_HEADER.pack(_LARGEST_HANDLE, 0)
_HANDLE_SIZE = _HANDLE_HEADER.size + _LARGEST_HANDLE
_ignored_mount_id = ctypes.byref(ctypes.c_int())


def file_handle(directory: int, name: str) -> bytes | None:
    """Call name_to_handle_at(2) and return the filesystem's own id of a file, which it never reuses.

    An empty name is the directory itself. Return None if the filesystem has no such ids.
    """
    buffer = ctypes.create_string_buffer(_EMPTY_HANDLE, _HANDLE_SIZE)
    flags = 0 if name else _AT_EMPTY_PATH
    if _name_to_handle_at(directory, os.fsencode(name), buffer, _ignored_mount_id, flags):
        return None
    found = buffer.raw
    return found[_HANDLE_HEADER.size : _HANDLE_HEADER.size + _HANDLE_HEADER.unpack_from(found)[0]]


def open_by_handle_at(directory: int, handle: bytes, flags: int) -> int:
    """Call open_by_handle_at(2) and return a descriptor; ``handle`` is a struct file_handle of the filesystem."""
    fd = int(_libc.open_by_handle_at(directory, handle, flags))
    if fd < 0:
        raise _failure()
    return fd


def fanotify_init(flags: int, event_flags: int) -> int:
    """Call fanotify_init(2) and return the descriptor of a new group."""
    fd = int(_libc.fanotify_init(ctypes.c_uint(flags), ctypes.c_uint(event_flags)))
    if fd < 0:
        raise _failure("fanotify")
    return fd


def fanotify_mark(fd: int, flags: int, mask: int, path: str) -> None:
    """Call fanotify_mark(2): have a group report the events of ``mask`` at ``path``."""
    if _libc.fanotify_mark(fd, ctypes.c_uint(flags), ctypes.c_uint64(mask), _AT_FDCWD, os.fsencode(path)):
        raise _failure("fanotify")


def ptrace(request: int, thread: int, data: int) -> None:
    """Call ptrace(2) for a thread; for the requests that take no address."""
    if _ptrace(request, thread, None, data) < 0:
        raise _failure()


def birth_time(fd: int) -> int:
    """Call statx(2) and return when an open file was created, in nanoseconds; 0 if the filesystem does not know."""
    buffer = ctypes.create_string_buffer(256)
    if _statx is None or _statx(fd, b"", _AT_EMPTY_PATH, _STATX_BTIME, buffer):
        return 0
    if not struct.unpack_from("=I", buffer, 0)[0] & _STATX_BTIME:
        return 0
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, 80)
    return int(seconds * 1_000_000_000 + nanoseconds)


_Statfs = ctypes.c_long * 64  # larger than any architecture's struct statfs; f_type comes first in all


def filesystem_magic(path: str) -> int:
    """Return the magic number (``f_type`` of statfs(2)) of the filesystem that contains a path."""
    buffer = _Statfs()
    if _statfs(os.fsencode(path), buffer):
        raise _failure(path)
    return int(buffer[0])


def setns(fd: int, kind: int) -> None:
    """Call setns(2): enter the namespace behind a descriptor, which must be of this kind."""
    if _setns(fd, kind):
        raise _failure()


def unshare(flags: int) -> None:
    """Call unshare(2)."""
    if _unshare(flags):
        raise _failure()


def syncfs(fd: int) -> None:
    """Call syncfs(2) to write all data of one filesystem to the disk."""
    if _syncfs(fd):
        raise _failure()
