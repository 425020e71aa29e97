"""Identity of a process that holds across PID reuse, PID namespaces, reboots and machines.

A PID is reused; a PID with the start time, the boot and the PID namespace is not. The machine distinguishes a process
that a reboot ended from one on another machine that shares a state directory or a ledger.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache

__all__ = ["ProcessId", "boot_id", "machine_id"]

_MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process of one boot in one PID namespace (``space``); ``host`` is the host name of its machine."""

    pid: int
    start: int
    boot: str
    space: str
    machine: str = ""
    host: str = field(default="", compare=False)

    @classmethod
    def current(cls) -> ProcessId:
        """Return the identity of the calling process."""
        return _identify(os.getpid())

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Return the identity of another running process."""
        return cls(pid, _start_time(pid) or 0, boot_id(), _space(), machine_id(), os.uname().nodename)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is a process of another machine, whose state cannot be seen from here."""
        return self.boot != boot_id() and self.machine not in ("", machine_id())

    @classmethod
    def nobody(cls) -> ProcessId:
        """Return the identity of no process, which is never alive."""
        return cls(0, 0, boot_id(), _space())

    @property
    def alive(self) -> bool:
        """Whether that process still runs.

        A process in another PID namespace counts as alive until a reboot; one on another machine always does.
        """
        if self.boot != boot_id():
            return self.is_elsewhere
        if self.space != _space():
            return True
        return _start_time(self.pid) == self.start

    @property
    def label(self) -> str:
        """The PID, followed by the machine if that is another one."""
        return f"{self.pid} on {self.host or self.machine}" if self.is_elsewhere else str(self.pid)

    def dump(self) -> list[object]:
        """Return the identity as a list for JSON."""
        return [self.pid, self.start, self.boot, self.space, self.machine, self.host]

    @classmethod
    def load(cls, data: list[object]) -> ProcessId:
        """Read what ``dump`` returned; older versions wrote no machine and no host."""
        pid, start, *names = data
        return cls(int(str(pid)), int(str(start)), *map(str, names))


@lru_cache(maxsize=8)
def _identify(pid: int) -> ProcessId:
    return ProcessId.of(pid)


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Return the id of this boot of this machine."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


@lru_cache(maxsize=1)
def machine_id() -> str:
    """Return the id of this machine, the same after a reboot; its host name if it has no machine-id file."""
    for path in _MACHINE_IDS:
        with suppress(OSError), open(path) as file:
            if found := file.read().strip():
                return found
    return os.uname().nodename


def _space() -> str:
    return os.readlink("/proc/self/ns/pid")


def _start_time(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
