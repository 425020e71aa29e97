"""Limits: how much a sandboxed process may use, and what enforces each of these here.

The value and the choice are pure but for a look at what this user may do; control groups are in cgroup.py.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields
from typing import Literal

from forkwise.errors import NamespaceError
from forkwise.sandbox import cgroup

__all__ = ["Enforcement", "Limits", "Means", "choose"]

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


def choose(limits: Limits, *, user_namespace: bool = True) -> Enforcement:
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
