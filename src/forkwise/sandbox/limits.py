"""Supervision: the limits of a sandbox that have to be watched from outside, and what its control group tells."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields
from typing import Literal

from forkwise.errors import NamespaceError
from forkwise.linux import cgroup
from forkwise.linux.cgroup import Cgroup

__all__ = [
    "Enforcement",
    "Limits",
    "Means",
    "Supervision",
    "choose_enforcement",
]


Means = Literal["cgroup v2", "cgroup v1", "rlimit", "supervisor"]
#: What enforces each limit that was asked for; None for one that nothing enforces and that is best effort.
Enforcement = dict[str, Means | None]

_COUNTED_BY_NAMESPACE_SINCE = (5, 14)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that a sandbox may use; None is no limit.

    ``wall`` and ``cpu`` are seconds, ``cpu`` of all its processes together. ``memory``, ``file_size`` (of any one
    file) and ``disk`` (of the branch's layer) are bytes, ``processes`` counts threads too. A control group holds
    ``memory`` and ``cpu`` against all processes together, an rlimit against each. A limit that nothing here can
    enforce is an error, or with ``best_effort`` is left out.

    >>> Limits(cpu=1.5, processes=64).asked()
    ['cpu', 'processes']
    """

    wall: float | None = None
    cpu: float | None = None
    memory: int | None = None
    processes: int | None = None
    file_size: int | None = None
    disk: int | None = None
    best_effort: bool = False

    def __post_init__(self) -> None:
        for name in self.asked():
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"the limit {name} must be a number above zero, or None, not {value!r}")

    def asked(self) -> list[str]:
        """The names of the limits that are set."""
        names = (field.name for field in fields(self) if field.name != "best_effort")
        return [name for name in names if getattr(self, name) is not None]


def choose_enforcement(limits: Limits, *, user_namespace: bool = True) -> Enforcement:
    """What will enforce each limit. ``user_namespace``: the sandbox gets a user namespace of its own."""
    chosen: Enforcement = {}
    for name in limits.asked():
        if name in ("wall", "disk"):
            chosen[name] = "supervisor"
        elif name == "file_size":
            chosen[name] = "rlimit"
        else:
            chosen[name] = _by_group(name) or _by_rlimit(name, limits, user_namespace)
    return chosen


def _by_group(name: str) -> Means | None:
    needed: dict[str, cgroup.Controller] = {"memory": "memory", "processes": "pids", "cpu": "cpuacct"}
    version = cgroup.version_of(needed[name])
    if version is None:
        return None
    return "cgroup v2" if version == 2 else "cgroup v1"


def _by_rlimit(name: str, limits: Limits, user_namespace: bool) -> Means | None:
    reason = _why_nproc_fails(user_namespace) if name == "processes" else ""
    if not reason:
        return "rlimit"
    if limits.best_effort:
        return None
    raise NamespaceError(
        f"the limit {name}={limits.processes} cannot be enforced: {cgroup.why_not('pids')}, and {reason}; "
        "run beneath systemd-run --user --scope -p Delegate=yes, or mark the limits best_effort"
    )


def _why_nproc_fails(user_namespace: bool) -> str:
    """RLIMIT_NPROC counts all processes of a user, where it counts at all."""
    if os.getuid() == 0:
        return "the kernel never holds RLIMIT_NPROC against root"
    if not user_namespace:
        return "RLIMIT_NPROC counts all processes of this user without a user namespace"
    if _linux() < _COUNTED_BY_NAMESPACE_SINCE:
        return "RLIMIT_NPROC counts all processes of this user before Linux 5.14"
    return ""


def _linux() -> tuple[int, ...]:
    numbers = os.uname().release.partition("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit())


_INTERVAL = 0.05  # seconds between two looks at what is watched
_LONG = 2000  # of a path; the kernel takes 4095 bytes


class Supervision:
    """Watches one sandbox. ``exceeded`` names the limit that it went beyond."""

    def __init__(self, limits: Limits, layer: str | None) -> None:
        self.limits = limits
        self.layer = layer
        self.enforcement: Enforcement = choose_enforcement(limits) if limits.asked() else {}
        self.group = Cgroup.make(self.enforcement, memory=limits.memory, processes=limits.processes)
        self.exceeded: str | None = None
        self.ran_out_of_memory = False
        self.peak_memory: int | None = None

    @property
    def interval(self) -> float | None:
        """How often to look; None where there is nothing to be watched."""
        watched = self.limits.disk is not None or self.enforcement.get("cpu") in ("cgroup v1", "cgroup v2")
        return _INTERVAL if watched else None

    def is_exceeded(self) -> bool:
        """Look whether a watched limit was gone beyond."""
        if self.limits.cpu is not None and (self.group.cpu_seconds() or 0) > self.limits.cpu:
            self.exceeded = "cpu"
        elif self.limits.disk is not None and self.layer and _disk_use(self.layer) > self.limits.disk:
            self.exceeded = "disk"
        return self.exceeded is not None

    def close(self) -> None:
        """Let go of the control group; nothing runs in it any more."""
        self.group.remove()

    def read_usage(self) -> None:
        """Ask the control group what it saw, before it goes."""
        self.ran_out_of_memory = self.group.oom_kills() > 0
        self.peak_memory = self.group.peak_memory()


def _disk_use(path: str) -> int:
    """Bytes on the disk beneath a directory; what goes away meanwhile counts as nothing."""
    total = 0
    pending = [path]
    held: list[int] = []
    try:
        while pending:
            try:
                with os.scandir(_shortened(pending.pop(), held)) as entries:
                    for entry in entries:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
            except OSError:
                continue
    finally:
        for fd in held:
            os.close(fd)
    return total


def _shortened(path: str, held: list[int]) -> str:
    """The same directory by a shorter name: no path is too long to be written to, but one can be too long to look."""
    if len(path) < _LONG:
        return path
    held.append(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    return f"/proc/self/fd/{held[-1]}"
