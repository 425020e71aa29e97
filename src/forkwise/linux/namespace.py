"""A user and mount namespace of one's own: what lets an unprivileged process mount kernel overlays.

Whatever is mounted after ``enter`` is seen by this process and those it starts, and is gone with the last of them.
"""

from __future__ import annotations

import os
import threading

from forkwise.errors import NamespaceError
from forkwise.linux.syscalls import CLONE_NEWNS, CLONE_NEWUSER, MS_PRIVATE, MS_REC, mount, unshare

__all__ = ["available", "enter", "is_entered"]

_entered = False


def is_entered() -> bool:
    """Whether this process (or the one that forked it) went into a namespace of its own."""
    return _entered


def available() -> bool:
    """Whether this user may make user and mount namespaces; tried out in a child."""
    pid = os.fork()
    if pid == 0:
        try:
            unshare(CLONE_NEWUSER | CLONE_NEWNS)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def enter() -> None:
    """Go into a user and mount namespace where this process may mount, as the same user. There is no way back.

    The process must have one thread only; that is the kernel's rule.
    """
    global _entered
    if _entered:
        return
    user, group = os.geteuid(), os.getegid()
    try:
        unshare(CLONE_NEWUSER | CLONE_NEWNS)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
        mount("none", "/", None, MS_REC | MS_PRIVATE)
    except OSError as error:
        threads = threading.active_count()
        hint = f"this process has {threads} threads, and may have only one" if threads > 1 else "see forkwise doctor"
        raise NamespaceError(f"no user namespace could be entered: {error.strerror} ({hint})") from error
    _entered = True


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
