"""``record.json``: the record of one commit on disk, and the records of commits that were rolled back.

A path counts as changed by another writer if its ctime is not before the time of a fork or a commit. A rollback changes
ctimes too, because every entry has been renamed twice. So the record of a rolled-back commit is kept with the time at
which the rollback was complete, and ``RolledBack`` looks up the ctime that an entry had before.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from forkwise.errors import NewerStateError, StateError
from forkwise.files.store.changes import Commit, CommitKind, Conflict
from forkwise.files.store.document import (
    check_hex_values,
    check_integer,
    check_name,
    check_path,
    check_text,
    check_time,
    check_type,
    damage_reported,
    read_document,
)
from forkwise.files.store.journal import Meta, Run, directory_facts
from forkwise.files.store.overlayfs import is_mark
from forkwise.files.store.state import StateDir, tick
from forkwise.linux.file_write import write_all
from forkwise.linux.root_identity import RootIdentity
from forkwise.linux.trees import join

if TYPE_CHECKING:
    from forkwise.files.store.overlayfs import Marks

__all__ = [
    "RECORD_DIRECTORY",
    "Record",
    "RecordFile",
    "RolledBack",
    "Times",
    "forget_times",
    "is_rolled_back",
    "is_stage",
    "keep_rolled_back",
    "load_interrupted",
    "mark_rolled_back",
]


_FORMAT = 1
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)  # that check would take half of the time
_FILE = "record.json"
_NEW_FILE = "record.new"
_SIDE = re.compile(r"history/([0-9]{1,15})\Z", re.ASCII)
_LAYER = re.compile(r"(?:history/([0-9]{1,15})/home/layer)?\Z", re.ASCII)
_STAGE_NAME = re.compile(r"\.forkwise-stage-[0-9a-f]{8}\Z", re.ASCII)

_REFERENCE = re.compile(r"(?:HEAD|refs/[^\x00-\x20\x7f]+|file:[A-Z_]+)\Z")
_VALUE = re.compile(r"(?:[0-9a-f]{40,64}|refs/[^\x00-\x20\x7f]+)\Z")
_OPERATION_FILE = re.compile(r"(MERGE|CHERRY_PICK|REVERT)_HEAD\Z|MERGE_(MSG|MODE)\Z")
_ENTRY = re.compile(r"[0-7]{6} [0-9a-f]{40,64}\Z")

#: The directory in a branch's home that may be prepared for the record of its commit.
RECORD_DIRECTORY = "commit"

#: ctime and mtime of entries by inode number, or by metadata for directories that a rollback creates anew.
Times: TypeAlias = dict[int | tuple[int, ...], tuple[int, int]]


@dataclass(slots=True)
class Record:
    """One commit into a workspace or a branch.

    ``layer`` and ``side`` are the directories of its slots once it is finished, relative to the state directory; slots
    in ``side`` are next to the record itself. ``home`` is the name of the committed branch. ``stage`` is the directory
    inside the target that replaces ``side`` during a commit to another filesystem. ``marks`` are the overlay marks of
    entries in the layer that lose or change some by the commit. ``started`` is the time by the filesystem's clock
    before the first step; ``finished`` returns the time after the last one. ``root`` is the workspace's directory; None
    if the target is a branch. ``repository`` is what was done in git repositories, for an undo, ``sentences`` the same
    for the user. ``data`` are the data directories of servers in which it changed something. ``clock`` and ``boot``
    are the machine's clock, as in `BranchInfo`, and its boot; 0 and empty for commits of version 0.1.0.
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
    started: int = 0
    root: RootIdentity | None = None
    executable_config: list[tuple[str, str]] = field(default_factory=list)
    repository: list[dict[str, Any]] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    data: list[str] = field(default_factory=list)
    clock: int = 0
    boot: str = ""

    def commit(self, undone_by: int | None = None) -> Commit:
        """Return the commit as a public value."""
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
            executable_config=tuple((path, executor) for path, executor in self.executable_config),
            repository=tuple(self.sentences),
        )

    def times(self) -> Times:
        """Return the earlier ctime and mtime of all entries in the target that its steps change."""
        times: Times = {m.inode: (m.changed, m.before[3]) for m in self.metas if m.inode}
        for step in (s for run in self.runs for s in run.steps if s.dated):
            times[step.leaves or tuple(step.facts or ())] = step.changed[1], step.dated
        return times

    @staticmethod
    def prepare_directory(home: str) -> None:
        """Create in advance the directory and the file for the record of a branch's commit."""
        directory = f"{home}/{RECORD_DIRECTORY}"
        os.mkdir(directory, 0o700)
        os.close(os.open(f"{directory}/{_NEW_FILE}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def save(self, directory: str, *, sync: bool) -> None:
        """Write the record atomically."""
        with RecordFile(directory) as file:
            file.write(self)
            if sync:
                os.fsync(file.fd)
            file.publish()

    def encode(self) -> bytes:
        """Return the record as JSON."""
        data: dict[str, Any] = dict(zip(self.__slots__, _fields_of(self), strict=True))
        data["format"] = _FORMAT
        data["runs"] = [r.dump() for r in self.runs]
        data["root"] = self.root.dump() if self.root else None
        data["metas"] = [m.dump() for m in self.metas]
        data["conflicts"] = [[c.path, c.kind, c.detail] for c in self.conflicts]
        return _ENCODER.encode(data).encode()

    @staticmethod
    def finished(directory: str) -> int:
        """Return the time that ``RecordFile.finish`` stored."""
        return os.stat(f"{directory}/{_FILE}").st_mtime_ns

    @classmethod
    def load(cls, directory: str) -> Record | None:
        """Read the record of a directory; None if there is none. Raises StateError if it is damaged."""
        path = f"{directory}/{_FILE}"
        try:
            data, _ = read_document(path, newest=_FORMAT)
        except FileNotFoundError:
            return None
        with damage_reported(path):
            number, _, _ = os.path.basename(directory).partition("-")
            return _parse(data, int(number))


_fields_of = attrgetter(*Record.__slots__)


class RecordFile:
    """The file of a record while its commit runs; it gets its final name only when its content is complete."""

    __slots__ = ("_directory", "fd", "opened")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        # Not O_TRUNC: after that, ext4 allocates and writes the blocks of a file when it is closed (auto_da_alloc).
        self.fd = os.open(f"{directory}/{_NEW_FILE}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.utime(self.fd)
            found = os.fstat(self.fd)
            #: The current time by the filesystem's clock: no later change has an earlier time.
            self.opened = found.st_mtime_ns
            if found.st_size:
                os.ftruncate(self.fd, 0)
        except BaseException:
            os.close(self.fd)
            raise

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def write(self, record: Record) -> None:
        """Write the content."""
        write_all(self.fd, record.encode())

    def publish(self) -> None:
        """Give the file its final name: a visible record is a complete one."""
        os.rename(f"{self._directory}/{_NEW_FILE}", f"{self._directory}/{_FILE}")

    def finish(self) -> None:
        """Store the current time by the filesystem's clock as the end of all steps, in the mtime of the file."""
        tick(self.fd)


def _parse(data: dict[str, Any], number: int) -> Record:
    """Build a record from its document. Raises ValueError or TypeError unless every field is possible.

    All names in it are names inside its own directory, or inside that of the commit that it undoes.
    """
    data["runs"] = [Run.load(r) for r in check_type(data["runs"], list, "steps")]
    data["metas"] = [Meta.load(m) for m in check_type(data["metas"], list, "metadata")]
    data["conflicts"] = [Conflict(*c) for c in check_type(data["conflicts"], list, "conflicts")]
    data["root"] = None if data.get("root") is None else RootIdentity.load(data["root"])
    record = Record(**data)
    if check_integer(record.number, "number") != number:
        raise ValueError(f"it is the record of commit {record.number}")
    if record.kind not in ("commit", "undo", "redo"):
        raise ValueError("its kind is unknown")
    check_text(record.branch, "branch")
    check_time(record.at, "time")
    check_integer(record.started, "start")
    check_integer(record.clock, "clock", -sys.maxsize, sys.maxsize)
    check_text(record.boot, "boot")
    check_type(record.durable, bool, "durability")
    if record.undoes is not None:
        check_integer(record.undoes, "undone commit", 1, number - 1)
    if not _is_of_commit(record.side, _SIDE, number) or not _is_of_commit(_or_empty(record.layer), _LAYER, number):
        raise ValueError("its slots are outside its own directory")
    if record.home is not None and check_name(record.home, "branch").startswith("."):
        raise ValueError("its branch has no possible name")
    if record.stage is not None and not is_stage(record.stage):
        raise ValueError("its stage has no possible name")
    for path, marks in check_type(record.marks, list, "marks"):
        check_path(path, "path")
        check_hex_values(marks, is_mark, "marks")
    for paths in (record.added, record.changed, record.deleted, record.skipped, record.data):
        for path in check_type(paths, list, "paths"):
            for name in check_text(path, "path").split("/") if path != "." else ():
                check_name(name, "path")
    for conflict in record.conflicts:
        for text in (conflict.path, conflict.kind, conflict.detail):
            check_text(text, "conflict")
    for path, executor in check_type(record.executable_config, list, "executable configuration"):
        check_text(path, "path")
        check_text(executor, "executor")
    for sentence in check_type(record.sentences, list, "sentences"):
        check_text(sentence, "sentence")
    for one in check_type(record.repository, list, "repositories"):
        _check_repository(check_type(one, dict, "repository"))
    return record


def _check_repository(found: dict[str, Any]) -> None:
    """Raise ValueError or TypeError unless every value of what was done in a repository is possible."""
    check_path(found["directory"], "repository")
    check_text(found["label"], "label")
    for name, *sides in check_type(found["references"], list, "references"):
        if not _REFERENCE.match(check_text(name, "reference")) or ".." in name or len(sides) != 2:
            raise ValueError("it has a reference with a name that is not possible")
        is_file = name.startswith("file:")
        if not all(side is None or is_file or _VALUE.match(check_text(side, "id")) for side in sides):
            raise ValueError("it has a reference with a value that is not possible")
    for path, *entries in check_type(found["index"], list, "entries"):
        check_path(path, "path")
        for entry in entries:
            if entry is not None and not _ENTRY.match(" ".join(map(str, entry))):
                raise ValueError("it has an entry of the index that is not possible")
    operation = check_type(found.get("operation", {"files": {}, "unmerged": []}), dict, "operation")
    for name, content in check_type(operation["files"], dict, "files").items():
        if not _OPERATION_FILE.match(name):
            raise ValueError("it has a file of an unfinished command that is not possible")
        check_text(content, "content")
    for path, entry in check_type(operation["unmerged"], list, "entries"):
        check_path(path, "path")
        if entry is not None and not _ENTRY.match(" ".join(map(str, entry))):
            raise ValueError("it has an entry of the index that is not possible")
    for line in check_type(found["stashes"], list, "stashes"):
        check_text(line["drop"] if isinstance(line, dict) else line, "stash")


def is_stage(name: object) -> bool:
    """Return whether a name is that of a directory in which a commit to another filesystem prepares its files."""
    return type(name) is str and _STAGE_NAME.match(name) is not None


def _or_empty(path: object) -> object:
    return "" if path is None else path


def _is_of_commit(path: object, pattern: re.Pattern[str], newest: int) -> bool:
    match = pattern.match(path) if type(path) is str else None
    return match is not None and (match[1] is None or 1 <= int(match[1]) <= newest)


_MARK = "taken-back"
_ANY = "rolled-back"  # a symlink in the state directory, from the first kept record on
_KEPT = re.compile(r"[0-9]{1,15}-[0-9a-f]{1,16}\Z", re.ASCII)


class RolledBack:
    """The ctimes that entries of a target would have if no commit had ever been rolled back."""

    def __init__(self, known: Iterable[tuple[int, Times]] = ()) -> None:
        # Newest first: the time of a rollback, and the earlier ctime and mtime of the entries that it restored.
        self._known = sorted(known, key=lambda k: k[0], reverse=True)

    @classmethod
    def load(cls, state_dir: StateDir) -> RolledBack:
        """Read the rolled-back commits of a state directory; nearly always there are none."""
        if state_dir.has_no_rolled_back and not os.path.lexists(f"{state_dir.path}/{_ANY}"):
            return cls()
        try:
            names = [n for n in os.listdir(f"{state_dir.path}/history") if "-" in n and _KEPT.match(n)]
        except FileNotFoundError:
            names = []
        # The list is read once even without the mark: version 0.1.0 left none, and a power failure may have removed it.
        state_dir.has_no_rolled_back = not names
        known = []
        for name in names:
            # If one cannot be read, its paths count as changed by another writer: at worst, that is a conflict.
            with suppress(StateError):
                record = Record.load(f"{state_dir.path}/history/{name}")
                if record is not None:
                    known.append((int(name.partition("-")[2], 16), record.times()))
        return cls(known)

    def ctime(self, entry: os.stat_result) -> int:
        """Return when an entry was last changed other than by a rollback."""
        ctime = entry.st_ctime_ns
        for moment, times in self._known:
            earlier = times.get(entry.st_ino) or times.get(tuple(directory_facts(entry)))
            if earlier is not None and ctime <= moment and earlier[1] == entry.st_mtime_ns:
                ctime = min(ctime, earlier[0])
        return ctime


def load_interrupted(state_dir: StateDir, history: str) -> Record | None:
    """Read the record of a commit that was started and not finished; None if there is none.

    A damaged record is set aside with everything next to it, because it is not known which of its steps were applied.
    """
    try:
        return Record.load(history)
    except NewerStateError:
        raise
    except StateError as error:
        state_dir.set_aside(history, error)
        return None


def forget_times(record: Record, conflicts: Iterable[Conflict]) -> None:
    """Remove from a record that will be rolled back the earlier times of paths that another process changed.

    Their ctimes after the rollback then count as changes, and so do those of the directories above them.
    """
    paths = {conflict.path for conflict in conflicts}
    above = {""} | {path[:n] for path in paths for n, letter in enumerate(path) if letter == "/"}
    for run in record.runs:
        for step in run.steps:
            if join(run.directory, step.name) in paths | above:
                step.dated = 0
    for meta in record.metas:
        if meta.path in paths | above:
            meta.inode = 0


def is_rolled_back(history: str) -> bool:
    """Return whether all steps of a commit were reverted, so that only its directory has to be removed."""
    return os.path.lexists(f"{history}/{_MARK}")


def mark_rolled_back(history: str) -> int:
    """Mark a commit as rolled back, and return the time by the filesystem's clock.

    The mark is a symlink, because on a full disk that needs only a name in a directory.
    """
    new = f"{history}/{_MARK}.new"
    with suppress(FileNotFoundError):
        os.unlink(new)
    os.symlink(".", new)
    os.rename(new, f"{history}/{_MARK}")
    return os.lstat(f"{history}/{_MARK}").st_mtime_ns


def keep_rolled_back(history: str) -> None:
    """Keep the record of a rolled-back commit, and nothing else of it, in a directory named after the current time.

    Call it after the last change of the rollback.
    """
    kept = f"{history}-{mark_rolled_back(history):x}"
    with suppress(FileExistsError):
        os.symlink(".", f"{os.path.dirname(os.path.dirname(history))}/{_ANY}")
    os.mkdir(kept, 0o700)
    os.rename(f"{history}/record.json", f"{kept}/record.json")
