"""Landlock: a process restricts itself and all processes it starts to writing below a few paths.

It needs no privilege and no namespace, so it also works where those are forbidden. No other module knows the structures
and versions of this interface.
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
_REMOVE_AND_MAKE = 0x1FF0  # REMOVE_DIR, REMOVE_FILE, and MAKE_* of each of the seven file types
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE  # the others apply only to directories
_BIND_AND_CONNECT_TCP = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11

# The first ABI version that can forbid each, and the Linux release that introduced it.
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
    """Return the version of Landlock's interface; 0 if the kernel has none or it is not enabled."""
    flags = ctypes.c_uint32(_CREATE_RULESET_VERSION)
    return max(0, int(_syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), flags)))


def gaps(version: int) -> list[str]:
    """List what this version of Landlock cannot forbid, including what no version can.

    >>> gaps(5)[2:]
    ['abstract Unix sockets and signals']
    """
    return [*_NEVER, *(what for what, (first, _) in _SINCE.items() if version < first)]


def usual_devices() -> list[str]:
    """Return the devices below /dev that programs expect to write to, as far as they exist."""
    return [path for path in (f"/dev/{name}" for name in _DEVICES) if os.path.exists(path)]


def restrict(
    *,
    writable: Sequence[str],
    readable: Sequence[str] | None = None,
    allow_network: bool = True,
    scope: bool = True,
) -> None:
    """Restrict this process, and all it starts, to changing files below the ``writable`` paths.

    It can read and execute everything, or only what is below ``readable`` and ``writable``. Without ``allow_network``
    it opens no TCP connection and binds no TCP port by number; a network namespace forbids the rest. With ``scope`` it
    can signal only processes, and connect only to abstract sockets, that are restricted together with it.

    ``gaps`` lists what the kernel's version cannot forbid; only a missing ban on TCP is an error, because the caller
    requests it by name. Descriptors that are already open keep their rights. Landlock forbids mount changes, so mounts
    must be set up before; the paths are resolved now.
    """
    version = abi()
    _require(version, allow_network)
    handled = _Ruleset(
        files=_write_rights(version) | (_READ if readable is not None else 0),
        network=0 if allow_network else _BIND_AND_CONNECT_TCP,
        scoped=_ABSTRACT_SOCKETS_AND_SIGNALS if scope and version >= 6 else 0,
    )
    # An older kernel accepts the longer structure as long as the fields that it does not know are zero.
    size = ctypes.c_size_t(ctypes.sizeof(handled))
    ruleset = _check(
        _syscall(ctypes.c_long(_CREATE_RULESET), ctypes.byref(handled), size, ctypes.c_uint32(0)), "create a ruleset"
    )
    try:
        for path in writable:
            _allow(ruleset, path, int(handled.files))
        for path in readable or ():
            _allow(ruleset, path, _READ)
        _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "set no_new_privs")
        _check(_syscall(ctypes.c_long(_RESTRICT_SELF), ruleset, ctypes.c_uint32(0)), "restrict this process")
    finally:
        os.close(ruleset)


def _write_rights(version: int) -> int:
    """Return all rights to change files that this version can withhold."""
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
            f"Landlock cannot allow access to {path}: {error.strerror}; leave it out of the confinement or create it"
        ) from error
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _FILE_RIGHTS
        rule = _PathBeneath(rights, fd)
        number = ctypes.c_long(_ADD_RULE)
        outcome = _syscall(number, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), ctypes.c_uint32(0))
        if outcome != 0 and ctypes.get_errno() == errno.EBADFD:
            return  # a file in memory (memfd_create), which no ruleset restricts
        _check(outcome, f"allow access to {path}")
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


def _check(outcome: int, step: str) -> int:
    if outcome >= 0:
        return outcome
    number = ctypes.get_errno()
    hint = "a process can have at most 16 rulesets" if number == errno.E2BIG else "see forkwise doctor"
    raise NamespaceError(f"Landlock could not {step}: {os.strerror(number)} ({hint})")
