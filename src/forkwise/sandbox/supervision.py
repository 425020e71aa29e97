"""Supervision: the limits of a sandbox that have to be watched from outside, and what its control group tells."""

from __future__ import annotations

import os

from forkwise.sandbox.cgroup import Cgroup
from forkwise.sandbox.limits import Enforcement, Limits, choose

__all__ = ["Supervision"]

_INTERVAL = 0.05  # seconds between two looks at what is watched
_LONG = 2000  # of a path; the kernel takes 4095 bytes


class Supervision:
    """Watches one sandbox. ``exceeded`` names the limit that it went beyond."""

    def __init__(self, limits: Limits, layer: str | None) -> None:
        self.limits = limits
        self.layer = layer
        self.enforcement: Enforcement = choose(limits) if limits.asked() else {}
        self.group = Cgroup.make(limits, self.enforcement)
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

    def take_stock(self) -> None:
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
