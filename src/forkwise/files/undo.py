"""Rewinding: a workspace brought back to how it stood at a commit, over as many undos as that takes, as one.

What is meant is written down first. Whoever opens the workspace after a kill finishes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from forkwise.errors import CommitError, ConflictError, ForkwiseWarning
from forkwise.files.store.changes import Commit, CommitKind, Conflict
from forkwise.files.store.journal import Meta, Run, Step, directory_facts, invert
from forkwise.files.store.overlayfs import Lower
from forkwise.files.store.record import Record, RolledBack
from forkwise.files.store.scan import user_attributes
from forkwise.files.store.state import StateDir, locked
from forkwise.files.store.transaction import Transaction, as_commit_error, recover
from forkwise.linux.process_id import ProcessId
from forkwise.linux.trees import NOT_THERE, join, open_directory, open_root

if TYPE_CHECKING:
    from forkwise.files.branch import Parent
    from forkwise.files.workspace import Workspace

__all__ = [
    "Restored",
    "commits_to_undo",
    "finish_rewind",
    "history",
    "is_rewind_interrupted",
    "records_of",
    "rewind_to",
    "undo",
]


_KINDS: dict[CommitKind, CommitKind] = {"commit": "undo", "undo": "redo", "redo": "undo"}


def history(parent: Parent) -> list[Commit]:
    """All recorded commits into a workspace, or into a branch, newest first."""
    records = records_of(parent.place)
    undone_by = {r.undoes: r.number for r in records if r.undoes is not None}
    return [r.commit(undone_by.get(r.number)) for r in records]


def undo(workspace: Workspace, number: int | None) -> Commit:
    """Take back one commit."""
    place = workspace.place
    with as_commit_error("nothing was undone"), locked(place.state):
        recover(place, workspace.target)
        records = records_of(place)
        record = _choose(place, records, number)
        runs, metas = invert(record.runs, record.metas)
        restored = Restored(place, records, record.number)
        with _Target(workspace.target, _finished(place, record), runs, restored) as target:
            conflicts = [c for run in runs for step in run.steps for c in target.changes(run.directory, step)]
            if conflicts:
                shown = "; ".join(str(c) for c in conflicts[:5]) + ("; …" if len(conflicts) > 5 else "")
                raise ConflictError(
                    f"commit {record.number} was not undone, nothing was changed: {shown}",
                    branch=record.branch,
                    conflicts=conflicts,
                )
            metas = [m for meta in metas for m in target.as_now(meta)]
        return _carry_out(workspace, record, runs, metas).commit()


def _carry_out(workspace: Workspace, undone: Record, runs: list[Run], metas: list[Meta]) -> Record:
    place = workspace.place
    kept = f"{place.path}/{undone.side}"
    with Transaction(place, workspace.target, undone.branch, side=kept) as transaction:
        side = undone.side
        if transaction.stage:
            side = f"history/{transaction.number}"
            entering = [s for run in runs for s in run.steps if s.slot and s.code in ("put", "swap")]
            inodes = transaction.fetch(kept, [s.slot for s in entering])
            for step in entering:
                step.enters = inodes[step.slot]
        record = Record(
            number=transaction.number,
            kind=_KINDS[undone.kind],
            branch=undone.branch,
            at=time.time(),
            durable=workspace.durable,
            layer=undone.layer,
            side=side,
            stage=transaction.stage,
            undoes=undone.number,
            runs=runs,
            metas=metas,
            added=undone.deleted,
            changed=undone.changed,
            deleted=undone.added,
        )
        uses_layer = any(not s.slot and s.code in ("put", "swap", "take") for run in runs for s in run.steps)
        transaction.run(record, f"{place.path}/{undone.layer}" if uses_layer else None)
    return record


class Restored:
    """Paths that later commits changed and whose undo or redo brought back: when they were really changed last."""

    def __init__(self, place: StateDir, records: list[Record], number: int) -> None:
        self._copies = _copies(records)
        self._taken_back = RolledBack.load(place)
        self._entries: dict[str, tuple[int, int]] = {}
        self._directories: dict[str, tuple[int, int]] = {}
        # What a commit replaced may have been brought back by an undo before it: when that was really changed, by the
        # number of the commit and the path. Its own undo brings back the same.
        replaced: dict[tuple[int | None, str], int] = {}
        for record in (r for r in reversed(records) if r.number > number):
            finished = _finished(place, record)
            for run in record.runs:
                for step in run.steps:
                    path = join(run.directory, step.name)
                    before = self._brought_back(path)
                    self._entries.pop(path, None)
                    if before is not None and step.changed[1] < before[0]:
                        replaced[record.number, path] = before[1]
                    if record.undoes is not None and step.code in ("put", "swap"):
                        self._entries[path] = (finished, replaced.get((record.undoes, path), step.changed[0]))
            for meta in record.metas:
                before = self._directories.pop(meta.path, None)
                if before is not None and meta.changed < before[0]:
                    replaced[record.number, f"{meta.path}/"] = before[1]
                if record.undoes is not None:
                    changed = replaced.get((record.undoes, f"{meta.path}/"), meta.changed)
                    self._directories[meta.path] = (finished, changed)

    def is_same(self, inode: int, other: int) -> bool:
        """Whether two inode numbers are of the same entry: it has another once it came back from another filesystem."""
        return self._copies.get(inode, inode) == self._copies.get(other, other)

    def changed(self, path: str, there: os.stat_result) -> int:
        """When a path was last changed by anybody but an undo."""
        found = self._directories.get(path) or self._brought_back(path)
        ctime = self._taken_back.ctime(there)
        return ctime if found is None or ctime >= found[0] else found[1]

    def _brought_back(self, path: str) -> tuple[int, int] | None:
        """When an undo brought back a path, by itself or with what it is in, and when that was changed before."""
        found, above = None, path
        while found is None and above:
            found = self._entries.get(above)
            above = above.rpartition("/")[0]
        return found


def _copies(records: list[Record]) -> dict[int, int]:
    """What undos brought back from another filesystem, by its inode number there: the number it had when it left."""
    copies: dict[int, int] = {}
    by_number = {r.number: r for r in records}
    for record in reversed(records):
        if record.undoes in by_number:
            undone = by_number[record.undoes]
            left = {join(run.directory, s.name): s.leaves for run in undone.runs for s in run.steps if s.leaves}
            entered = ((join(run.directory, s.name), s.enters) for run in record.runs for s in run.steps if s.enters)
            for path, inode in entered:
                if path in left and left[path] != inode:
                    copies[inode] = copies.get(left[path], left[path])
    return copies


class _Target:
    """The workspace as it is now, against what a commit left there at the filesystem's time ``finished`` and what the
    steps ``runs`` of an undo will do there."""

    def __init__(self, path: str, finished: int, runs: list[Run], restored: Restored) -> None:
        self.lower = Lower([path])
        self.root = open_root(path)
        self.finished = finished
        self.made, self.taken = (
            {join(run.directory, s.name) for run in runs for s in run.steps if s.code == code}
            for code in ("mkdir", "take")
        )
        self.restored = restored

    def __enter__(self) -> _Target:
        return self

    def __exit__(self, *_: object) -> None:
        self.lower.close()
        os.close(self.root)

    def changes(self, directory: str, step: Step) -> list[Conflict]:
        """What somebody did since at the path of one step."""
        path = join(directory, step.name)
        with self.lower.directory(directory) as held:
            there = held.lookup(step.name)
            if step.code in ("put", "mkdir"):
                if there is not None and path not in self.taken:
                    return [Conflict(path, "changed", "it was deleted by the commit and is there again")]
                if not held.fds and directory not in self.made:
                    return [Conflict(path, "deleted", "its directory is gone since the commit")]
                return []
        if there is None:
            return [Conflict(path, "deleted", "it is gone since the commit")]
        if step.code == "rmdir":
            return []
        if not self.restored.is_same(there.st_ino, step.leaves) or self._is_changed(path, there):
            return [Conflict(path, "changed", "it was changed since the commit")]
        step.changed = step.changed[0], self.restored.changed(path, there)
        step.dated = there.st_mtime_ns
        if not stat.S_ISDIR(there.st_mode):
            return []
        return [
            Conflict(join(below, name), "changed", "it was changed since the commit")
            for below, name, entry in self.lower.walk(path)
            if self._is_changed(join(below, name), entry)
        ]

    def _is_changed(self, path: str, there: os.stat_result) -> bool:
        return self.restored.changed(path, there) >= self.finished

    def as_now(self, meta: Meta) -> list[Meta]:
        """A directory's metadata to go back to, except where somebody else has set it since."""
        try:
            fd = open_directory(self.root, meta.path)
        except OSError as error:
            if error.errno not in NOT_THERE:
                raise
            return [meta] if meta.path in self.made else []
        try:
            found = os.fstat(fd)
            attributes = {k: v.hex() for k, v in user_attributes(fd).items()}
        finally:
            os.close(fd)
        now = directory_facts(found)
        after = [
            wanted if left == held else held for wanted, left, held in zip(meta.after, meta.before, now, strict=True)
        ]
        if now[3] != meta.before[3]:
            after[3] = -1
        meta = Meta(meta.path, now, after, meta.changed, found.st_ino, meta.attributes_before, meta.attributes_after)
        if attributes != meta.attributes_before:
            meta.attributes_before = meta.attributes_after = None
        return [meta]


def _choose(place: StateDir, records: list[Record], number: int | None) -> Record:
    undone_by = {r.undoes: r.number for r in records if r.undoes is not None}
    if number is None:
        standing = [r for r in records if r.number not in undone_by and r.kind != "undo"]
        if not standing:
            raise CommitError("there is no commit to undo")
        record = standing[0]
    else:
        found = [r for r in records if r.number == number]
        if not found:
            raise CommitError(f"there is no commit {number}, or its content was collected; see the log")
        record = found[0]
    if record.number in undone_by:
        again = undone_by[record.number]
        raise CommitError(f"commit {record.number} was already undone, by {again}; undo {again} to have it back")
    if not os.path.isdir(f"{place.path}/{record.side}"):
        raise CommitError(f"the content that commit {record.number} replaced was collected; it cannot be undone")
    return record


def _finished(place: StateDir, record: Record) -> int:
    return Record.finished(place.history(record.number))


def records_of(place: StateDir) -> list[Record]:
    """The records of all commits that are left, newest first."""
    found = []
    for number in range(place.head, 0, -1):
        record = Record.load(place.history(number))
        if record is None:
            break  # older ones were collected
        found.append(record)
    return found


def commits_to_undo(history: Sequence[Commit], head: int) -> list[int]:
    """Which commits, undos and redos have to be taken back, in order, for all to stand as it did at a number.

    A commit with its undos and redos is a chain whose last link says whether it stands.
    """
    if history and head < history[-1].id - 1:
        raise CommitError(f"commits after {head} were collected: the files cannot be had back as they were then")
    chains: dict[int, list[Commit]] = {}
    first_of: dict[int, int] = {}
    for commit in reversed(history):
        first = first_of.get(commit.undoes or 0, commit.id)
        first_of[commit.id] = first
        chains.setdefault(first, []).append(commit)
    drop, bring_back = [], []
    for chain in chains.values():
        then = [commit for commit in chain if commit.id <= head]
        is_standing, was_standing = chain[-1].kind != "undo", bool(then) and then[-1].kind != "undo"
        if is_standing and not was_standing:
            drop.append(chain[-1].id)
        elif was_standing and not is_standing:
            bring_back.append(chain[-1].id)
    return sorted(drop, reverse=True) + sorted(bring_back, reverse=True)


def rewind_to(workspace: Workspace, head: int) -> list[Commit]:
    """Undo and redo until all stands as it did when ``head`` was the last commit: all of it, or nothing.

    Gives what was done. CommitError where that cannot be had, because somebody changed one of the paths since or
    because too old a commit was collected; all is then as before.
    """
    before = workspace.place.head
    if not commits_to_undo(workspace.history(), head):
        return []
    _write_intent(workspace, head, before)
    try:
        done = _go(workspace, head)
    except BaseException:
        _go(workspace, before)
        _forget_intent(workspace)
        raise
    _forget_intent(workspace)
    return done


def is_rewind_interrupted(workspace: Workspace) -> bool:
    """Whether somebody began to go back; a quick question."""
    return os.path.lexists(_intent(workspace))


def finish_rewind(workspace: Workspace) -> None:
    """Finish what a killed process began; what another one is at is left to it. Where it cannot be finished, because
    somebody changed something meanwhile, it is taken back."""
    fd = os.open(f"{_intent(workspace)}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # several may come after one that was killed
        try:
            head, before, owner = json.loads(os.readlink(_intent(workspace)))
        except FileNotFoundError:
            return
        if not ProcessId.load(owner).alive:
            _finish(workspace, head, before)
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _finish(workspace: Workspace, head: int, before: int) -> None:
    for wanted in (head, before):
        with suppress(CommitError):
            _go(workspace, wanted)
            _forget_intent(workspace)
            return
    _forget_intent(workspace)
    warnings.warn(
        f"a rewind of {workspace.path} was cut short and can neither be finished nor taken back, because files were "
        "changed since: see its history, and undo by hand what is to be undone",
        ForkwiseWarning,
        stacklevel=3,
    )


def _go(workspace: Workspace, head: int) -> list[Commit]:
    return [workspace.undo(number) for number in commits_to_undo(workspace.history(), head)]


def _intent(workspace: Workspace) -> str:
    return f"{workspace.place.state}/rewind"


def _write_intent(workspace: Workspace, head: int, before: int) -> None:
    """As the target of a symbolic link: it is there whole or not at all, and only once."""
    for _ in range(2):
        try:
            os.symlink(json.dumps([head, before, ProcessId.current().dump()]), _intent(workspace))
            return
        except FileExistsError:
            finish_rewind(workspace)  # unless somebody is at it
    raise CommitError(f"{workspace.path} is being rewound already: wait until that is done")


def _forget_intent(workspace: Workspace) -> None:
    with suppress(FileNotFoundError):
        os.unlink(_intent(workspace))
