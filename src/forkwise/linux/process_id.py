"""Which process a branch belongs to, told apart from any other that ever had the same number.

A process number alone is reused; with the start time, the boot and the number space it is not. The machine tells a
process that a reboot ended from one that runs elsewhere, where a state directory or a ledger is shared.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache

__all__ = ["ProcessId", "boot_id", "machine_id"]

_MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process of one boot in one PID namespace; ``host`` is what people call its machine."""

    pid: int
    start: int
    boot: str
    space: str
    machine: str = ""
    host: str = field(default="", compare=False)

    @classmethod
    def current(cls) -> ProcessId:
        """The calling process."""
        return _owner(os.getpid())

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Another process that runs now."""
        return cls(pid, _start_time(pid) or 0, boot_id(), _space(), machine_id(), socket.gethostname())

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is a process of another machine, of which nothing can be seen from here."""
        return self.boot != boot_id() and self.machine not in ("", machine_id())

    @classmethod
    def nobody(cls) -> ProcessId:
        """No process at all; it is never alive."""
        return cls(0, 0, boot_id(), _space())

    @property
    def alive(self) -> bool:
        """Whether that process still runs; one whose PID namespace is not ours counts as alive until a reboot, and one
        of another machine always."""
        if self.boot != boot_id():
            return self.is_elsewhere
        if self.space != _space():
            return True
        return _start_time(self.pid) == self.start

    @property
    def label(self) -> str:
        """It in words: its number, and its machine where that is another."""
        return f"{self.pid} on {self.host or self.machine}" if self.is_elsewhere else str(self.pid)

    def dump(self) -> list[object]:
        """As JSON holds it."""
        return [self.pid, self.start, self.boot, self.space, self.machine, self.host]

    @classmethod
    def load(cls, data: list[object]) -> ProcessId:
        """The inverse of dump, which once told no machine."""
        pid, start, *names = data
        return cls(int(str(pid)), int(str(start)), *map(str, names))


@lru_cache(maxsize=8)
def _owner(pid: int) -> ProcessId:
    return ProcessId.of(pid)


@lru_cache(maxsize=1)
def boot_id() -> str:
    """What names this boot of this machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


@lru_cache(maxsize=1)
def machine_id() -> str:
    """What names this machine, whichever boot it is; its name in the network where it has no other."""
    for path in _MACHINE_IDS:
        with suppress(OSError), open(path) as file:
            if found := file.read().strip():
                return found
    return socket.gethostname()


def _space() -> str:
    return os.readlink("/proc/self/ns/pid")


def _start_time(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
