"""Which process a branch belongs to, told apart from any other that ever had the same number.

A process number alone is reused; with the start time, the boot and the number space it is not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

__all__ = ["Owner", "boot_id"]


@dataclass(frozen=True, slots=True)
class Owner:
    """One process of one boot in one PID namespace."""

    pid: int
    start: int
    boot: str
    space: str

    @classmethod
    def me(cls) -> Owner:
        """The calling process."""
        return _owner(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Owner:
        """Another process that runs now."""
        return cls(pid, _start_time(pid) or 0, boot_id(), _space())

    @classmethod
    def nobody(cls) -> Owner:
        """No process at all; it is never alive."""
        return cls(0, 0, boot_id(), _space())

    @property
    def alive(self) -> bool:
        """Whether that process still runs; one whose PID namespace is not ours counts as alive until a reboot."""
        if self.boot != boot_id():
            return False
        if self.space != _space():
            return True
        return _start_time(self.pid) == self.start

    def dump(self) -> list[object]:
        """As JSON holds it."""
        return [self.pid, self.start, self.boot, self.space]

    @classmethod
    def load(cls, data: list[object]) -> Owner:
        """The inverse of dump."""
        pid, start, boot, space = data
        return cls(int(str(pid)), int(str(start)), str(boot), str(space))


@lru_cache(maxsize=8)
def _owner(pid: int) -> Owner:
    return Owner(pid, _start_time(pid) or 0, boot_id(), _space())


@lru_cache(maxsize=1)
def boot_id() -> str:
    """What names this boot of this machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def _space() -> str:
    return os.readlink("/proc/self/ns/pid")


def _start_time(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
