"""Control groups: one for each sandbox, below this process's own, gone when the sandbox is.

Version 2 is used where this user was given a part of the tree, version 1 where its controllers may be written. The only
place that knows their files.
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

    from forkwise.sandbox.limits import Limits, Means

__all__ = ["Cgroup", "Controller", "own_groups", "sweep", "version_of", "why_not"]

Controller = Literal["memory", "pids", "cpuacct"]

_CONTROLLERS: tuple[Controller, ...] = ("memory", "pids", "cpuacct")
_VERSIONS = ("cgroup v1", "cgroup v2")
_UNIFIED = ""  # how /proc/self/cgroup writes version 2
_SUPERVISOR = "forkwise-supervisor"
# The process that made a group: its number, its start, its PID namespace; then the number of the group.
_NAME = re.compile(r"forkwise-(\d+)-(\d+)-(\d+)-\d+")
_PATIENCE = 10.0  # seconds that killed processes may take to be gone; a core dump or a slow disk holds them up
_serial = itertools.count(1)


class Cgroup:
    """The control groups of one sandbox: one directory with version 2, one for each controller with version 1.

    It has none where control groups enforce nothing; then it does nothing and knows nothing. Use it with ``with``.
    """

    def __init__(self, directories: Mapping[str, str]) -> None:
        self._directories = dict(directories)

    @classmethod
    def make(cls, limits: Limits, enforcement: Mapping[str, Means | None]) -> Cgroup:
        """Make the groups that the enforcement needs and set their limits, before any process is in them."""
        group, name = cls({}), _name()
        try:
            for controller, base in _bases(enforcement).items():
                group._make(controller, f"{base}/{name}")
            if limits.memory is not None and enforcement.get("memory") in _VERSIONS:
                group._limit_memory(limits.memory)
            if limits.processes is not None and enforcement.get("processes") in _VERSIONS:
                _write(f"{group._directory('pids')}/pids.max", str(limits.processes))
        except OSError as error:
            group.remove()
            raise NamespaceError(
                f"no control group could be made ({error.filename}): {error.strerror}; run beneath systemd-run --user "
                "--scope -p Delegate=yes, or mark the limits best_effort"
            ) from error
        return group

    @property
    def paths(self) -> tuple[str, ...]:
        """The directories; a process that writes "0" to ``cgroup.procs`` in each of them is in the group."""
        return tuple(self._directories.values())

    def add(self, pid: int) -> None:
        """Put a process in, with all it starts from now on."""
        for directory in self.paths:
            _write(f"{directory}/cgroup.procs", str(pid))

    def peak_memory(self) -> int | None:
        """The most bytes that its processes held together; None where nothing counts it."""
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            if (value := self._number("memory", name)) is not None:
                return value
        return None

    def cpu_seconds(self) -> float | None:
        """CPU time of all its processes so far, those that ended included; None where nothing counts it."""
        if (nanoseconds := self._number("cpuacct", "cpuacct.usage")) is not None:
            return nanoseconds / 1e9
        microseconds = self._events("cpuacct", "cpu.stat").get("usage_usec")
        return None if microseconds is None else microseconds / 1e6

    def oom_kills(self) -> int:
        """How many of its processes were killed because the memory limit was reached."""
        for name in ("memory.events", "memory.oom_control"):
            if (events := self._events("memory", name)) and "oom_kill" in events:
                return events["oom_kill"]
        return 0

    def forks_refused(self) -> int:
        """How often a process or thread more than the limit was asked for."""
        return self._events("pids", "pids.events").get("max", 0)

    def kill(self) -> None:
        """Kill every process in it, also those that fork meanwhile."""
        groups = [group for directory in self.paths for group in _with_groups_inside(directory)]
        for group in groups:
            with suppress(OSError):  # another controller's, or gone
                _write(f"{group}/pids.max", "0")
        for group in groups:
            try:
                _write(f"{group}/cgroup.kill", "1")
            except OSError:  # version 1, or Linux before 5.14
                _kill_each(group)

    def remove(self) -> None:
        """Kill what is left in it and take it away, waiting until that is done."""
        deadline = time.monotonic() + _PATIENCE
        pause = 0.0005
        while self._directories:
            for key, directory in list(self._directories.items()):
                if _removed(directory):
                    del self._directories[key]
            if not self._directories:
                return
            if time.monotonic() > deadline:
                raise NamespaceError(
                    f"control groups do not get empty: {', '.join(self.paths)}; a process in them cannot be killed "
                    "(see their cgroup.procs), and the first sweep after it is gone takes them away"
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
        os.mkdir(directory)
        self._directories[key] = directory

    def _limit_memory(self, limit: int) -> None:
        directory = self._directory("memory")
        if "memory" in self._directories:
            _write(f"{directory}/memory.limit_in_bytes", str(limit))
            swap, most = "memory.memsw.limit_in_bytes", str(limit)  # counts both, and may not be less than the first
        else:
            _write(f"{directory}/memory.max", str(limit))
            swap, most = "memory.swap.max", "0"
        with suppress(FileNotFoundError):  # a kernel without swap accounting
            _write(f"{directory}/{swap}", most)

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
    """The version by which this user may use a controller below this process's own group; None where not at all."""
    groups = own_groups()
    tree = groups.get(_UNIFIED)
    if tree is not None and controller in _offered(tree) and _is_ours(tree):
        return 2
    if _may_write(groups.get(controller)):
        return 1
    # Every group of version 2 counts CPU time, whatever it is offered.
    return 2 if controller == "cpuacct" and tree is not None and _is_ours(tree) else None


def why_not(controller: Controller) -> str:
    """Why this user cannot use a controller, for a message."""
    groups = own_groups()
    if controller in groups:
        return f"this user may not write {groups[controller]}"
    if _UNIFIED not in groups:
        return "no control group filesystem with it is mounted"
    if controller not in _offered(groups[_UNIFIED]):
        return f"{groups[_UNIFIED]} has no controller {controller}"
    return f"this user was not given the control group {groups[_UNIFIED]}"


def sweep() -> list[str]:
    """Take away the groups of owners that died, with what still runs in them; gives their paths."""
    left: dict[str, dict[str, str]] = {}
    for controller, base in own_groups().items():
        with suppress(OSError):  # not ours to list
            for name in os.listdir(base):
                owner = _owner(name)
                if owner is not None and not owner.alive:
                    left.setdefault(name, {})[controller] = f"{base}/{name}"
    swept: list[str] = []
    for directories in left.values():
        with suppress(PermissionError, NamespaceError):  # another user's, or not yet empty: for a later sweep
            Cgroup(directories).remove()
            swept += directories.values()
    return swept


def own_groups() -> dict[str, str]:
    """This process's control groups by controller ('' for version 2), as directories."""
    mounted = _mounts()
    groups = {}
    for line in _lines("/proc/self/cgroup"):
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            if name in mounted:
                root, point = mounted[name]
                inside = os.path.relpath(path, root)
                # A group outside of what is mounted here is the mount's own root, as containers see it.
                groups[name] = point if inside.startswith("..") else os.path.normpath(f"{point}/{inside}")
    if _UNIFIED in groups and os.path.basename(groups[_UNIFIED]) == _SUPERVISOR:
        groups[_UNIFIED] = os.path.dirname(groups[_UNIFIED])
    return {name: path for name, path in groups.items() if os.path.isdir(path)}


@lru_cache(maxsize=1)
def _mounts() -> dict[str, tuple[str, str]]:
    """Where each controller is mounted, with the group that is the mount's root."""
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


def _bases(enforcement: Mapping[str, Means | None]) -> dict[str, str]:
    """By controller, the directories in which the groups that an enforcement needs are to be made."""
    bases: dict[str, str] = {}
    if "cgroup v2" in enforcement.values():
        bases[_UNIFIED] = _prepared_tree()
    if "cgroup v1" in enforcement.values():
        groups = own_groups()
        wanted = {"memory": enforcement.get("memory"), "cpuacct": enforcement.get("cpu")}
        bases |= {controller: groups[controller] for controller, means in wanted.items() if means == "cgroup v1"}
        if _may_write(groups.get("pids")):  # also without a limit: it stops forks, so that a kill can finish
            bases["pids"] = groups["pids"]
    return bases


def _prepared_tree() -> str:
    """This process's group of version 2, with its controllers passed on to the groups below.

    The kernel passes them on only from a group that has no processes of its own, so this process and its relatives
    move one down. Groups with anybody else in them are left as they are.
    """
    tree = own_groups()[_UNIFIED]
    wanted = {"memory", "pids"} & _offered(tree)
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
    """Whether groups can be made in this one of version 2 without moving other people's processes."""
    if not all(_may_write(f"{tree}/{name}") for name in (".", "cgroup.procs", "cgroup.subtree_control")):
        return False
    if not os.path.exists(f"{tree}/cgroup.type"):  # the root of all groups, which may hold processes beside groups
        return True
    me = os.getpid()
    ours = set(_ancestry(me))
    return all(int(pid) in ours or me in _ancestry(int(pid)) for pid in _lines(f"{tree}/cgroup.procs"))


def _ancestry(pid: int) -> Iterator[int]:
    """A process and those it comes from; nobody for a process that this namespace has no number for."""
    while pid > 0:
        yield pid
        status = [line for line in _lines(f"/proc/{pid}/status") if line.startswith("PPid:")]
        pid = int(status[0].split()[1]) if status else 0


def _offered(tree: str) -> set[str]:
    return set(" ".join(_lines(f"{tree}/cgroup.controllers")).split())


def _may_write(path: str | None) -> bool:
    """Told by access(2), which knows of read-only mounts too."""
    return path is not None and os.access(path, os.W_OK)


def _name() -> str:
    me = ProcessId.current()  # its space reads pid:[4026531836]
    return f"forkwise-{me.pid}-{me.start}-{me.space[5:-1]}-{next(_serial)}"


def _owner(name: str) -> ProcessId | None:
    """Whose group this is by its name; None where it is none of ours."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return ProcessId(int(found[1]), int(found[2]), boot_id(), f"pid:[{found[3]}]", machine_id())


def _with_groups_inside(directory: str) -> Iterator[str]:
    """A group and all groups in it, innermost first."""
    for path, _, _ in os.walk(directory, topdown=False):
        yield path


def _removed(directory: str) -> bool:
    """Try to remove a group with those inside; False while processes are in it."""
    for group in _with_groups_inside(directory):
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
    """Kill the processes of one group, each held by a descriptor so that a reused number hits nobody else."""
    held = {}
    for pid in _lines(f"{group}/cgroup.procs"):
        with suppress(OSError, ValueError):
            held[pid] = os.pidfd_open(int(pid))
    still_in_it = set(_lines(f"{group}/cgroup.procs"))
    for pid, pidfd in held.items():
        if pid in still_in_it:
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
