"""fanotify: the kernel reports to root which files on a filesystem were changed, by name and by process.

One mark covers the whole filesystem, so the cost does not depend on the size of a tree. Events name their directory by
its handle; the path of that handle is looked up once and cached.
"""

from __future__ import annotations

import errno
import os
import struct

from forkwise.linux import fds
from forkwise.linux.syscalls import fanotify_init, fanotify_mark, open_by_handle_at

__all__ = ["FileWatch"]

_CLOEXEC, _NONBLOCK = 0x1, 0x2
_REPORT_DIRECTORY_AND_NAME = 0x400 | 0x800
_MARK_ADD, _MARK_FILESYSTEM = 0x1, 0x100
_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x8, 0x40, 0x80, 0x100, 0x200
_OVERFLOW = 0x4000
_ON_DIRECTORY = 0x40000000
_OLD_NAME, _NAME, _NEW_NAME = 10, 2, 12  # kinds of information records that have a directory's handle and a name
_METADATA = struct.Struct("=IBBHQii")
_INFORMATION = struct.Struct("=BBH8sIi")
_MAX_READ = 1 << 16
_MOST_DIRECTORIES = 4096


class FileWatch:
    """Reports the changes that other processes make to files below a directory, from now on.

    Raises OSError if the kernel does not report them: that needs root, Linux 5.9, and a filesystem whose files have
    handles.
    """

    def __init__(self, directory: str) -> None:
        self._root = os.path.realpath(directory)
        self._paths: dict[bytes, str | None] = {}
        self._directory_fd = -1
        flags = _CLOEXEC | _NONBLOCK | _REPORT_DIRECTORY_AND_NAME
        # Tracked: a function's process, which is a fork of this one, must not read what happens on the host.
        self._fd = fds.track(lambda: fanotify_init(flags, os.O_RDONLY))
        try:
            self._directory_fd = fds.track(lambda: os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            wanted = _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ON_DIRECTORY
            fanotify_mark(self._fd, _MARK_ADD | _MARK_FILESYSTEM, wanted, self._root)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Return a descriptor that is readable when there are changes."""
        return self._fd

    def read(self) -> tuple[list[str], bool]:
        """Return the paths that were changed since the last call, and whether the kernel has dropped others.

        A call returns a limited number of them; the descriptor stays readable if there are more. The kernel keeps a
        limited number for a reader (``fs.fanotify.max_queued_events``).
        """
        try:
            data = os.read(self._fd, _MAX_READ)
        except BlockingIOError:
            return [], False
        changed: dict[str, None] = {}
        is_incomplete = False
        own = os.getpid()
        start = 0
        while start + _METADATA.size <= len(data):
            length, _version, _, header, mask, _fd, pid = _METADATA.unpack_from(data, start)
            if length < _METADATA.size:
                break
            is_incomplete = is_incomplete or bool(mask & _OVERFLOW)
            is_move = mask & _ON_DIRECTORY and mask & (_MOVED_FROM | _MOVED_TO)
            if pid != own or is_move:
                paths = self._find_paths(data[start + header : start + length])
                if pid != own:
                    changed |= dict.fromkeys(paths)
                if is_move and paths:
                    self._paths.clear()  # the directories below have other paths now
            start += length
        return list(changed), is_incomplete

    def close(self) -> None:
        """Stop watching."""
        fds.close(self._fd, self._directory_fd)
        self._fd = self._directory_fd = -1

    def _find_paths(self, records: bytes) -> list[str]:
        """Return the paths of one event that are in the tree."""
        found = []
        start = 0
        while start + _INFORMATION.size <= len(records):
            kind, _, length, _, size, _ = _INFORMATION.unpack_from(records, start)
            if length < _INFORMATION.size:
                break
            if kind in (_NAME, _OLD_NAME, _NEW_NAME):
                handle_start = start + _INFORMATION.size - 8
                handle_end = start + _INFORMATION.size + size
                directory = self._find_directory(records[handle_start:handle_end])
                if directory is not None:
                    name = os.fsdecode(records[handle_end : start + length].split(b"\0", 1)[0])
                    found.append(directory if name == "." else f"{directory}/{name}".removeprefix("/"))
            start += length
        return found

    def _find_directory(self, handle: bytes) -> str | None:
        """Return the path of the directory with this handle; None if it is not in the tree."""
        if handle in self._paths:
            return self._paths[handle]
        if len(self._paths) >= _MOST_DIRECTORIES:
            self._paths.clear()
        path: str | None = None
        try:
            fd = open_by_handle_at(self._directory_fd, handle, os.O_PATH | os.O_CLOEXEC)
            try:
                path = os.readlink(f"/proc/self/fd/{fd}")
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno != errno.ESTALE:  # ESTALE: it was removed meanwhile
                return None
        inside = path is not None and (path == self._root or path.startswith(f"{self._root.rstrip('/')}/"))
        found = path[len(self._root) :].strip("/") if path is not None and inside else None
        self._paths[handle] = found
        return found
