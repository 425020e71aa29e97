"""Jail: everything a process is confined by, as data, and the system calls with which it confines itself.

Namespaces, capabilities, the seccomp filter, Landlock and rlimits are applied here, inside the forkserver and the
sandboxes. What to apply is decided elsewhere (jail_plan.py, limits.py), so that as little as possible is imported here.
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
from forkwise.linux.syscalls import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    MS_PRIVATE,
    MS_REC,
    mount,
)
from forkwise.sandbox.mounts import Mount, make_mounts

__all__ = [
    "JAIL_FLAGS",
    "Jail",
    "adopt_orphans",
    "apply_restrictions",
    "apply_rlimits",
    "bring_up_loopback",
    "clone",
    "confine",
    "die_with_parent",
    "enter_root",
    "find_host_null",
    "join_groups",
    "map_ids",
    "outlive_parent",
    "set_cloexec_on_all",
    "set_dumpable",
    "write_maps",
]


JAIL_FLAGS = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS
"""The namespaces of every jail; most have a network namespace too, their own or a shared one."""

_ALL_IDS = "0 0 4294967295"
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
# PyDLL keeps the GIL: if it were released, a thread that does not exist in the child could hold it for ever.
_syscall_locked = ctypes.PyDLL(None, use_errno=True).syscall
_syscall_locked.restype = ctypes.c_long


class Jail:
    """Everything a process is confined by, as data that is sent to another process."""

    __slots__ = (
        "cgroups",
        "cwd",
        "enforcement",
        "flags",
        "gid_map",
        "has_home_fd",
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
        has_home_fd: bool = False,
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
        self.has_home_fd = has_home_fd

    def dump(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return {**_fields(self), "mounts": [_fields(mount) for mount in self.mounts]}

    @classmethod
    def load(cls, data: dict[str, Any]) -> Jail:
        """Build it from its JSON document."""
        data = {**data, "mounts": [Mount(**m) for m in data["mounts"]]}
        return cls(**data)


def _fields(value: Jail | Mount) -> dict[str, Any]:
    """Return the fields of a value. dataclasses.asdict copies everything inside, and takes ten times as long."""
    return {name: getattr(value, name) for name in value.__slots__}


def clone(flags: int) -> int:
    """Call clone(2) with new namespaces, and Python's fork hooks. Return 0 in the child.

    Use it only in a process with one thread. With more, the child's interpreter may wait for ever to hand the GIL to a
    thread that it does not have, and such a thread may have held locks of the C library.
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


def map_ids() -> tuple[str, str]:
    """Return the user and group maps of a sandbox: root maps everyone, any other user only itself."""
    if os.geteuid() == 0:
        return _ALL_IDS, _ALL_IDS
    return f"{os.geteuid()} {os.geteuid()} 1", f"{os.getegid()} {os.getegid()} 1"


def write_maps(pid: int, users: str, groups: str) -> None:
    """Write, from outside, the user and group maps of a child's user namespace."""
    if users.count(" ") == 2 and not users.endswith("4294967295"):
        _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/uid_map", users)
    _write(f"/proc/{pid}/gid_map", groups)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def outlive_parent() -> None:
    """Revert ``die_with_parent``."""
    _libc.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)


def set_dumpable(allowed: bool) -> None:
    """Set whether processes of the same user may read this one's memory, environment and descriptors."""
    _libc.prctl(_PR_SET_DUMPABLE, int(allowed), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_cloexec_on_all() -> None:
    """Set close-on-exec on all descriptors but the standard ones, whatever their origin."""
    flag = ctypes.c_uint(_CLOSE_RANGE_CLOEXEC)
    _check(int(_syscall(_CLOSE_RANGE, ctypes.c_uint(3), ctypes.c_uint(0xFFFFFFFF), flag)), "close_range")


def join_groups(jail: Jail) -> None:
    """Move this process, and all it starts from now on, into the control groups that limit the sandbox."""
    for group in jail.cgroups:
        _write(f"{group}/cgroup.procs", "0")


def enter_root(jail: Jail, home_fd: int = -1) -> None:
    """Set up the new namespaces: the loopback and the mounts. ``home_fd`` is the view of the home directory, if any."""
    if jail.flags & CLONE_NEWNET:
        bring_up_loopback()
    if jail.flags & CLONE_NEWNS:
        mount("none", "/", None, MS_REC | MS_PRIVATE)
        make_mounts(jail.mounts, read_only=jail.read_only, home_fd=home_fd)
    os.chdir(jail.cwd)


def confine(
    jail: Jail,
    standard_fds: Sequence[int] = (0, 1, 2),
    *,
    is_starter: bool = False,
    wait_for_mounts: Callable[[], None] | None = None,
) -> None:
    """Drop capabilities, filter system calls, restrict files by Landlock and set rlimits, right before the command.

    ``standard_fds`` are the command's standard descriptors. ``is_starter`` says that this process only starts the
    command. ``wait_for_mounts`` waits for another process that makes the mounts meanwhile.
    """
    apply_restrictions(jail, is_starter=is_starter)
    if wait_for_mounts is not None:
        wait_for_mounts()
    if jail.cgroups:
        _write("/proc/self/oom_score_adj", "1000")  # the OOM killer should choose the command, not init
    if jail.landlock is not None:
        restrict(writable=[*filter(_is_on_writable_mount, jail.landlock), *_reopenable_paths(standard_fds)])
    if jail.limits:
        # Last, because the memory may be enough for the command and too little for us. The init process of the sandbox
        # is not counted as one of the command's.
        apply_rlimits(jail.limits, jail.enforcement, own_processes=1)


def find_host_null(fds: Sequence[int]) -> list[int]:
    """Return the descriptors in ``fds`` that refer to the host's null device.

    Root inside the sandbox could change its mode through them, so the caller replaces them with the sandbox's
    /dev/null.
    """
    return [fd for fd in fds if _is_open(fd) and _is_null(os.fstat(fd))]


def _is_null(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == _NULL


def _is_on_writable_mount(path: str) -> bool:
    """Return whether a path is on a writable mount; a home directory without a mounted view is not."""
    try:
        return not os.statvfs(path).f_flag & os.ST_RDONLY
    except FileNotFoundError:
        return False


def _reopenable_paths(standard_fds: Sequence[int]) -> list[str]:
    """Return paths of the standard descriptors that can be opened again, as shells do with /dev/stderr."""
    kinds = {f"/proc/self/fd/{fd}": os.fstat(fd).st_mode for fd in standard_fds if _is_open(fd)}
    return [path for path, mode in kinds.items() if stat.S_ISREG(mode) or stat.S_ISCHR(mode)]


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def apply_restrictions(jail: Jail, *, is_starter: bool = False) -> None:
    """Drop all capabilities but those kept, for all programs run later too, and install the seccomp filter.

    A process that only starts the command (``is_starter``) keeps its own capabilities, so that the command cannot trace
    it. What it starts does not get them: exec grants no more than the bounding and the inheritable set.
    """
    kept = set(jail.keeps_caps)
    for number in range(_LAST_CAP + 1):
        if number not in kept:
            _drop_from_bounding_set(number, is_required=is_starter)
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    _set_capabilities(set(range(_LAST_CAP + 1)) if is_starter else kept)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    if jail.seccomp:
        install(bytes.fromhex(jail.seccomp))


def _drop_from_bounding_set(number: int, *, is_required: bool) -> None:
    """Drop a capability. If ``is_required``, fail unless the kernel does not know it (EINVAL)."""
    done = _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    if is_required and done < 0 and ctypes.get_errno() != errno.EINVAL:
        _check(done, "prctl(PR_CAPBSET_DROP)")


class _CapHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapData(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


_CapPair = _CapData * 2


def _set_capabilities(kept: set[int]) -> None:
    header = _CapHeader(_CAPSET_VERSION, 0)
    capabilities = _CapPair()
    _check(_libc.capget(ctypes.byref(header), capabilities), "capget")
    for word in range(2):
        mask = sum(1 << (n % 32) for n in kept if n // 32 == word)
        now = capabilities[word].permitted & mask
        capabilities[word] = _CapData(now, now, 0)
    _check(_libc.capset(ctypes.byref(header), capabilities), "capset")


def bring_up_loopback() -> None:
    """Bring up the loopback of this process's network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP_RUNNING))


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _check(result: int, operation: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), operation)


def apply_rlimits(
    limits: Mapping[str, float | None], enforcement: Mapping[str, str | None], *, own_processes: int = 0
) -> None:
    """Set, on this process and all it starts, the limits that rlimits enforce: the last thing before exec.

    The process must already be in the sandbox's user namespace: otherwise the user's processes outside count too.
    ``own_processes`` of the sandbox itself are in that namespace and are added to the limit.
    """
    by_rlimit = {name for name, means in enforcement.items() if means == "rlimit"}
    wanted = {name: limit for name, limit in limits.items() if name in by_rlimit and limit is not None}
    if "processes" in wanted:
        _lower_rlimit(resource.RLIMIT_NPROC, int(wanted["processes"]) + own_processes)
    if "file_size" in wanted:
        _lower_rlimit(resource.RLIMIT_FSIZE, int(wanted["file_size"]))
    if "cpu" in wanted:
        # SIGXCPU at the soft limit can be ignored; at the hard limit the kernel kills.
        _lower_rlimit(resource.RLIMIT_CPU, math.ceil(wanted["cpu"]), grace=1)
    if "memory" in wanted:
        _lower_rlimit(resource.RLIMIT_AS, int(wanted["memory"]))


def _lower_rlimit(kind: int, value: int, *, grace: int = 0) -> None:
    """Set a limit, unless a lower one is already set."""
    hard = resource.getrlimit(kind)[1]
    most = value + grace if hard == resource.RLIM_INFINITY else min(value + grace, hard)
    resource.setrlimit(kind, (min(value, most), most))
