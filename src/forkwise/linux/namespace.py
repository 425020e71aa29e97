"""A private user and mount namespace, which lets an unprivileged process mount kernel overlays.

Mounts made after ``enter`` are visible to this process and those it starts, and disappear with the last of them.
"""

from __future__ import annotations

import os
import threading

from forkwise.errors import NamespaceError
from forkwise.linux.syscalls import CLONE_NEWNS, CLONE_NEWUSER, MS_PRIVATE, MS_REC, mount, unshare

__all__ = ["available", "enter", "is_entered"]

_entered = False


def is_entered() -> bool:
    """Return whether this process, or an ancestor that forked it, called ``enter``."""
    return _entered


def available() -> bool:
    """Try in a child process whether this user may create user and mount namespaces."""
    pid = os.fork()
    if pid == 0:
        try:
            unshare(CLONE_NEWUSER | CLONE_NEWNS)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def enter() -> None:
    """Enter a user and mount namespace in which this process may mount, as the same user, for good.

    The kernel allows it only to a process with a single thread.
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
