"""Limits: the most a sandbox may use, the choice of what enforces each limit, and watching those that need it.

The kernel enforces some by control groups or rlimits; a supervisor checks the rest: CPU time of a group, and disk use.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
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
#: What enforces each limit that is set; None for a best-effort limit that nothing enforces.
Enforcement = dict[str, Means | None]

_NPROC_PER_NAMESPACE_SINCE = (5, 14)
_MIN_CPUS = 0.01
_INTERVAL_S = 0.05  # between two checks of the limits that are watched
_MAX_PATH = 2000  # characters; the kernel accepts 4095 bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that a sandbox may use; None is no limit.

    ``wall`` and ``cpu`` are seconds, ``cpu`` of all its processes together. ``memory``, ``file_size`` (of any one file)
    and ``disk`` (of the branch's layer) are bytes, ``processes`` counts threads too. ``cpus`` is the number of
    processors whose time all processes together may use, such as 1.5; only a control group enforces it. A control group
    applies ``memory`` and ``cpu`` to all processes together, an rlimit to each. A limit that cannot be enforced here is
    an error, or is left out with ``best_effort``.

    >>> Limits(cpu=1.5, processes=64).asked()
    ['cpu', 'processes']
    """

    wall: float | None = None
    cpu: float | None = None
    memory: int | None = None
    processes: int | None = None
    file_size: int | None = None
    disk: int | None = None
    cpus: float | None = None
    best_effort: bool = False

    def __post_init__(self) -> None:
        for name in self.asked():
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"the limit {name} must be a number above zero, or None, not {value!r}")
        if self.cpus is not None and self.cpus < _MIN_CPUS:
            raise ValueError(f"the limit cpus must be at least {_MIN_CPUS}, not {self.cpus!r}")

    def asked(self) -> list[str]:
        """Return the names of the limits that are set."""
        names = (field.name for field in fields(self) if field.name != "best_effort")
        return [name for name in names if getattr(self, name) is not None]


def choose_enforcement(limits: Limits, *, user_namespace: bool = True) -> Enforcement:
    """Choose what enforces each limit. ``user_namespace``: the sandbox gets a user namespace of its own."""
    chosen: Enforcement = {}
    for name in limits.asked():
        if name in ("wall", "disk"):
            chosen[name] = "supervisor"
        elif name == "file_size":
            chosen[name] = "rlimit"
        else:
            chosen[name] = _choose_cgroup(name) or _choose_rlimit(name, limits, user_namespace)
    return chosen


def _choose_cgroup(name: str) -> Means | None:
    needed: dict[str, cgroup.Controller] = {
        "memory": "memory",
        "processes": "pids",
        "cpu": "cpuacct",
        "cpus": "cpu",
    }
    version = cgroup.version_of(needed[name])
    if version is None:
        return None
    return "cgroup v2" if version == 2 else "cgroup v1"


def _choose_rlimit(name: str, limits: Limits, user_namespace: bool) -> Means | None:
    reason = _find_nproc_problem(user_namespace) if name == "processes" else ""
    reason = "an rlimit cannot do it" if name == "cpus" else reason
    if not reason:
        return "rlimit"
    if limits.best_effort:
        return None
    why = cgroup.why_not("cpu" if name == "cpus" else "pids")
    raise NamespaceError(
        f"the limit {name}={getattr(limits, name):g} cannot be enforced: {why}, and {reason}; "
        "run under systemd-run --user --scope -p Delegate=yes, or set best_effort=True"
    )


def _find_nproc_problem(user_namespace: bool) -> str:
    """Return why RLIMIT_NPROC cannot be used, or an empty text. It counts all processes of a user, if at all."""
    if os.getuid() == 0:
        return "the kernel does not apply RLIMIT_NPROC to root"
    if not user_namespace:
        return "without a user namespace RLIMIT_NPROC counts all processes of this user"
    if _kernel_version() < _NPROC_PER_NAMESPACE_SINCE:
        return "before Linux 5.14 RLIMIT_NPROC counts all processes of this user"
    return ""


def _kernel_version() -> tuple[int, ...]:
    numbers = os.uname().release.partition("-")[0].split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdigit())


class Supervision:
    """The supervisor of one sandbox. ``exceeded`` names the limit that the sandbox exceeded."""

    def __init__(self, limits: Limits, layers: Sequence[str]) -> None:
        self.limits = limits
        self.layers = layers
        self.enforcement: Enforcement = choose_enforcement(limits) if limits.asked() else {}
        self.group = Cgroup.make(self.enforcement, memory=limits.memory, processes=limits.processes, cpus=limits.cpus)
        self.exceeded: str | None = None
        self.ran_out_of_memory = False
        self.peak_memory: int | None = None

    @property
    def interval(self) -> float | None:
        """The seconds between two checks, or None if no limit has to be watched."""
        watched = self.limits.disk is not None or self.enforcement.get("cpu") in ("cgroup v1", "cgroup v2")
        return _INTERVAL_S if watched else None

    def is_exceeded(self) -> bool:
        """Check whether a watched limit was exceeded."""
        if self.limits.cpu is not None and (self.group.cpu_seconds() or 0) > self.limits.cpu:
            self.exceeded = "cpu"
        elif self.limits.disk is not None and sum(map(_disk_use, self.layers)) > self.limits.disk:
            self.exceeded = "disk"
        return self.exceeded is not None

    def close(self) -> None:
        """Remove the control group, in which nothing runs any more."""
        self.group.remove()

    def read_usage(self) -> None:
        """Read the usage from the control group before it is removed."""
        self.ran_out_of_memory = self.group.oom_kills() > 0
        self.peak_memory = self.group.peak_memory()


def _disk_use(path: str) -> int:
    """Return the bytes on disk below a directory. Files that are removed meanwhile count as nothing."""
    total = 0
    pending = [path]
    open_fds: list[int] = []
    try:
        while pending:
            try:
                with os.scandir(_shorten_path(pending.pop(), open_fds)) as entries:
                    for entry in entries:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
            except OSError:
                continue
    finally:
        for fd in open_fds:
            os.close(fd)
    return total


def _shorten_path(path: str, open_fds: list[int]) -> str:
    """Return a shorter path to the same directory: a tree can be deeper than a path may be long."""
    if len(path) < _MAX_PATH:
        return path
    open_fds.append(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    return f"/proc/self/fd/{open_fds[-1]}"
