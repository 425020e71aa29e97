"""Limits that a process sets on itself and on all it starts: rlimits.

Apart from limits.py because it runs inside sandboxes, where nothing is chosen any more and as little as possible is
loaded.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import math
import os
import resource
import signal
import socket
import stat
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forkwise.linux.landlock import restrict
from forkwise.linux.seccomp import install
from forkwise.linux.syscalls import CLONE_NEWNS, MS_PRIVATE, MS_REC, mount
from forkwise.sandbox.mounts import Mount, furnish

__all__ = [
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "CLONE_NEWPID",
    "CLONE_NEWUTS",
    "Jail",
    "adopt_orphans",
    "apply_restrictions",
    "apply_rlimits",
    "clone",
    "confine",
    "die_with_parent",
    "enter_root",
    "hosts_null",
    "join_groups",
    "set_cloexec_on_all",
    "set_dumpable",
    "write_maps",
]


CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

_CLOSE_RANGE, _CLOSE_RANGE_CLOEXEC = 436, 4
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_LAST_CAP = 40
_CAPSET_VERSION = 0x20080522
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x41

_NULL = os.makedev(1, 3)
_MACHINE = os.uname().machine
_libc = ctypes.CDLL(None, use_errno=True)
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_after_fork_in_child = ctypes.pythonapi.PyOS_AfterFork_Child
_after_fork_in_parent = ctypes.pythonapi.PyOS_AfterFork_Parent
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
# Without letting go of the interpreter's lock: in a child it would be held for ever by a thread that is not there.
_syscall_locked = ctypes.PyDLL(None, use_errno=True).syscall
_syscall_locked.restype = ctypes.c_long


class Jail:
    """All that a process is put into, as data that crosses to another process."""

    __slots__ = (
        "cgroups",
        "cwd",
        "enforcement",
        "flags",
        "gid_map",
        "keeps_caps",
        "landlock",
        "limits",
        "mounts",
        "read_only",
        "seccomp",
        "uid_map",
    )

    def __init__(
        self,
        *,
        flags: int,
        mounts: list[Mount],
        read_only: bool,
        cwd: str,
        uid_map: str = "",
        gid_map: str = "",
        keeps_caps: Sequence[int] = (),
        seccomp: str = "",
        landlock: list[str] | None = None,
        limits: Mapping[str, Any] | None = None,
        enforcement: Mapping[str, Any] | None = None,
        cgroups: Sequence[str] = (),
    ) -> None:
        self.flags = flags
        self.mounts = mounts
        self.read_only = read_only
        self.cwd = cwd
        self.uid_map = uid_map
        self.gid_map = gid_map
        self.keeps_caps = list(keeps_caps)
        self.seccomp = seccomp
        self.landlock = landlock
        self.limits = dict(limits or {})
        self.enforcement = dict(enforcement or {})
        self.cgroups = list(cgroups)

    def dump(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {**_fields(self), "mounts": [_fields(mount) for mount in self.mounts]}

    @classmethod
    def load(cls, data: dict[str, Any]) -> Jail:
        data = {**data, "mounts": [Mount(**m) for m in data["mounts"]]}
        return cls(**data)


def _fields(thing: Jail | Mount) -> dict[str, Any]:
    """Not by dataclasses.asdict, which copies all that lies within, and takes ten times as long."""
    return {name: getattr(thing, name) for name in thing.__slots__}


def clone(flags: int) -> int:
    """fork(2) into new namespaces: 0 in the child. Python is told, as it is by os.fork.

    Only in a process with one thread. In others the child's interpreter may want to hand its lock to a thread that it
    does not have before Python is told, and would wait for ever; and such a thread may hold the C library's locks.
    """
    _before_fork()
    pid = int(_syscall_locked(_clone_number(), ctypes.c_ulong(flags | signal.SIGCHLD), 0, 0, 0, 0))
    number = ctypes.get_errno()
    if pid == 0:
        _after_fork_in_child()
        return 0
    _after_fork_in_parent()
    if pid < 0:
        raise OSError(number, os.strerror(number))
    return pid


def _clone_number() -> int:
    return {"x86_64": 56, "aarch64": 220}[_MACHINE]


def write_maps(pid: int, users: str, groups: str) -> None:
    """Say, from outside, which users exist in a child's user namespace."""
    if users.count(" ") == 2 and not users.endswith("4294967295"):
        _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/uid_map", users)
    _write(f"/proc/{pid}/gid_map", groups)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Be sent a signal when the process that made this one ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def set_dumpable(allowed: bool) -> None:
    """Whether processes of the same user may read this one's memory, environment and descriptors."""
    _libc.prctl(_PR_SET_DUMPABLE, int(allowed), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_cloexec_on_all() -> None:
    """Keep from every program that is started all descriptors but the standard ones, wherever they came from."""
    flag = ctypes.c_uint(_CLOSE_RANGE_CLOEXEC)
    _check(int(_syscall(_CLOSE_RANGE, ctypes.c_uint(3), ctypes.c_uint(0xFFFFFFFF), flag)), "close_range")


def join_groups(jail: Jail) -> None:
    """Go into the control groups that limit the sandbox, with every process made from now on."""
    for group in jail.cgroups:
        _write(f"{group}/cgroup.procs", "0")


def enter_root(jail: Jail) -> None:
    """Fill the new namespaces: the mounts, the loopback."""
    if jail.flags & CLONE_NEWNET:
        _raise_loopback()
    if jail.flags & CLONE_NEWNS:
        mount("none", "/", None, MS_REC | MS_PRIVATE)
        furnish(jail.mounts, read_only=jail.read_only)
    os.chdir(jail.cwd)


def confine(
    jail: Jail,
    standard: Sequence[int] = (0, 1, 2),
    *,
    starting: bool = False,
    furnished: Callable[[], None] | None = None,
) -> None:
    """Shut the last doors: capabilities, system calls, files by Landlock. Only the command or function comes after.

    ``standard`` are the command's standard descriptors. ``starting``: this process only starts the command.
    ``furnished`` waits for the mounts, where another process makes them meanwhile.
    """
    apply_restrictions(jail, starting=starting)
    if furnished is not None:
        furnished()
    if jail.cgroups:
        _write("/proc/self/oom_score_adj", "1000")  # let it be the command that runs out of memory, not who tells of it
    if jail.landlock is not None:
        restrict(writable=[*jail.landlock, *_reopened(standard)])
    if jail.limits:
        # Last, because little memory may be enough for the command and too little for us. The first process of the
        # sandbox is not one of the command's.
        apply_rlimits(jail.limits, jail.enforcement, besides=1)


def hosts_null(fds: Sequence[int]) -> list[int]:
    """Those of the descriptors that are the host's null device, whose mode a root in here could change by them: to be
    replaced by the same from the sandbox's own /dev."""
    return [fd for fd in fds if _is_open(fd) and _is_null(os.fstat(fd))]


def _is_null(held: os.stat_result) -> bool:
    return stat.S_ISCHR(held.st_mode) and held.st_rdev == _NULL


def _reopened(standard: Sequence[int]) -> list[str]:
    """Those of the standard descriptors that can be opened anew, as shells do with /dev/stderr."""
    kinds = {f"/proc/self/fd/{fd}": os.fstat(fd).st_mode for fd in standard if _is_open(fd)}
    return [path for path, mode in kinds.items() if stat.S_ISREG(mode) or stat.S_ISCHR(mode)]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def apply_restrictions(jail: Jail, *, starting: bool = False) -> None:
    """No capability but those kept, none to be had by any program, and no system call that has no business here.

    A process that is ``starting`` the command stays more capable than that, so that it cannot be looked into. What it
    starts is not: exec leaves nobody with more than the bounding set and what is inherited.
    """
    kept = set(jail.keeps_caps)
    for number in range(_LAST_CAP + 1):
        if number not in kept:
            _take_from_bounding_set(number, must=starting)
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    _set_capabilities(set(range(_LAST_CAP + 1)) if starting else kept)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if jail.seccomp:
        install(bytes.fromhex(jail.seccomp))


def _take_from_bounding_set(number: int, *, must: bool) -> None:
    """``must``: nothing else keeps the capability from the command. One that the kernel does not know is EINVAL."""
    done = _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    if must and done < 0 and ctypes.get_errno() != errno.EINVAL:
        _check(done, "the bounding set of capabilities")


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


_CapPair = _CapData * 2


def _set_capabilities(kept: set[int]) -> None:
    header = _CapHeader(_CAPSET_VERSION, 0)
    held = _CapPair()
    _check(_libc.capget(ctypes.byref(header), held), "capget")
    for half in range(2):
        mask = sum(1 << (n % 32) for n in kept if n // 32 == half)
        now = held[half].permitted & mask
        held[half] = _CapData(now, now, 0)
    _check(_libc.capset(ctypes.byref(header), held), "capset")


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP_RUNNING))


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def apply_rlimits(
    limits: Mapping[str, float | None], enforcement: Mapping[str, str | None], *, besides: int = 0
) -> None:
    """Set on this process, for it and all it starts, the limits that rlimits enforce: the last thing before exec.

    It must already be in the sandbox's user namespace: what is set before counts the user's processes outside as well.
    ``besides``: how many processes of the sandbox itself are in that namespace, and are not held against the limit.
    """
    by_rlimit = {name for name, means in enforcement.items() if means == "rlimit"}
    wanted = {name: limit for name, limit in limits.items() if name in by_rlimit and limit is not None}
    if "processes" in wanted:
        _lower(resource.RLIMIT_NPROC, int(wanted["processes"]) + besides)
    if "file_size" in wanted:
        _lower(resource.RLIMIT_FSIZE, int(wanted["file_size"]))
    if "cpu" in wanted:
        # SIGXCPU tells at the soft limit, and can be ignored; the kernel kills at the hard one.
        _lower(resource.RLIMIT_CPU, math.ceil(wanted["cpu"]), grace=1)
    if "memory" in wanted:
        _lower(resource.RLIMIT_AS, int(wanted["memory"]))


def _lower(kind: int, value: int, *, grace: int = 0) -> None:
    """Set a limit, as far as one that is already there is not lower."""
    hard = resource.getrlimit(kind)[1]
    most = value + grace if hard == resource.RLIM_INFINITY else min(value + grace, hard)
    resource.setrlimit(kind, (min(value, most), most))
