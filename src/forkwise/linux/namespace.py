"""A private user and mount namespace, which lets an unprivileged process mount kernel overlays.

Mounts made after ``enter_namespace`` are visible to this process and those it starts, and disappear with the last of
them.
"""

from __future__ import annotations

import os
import threading

from forkwise.errors import NamespaceError
from forkwise.linux.syscalls import CLONE_NEWNS, CLONE_NEWUSER, MS_PRIVATE, MS_REC, mount, unshare

__all__ = ["available", "enter_namespace", "is_entered", "may_mount"]

_CAP_SYS_ADMIN = 21
_entered = False


def is_entered() -> bool:
    """Return whether this process, or an ancestor that forked it, called ``enter_namespace``."""
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


def enter_namespace() -> None:
    """Enter, for good, a user and mount namespace in which this process stays the same user and may mount overlays.

    Call it when an unprivileged user's program starts: the kernel allows it only while the process has a single thread.
    A branch then costs the same however large the workspace is, and only this process and those that it starts see it.
    If the process may already mount, as root may, nothing happens. Raises NamespaceError if the machine forbids it.
    """
    global _entered
    if _entered or may_mount():
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


def may_mount() -> bool:
    """Return whether this process has CAP_SYS_ADMIN."""
    with open("/proc/self/status") as file:
        effective = next(line.split()[1] for line in file if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_SYS_ADMIN & 1)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
