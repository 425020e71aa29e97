"""From a branch and a confinement to a jail: pure decisions about what is mounted where and which doors are shut."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache

from forkwise.errors import NamespaceError
from forkwise.files.branch import Branch
from forkwise.files.syscalls import CLONE_NEWNS, CLONE_NEWUSER
from forkwise.files.views.overlay import OPTIONS
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.jail import CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWPID, CLONE_NEWUTS, Jail, Mount
from forkwise.sandbox.landlock import usual_devices
from forkwise.sandbox.seccomp import COMMON_SOCKETS, STANDARD, STRICT, deny

__all__ = ["plan_jail", "plan_landlock"]

_EVERYBODY = "0 0 4294967295"
# What a root that owns nothing but files needs: to own, to read and to write them, and to become others.
_FILE_CAPS = [0, 1, 3, 4, 5, 6, 7]  # CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID
_RUNTIME = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/run/nscd")
_TEMPORARY = ("/tmp", "/var/tmp")


def plan_jail(
    where: str, seen_at: str | None, branch: Branch | None, confinement: Confinement, environment: Mapping[str, str]
) -> Jail:
    """A jail in which ``where`` is the branch that the host sees at ``seen_at`` (None: it is mounted inside)."""
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS
    if confinement.network != "host":
        flags |= CLONE_NEWNET
    is_root = os.geteuid() == 0
    return Jail(
        flags=flags,
        mounts=_mounts(where, seen_at, branch, confinement, environment),
        read_only=confinement.read_only,
        cwd=where,
        uid_map=_EVERYBODY if is_root else f"{os.geteuid()} {os.geteuid()} 1",
        gid_map=_EVERYBODY if is_root else f"{os.getegid()} {os.getegid()} 1",
        keeps_caps=_FILE_CAPS if is_root else [],
        seccomp=_filter(confinement.name),
    )


def plan_landlock(seen_at: str, temporary: str, confinement: Confinement) -> Jail:
    """A jail without namespaces, for where there are none: writes go to the branch, a temporary directory and what was
    made writable, and nowhere else."""
    if confinement.network != "host":
        raise NamespaceError(f"a network {confinement.network!r} cannot be had without namespaces")
    writable = [seen_at, temporary, *confinement.writable_paths(), *usual_devices()]
    return Jail(
        flags=0,
        mounts=[],
        read_only=confinement.read_only,
        cwd=seen_at,
        seccomp=_filter(confinement.name),
        landlock=writable if confinement.read_only else None,
    )


@cache
def _filter(preset: str) -> str:
    """The system call filter of a preset, as text that crosses to the forkserver."""
    if preset == "open":
        return ""
    if preset == "strict":
        return deny(STRICT, sockets_of=COMMON_SOCKETS).hex()
    return deny(STANDARD).hex()


def _mounts(
    where: str, seen_at: str | None, branch: Branch | None, confinement: Confinement, environment: Mapping[str, str]
) -> list[Mount]:
    mounts: list[Mount] = []
    if confinement.read_only:
        for place in _TEMPORARY:
            if os.path.isdir(place):
                mounts.append(Mount("tmpfs", place, writable=True, options="mode=1777"))
        mounts += [Mount("bind", p, p) for p in _needed(environment) if _is_beneath(p, *_TEMPORARY)]
        if os.path.isdir("/run"):
            mounts.append(Mount("tmpfs", "/run", options="mode=755"))
            mounts += [Mount("bind", p, p) for p in _RUNTIME if os.path.isdir(p)]
        mounts.append(Mount("dev", "/dev", writable=True))
    mounts += [Mount("bind", p, p, writable=True) for p in confinement.writable_paths()]
    mounts += [Mount("mask", p) for p in confinement.hidden_paths() if not _is_beneath(where, p)]
    if branch is not None and confinement.read_only and not _is_beneath(branch.place.state, *_TEMPORARY):
        mounts.append(Mount("mask", branch.place.state))
    if seen_at is not None:
        mounts.append(Mount("bind", where, seen_at, writable=True))
    elif branch is not None:
        lowers = list(branch.parent.lowers)
        mounts.append(Mount("overlay", where, branch.home, writable=True, lowers=lowers, options=OPTIONS))
    mounts.append(Mount("proc", "/proc", writable=True))
    return mounts


def _needed(environment: Mapping[str, str]) -> list[str]:
    """Where programs lie that a command may need although they are in a temporary directory."""
    found = {sys.prefix, sys.base_prefix, environment.get("VIRTUAL_ENV", "")}
    found |= {os.path.dirname(p) for p in environment.get("PATH", "").split(":")}
    return sorted(os.path.realpath(p) for p in found if p and os.path.isdir(p) and p not in ("/", *_TEMPORARY))


def _is_beneath(path: str, *places: str) -> bool:
    return any(path == p or path.startswith(f"{p}/") for p in places)
