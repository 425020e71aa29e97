"""Sight: where a branch that is to be put into a sandbox is seen from outside, if it is."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Mapping
from functools import cache

from forkwise.errors import BranchError, NamespaceError
from forkwise.files.branch import Branch, Parent
from forkwise.files.views.overlay import OPTIONS, forgive_volatile, note_private, private_owners
from forkwise.files.workspace import Workspace
from forkwise.linux import namespace
from forkwise.linux.landlock import abi, usual_devices
from forkwise.linux.process_id import ProcessId
from forkwise.linux.seccomp import COMMON_SOCKETS, STANDARD, STRICT, deny
from forkwise.linux.syscalls import CLONE_NEWNS, CLONE_NEWUSER
from forkwise.sandbox.confinement import Confinement
from forkwise.sandbox.jail import CLONE_NEWIPC, CLONE_NEWNET, CLONE_NEWPID, CLONE_NEWUTS, Jail
from forkwise.sandbox.mounts import Mount

__all__ = [
    "host_path",
    "is_private",
    "plan_jail",
    "plan_landlock",
    "register_sandbox",
]


_EVERYBODY = "0 0 4294967295"
# What a root that owns nothing but files needs: to own, to read and to write them, and to become others.
_FILE_CAPS = [0, 1, 3, 4, 5, 6, 7]  # CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID
_RUNTIME = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager", "/run/nscd")
_TEMPORARY = ("/tmp", "/var/tmp")
_PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))  # where forkwise itself is imported from
_OF_THE_SYSTEM = ("/usr", "/bin", "/sbin", "/lib")  # never links to temporary directories, and not worth a look
_OWN_STATE = re.compile(r"forkwise|\.forkwise-\d+")  # directories that hold the states of workspaces and nothing else
_LANDLOCK_SINCE = 3  # before, it forbids renaming from one directory to another and does not forbid truncating


def plan_jail(
    where: str, seen_at: str | None, branch: Parent | None, confinement: Confinement, environment: Mapping[str, str]
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
        seccomp=_filter(confinement.name, confinement.network != "host"),
        landlock=_second_wall(where, confinement) if confinement.read_only else None,
    )


def _second_wall(where: str, confinement: Confinement) -> list[str] | None:
    """What Landlock leaves writable, beside what the mounts do. It knows what read-only mounts do not: FIFOs of the
    host, and directories that a function's process had open already."""
    if abi() < _LANDLOCK_SINCE:
        return None
    places = [where, *_TEMPORARY, "/dev", "/proc", *confinement.writable_paths()]
    return [p for p in places if os.path.exists(p)]


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
        seccomp=_filter(confinement.name, False),
        landlock=writable if confinement.read_only else None,
    )


@cache
def _filter(preset: str, apart: bool) -> str:
    """The system call filter of a preset, as text that crosses to the forkserver. ``apart``: from the host's network,
    to which some kinds of sockets lead from any network namespace."""
    sockets = COMMON_SOCKETS if apart or preset == "strict" else None
    if preset == "open":
        return deny((), terminal_injection=False, sockets_of=sockets).hex() if apart else ""
    return deny(STRICT if preset == "strict" else STANDARD, sockets_of=sockets).hex()


def _mounts(
    where: str, seen_at: str | None, branch: Parent | None, confinement: Confinement, environment: Mapping[str, str]
) -> list[Mount]:
    mounts: list[Mount] = []
    temporary = f"mode=1777{_memory(confinement)}"
    if confinement.read_only:
        mounts += [Mount("tmpfs", path, writable=True, options=temporary) for path in _TEMPORARY if os.path.isdir(path)]
        mounts += [Mount("bind", p, p) for p in _needed(environment) if _is_beneath(p, *_TEMPORARY)]
        if os.path.isdir("/run"):
            mounts.append(Mount("tmpfs", "/run", options="mode=755"))
            mounts += [Mount("bind", p, p) for p in _RUNTIME if os.path.isdir(p)]
        mounts.append(Mount("dev", "/dev", writable=True, options=temporary))
    writable = [Mount("bind", p, p, writable=True) for p in confinement.writable_paths()]
    cover = _cover_state(where, branch) if confinement.read_only else []
    covered = [m for m in writable if any(_is_beneath(m.target, c.target) for c in cover)]
    covered += [Mount("bind", p, p) for p in map(os.path.realpath, confinement.readable)]
    mounts += [m for m in writable if m not in covered] + cover + covered
    if seen_at is not None:
        mounts.append(Mount("bind", where, seen_at, writable=True))
    elif isinstance(branch, Branch):
        lowers = list(branch.parent.lowers)
        mounts.append(Mount("overlay", where, branch.home, writable=True, lowers=lowers, options=OPTIONS))
    # On top of the branch, since some may lie in the workspace.
    mounts += [Mount("mask", p) for p in confinement.hidden_paths() if not _is_beneath(where, p)]
    if confinement.network != "host":
        mounts += [Mount("mask", p) for p in _sockets()]
    mounts.append(Mount("proc", "/proc", writable=True, options=" ".join(_settings())))
    return mounts


def _memory(confinement: Confinement) -> str:
    """Temporary files are memory: no more of it than the limit, where no control group counts them."""
    most = confinement.limits.memory
    return "" if most is None else f",size={most}"


def _cover_state(where: str, branch: Parent | None) -> list[Mount]:
    """Cover forkwise's own records and layers. The branch's view, where the workspace is one, is put back on top."""
    state = branch.place.state if branch is not None else where.partition("/branches/")[0]
    if not os.path.exists(f"{state}/lock") or _is_beneath(state, *_TEMPORARY):
        return []
    root = os.path.dirname(state)
    is_ours = _OWN_STATE.fullmatch(os.path.basename(root)) and (branch is None or not _is_beneath(where, root))
    return [Mount("tmpfs", root if is_ours else state, options="mode=755,size=64k")]


def _sockets() -> list[str]:
    """The Unix sockets that somebody has bound to paths by now; a network namespace does not keep those away."""
    with open("/proc/net/unix", errors="surrogateescape") as file:
        bound = {line.rstrip("\n").split(" /", 1)[1] for line in file if " /" in line}
    paths = sorted({os.path.realpath(f"/{path}") for path in bound})
    return [p for p in paths if os.path.exists(p) and not _is_beneath(p, *_TEMPORARY)]


@cache
def _settings() -> list[str]:
    """What in /proc, beside processes, can be written by who owns it: the root of a sandbox is the host's there."""
    if os.geteuid() != 0:
        return []
    # Not even a look at processes, which may be gone by then.
    return sorted(name for name in os.listdir("/proc") if not name.isdigit() and _is_setting(f"/proc/{name}"))


def _is_setting(path: str) -> bool:
    """Whether something in /proc can be written, or has something in it that can."""
    mode = _mode(path)
    if stat.S_ISLNK(mode):
        return False
    if mode & 0o222 or path == "/proc/sys":
        return True
    return any(_mode(f"{place}/{name}") & 0o222 for place, _, names in os.walk(path) for name in names)


def _mode(path: str) -> int:
    """Of a file itself; of one that went away meanwhile, as drivers' and interfaces' do, that of a link."""
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return stat.S_IFLNK


def _needed(environment: Mapping[str, str]) -> list[str]:
    """Where programs lie that a command may need although they are in a temporary directory."""
    found = {sys.prefix, sys.base_prefix, _PACKAGES, environment.get("VIRTUAL_ENV", "")}
    found |= {os.path.dirname(p) for p in environment.get("PATH", "").split(":")}
    places = {os.path.realpath(p) for p in found if p and not p.startswith(_OF_THE_SYSTEM) and os.path.isdir(p)}
    return sorted(places - {"/", *_TEMPORARY})


def _is_beneath(path: str, *places: str) -> bool:
    return any(path == p or path.startswith(f"{p}/") for p in places)


def is_private(branch: Branch) -> bool:
    """Whether a branch can be mounted only where nobody else sees it, by a user who may not mount."""
    return branch.view == "overlay" and os.geteuid() != 0 and not namespace.is_entered()


def host_path(branch: Branch | Workspace) -> str | None:
    """Where the host sees a branch; None where it is mounted inside, which only one sandbox may do at a time."""
    if isinstance(branch, Workspace) or not is_private(branch):
        return os.fspath(branch.path)
    if private_owners(branch.home):
        raise BranchError(
            f"{branch.branch_path} is in use by another sandbox, and mounted only there; wait for it, or make the "
            "branch with a view that every process sees (fuse, copy)",
            branch=branch.name,
        )
    forgive_volatile(branch.home)
    return None


def register_sandbox(branch: Branch | Workspace, pid: int) -> None:
    """Note that a sandbox has the branch mounted where nobody else sees it."""
    if isinstance(branch, Branch) and is_private(branch):
        note_private(branch.home, ProcessId.of(pid))
