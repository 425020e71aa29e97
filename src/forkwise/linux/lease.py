"""Leases: find out whether any process has a file open for writing, and notice one that is about to open it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections import deque

__all__ = ["Leases"]

_MOST = 64  # leases held at a time: enough to outlast an open(2) in flight, and far below the limit on descriptors

# A filesystem without leases, or a file of another user.
_NOT_AVAILABLE = (errno.EINVAL, errno.EACCES, errno.EPERM, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)


class Leases:
    """Read leases on files, oldest first.

    The kernel refuses a read lease while the file is open for writing, or mapped for writing. While the lease is held,
    an open for writing waits, and the lease shows that. On files of other users, which need CAP_LEASE, and on
    filesystems without leases, every file counts as not open.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[str, int]] = deque()
        self._wanted: list[str] = []

    def take(self, fd: int, path: str) -> bool:
        """Take a lease on an open file and own its descriptor; return False if the file is open for writing."""
        try:
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # ignored by default; a waiting open would send SIGIO
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        except OSError as error:
            os.close(fd)
            if error.errno not in (errno.EAGAIN, *_NOT_AVAILABLE):
                raise
            return error.errno != errno.EAGAIN
        self._held.append((path, fd))
        if len(self._held) > _MOST:
            self._release()
        return True

    def find_wanted(self) -> list[str]:
        """Return the paths of files that were opened for writing while their lease was held."""
        return self._wanted + [path for path, fd in self._held if _is_wanted(fd)]

    def close(self) -> None:
        """Release all leases; processes that wait for one continue."""
        while self._held:
            self._release()

    def _release(self) -> None:
        path, fd = self._held.popleft()
        try:
            if _is_wanted(fd):
                self._wanted.append(path)
        finally:
            os.close(fd)


def _is_wanted(fd: int) -> bool:
    return fcntl.fcntl(fd, fcntl.F_GETLEASE) != fcntl.F_RDLCK
