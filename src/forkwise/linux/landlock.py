"""Landlock: a process gives up, for itself and all it starts, writing anywhere but beneath a few paths.

It needs no privilege and no namespace, and is what is left where those are forbidden. Apart from the rest because it is
the one place that knows the structures and versions of that interface.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Sequence

from forkwise.errors import NamespaceError

__all__ = ["abi", "gaps", "restrict", "usual_devices"]

# The same numbers on every architecture: they were added after the tables were unified.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_AND_MAKE = 0x1FF0  # REMOVE_DIR, REMOVE_FILE, and MAKE_ of each of the seven kinds
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_READING = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = (
    _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE
)  # the others make sense for directories only
_BIND_AND_CONNECT_TCP = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11

# The version from which on something can be forbidden, and the Linux that brought it.
_SINCE = {
    "truncating files": (3, "6.2"),
    "TCP": (4, "6.7"),
    "ioctls on devices": (5, "6.10"),
    "abstract Unix sockets and signals": (6, "6.12"),
}
_NEVER = ("modes, owners, times and attributes of files", "listening on a TCP port that the kernel picks")

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "mqueue")

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


class _Ruleset(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("files", "network", "scoped")]


class _PathBeneath(ctypes.Structure):
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def abi() -> int:
    """The version of Landlock's interface; 0 where the kernel has none or it is not enabled."""
    flags = ctypes.c_uint32(_CREATE_RULESET_VERSION)
    return max(0, int(_syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), flags)))


def gaps(version: int) -> list[str]:
    """What Landlock of this version cannot forbid; some of it, none can.

    >>> gaps(5)[2:]
    ['abstract Unix sockets and signals']
    """
    return [*_NEVER, *(what for what, (first, _) in _SINCE.items() if version < first)]


def usual_devices() -> list[str]:
    """What programs expect to write to although it is no part of a branch, as far as it is there."""
    return [path for path in (f"/dev/{name}" for name in _DEVICES) if os.path.exists(path)]


def restrict(
    *,
    writable: Sequence[str],
    readable: Sequence[str] | None = None,
    allow_network: bool = True,
    scope: bool = True,
) -> None:
    """From now on this process, and all it starts, can change files beneath the ``writable`` paths only.

    It reads and executes everything, or what is beneath ``readable`` and ``writable``. Without ``allow_network`` it
    opens no TCP connection and takes no TCP port by number; all else is a network namespace's business. With ``scope``
    it signals no process and reaches no abstract socket but those of processes restricted with it.

    What the kernel's version cannot forbid is told by ``gaps``; only a missing ban on TCP is an error, since that is
    asked for by name. Descriptors already open keep what they can do. Mounts cannot be changed afterwards, so this
    comes after them; the paths are looked up now.
    """
    version = abi()
    _require(version, allow_network)
    handled = _Ruleset(
        files=_changes(version) | (_READING if readable is not None else 0),
        network=0 if allow_network else _BIND_AND_CONNECT_TCP,
        scoped=_ABSTRACT_SOCKETS_AND_SIGNALS if scope and version >= 6 else 0,
    )
    # An older kernel takes the longer structure as long as what it does not know is zero.
    size = ctypes.c_size_t(ctypes.sizeof(handled))
    ruleset = _must(
        _syscall(ctypes.c_long(_CREATE_RULESET), ctypes.byref(handled), size, ctypes.c_uint32(0)), "make a ruleset"
    )
    try:
        for path in writable:
            _allow(ruleset, path, int(handled.files))
        for path in readable or ():
            _allow(ruleset, path, _READING)
        _must(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "give up new privileges")
        _must(_syscall(ctypes.c_long(_RESTRICT_SELF), ruleset, ctypes.c_uint32(0)), "restrict this process")
    finally:
        os.close(ruleset)


def _changes(version: int) -> int:
    """All ways of changing files that this version can forbid."""
    rights = _WRITE_FILE | _REMOVE_AND_MAKE
    for first, right in ((2, _REFER), (3, _TRUNCATE), (5, _IOCTL_DEVICE)):
        if version >= first:
            rights |= right
    return rights


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise NamespaceError(
            f"{path} cannot be opened to processes restricted by Landlock: {error.strerror}; leave it out or make it"
        ) from error
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _OF_FILES
        rule = _PathBeneath(rights, fd)
        number = ctypes.c_long(_ADD_RULE)
        outcome = _syscall(number, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0))
        _must(outcome, f"open {path}")
    finally:
        os.close(fd)


def _require(version: int, allow_network: bool) -> None:
    if version == 0:
        raise NamespaceError(
            "Landlock is not available: it needs Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK, and 'landlock' in "
            "the lsm= boot parameter; inside a container, its runtime may forbid it"
        )
    first, linux = _SINCE["TCP"]
    if not allow_network and version < first:
        raise NamespaceError(
            f"Landlock of this kernel (ABI {version}) cannot forbid TCP: that needs Linux {linux} or later, or a "
            "network namespace instead"
        )


def _must(outcome: int, step: str) -> int:
    if outcome >= 0:
        return outcome
    number = ctypes.get_errno()
    hint = "16 restrictions are the most a process can have" if number == errno.E2BIG else "see forkwise doctor"
    raise NamespaceError(f"Landlock could not {step}: {os.strerror(number)} ({hint})")
