"""``branch.json``: the facts about a branch since it was created, in its own directory, for every process to read."""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import lru_cache

from forkwise.errors import BranchNotFoundError, StateError
from forkwise.files.store.changes import Conflict
from forkwise.files.store.document import (
    check_integer,
    check_text,
    check_time,
    check_type,
    damage_reported,
    load_process_id,
    read_document,
)
from forkwise.files.store.journal import sync_directories
from forkwise.linux.file_write import replace_file, write_all
from forkwise.linux.process_id import ProcessId, boot_id
from forkwise.linux.root_identity import RootIdentity

__all__ = [
    "BASES",
    "DATA",
    "IGNORE",
    "BranchInfo",
    "DataDirectories",
    "hold_serving",
    "is_serving",
    "measure_set_back",
    "read_clock",
]

#: The directory in a branch's home with the parent's versions of changed files, as they were at the fork.
BASES = "bases"
IGNORE = "ignore"
DATA = "data"
_SERVING = "serving"

_CLOCK_NOISE = 100_000_000  # two clocks are not read at the same instant
_FORMAT = 1
_FILE = "branch.json"
_MAX_BLANK = 1 << 16  # bytes; zeros replace the content, whose length is kept
_VIEW = re.compile(r"[a-z]{1,32}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class DataDirectories:
    """The data directories of servers in a branch, relative to its root.

    Those in ``whole`` are committed as a whole or not at all, also if they are ignored. Changes in those in ``dropped``
    are not part of the branch's result. Those in ``still`` were in use in the workspace when the branch was made, and
    the branch has their files as they were at one moment.
    """

    whole: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    still: tuple[str, ...] = ()

    @classmethod
    def load(cls, home: str) -> DataDirectories:
        """Load those of the branch in ``home``. Raises StateError if the record is damaged."""
        try:
            with open(f"{home}/{DATA}") as file:
                found = json.load(file)
            lists = [found["whole"], found["dropped"], found.get("still", [])]
            if not all(isinstance(path, str) and path for paths in lists for path in paths):
                raise TypeError("its lists are not lists of paths")
        except FileNotFoundError:
            return cls()
        except (ValueError, TypeError, KeyError) as error:
            raise StateError(f"{home}/{DATA}", str(error)) from error
        return cls(*map(tuple, lists))

    def save(self, home: str) -> None:
        """Record them with the branch in ``home``."""
        replace_file(f"{home}/{DATA}", json.dumps(asdict(self)), beside=f"{home}/{DATA}.new")


def hold_serving(home: str) -> int:
    """Mark the branch in ``home`` as one in which servers run, until the returned descriptor is closed."""
    fd = os.open(f"{home}/{_SERVING}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_serving(home: str) -> bool:
    """Return whether servers run in the branch in ``home``."""
    try:
        fd = os.open(f"{home}/{_SERVING}", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@dataclass(slots=True)
class BranchInfo:
    """When a branch was created, on top of which commit, and by which process.

    ``generation`` is the parent's head at the fork. ``forked`` and ``made`` are times by the filesystem's clock: before
    the parent was first read, and when the branch was complete; for an info that was created unstamped, both are the
    mtime of its file. ``synced`` is the time up to which the layer is known to be on the disk. ``unmerged`` are
    conflicts that a rebase left at the time ``rebased``. ``root`` is the workspace's directory that it was forked from;
    None for a branch of a branch, and for branches of version 0.1.0. ``clock`` is the machine's clock at the fork, as
    the time at which the machine was started.
    """

    view: str
    generation: int
    forked: int
    made: int
    created: float
    boot: str
    owner: ProcessId | None
    kept: bool = False
    synced: int = 0
    rebased: int = 0
    unmerged: list[Conflict] = field(default_factory=list)
    root: RootIdentity | None = None
    clock: int = 0

    @property
    def set_back(self) -> int:
        """How many nanoseconds the machine's clock was set back since the fork, as far as that can be known."""
        return measure_set_back(self.clock, self.boot, self.forked)

    @property
    def forked_at_earliest(self) -> int:
        """The time of the fork, or earlier if the clock was set back: every change since then has a later time."""
        return self.forked - self.set_back

    def save(self, home: str) -> None:
        """Replace the file atomically; that of a kept branch also survives a power failure.

        Other branches do not outlive this process, so they need no syncs.
        """
        data = asdict(self)
        data["format"] = _FORMAT
        data["owner"] = self.owner.dump() if self.owner else None
        data["root"] = self.root.dump() if self.root else None
        path = f"{home}/{_FILE}"
        fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, json.dumps(data).encode())
            if self.kept:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(path + ".new", path)
        if self.kept:
            sync_directories([home])

    def create(self, home: str) -> None:
        """Write the file into a home that is not published yet."""
        fd = os.open(f"{home}/{_FILE}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            write_all(
                fd,
                (
                    f'{{"format":{_FORMAT},"view":"{self.view}","generation":{self.generation},'
                    f'"forked":{self.forked},"made":{self.made},"created":{self.created},'
                    f'"boot":"{self.boot}","owner":{_as_json(self.owner)},"root":{_as_json(self.root)},'
                    f'"clock":{read_clock()}}}'
                ).encode(),
            )
        finally:
            os.close(fd)

    @classmethod
    def create_unstamped(cls, home: str, view: str, generation: int, root: RootIdentity | None) -> None:
        """Write the file, without times, into a home that is prepared for a later branch."""
        cls(view, generation, 0, 0, 0.0, boot_id(), ProcessId.current(), root=root).create(home)

    @staticmethod
    def stamp(home: str) -> None:
        """Set the times of an unstamped info to now.

        With multigrain timestamps this is as good as ``Lock.now``: the second change of a file gets a fine-grained
        time if the file was read since the first.
        """
        path = f"{home}/{_FILE}"
        os.utime(path)
        os.stat(path)
        os.utime(path)

    @classmethod
    def load(cls, home: str) -> BranchInfo:
        """Read the file. Raises BranchNotFoundError if the branch no longer exists, StateError if it is damaged."""
        path = f"{home}/{_FILE}"
        try:
            data, found = read_document(path, newest=_FORMAT)
        except FileNotFoundError:
            name = os.path.basename(home)
            raise BranchNotFoundError(
                f"there is no branch {name!r}: it was committed, aborted (maybe by another process) or never created",
                branch=name,
            ) from None
        with damage_reported(path):
            if data["forked"] == 0:
                data["forked"] = data["made"] = found.st_mtime_ns
                data["created"] = found.st_mtime_ns / 1e9
            data["owner"] = None if data["owner"] is None else load_process_id(data["owner"], "owner")
            data["root"] = None if data.get("root") is None else RootIdentity.load(data["root"])
            data["unmerged"] = [Conflict(**c) for c in check_type(data.get("unmerged", []), list, "conflicts")]
            return _check(cls(**data))

    @staticmethod
    def is_blank(home: str) -> bool:
        """Return whether a branch's info never reached the disk: there is no file, or it is empty or all zeros."""
        try:
            with open(f"{home}/{_FILE}", "rb") as file:
                return not file.read(_MAX_BLANK).strip(b"\0")
        except FileNotFoundError:
            return True


def read_clock() -> int:
    """Return the time at which the machine was started by its present clock; it changes when the clock is set."""
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    now = time.time_ns()
    return now - (before + time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 2


def measure_set_back(clock: int, boot: str, moment: int) -> int:
    """Return by how many nanoseconds the machine's clock was set back since a moment, as far as that can be known.

    ``clock`` and ``boot`` are `read_clock` and the boot then. After a restart, the clock was set back if the moment is
    still in the future; then all changes that it hides were made since the restart.
    """
    if not clock:
        return 0
    now = read_clock()
    if boot == boot_id():
        return step if (step := clock - now) > _CLOCK_NOISE else 0
    return moment - now if moment > time.time_ns() + _CLOCK_NOISE else 0


def _check(info: BranchInfo) -> BranchInfo:
    """Return an info if every field is possible; raise ValueError otherwise."""
    if not _VIEW.match(check_text(info.view, "view")):
        raise ValueError("its view has no possible name")
    check_integer(info.generation, "generation", 0, 1 << 50)
    for moment in (info.forked, info.made, info.synced, info.rebased, info.clock):
        check_integer(moment, "time", -sys.maxsize, sys.maxsize)
    check_time(info.created, "time of creation")
    check_text(info.boot, "boot")
    check_type(info.kept, bool, "mark that it is kept")
    for conflict in info.unmerged:
        for text in (conflict.path, conflict.kind, conflict.detail):
            check_text(text, "conflict")
    return info


@lru_cache(maxsize=8)
def _as_json(value: ProcessId | RootIdentity | None) -> str:
    return json.dumps(value and value.dump())
