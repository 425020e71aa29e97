"""What a roll back put back: its ctime is then the roll back's, and says nothing of anybody who changed it since.

A path counts as changed by somebody else when its ctime is not below the moment of a fork or a commit. The steps of a
commit that was taken back have set that ctime twice. So the record of such a commit is kept, with the moment at which
all was back, and tells for every entry it touched which ctime that had before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from forkwise.files.store.changes import Commit, CommitKind, Conflict
from forkwise.files.store.journal import Meta, Run, directory_facts
from forkwise.files.store.overlayfs import Marks
from forkwise.files.store.state import StateDir, tick

__all__ = [
    "ROOM",
    "Record",
    "RolledBack",
    "Times",
    "is_taken_back",
    "keep_rolled_back",
    "mark_rolled_back",
]


_FORMAT = 1
_FILE = "record.json"
_BESIDE = "record.new"

#: Where in a branch's home the directory for the record of its commit may lie ready.
ROOM = "commit"

#: Entries by their inode number, or, where they are made anew when they come back, by their metadata.
Times: TypeAlias = dict[int | tuple[int, ...], tuple[int, int]]


@dataclass(slots=True)
class Record:
    """One commit into a place.

    ``layer`` and ``side`` say where its slots lie once it is finished, relative to the place; those at its ``side`` lie
    beside the record itself. ``home`` is the name of
    the branch that is being committed, ``stage`` the directory inside the target that stands for ``side`` while the
    target's filesystem is not the state's. ``marks`` are those of the overlay on entries of the layer that lose or
    change some on the way out.
    """

    number: int
    kind: CommitKind
    branch: str
    at: float
    durable: bool
    layer: str | None
    side: str
    home: str | None = None
    stage: str | None = None
    undoes: int | None = None
    runs: list[Run] = field(default_factory=list)
    metas: list[Meta] = field(default_factory=list)
    marks: Marks = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)

    def commit(self, undone_by: int | None = None) -> Commit:
        """What a caller gets to see."""
        return Commit(
            id=self.number,
            kind=self.kind,
            branch=self.branch,
            at=datetime.fromtimestamp(self.at, UTC),
            added=tuple(self.added),
            changed=tuple(self.changed),
            deleted=tuple(self.deleted),
            conflicts=tuple(self.conflicts),
            skipped=tuple(self.skipped),
            undoes=self.undoes,
            undone_by=undone_by,
            durable=self.durable,
        )

    def times(self) -> Times:
        """Of all that its steps touch in the target: ctime and mtime as they were."""
        times: Times = {m.inode: (m.changed, m.before[3]) for m in self.metas}
        for step in (s for run in self.runs for s in run.steps if s.dated):
            times[step.leaves or tuple(step.facts or ())] = step.changed[1], step.dated
        return times

    @staticmethod
    def make_room(home: str) -> None:
        """Make, ahead, the directory for the record of a branch's commit, with the file that it will be written to."""
        directory = f"{home}/{ROOM}"
        os.mkdir(directory, 0o700)
        os.close(os.open(f"{directory}/{_BESIDE}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def save(self, directory: str, *, sync: bool) -> None:
        """Write it, whole, under its final name."""
        data: dict[str, Any] = {n: getattr(self, n) for n in self.__slots__}
        data["format"] = _FORMAT
        data["runs"] = [r.dump() for r in self.runs]
        data["metas"] = [m.dump() for m in self.metas]
        data["conflicts"] = [[c.path, c.kind, c.detail] for c in self.conflicts]
        content = json.dumps(data, separators=(",", ":")).encode()
        # The name appears only when the content is complete: a record that can be seen can be read.
        fd = os.open(f"{directory}/{_BESIDE}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(f"{directory}/{_BESIDE}", f"{directory}/{_FILE}")

    @staticmethod
    def finish(directory: str) -> None:
        """Make this the moment at which all its steps were done, by the filesystem's clock: the time of its file."""
        fd = os.open(f"{directory}/{_FILE}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            tick(fd)
        finally:
            os.close(fd)

    @staticmethod
    def finished(directory: str) -> int:
        """That moment."""
        return os.stat(f"{directory}/{_FILE}").st_mtime_ns

    @classmethod
    def load(cls, directory: str) -> Record | None:
        """Read it; None where there is none."""
        try:
            with open(f"{directory}/{_FILE}", "rb") as file:
                data = json.load(file)
        except FileNotFoundError:
            return None
        del data["format"]
        data["runs"] = [Run.load(r) for r in data["runs"]]
        data["metas"] = [Meta(*m) for m in data["metas"]]
        data["conflicts"] = [Conflict(*c) for c in data["conflicts"]]
        return cls(**data)


_MARK = "taken-back"


class RolledBack:
    """The ctimes that entries of a target would have, had no commit ever been taken back."""

    def __init__(self, known: Iterable[tuple[int, Times]] = ()) -> None:
        # Newest first: a moment, and of what was put back by then ctime and mtime as they were.
        self._known = sorted(known, key=lambda k: k[0], reverse=True)

    @classmethod
    def load(cls, place: StateDir) -> RolledBack:
        """Read what is known of a place; nearly always that is nothing."""
        try:
            names = [n for n in os.listdir(f"{place.path}/history") if "-" in n]
        except FileNotFoundError:
            return cls()
        known = []
        for name in names:
            record = Record.load(f"{place.path}/history/{name}")
            if record is not None:
                known.append((int(name.partition("-")[2], 16), record.times()))
        return cls(known)

    def ctime(self, entry: os.stat_result) -> int:
        """When somebody last changed an entry."""
        ctime = entry.st_ctime_ns
        for moment, times in self._known:
            had = times.get(entry.st_ino) or times.get(tuple(directory_facts(entry)))
            if had is not None and ctime <= moment and had[1] == entry.st_mtime_ns:
                ctime = min(ctime, had[0])
        return ctime


def is_taken_back(history: str) -> bool:
    """Whether all steps of a commit were taken back, and it is only to be forgotten."""
    return os.path.lexists(f"{history}/{_MARK}")


def mark_rolled_back(history: str) -> int:
    """Say that they were; gives the moment, by the filesystem's own clock. Asks a full disk for a name, no more."""
    beside = f"{history}/{_MARK}.new"
    with suppress(FileNotFoundError):
        os.unlink(beside)
    os.symlink(".", beside)
    os.rename(beside, f"{history}/{_MARK}")
    return os.lstat(f"{history}/{_MARK}").st_mtime_ns


def keep_rolled_back(history: str) -> None:
    """Keep the record of a commit that was taken back, after the last change, under a name that tells when that was;
    what else lies beside the record may go."""
    kept = f"{history}-{mark_rolled_back(history):x}"
    os.mkdir(kept, 0o700)
    os.rename(f"{history}/record.json", f"{kept}/record.json")
