"""Control groups: create them below this process's own group, read their counters, kill and remove them.

Version 2 is used if a part of the tree is delegated to this user, version 1 if its controllers are writable. No other
module knows the names of their files.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from forkwise.errors import NamespaceError
from forkwise.linux.process_id import ProcessId, boot_id, machine_id

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Cgroup", "Controller", "own_groups", "sweep", "version_of", "why_not"]

Controller = Literal["memory", "pids", "cpuacct", "cpu"]

_CONTROLLERS: tuple[Controller, ...] = ("memory", "pids", "cpuacct", "cpu")
_CPU_PERIOD_US = 100_000  # the kernel's default; a quota is at least 1000
_VERSIONS = ("cgroup v1", "cgroup v2")
_UNIFIED = ""  # the name of version 2 in /proc/self/cgroup
_SUPERVISOR = "forkwise-supervisor"
# The process that created a group: its PID, its start time, its PID namespace; then the number of the group.
_NAME = re.compile(r"forkwise-(\d+)-(\d+)-(\d+)-\d+")
_REMOVE_TIMEOUT_S = 10.0  # a core dump or a slow disk delays the exit of killed processes
_serial = itertools.count(1)


class Cgroup:
    """The control groups of one sandbox: one directory with version 2, one for each controller with version 1.

    It has no directory if control groups enforce nothing; then every method is a no-op. Use it with ``with``.
    """

    def __init__(self, directories: Mapping[str, str]) -> None:
        self._directories = dict(directories)

    @classmethod
    def make(
        cls,
        enforcement: Mapping[str, str | None],
        *,
        memory: int | None = None,
        processes: int | None = None,
        cpus: float | None = None,
    ) -> Cgroup:
        """Create the groups that an enforcement needs and set their limits, before any process is in them.

        ``enforcement`` maps "memory", "processes", "cpu" and "cpus" to "cgroup v1" or "cgroup v2"; anything else is
        enforced elsewhere. ``memory`` is in bytes, ``cpus`` the number of processors whose time it may use.
        """
        group, name = cls({}), _name()
        try:
            for controller, base in _bases(enforcement).items():
                group._make(controller, f"{base}/{name}")
            if memory is not None and enforcement.get("memory") in _VERSIONS:
                group._limit_memory(memory)
            if processes is not None and enforcement.get("processes") in _VERSIONS:
                _write(f"{group._directory('pids')}/pids.max", str(processes))
            if cpus is not None and enforcement.get("cpus") in _VERSIONS:
                group._limit_cpus(cpus)
        except OSError as error:
            group.remove()
            raise NamespaceError(
                f"no control group could be created ({error.filename}): {error.strerror}; run under systemd-run --user "
                "--scope -p Delegate=yes, or mark the limits best_effort"
            ) from error
        return group

    @property
    def paths(self) -> tuple[str, ...]:
        """The directories; a process that writes "0" to ``cgroup.procs`` in each of them joins the group."""
        return tuple(self._directories.values())

    def add(self, pid: int) -> None:
        """Move a process into the group; processes that it starts from now on are in it too."""
        for directory in self.paths:
            _write(f"{directory}/cgroup.procs", str(pid))

    def peak_memory(self) -> int | None:
        """Return the peak memory of all its processes together, in bytes; None if no controller counts it."""
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            if (value := self._number("memory", name)) is not None:
                return value
        return None

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of all its processes, including those that exited; None if no controller counts it."""
        if (nanoseconds := self._number("cpuacct", "cpuacct.usage")) is not None:
            return nanoseconds / 1e9
        microseconds = self._events("cpuacct", "cpu.stat").get("usage_usec")
        return None if microseconds is None else microseconds / 1e6

    def oom_kills(self) -> int:
        """Count the processes that were killed because the memory limit was reached."""
        for name in ("memory.events", "memory.oom_control"):
            if (events := self._events("memory", name)) and "oom_kill" in events:
                return events["oom_kill"]
        return 0

    def kill(self) -> None:
        """Kill every process in the group, including those that fork meanwhile."""
        groups = [group for directory in self.paths for group in _walk(directory)]
        for group in groups:
            with suppress(OSError):  # only groups of the pids controller have this file, and the group may be removed
                _write(f"{group}/pids.max", "0")
        for group in groups:
            try:
                _write(f"{group}/cgroup.kill", "1")
            except OSError:  # version 1, or Linux before 5.14
                _kill_each(group)

    def remove(self) -> None:
        """Kill the processes left in the group, remove it, and wait until it is removed."""
        deadline = time.monotonic() + _REMOVE_TIMEOUT_S
        pause = 0.0005
        while self._directories:
            for key, directory in list(self._directories.items()):
                if _try_remove(directory):
                    del self._directories[key]
            if not self._directories:
                return
            if time.monotonic() > deadline:
                raise NamespaceError(
                    f"control groups are still not empty: {', '.join(self.paths)}; a process in them cannot be killed "
                    "(see their cgroup.procs); they are removed by the first sweep after it has exited"
                )
            self.kill()
            time.sleep(pause)
            pause = min(pause * 2, 0.05)

    def __enter__(self) -> Cgroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def _make(self, key: str, directory: str) -> None:
        if directory not in self._directories.values():  # version 1 often has cpu and cpuacct in one place
            os.mkdir(directory)
        self._directories[key] = directory

    def _limit_cpus(self, cpus: float) -> None:
        directory, quota = self._directory("cpu"), max(round(cpus * _CPU_PERIOD_US), 1000)
        if "cpu" in self._directories:
            _write(f"{directory}/cpu.cfs_period_us", str(_CPU_PERIOD_US))
            _write(f"{directory}/cpu.cfs_quota_us", str(quota))
        else:
            _write(f"{directory}/cpu.max", f"{quota} {_CPU_PERIOD_US}")

    def _limit_memory(self, limit: int) -> None:
        directory = self._directory("memory")
        if "memory" in self._directories:
            _write(f"{directory}/memory.limit_in_bytes", str(limit))
            # It counts memory and swap together, and the kernel refuses a value below limit_in_bytes.
            swap_file, swap_limit = "memory.memsw.limit_in_bytes", str(limit)
        else:
            _write(f"{directory}/memory.max", str(limit))
            swap_file, swap_limit = "memory.swap.max", "0"
        with suppress(FileNotFoundError):  # a kernel without swap accounting
            _write(f"{directory}/{swap_file}", swap_limit)

    def _directory(self, controller: Controller) -> str | None:
        return self._directories.get(controller, self._directories.get(_UNIFIED))

    def _number(self, controller: Controller, name: str) -> int | None:
        directory = self._directory(controller)
        lines = [] if directory is None else _lines(f"{directory}/{name}")
        return int(lines[0]) if lines else None

    def _events(self, controller: Controller, name: str) -> dict[str, int]:
        directory = self._directory(controller)
        lines = [] if directory is None else _lines(f"{directory}/{name}")
        return {key: int(value) for key, value in (line.split() for line in lines)}


def version_of(controller: Controller) -> Literal[1, 2] | None:
    """Return the version in which this user can use a controller below this process's group; None if in neither."""
    groups = own_groups()
    tree = groups.get(_UNIFIED)
    if tree is not None and controller in _controllers(tree) and _is_ours(tree):
        return 2
    if _can_write(groups.get(controller)):
        return 1
    # Every group of version 2 counts CPU time, even without the cpu controller.
    return 2 if controller == "cpuacct" and tree is not None and _is_ours(tree) else None


def why_not(controller: Controller) -> str:
    """Explain for a message why this user cannot use a controller."""
    groups = own_groups()
    if controller in groups:
        return f"this user may not write {groups[controller]}"
    if _UNIFIED not in groups:
        return f"no control group filesystem with the controller {controller} is mounted"
    if controller not in _controllers(groups[_UNIFIED]):
        return f"{groups[_UNIFIED]} has no controller {controller}"
    return f"the control group {groups[_UNIFIED]} is not delegated to this user"


def sweep() -> list[str]:
    """Remove the groups whose owner died, kill the processes left in them, and return their paths."""
    left: dict[str, dict[str, str]] = {}
    for controller, base in own_groups().items():
        with suppress(OSError):  # this user may not list it
            for name in os.listdir(base):
                owner = _owner(name)
                if owner is not None and not owner.alive:
                    left.setdefault(name, {})[controller] = f"{base}/{name}"
    swept: list[str] = []
    for directories in left.values():
        with suppress(PermissionError, NamespaceError):  # another user's, or not empty yet: left for a later sweep
            Cgroup(directories).remove()
            swept += directories.values()
    return swept


def own_groups() -> dict[str, str]:
    """Return the directories of this process's control groups by controller ('' for version 2)."""
    mounted = _mounts()
    groups = {}
    for line in _lines("/proc/self/cgroup"):
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            if name in mounted:
                root, point = mounted[name]
                inside = os.path.relpath(path, root)
                # In a container the mount shows only part of the tree: the mount's root is then the process's group.
                groups[name] = point if inside.startswith("..") else os.path.normpath(f"{point}/{inside}")
    if _UNIFIED in groups and os.path.basename(groups[_UNIFIED]) == _SUPERVISOR:
        groups[_UNIFIED] = os.path.dirname(groups[_UNIFIED])
    return {name: path for name, path in groups.items() if os.path.isdir(path)}


@lru_cache(maxsize=1)
def _mounts() -> dict[str, tuple[str, str]]:
    """Find where each controller is mounted: the group at the mount's root, and the mount point."""
    mounts: dict[str, tuple[str, str]] = {}
    for line in _lines("/proc/self/mountinfo"):
        fields, _, rest = line.partition(" - ")
        root, point = fields.split()[3:5]
        kind, _, options = rest.split(" ", 2)
        if kind == "cgroup2":
            mounts[_UNIFIED] = root, point
        elif kind == "cgroup":
            mounts.update({name: (root, point) for name in options.split(",") if name in _CONTROLLERS})
    return mounts


def _bases(enforcement: Mapping[str, str | None]) -> dict[str, str]:
    """Return, by controller, the directories in which to create the groups that an enforcement needs."""
    bases: dict[str, str] = {}
    if "cgroup v2" in enforcement.values():
        controllers = {"memory", "pids"} | ({"cpu"} if enforcement.get("cpus") == "cgroup v2" else set())
        bases[_UNIFIED] = _prepare_tree(controllers)
    if "cgroup v1" in enforcement.values():
        groups = own_groups()
        wanted = {"memory": "memory", "cpuacct": "cpu", "cpu": "cpus"}
        wanted = {controller: enforcement.get(limit) or "" for controller, limit in wanted.items()}
        bases |= {controller: groups[controller] for controller, means in wanted.items() if means == "cgroup v1"}
        if _can_write(groups.get("pids")):  # even without a limit: pids.max=0 stops forks, so that a kill can finish
            bases["pids"] = groups["pids"]
    return bases


def _prepare_tree(controllers: set[str]) -> str:
    """Enable ``controllers`` of this process's version 2 group for the groups below it, and return its path.

    The kernel allows that only in a group without processes of its own, so this process and its relatives move into a
    group below. ``_is_ours`` has made sure that there are no other processes.
    """
    tree = own_groups()[_UNIFIED]
    wanted = controllers & _controllers(tree)
    missing = wanted - set(" ".join(_lines(f"{tree}/cgroup.subtree_control")).split())
    if not missing:
        return tree
    order = " ".join(f"+{name}" for name in sorted(missing))
    try:
        _write(f"{tree}/cgroup.subtree_control", order)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        with suppress(FileExistsError):
            os.mkdir(f"{tree}/{_SUPERVISOR}")
        for pid in _lines(f"{tree}/cgroup.procs"):
            with suppress(ProcessLookupError):
                _write(f"{tree}/{_SUPERVISOR}/cgroup.procs", pid)
        _write(f"{tree}/cgroup.subtree_control", order)
    return tree


def _is_ours(tree: str) -> bool:
    """Return whether groups can be created in this version 2 group without moving unrelated processes."""
    if not all(_can_write(f"{tree}/{name}") for name in (".", "cgroup.procs", "cgroup.subtree_control")):
        return False
    if not os.path.exists(f"{tree}/cgroup.type"):  # the root group, which may hold both processes and groups
        return True
    me = os.getpid()
    ours = set(_ancestry(me))
    return all(int(pid) in ours or me in _ancestry(int(pid)) for pid in _lines(f"{tree}/cgroup.procs"))


def _ancestry(pid: int) -> Iterator[int]:
    """Yield a process and its ancestors; nothing for PID 0, a process outside of this PID namespace."""
    while pid > 0:
        yield pid
        status = [line for line in _lines(f"/proc/{pid}/status") if line.startswith("PPid:")]
        pid = int(status[0].split()[1]) if status else 0


def _controllers(tree: str) -> set[str]:
    return set(" ".join(_lines(f"{tree}/cgroup.controllers")).split())


def _can_write(path: str | None) -> bool:
    """Return whether access(2) allows writing; it considers read-only mounts too."""
    return path is not None and os.access(path, os.W_OK)


def _name() -> str:
    me = ProcessId.current()  # its space reads pid:[4026531836]
    return f"forkwise-{me.pid}-{me.start}-{me.space[5:-1]}-{next(_serial)}"


def _owner(name: str) -> ProcessId | None:
    """Return the process that created a group, from the group's name; None if forkwise did not create it."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return ProcessId(int(found[1]), int(found[2]), boot_id(), f"pid:[{found[3]}]", machine_id())


def _walk(directory: str) -> Iterator[str]:
    """Yield all groups inside a group and then the group itself, innermost first."""
    for path, _, _ in os.walk(directory, topdown=False):
        yield path


def _try_remove(directory: str) -> bool:
    """Try to remove a group and the groups inside it; return False while processes are in it."""
    for group in _walk(directory):
        try:
            os.rmdir(group)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
    return True


def _kill_each(group: str) -> None:
    """Kill the processes of one group by pidfd, so that a reused PID does not hit another process."""
    pidfds = {}
    for pid in _lines(f"{group}/cgroup.procs"):
        with suppress(OSError, ValueError):
            pidfds[pid] = os.pidfd_open(int(pid))
    members = set(_lines(f"{group}/cgroup.procs"))
    for pid, pidfd in pidfds.items():
        if pid in members:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


def _lines(path: str) -> list[str]:
    try:
        with open(path, errors="surrogateescape") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(fd)
