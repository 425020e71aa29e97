"""Write files: the whole of a content, a replacement in one step, and several files synced together.

One after the other, every fsync(2) waits for a flush of its own. Linux AIO runs them in the kernel's worker threads
(IOCB_CMD_FSYNC, Linux 4.18), and the disk flushes its cache for all of them. Where it is not available, the files are
synced one after the other.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from contextlib import suppress

__all__ = ["replace_file", "sync_files", "write_all"]

_FSYNC = 2  # IOCB_CMD_FSYNC
_CAPACITY = 32  # requests per context
# io_setup, io_destroy, io_submit, io_getevents
_NUMBERS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}.get(os.uname().machine)

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_submit = _syscall


class _Request(ctypes.Structure):
    """``struct iocb`` of linux/aio_abi.h, for little-endian machines."""

    _fields_ = [
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw_flags", ctypes.c_int32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event_fd", ctypes.c_uint32),
    ]


class _Event(ctypes.Structure):
    """``struct io_event`` of linux/aio_abi.h."""

    _fields_ = [
        ("data", ctypes.c_uint64),
        ("object", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    ]


# Contexts that no thread uses. Creating one takes as long as a sync, so they are kept until the process ends.
_idle: list[int] = []
os.register_at_fork(after_in_child=_idle.clear)  # a context belongs to the process that created it


def write_all(fd: int, content: bytes | memoryview) -> None:
    """Write the whole content; one write(2) may stop early, such as at the end of a disk's space."""
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]


def replace_file(
    path: str | os.PathLike[str],
    content: bytes | str,
    *,
    mode: int | None = 0o600,
    is_synced: bool = False,
    beside: str | os.PathLike[str] | None = None,
) -> None:
    """Replace a file, or create it, in one step: a reader finds the old content or the new one, never a part.

    With None as the ``mode``, a file keeps its permissions, and a new one gets those that the umask allows. The content
    is written to a new file beside it, which is removed if that fails. With ``beside``, that file has this name: for
    files that only one process writes at a time, so that the next one reuses what a killed one left. With
    ``is_synced``, the content is on the disk before the file has its name.
    """
    if mode is None:
        with suppress(FileNotFoundError):
            mode = os.stat(path).st_mode & 0o777
    target = os.fspath(path)
    data = content.encode() if isinstance(content, str) else content
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    if beside is None:
        beside = f"{os.path.dirname(target) or '.'}/.forkwise-{os.urandom(8).hex()}"
        flags |= os.O_EXCL
    fd = os.open(beside, flags | os.O_TRUNC, 0o666 if mode is None else mode)
    try:
        try:
            write_all(fd, data)
            if mode is not None and os.fstat(fd).st_mode & 0o777 != mode:  # because of the umask, or an earlier file
                os.fchmod(fd, mode)
            if is_synced:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(beside, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)
        raise


def sync_files(fds: Sequence[int]) -> None:
    """Call fsync on open files and directories, all at the same time; raise the first error."""
    context = _take_context() if len(fds) > 1 else None
    if context is None:
        for fd in fds:
            os.fsync(fd)
        return
    try:
        for first in range(0, len(fds), _CAPACITY):
            _sync_some(context, fds[first : first + _CAPACITY])
    except BaseException:
        assert _NUMBERS is not None
        _syscall(_NUMBERS[1], ctypes.c_ulong(context))  # waits for syncs that are still running
        raise
    _idle.append(context)


def _take_context() -> int | None:
    """Return an unused context, or None if the kernel refuses to create one."""
    try:
        return _idle.pop()
    except IndexError:
        pass
    if _NUMBERS is None:
        return None
    context = ctypes.c_ulong()
    return None if _syscall(_NUMBERS[0], _CAPACITY, ctypes.byref(context)) else context.value


def _sync_some(context: int, fds: Sequence[int]) -> None:
    assert _NUMBERS is not None
    count = len(fds)
    requests = (_Request * count)()
    pointers = (ctypes.c_void_p * count)()
    for index, (fd, request) in enumerate(zip(fds, requests, strict=True)):
        request.fd = fd
        request.opcode = _FSYNC
        pointers[index] = ctypes.addressof(requests) + index * ctypes.sizeof(_Request)
    submitted = max(0, _submit(_NUMBERS[2], ctypes.c_ulong(context), ctypes.c_long(count), pointers))
    events = (_Event * count)()
    failed = 0
    finished = 0
    while finished < submitted:
        wanted = ctypes.c_long(submitted - finished)
        got = _syscall(_NUMBERS[3], ctypes.c_ulong(context), wanted, wanted, events, None)
        if got < 0:
            if ctypes.get_errno() == errno.EINTR:
                continue
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        failed = next((-event.result for event in events[:got] if event.result), failed)
        finished += got
    if failed:
        raise OSError(failed, os.strerror(failed))
    for fd in fds[submitted:]:  # this kernel or this filesystem cannot sync these asynchronously
        os.fsync(fd)
