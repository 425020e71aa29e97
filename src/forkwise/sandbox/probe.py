"""A program, not a library: it tries each means of confinement in a child and prints the results as JSON.

The doctor starts it by its path in a fresh interpreter, because ``unshare(CLONE_NEWUSER)`` is refused to a process with
more than one thread, and forking a process with threads is unsafe. For the same reason it imports nothing of forkwise.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from functools import partial

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_REC_PRIVATE = 16384 | (1 << 18)
LANDLOCK_CREATE_RULESET = 444
LANDLOCK_CREATE_RULESET_VERSION = 1
PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
EFAULT = 14

_libc = ctypes.CDLL(None, use_errno=True)


def _check(outcome: int, step: str) -> None:
    if outcome < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), step)


def _unshare(flags: int, step: str) -> None:
    _check(_libc.unshare(flags), step)


def _enter_user_namespace() -> None:
    """Enter a user namespace in which this user is mapped to itself and has all capabilities."""
    uid, gid = os.getuid(), os.getgid()
    _unshare(CLONE_NEWUSER, "unshare(CLONE_NEWUSER)")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def user_namespace() -> str:
    """Try a user namespace."""
    _enter_user_namespace()
    return f"uid {os.getuid()} is mapped to itself"


def _enter(flag: int, name: str) -> str:
    """Enter a namespace directly, or else inside a user namespace. Return which of the two worked."""
    try:
        _unshare(flag, f"unshare({name})")
    except PermissionError:
        _enter_user_namespace()
        _unshare(flag, f"unshare({name}) in a user namespace")
        return "inside a user namespace"
    return "directly"


def mount_namespace() -> str:
    """Try a mount namespace, and changing the mounts in it."""
    how = _enter(CLONE_NEWNS, "CLONE_NEWNS")
    _check(_libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC_PRIVATE), None), "mount(MS_PRIVATE) of /")
    return how


def pid_namespace() -> str:
    """Try a PID namespace, in which the first child is process 1."""
    how = _enter(CLONE_NEWPID, "CLONE_NEWPID")
    child = os.fork()
    if child == 0:
        os._exit(0 if os.getpid() == 1 else 1)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError(0, "the first process of the namespace was not process 1", "fork")
    return how


def private_proc() -> str:
    """Mount a /proc that shows only the processes of a new PID namespace, as every sandbox does."""
    _enter_user_namespace()
    _unshare(CLONE_NEWNS | CLONE_NEWPID, "unshare(CLONE_NEWNS | CLONE_NEWPID) in a user namespace")
    _check(_libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC_PRIVATE), None), "mount(MS_PRIVATE) of /")
    child = os.fork()
    if child == 0:
        mounted = _libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(0), None)
        os._exit(ctypes.get_errno() if mounted < 0 else 0)
    if number := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise OSError(number, os.strerror(number), "mount of /proc in a PID namespace")
    return "shows the processes of one sandbox only"


def network_namespace() -> str:
    """Try a network namespace, which has nothing but its own loopback."""
    how = _enter(CLONE_NEWNET, "CLONE_NEWNET")
    names = sorted(name for _, name in socket.if_nameindex())
    return f"{how}; interfaces: {', '.join(names) or 'none'}"


def landlock() -> str:
    """Ask for the ABI version of Landlock."""
    _libc.syscall.restype = ctypes.c_long
    flags = ctypes.c_uint32(LANDLOCK_CREATE_RULESET_VERSION)
    version = _libc.syscall(ctypes.c_long(LANDLOCK_CREATE_RULESET), None, ctypes.c_size_t(0), flags)
    _check(version, "landlock_create_ruleset")
    return f"ABI {version}"


def seccomp() -> str:
    """Try to install a filter: a kernel with seccomp fails with EFAULT on the missing program, others with EINVAL."""
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    try:
        _check(_libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, None, 0, 0), "prctl(PR_SET_SECCOMP)")
    except OSError as error:
        if error.errno != EFAULT:
            raise
    return "filters can be installed"


def private_overlay(workspace: str, state: str) -> str:
    """Try to mount an overlay over a workspace in new namespaces, with its layer in ``state``."""
    home = tempfile.mkdtemp(prefix=f".probe-{os.getpid()}-", dir=state)
    try:
        for name in ("layer", "work", "view"):
            os.mkdir(f"{home}/{name}")
        _enter_user_namespace()
        _unshare(CLONE_NEWNS, "unshare(CLONE_NEWNS) in a user namespace")
        _check(_libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC_PRIVATE), None), "mount(MS_PRIVATE) of /")
        descriptors = [os.open(path, os.O_PATH) for path in (workspace, f"{home}/layer", f"{home}/work")]
        lower, upper, work = (f"/proc/self/fd/{fd}" for fd in descriptors)
        options = f"lowerdir={lower},upperdir={upper},workdir={work},userxattr".encode()
        view = os.fsencode(f"{home}/view")
        _check(_libc.mount(b"forkwise", view, b"overlay", ctypes.c_ulong(0), options), "mount of an overlay")
        _check(_libc.umount2(view, 0), "umount of an overlay")
    finally:
        shutil.rmtree(home)
    return "kernel overlayfs, visible inside the sandbox only"


def home_view(home: str, state: str) -> str:
    """Try to mount an overlay over the home directory as a sandbox gets it: its layer in ``state`` or in memory."""
    if os.geteuid() != 0:  # root mounts it outside, where the mounts in the directory do not matter
        _enter_user_namespace()
    _unshare(CLONE_NEWNS, "unshare(CLONE_NEWNS)")
    _check(_libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC_PRIVATE), None), "mount(MS_PRIVATE) of /")
    place = tempfile.mkdtemp(prefix=f".probe-{os.getpid()}-", dir=state)
    try:
        return _try_home_view(home, place)
    finally:
        shutil.rmtree(place)


def _try_home_view(home: str, place: str) -> str:
    lower_fd = os.open(home, os.O_PATH)
    details = ("a layer that belongs to the branch", "a layer in memory, which ends with each command")
    for number, detail in enumerate(details):
        if number:
            _check(_libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", ctypes.c_ulong(0), None), "mount of a tmpfs")
        for name in ("layer", "work", "view"):
            os.makedirs(f"{place}/{name}", exist_ok=True)
        place_fd = os.open(place, os.O_PATH)
        directories = f"upperdir=/proc/self/fd/{place_fd}/layer,workdir=/proc/self/fd/{place_fd}/work"
        options = f"lowerdir=/proc/self/fd/{lower_fd},{directories},userxattr,index=off".encode()
        view = os.fsencode(f"{place}/view")
        try:
            _check(_libc.mount(b"forkwise-home", view, b"overlay", ctypes.c_ulong(0), options), "mount of an overlay")
        except OSError:
            if number:
                raise
            continue
        finally:
            os.close(place_fd)
            if number:
                _libc.umount2(os.fsencode(place), 2)
        if not number:
            _check(_libc.umount2(view, 0), "umount of an overlay")
        return f"{home}: {detail}"
    raise AssertionError


PROBES: dict[str, Callable[[], str]] = {
    "user namespaces": user_namespace,
    "mount namespaces": mount_namespace,
    "PID namespaces": pid_namespace,
    "private /proc": private_proc,
    "network namespaces": network_namespace,
    "Landlock": landlock,
    "seccomp": seccomp,
}


def run_in_child(probe: Callable[[], str]) -> dict[str, object]:
    """Run a probe in a child and return its answer."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        answer: dict[str, object]
        try:
            answer = {"works": True, "detail": probe(), "errno": 0}
        except OSError as error:
            answer = {"works": False, "detail": f"{error.filename}: {error.strerror}", "errno": error.errno}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ValueError):
        return dict(json.loads(text))
    return {"works": False, "detail": f"the probe ended with wait status {status}", "errno": 0}


def main(arguments: list[str]) -> None:
    """Print each probe's answer; the overlay probes need a workspace, its state and the home directory as arguments."""
    probes = dict(PROBES)
    if arguments:
        workspace, state, home = arguments
        probes["private overlay"] = partial(private_overlay, workspace, state)
        if home:
            probes["home view"] = partial(home_view, home, state)
    print(json.dumps({name: run_in_child(probe) for name, probe in probes.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
