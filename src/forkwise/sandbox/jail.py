"""What happens in a new process between its making and the command: namespaces filled, doors shut, one after another.

It runs in the forkserver's children and in those of BranchContext, so it starts no thread, imports nothing once it is
inside (where its own files may not be seen), and knows nothing but the Jail it is handed: plain data, made by plan.py.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import stat
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from forkwise.files.syscalls import (
    CLONE_NEWNS,
    CLONE_NEWUSER,
    MS_BIND,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    mount,
)
from forkwise.sandbox.landlock import restrict
from forkwise.sandbox.limits import Limits, apply_rlimits
from forkwise.sandbox.seccomp import install

__all__ = [
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "CLONE_NEWPID",
    "CLONE_NEWUTS",
    "Jail",
    "Mount",
    "adopt_orphans",
    "be_looked_into",
    "clone",
    "confine",
    "die_with_parent",
    "hand_on_no_descriptors",
    "join_groups",
    "move_in",
    "shut_doors",
    "write_maps",
]

CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

_CLOSE_RANGE, _CLOSE_RANGE_CLOEXEC = 436, 4
_MOUNT_SETATTR = 442
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_RDONLY, _NOSUID, _NODEV = 1, 2, 4  # the same numbers for mount(2) and mount_setattr(2)
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

_MACHINE = os.uname().machine
_libc = ctypes.CDLL(None, use_errno=True)
_python = ctypes.pythonapi
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
# Without letting go of the interpreter's lock: in a child it would be held for ever by a thread that is not there.
_syscall_locked = ctypes.PyDLL(None, use_errno=True).syscall
_syscall_locked.restype = ctypes.c_long


@dataclass(slots=True)
class Mount:
    """One mount to be made: ``bind`` of a directory or file, ``overlay``, ``tmpfs``, ``proc``, ``dev`` or ``mask``."""

    kind: str
    target: str
    source: str = ""
    writable: bool = False
    lowers: list[str] = field(default_factory=list)
    options: str = ""


@dataclass(slots=True)
class Jail:
    """All that a process is put into, as data that crosses to another process."""

    flags: int
    mounts: list[Mount]
    read_only: bool
    cwd: str
    uid_map: str = ""
    gid_map: str = ""
    keeps_caps: list[int] = field(default_factory=list)
    seccomp: str = ""
    landlock: list[str] | None = None
    limits: dict[str, Any] = field(default_factory=dict)
    enforcement: dict[str, Any] = field(default_factory=dict)
    cgroups: list[str] = field(default_factory=list)

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
    """fork(2) into new namespaces: 0 in the child. Python is told, as it is by os.fork."""
    _python.PyOS_BeforeFork()
    pid = int(_syscall_locked(_clone_number(), ctypes.c_ulong(flags | signal.SIGCHLD), 0, 0, 0, 0))
    number = ctypes.get_errno()
    if pid == 0:
        _python.PyOS_AfterFork_Child()
        return 0
    _python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, os.strerror(number))
    return pid


def _clone_number() -> int:
    return {"x86_64": 56, "aarch64": 220}[_MACHINE]


def write_maps(pid: int, jail: Jail) -> None:
    """Say, from outside, which users exist in a child's user namespace."""
    if not jail.flags & CLONE_NEWUSER:
        return
    if jail.uid_map.count(" ") == 2 and not jail.uid_map.endswith("4294967295"):
        _write(f"/proc/{pid}/setgroups", "deny")
    _write(f"/proc/{pid}/uid_map", jail.uid_map)
    _write(f"/proc/{pid}/gid_map", jail.gid_map)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Be sent a signal when the process that made this one ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def be_looked_into(allowed: bool) -> None:
    """Whether processes of the same user may read this one's memory, environment and descriptors."""
    _libc.prctl(_PR_SET_DUMPABLE, int(allowed), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of every descendant that loses its own."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hand_on_no_descriptors() -> None:
    """Keep from every program that is started all descriptors but the standard ones, wherever they came from."""
    flag = ctypes.c_uint(_CLOSE_RANGE_CLOEXEC)
    _check(int(_syscall(_CLOSE_RANGE, ctypes.c_uint(3), ctypes.c_uint(0xFFFFFFFF), flag)), "close_range")


def join_groups(jail: Jail) -> None:
    """Go into the control groups that limit the sandbox, with every process made from now on."""
    for group in jail.cgroups:
        _write(f"{group}/cgroup.procs", "0")


def move_in(jail: Jail) -> None:
    """Fill the new namespaces: the mounts, the loopback."""
    if jail.flags & CLONE_NEWNET:
        _raise_loopback()
    if jail.flags & CLONE_NEWNS:
        mount("none", "/", None, MS_REC | MS_PRIVATE)
        _Furnisher(jail).furnish()
    os.chdir(jail.cwd)


class _Furnisher:
    """Makes the mounts. Every source is opened before the first of them, because some cover others' sources."""

    def __init__(self, jail: Jail) -> None:
        self.jail = jail
        self.sources: dict[str, int] = {}
        for wanted in jail.mounts:
            for path in filter(None, [wanted.source, *wanted.lowers]):
                if path not in self.sources:
                    self.sources[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)

    def furnish(self) -> None:
        if self.jail.read_only:
            # Not only read-only: a device node or a set-uid file is no less one where it cannot be written.
            _set_attributes("/", add=_RDONLY | _NOSUID | _NODEV, recursively=True)
        for wanted in self.jail.mounts:
            getattr(self, f"_{wanted.kind}")(wanted)
        if self.jail.read_only:
            for wanted in self.jail.mounts:
                if wanted.kind == "bind" and wanted.writable:
                    _set_attributes(wanted.target, drop=_RDONLY)
                elif wanted.kind == "tmpfs" and not wanted.writable:
                    _set_attributes(wanted.target, add=_RDONLY)
        for fd in self.sources.values():
            os.close(fd)

    def _from(self, path: str) -> str:
        return f"/proc/self/fd/{self.sources[path]}"

    def _bind(self, wanted: Mount) -> None:
        if not os.path.exists(wanted.target):
            _make_target(wanted.target, os.path.isdir(self._from(wanted.source)))
        mount(self._from(wanted.source), wanted.target, None, MS_BIND | MS_REC)

    def _overlay(self, wanted: Mount) -> None:
        if not os.path.exists(wanted.target):
            _make_target(wanted.target, True)
        lower = ":".join(self._from(p) for p in wanted.lowers)
        layer, work = f"{self._from(wanted.source)}/layer", f"{self._from(wanted.source)}/view"
        mount(
            "forkwise",
            wanted.target,
            "overlay",
            _NOSUID | _NODEV,
            f"lowerdir={lower},upperdir={layer},workdir={work},{wanted.options}",
        )

    def _tmpfs(self, wanted: Mount) -> None:
        mount("tmpfs", wanted.target, "tmpfs", _NOSUID | _NODEV, wanted.options)

    def _mask(self, wanted: Mount) -> None:
        if not os.path.exists(wanted.target):
            return  # it lies beneath something that is covered already
        if os.path.isdir(wanted.target):
            mount("tmpfs", wanted.target, "tmpfs", MS_RDONLY, "mode=000,size=4k")
        else:
            mount("/dev/null", wanted.target, None, MS_BIND)

    def _proc(self, wanted: Mount) -> None:
        mount("proc", "/proc", "proc", _NOSUID | _NODEV)
        for name in wanted.options.split():
            with suppress(FileNotFoundError):
                mount(f"/proc/{name}", f"/proc/{name}", None, MS_BIND | MS_REC)
                _set_attributes(f"/proc/{name}", add=_RDONLY, recursively=True)

    def _dev(self, wanted: Mount) -> None:
        devices = {}
        for name in ("null", "zero", "full", "random", "urandom", "tty"):
            with suppress(FileNotFoundError):
                devices[name] = os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC)
        mount("tmpfs", "/dev", "tmpfs", _NOSUID, "mode=755,size=64k")
        for name, fd in devices.items():
            os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
            mount(f"/proc/self/fd/{fd}", f"/dev/{name}", None, MS_BIND)
            os.close(fd)
        # They are the host's own, and stay read-only: that forbids chmod and the like, and no use of the device.
        _set_attributes("/dev", drop=_NODEV, recursively=True)
        for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
            os.symlink(target if name == "fd" else f"/proc/self/{target}", f"/dev/{name}")
        os.mkdir("/dev/shm")
        mount("tmpfs", "/dev/shm", "tmpfs", _NOSUID | _NODEV, wanted.options)
        os.mkdir("/dev/pts")
        mount("devpts", "/dev/pts", "devpts", _NOSUID, "newinstance,ptmxmode=0666,mode=620")
        os.symlink("pts/ptmx", "/dev/ptmx")


def confine(
    jail: Jail,
    standard: Sequence[int] = (0, 1, 2),
    *,
    starting: bool = False,
    furnished: Callable[[], None] | None = None,
) -> None:
    """Shut the last doors: capabilities, system calls, files by Landlock. Only the command comes after.

    ``standard`` are the command's standard descriptors. ``starting``: this process only starts the command.
    ``furnished`` waits for the mounts, where another process makes them meanwhile.
    """
    shut_doors(jail, starting=starting)
    if furnished is not None:
        furnished()
    if jail.cgroups:
        _write("/proc/self/oom_score_adj", "1000")  # let it be the command that runs out of memory, not who tells of it
    if jail.landlock is not None:
        restrict(writable=[*jail.landlock, *_reopened(standard)])
    if jail.limits:
        # Last, because little memory may be enough for the command and too little for us. The first process of the
        # sandbox is not one of the command's.
        apply_rlimits(Limits(**jail.limits), jail.enforcement, besides=1)


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


def shut_doors(jail: Jail, *, starting: bool = False) -> None:
    """No capability but those kept, none to be had by any program, and no system call that has no business here.

    A process that is ``starting`` the command stays more capable than that, so that it cannot be looked into. What it
    starts is not: exec leaves nobody with more than the bounding set and what is inherited.
    """
    kept = set(jail.keeps_caps)
    for number in range(_LAST_CAP + 1):
        if number not in kept:
            _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    _set_capabilities(set(range(_LAST_CAP + 1)) if starting else kept)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if jail.seccomp:
        install(bytes.fromhex(jail.seccomp))


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


class _MountAttributes(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint64) for n in ("set", "clear", "propagation", "userns_fd")]


def _set_attributes(path: str, *, add: int = 0, drop: int = 0, recursively: bool = False) -> None:
    wanted = _MountAttributes(add, drop, 0, 0)
    done = _syscall(
        _MOUNT_SETATTR,
        _AT_FDCWD,
        os.fsencode(path),
        _AT_RECURSIVE if recursively else 0,
        ctypes.byref(wanted),
        ctypes.c_size_t(ctypes.sizeof(wanted)),
    )
    _check(int(done), path)


def _make_target(path: str, is_directory: bool) -> None:
    os.makedirs(path if is_directory else os.path.dirname(path), exist_ok=True)
    if not is_directory:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))


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
