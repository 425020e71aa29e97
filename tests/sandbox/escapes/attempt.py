"""Attempt: one way of trying to escape, as a value: what it does, what stops it, and how it is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ATTEMPTS", "BOTH", "ISOLATED", "NETLESS", "PRELUDE", "Attempt", "attempt"]

BOTH = ("standard", "strict")
NETLESS = ("none", "private", "strict")  # the first two are standard with that network
ISOLATED = (*NETLESS, "proxy")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A program run inside a sandbox. It calls ``got`` for each success, and must end by one of ``endings``.

    ``under`` are the confinements in which it must fail. ``control``: without a sandbox it succeeds, which shows that a
    success would be noticed. ``by`` names the user it needs: "root", or "" for any. ``then`` is what the outside does
    afterwards. ``world`` is compared before and after in any case.
    """

    name: str
    tries: str
    stopped_by: str
    program: str
    under: tuple[str, ...] = BOTH
    control: bool = False
    by: str = ""
    then: str = ""
    endings: tuple[str, ...] = ("exit",)
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)

    def is_function(self) -> bool:
        """Return whether it can be run as a function too.

        It cannot if it ends other than by returning, or aims at a command's own descriptors, which a function does not
        have.
        """
        is_plain = self.endings == ("exit",) and not self.limits and self.then != "terminal"
        return is_plain and self.name not in ("forged outcome", "inherited descriptors", "zombie flood")


ATTEMPTS: dict[str, Attempt] = {}


def attempt(name: str, tries: str, stopped_by: str, program: str, **more: Any) -> None:
    """Add an attempt to the table."""
    assert name not in ATTEMPTS, name
    ATTEMPTS[name] = Attempt(name, tries, stopped_by, program.strip("\n"), **more)


PRELUDE = """
import ctypes, errno, fcntl, json, os, signal, socket, stat, struct, sys, time
world = json.loads(sys.argv[1])
ws, outside, precious, secret = world["workspace"], world["outside"], world["precious"], world["secret"]
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

def got(what):
    print("GOT", repr(what)[:500], flush=True)

def attempt(action, *arguments, **named):
    # True if the action succeeds
    try:
        action(*arguments, **named)
    except (OSError, ValueError):
        return False
    return True

def want(what, action, *arguments, **named):
    if attempt(action, *arguments, **named):
        got(what)

def syscall(number, *arguments):
    # the result; errors raise
    ctypes.set_errno(0)
    passed = [ctypes.c_char_p(a) if isinstance(a, bytes) else a if a is None else ctypes.c_long(a)
              if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *passed)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def write(path, text="escaped"):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)

def read(path):
    with open(path, "rb") as file:
        return file.read(4096)

def want_secret(path):
    try:
        if world["key"].encode() in read(path):
            got(path)
    except OSError:
        pass

def in_child(action):
    pid = os.fork()
    if pid == 0:
        try:
            action()
        finally:
            sys.stdout.flush()
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def nested(flags=0x10000000 | 0x00020000):
    # enter a new user and mount namespace as root
    user, group = os.getuid(), os.getgid()
    if libc.unshare(flags):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        attempt(write, f"/proc/self/{name}", text)

def mount(source, target, kind, flags=0, data=None):
    if libc.mount(source, target, kind, ctypes.c_ulong(flags), data):
        raise OSError(ctypes.get_errno(), "mount")

def set_writable(path):
    syscall(442, -100, path, 0, (ctypes.c_uint64 * 4)(0, 1, 0, 0), 32)  # mount_setattr, clearing RDONLY

BIND, REMOUNT, REC, DETACH = 4096, 32, 16384, 2
"""
