"""Undo of one commit, and the rewind of a workspace to an earlier commit by several undos as one operation.

An undo inverts the commit's journal. A rewind records its intent first; after a kill, the next process that opens the
workspace finishes it.
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
from typing import TYPE_CHECKING, Any

from forkwise.errors import CommitError, CommitNotFoundError, ConflictError, ForkwiseWarning, StateError
from forkwise.files.store.branch_info import measure_set_back
from forkwise.files.store.changes import Commit, CommitKind, Conflict
from forkwise.files.store.document import check_integer, damage_reported, load_process_id
from forkwise.files.store.interference import OldEntry
from forkwise.files.store.journal import JournalStep, Meta, Run, directory_facts, invert
from forkwise.files.store.overlayfs import Lower
from forkwise.files.store.record import Record, RecordFile, RolledBack
from forkwise.files.store.scan import user_attributes
from forkwise.files.store.state import StateDir, locked
from forkwise.files.store.transaction import FIRST_CONTENT_SLOT, Transaction, as_commit_error, check_root, recover
from forkwise.git.repository_change import RepositoryMerge
from forkwise.linux.directory_user import find_directory_user
from forkwise.linux.process_id import ProcessId
from forkwise.linux.scratch_directory import scratch_directory
from forkwise.linux.trees import NOT_THERE, join, open_directory, open_root
from forkwise.text.phrases import join_first

if TYPE_CHECKING:
    from forkwise.files.branch import Parent
    from forkwise.files.workspace import Workspace

__all__ = [
    "Restored",
    "commits_to_undo",
    "finish_rewind",
    "history",
    "is_rewind_interrupted",
    "note_repository",
    "records_of",
    "rewind_to",
    "undo",
]


_TRIES = 3  # in case git commands change a repository meanwhile
_KINDS: dict[CommitKind, CommitKind] = {"commit": "undo", "undo": "redo", "redo": "undo"}


def history(parent: Parent) -> list[Commit]:
    """List all recorded commits into a workspace or a branch, newest first."""
    records = records_of(parent.state_dir)
    undone_by = {r.undoes: r.number for r in records if r.undoes is not None}
    return [r.commit(undone_by.get(r.number)) for r in records]


def undo(workspace: Workspace, number: int | None) -> Commit:
    """Undo a commit, by default the last active one. Raises ConflictError if one of its paths was changed since."""
    state_dir = workspace.state_dir
    with as_commit_error("nothing was undone"), locked(state_dir.state):
        recover(state_dir, workspace.target)
        records = records_of(state_dir)
        record = _find_record(state_dir, records, number)
        check_root(record, workspace.target, f"commit {record.number} was not undone, nothing was changed")
        _check_databases(workspace, record)
        runs, metas = invert(_without_contents(record.runs), record.metas)
        restored = Restored(state_dir, records, record.number)
        finished = _finish_time(state_dir, record)
        during = [(r.started, _finish_time(state_dir, r)) for r in records if r.number >= record.number and r.started]
        set_back = measure_set_back(record.clock, record.boot, finished)
        with _Target(workspace.target, finished, during, runs, restored) as target:
            target.hidden = (finished - set_back, record.started) if set_back else (0, 0)
            conflicts = [c for run in runs for step in run.steps for c in target.changes(run.directory, step)]
            if conflicts:
                shown = join_first(conflicts, 5, "; ")
                raise ConflictError(
                    f"commit {record.number} was not undone, nothing was changed: {shown}",
                    branch=record.branch,
                    conflicts=conflicts,
                )
            metas = [m for meta in metas for m in target.as_now(meta)]
        return _run_undo(workspace, record, runs, metas, target.removed).commit()


def _check_databases(workspace: Workspace, record: Record) -> None:
    """Raise CommitError if a server runs on a data directory that the commit changed: the undo would swap its files."""
    for data in record.data:
        user = find_directory_user(os.path.join(workspace.target, data))
        if user is not None:
            raise CommitError(
                f"commit {record.number} was not undone, nothing was changed: {user} uses {data}, which the commit "
                "changed. Stop it, and undo again; what it wrote there since the commit is then a conflict",
                branch=record.branch,
                paths=[data],
            )


def note_repository(
    workspace: Workspace, number: int, directory: str, moved: list[str | None], staged: Sequence[list[Any]]
) -> None:
    """Add to a commit's record that a reference of a repository was moved for it, and entries of the index changed.

    ``moved`` is the reference with its values before and after, ``staged`` paths with their entries before and after.
    Does nothing if the commit is no longer the last one.
    """
    state_dir = workspace.state_dir
    with locked(state_dir.state):
        record = Record.load(state_dir.history(number)) if state_dir.head == number else None
        if record is None:
            return
        found = next((one for one in record.repository if one["directory"] == directory), None)
        if found is None:
            label = record.branch.rpartition("/")[2]
            found = {"directory": directory, "label": label, "references": [], "index": [], "stashes": []}
            record.repository.append(found)
        found["references"].append(moved)
        rows = {row[0]: row for row in found["index"]}
        for path, old, new in staged:
            rows[path] = [path, rows[path][1] if path in rows else old, new]
        found["index"] = list(rows.values())
        finished = Record.finished(state_dir.history(number))
        with RecordFile(state_dir.history(number)) as file:
            file.write(record)
            os.fsync(file.fd)
            os.utime(file.fd, ns=(finished, finished))  # the time at which the commit ended
            file.publish()


def _without_contents(runs: list[Run]) -> list[Run]:
    """Return the steps without those in git repositories, which are worked out anew instead of inverted."""
    found = [Run(r.directory, [s for s in r.steps if int(s.slot or 0) < FIRST_CONTENT_SLOT]) for r in runs]
    return [run for run in found if run.steps]


def _run_undo(
    workspace: Workspace, undone: Record, runs: list[Run], metas: list[Meta], removed: list[OldEntry]
) -> Record:
    """Apply the inverted steps and metadata as a transaction."""
    state_dir = workspace.state_dir
    slots = state_dir.beneath(undone.side)
    failure = f"commit {undone.number} was not undone"
    for tries_left in reversed(range(_TRIES)):
        merge = _revert_repositories(workspace, undone)
        try:
            return _apply_undo(workspace, undone, runs, metas, removed, merge, slots, failure)
        except _RepositoryMovedError:
            if not tries_left:
                raise CommitError(
                    f"{failure}, nothing was changed: a git command changed the repository at every try. Wait until it "
                    "has ended, and try again"
                ) from None
    raise AssertionError("the last try returns or raises")


class _RepositoryMovedError(Exception):
    """A git command changed the repository after the undo had worked out how to revert it; nothing was changed."""


def _revert_repositories(workspace: Workspace, undone: Record) -> RepositoryMerge:
    if not undone.repository:
        return RepositoryMerge()
    from forkwise.git.repository_revert import revert_repositories  # noqa: PLC0415 - loaded on use

    with scratch_directory("git") as scratch:
        return revert_repositories(workspace.target, undone.repository, _KINDS[undone.kind], scratch)


def _apply_undo(
    workspace: Workspace,
    undone: Record,
    runs: list[Run],
    metas: list[Meta],
    removed: list[OldEntry],
    merge: RepositoryMerge,
    slots: str,
    failure: str,
) -> Record:
    state_dir = workspace.state_dir
    with Transaction(state_dir, workspace.target, undone.branch, side=slots, failure=failure) as transaction:
        side = undone.side
        if transaction.stage:
            side = f"history/{transaction.number}"
            entering = [s for run in runs for s in run.steps if s.slot and s.code in ("put", "swap")]
            inodes = transaction.fetch(slots, [s.slot for s in entering])
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
            root=undone.root,
            runs=list(runs),
            metas=metas,
            added=undone.deleted,
            changed=undone.changed,
            deleted=undone.added,
            data=undone.data,
        )
        record.repository, record.sentences = merge.done, merge.sentences
        if merge.contents:
            more, replaced = transaction.fill_contents(merge.contents)
            record.runs += more
            removed = [*removed, *replaced]
            transaction.lock(merge.locks)
            if not merge.is_current(workspace.target):
                raise _RepositoryMovedError
        uses_layer = any(not s.slot and s.code in ("put", "swap", "take") for run in runs for s in run.steps)
        layer = state_dir.beneath(undone.layer or "") if uses_layer else None
        transaction.run(record, layer, removed=removed)
    return record


class Restored:
    """The real times of last change of paths that an undo or a redo after the commit ``number`` restored."""

    def __init__(self, state_dir: StateDir, records: list[Record], number: int) -> None:
        self._copies = _copies(records)
        self._rolled_back = RolledBack.load(state_dir)
        self._entries: dict[str, tuple[int, int]] = {}
        self._directories: dict[str, tuple[int, int]] = {}
        # A commit may replace an entry that an earlier undo had restored; its own undo restores the same entry. So
        # remember when that was really changed, by the number of the commit and the path.
        replaced: dict[tuple[int | None, str], int] = {}
        for record in (r for r in reversed(records) if r.number > number):
            finished = _finish_time(state_dir, record)
            for run in record.runs:
                for step in run.steps:
                    path = join(run.directory, step.name)
                    before = self._restoration(path)
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
        """Return whether two inode numbers belong to one entry; restoring from another filesystem changes them."""
        return self._copies.get(inode, inode) == self._copies.get(other, other)

    def changed(self, path: str, there: os.stat_result) -> int:
        """Return the time at which a path was last changed other than by an undo."""
        found = self._directories.get(path) or self._restoration(path)
        ctime = self._rolled_back.ctime(there)
        return ctime if found is None or ctime >= found[0] else found[1]

    def _restoration(self, path: str) -> tuple[int, int] | None:
        """Return when an undo restored a path or a directory above it, and when that was changed before."""
        found, above = None, path
        while found is None and above:
            found = self._entries.get(above)
            above = above.rpartition("/")[0]
        return found


def _copies(records: list[Record]) -> dict[int, int]:
    """Map the inode numbers of entries that undos restored from another filesystem to their original numbers."""
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
    """The current workspace, compared with the result of a commit and with the steps that undo it.

    ``finished`` is the filesystem's time at the end of the commit. ``during`` are the times from the first to the last
    step of this commit and of later ones: a rename sets ctimes, so in these times only the mtime shows a save. ``runs``
    are the steps of the undo; ``removed`` are the entries that they remove, as ``changes`` found them.
    """

    def __init__(
        self, path: str, finished: int, during: list[tuple[int, int]], runs: list[Run], restored: Restored
    ) -> None:
        self.lower = Lower([path])
        self.root = open_root(path)
        self.finished = finished
        self.during = during
        #: The range of times of later changes that look older, because the clock was set back since the commit.
        self.hidden = 0, 0
        self.removed: list[OldEntry] = []
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

    def changes(self, directory: str, step: JournalStep) -> list[Conflict]:
        """Find the changes since the commit at the path of one step, and note the current times in the step."""
        path = join(directory, step.name)
        with self.lower.directory(directory) as held:
            there = held.lookup(step.name)
            if step.code in ("put", "mkdir"):
                if there is not None and path not in self.taken:
                    return [Conflict(path, "changed", "it was deleted by the commit and exists again")]
                if not held.fds and directory not in self.made:
                    return [Conflict(path, "deleted", "its directory was removed since the commit")]
                return []
        if there is None:
            return [Conflict(path, "deleted", "it was deleted since the commit")]
        if step.code == "rmdir":
            return []
        if not self.restored.is_same(there.st_ino, step.leaves) or self._is_changed(path, there):
            return [Conflict(path, "changed", "it was changed since the commit")]
        step.changed = step.changed[0], self.restored.changed(path, there)
        step.dated = there.st_mtime_ns
        inside: dict[str, os.stat_result] = {}
        if stat.S_ISDIR(there.st_mode):
            inside = {join(below, name): entry for below, name, entry in self.lower.walk(path)}
        relative = {below[len(path) + 1 :]: entry for below, entry in inside.items()}
        self.removed.append(OldEntry(directory, step, there, relative))
        return [
            Conflict(below, "changed", "it was changed since the commit")
            for below, entry in inside.items()
            if self._is_changed(below, entry)
        ]

    def _is_changed(self, path: str, there: os.stat_result) -> bool:
        if any(started < there.st_mtime_ns < finished for started, finished in self.during):
            return True
        changed = self.restored.changed(path, there)
        return changed >= self.finished or self.hidden[0] <= changed < self.hidden[1]

    def as_now(self, meta: Meta) -> list[Meta]:
        """Return the change that restores a directory's metadata, except the parts that were set since the commit."""
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


def _find_record(state_dir: StateDir, records: list[Record], number: int | None) -> Record:
    """Find the record of the commit to undo. Raises CommitError if it cannot be undone."""
    undone_by = {r.undoes: r.number for r in records if r.undoes is not None}
    if number is None:
        active = [r for r in records if r.number not in undone_by and r.kind != "undo"]
        if not active:
            raise CommitError("there is no commit to undo")
        record = active[0]
    else:
        found = [r for r in records if r.number == number]
        if not found:
            raise CommitNotFoundError(
                f"there is no commit {number}, or its undo data was collected by gc; list the commits with forkwise log"
            )
        record = found[0]
    if record.number in undone_by:
        again = undone_by[record.number]
        raise CommitError(f"commit {record.number} was already undone, by {again}; undo {again} to restore it")
    if not os.path.isdir(f"{state_dir.path}/{record.side}"):
        raise CommitError(f"commit {record.number} cannot be undone: the content that it replaced was collected")
    return record


def _finish_time(state_dir: StateDir, record: Record) -> int:
    return Record.finished(state_dir.history(record.number))


def records_of(state_dir: StateDir) -> list[Record]:
    """List the records of all commits, newest first, as far as they were not collected."""
    found = []
    for number in range(state_dir.head, 0, -1):
        try:
            record = Record.load(state_dir.history(number))
        except StateError as error:
            warnings.warn(f"commit {number} is left out: {error}", ForkwiseWarning, stacklevel=4)
            continue
        if record is None:
            if any(older < number for older in state_dir.numbers()):
                continue  # this one was set aside
            break  # older ones were collected
        found.append(record)
    return found


def commits_to_undo(history: Sequence[Commit], head: int) -> list[int]:
    """List the commits, undos and redos to undo, in order, to restore the state at the commit ``head``.

    A commit with its undos and redos is a chain whose last element says whether the commit is in effect. Raises
    CommitError if a record that is needed was collected.
    """
    missing = {n for n in range(head + 1, history[0].id) if n > history[-1].id} if history else set()
    missing -= {commit.id for commit in history}
    if missing:
        numbers = join_first(sorted(missing), 5)
        raise CommitError(f"the files cannot be restored to commit {head}: the record of commit {numbers} is damaged")
    if history and head < history[-1].id - 1:
        raise CommitError(f"the files cannot be restored to commit {head}: undo records after it were collected")
    chains: dict[int, list[Commit]] = {}
    first_of: dict[int, int] = {}
    for commit in reversed(history):
        first = first_of.get(commit.undoes or 0, commit.id)
        first_of[commit.id] = first
        chains.setdefault(first, []).append(commit)
    undo_ids, redo_ids = [], []
    for chain in chains.values():
        then = [commit for commit in chain if commit.id <= head]
        is_active, was_active = chain[-1].kind != "undo", bool(then) and then[-1].kind != "undo"
        if is_active and not was_active:
            undo_ids.append(chain[-1].id)
        elif was_active and not is_active:
            redo_ids.append(chain[-1].id)
    return sorted(undo_ids, reverse=True) + sorted(redo_ids, reverse=True)


def rewind_to(workspace: Workspace, head: int) -> list[Commit]:
    """Undo and redo commits until the files are as they were when ``head`` was the last commit, or change nothing.

    Return the undos and redos. Raises CommitError, with nothing changed, if one of the paths was changed since or if
    an undo record that is needed was collected.
    """
    before = workspace.state_dir.head
    if not commits_to_undo(workspace.history(), head):
        return []
    _write_intent(workspace, head, before)
    try:
        commits = _undo_to(workspace, head)
    except BaseException:
        _undo_to(workspace, before)
        _remove_intent(workspace)
        raise
    _remove_intent(workspace)
    return commits


def is_rewind_interrupted(workspace: Workspace) -> bool:
    """Return whether a rewind was started and not finished; costs one lstat."""
    return os.path.lexists(_intent(workspace))


def finish_rewind(workspace: Workspace) -> None:
    """Finish the rewind of a killed process, or roll it back if files were changed meanwhile.

    A rewind of a process that still runs is left alone.
    """
    fd = os.open(f"{_intent(workspace)}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # several processes may try to finish it
        try:
            with damage_reported(_intent(workspace)):
                head, before, owner = json.loads(os.readlink(_intent(workspace)))
                check_integer(head, "goal")
                check_integer(before, "start")
                process = load_process_id(owner, "process")
        except FileNotFoundError:
            return
        except StateError as error:
            workspace.state_dir.set_aside(_intent(workspace), error)
            return
        if not process.alive:
            _finish_or_roll_back(workspace, head, before)
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)


def _finish_or_roll_back(workspace: Workspace, head: int, before: int) -> None:
    for target in (head, before):
        with suppress(CommitError):
            _undo_to(workspace, target)
            _remove_intent(workspace)
            return
    _remove_intent(workspace)
    warnings.warn(
        f"an interrupted rewind of {workspace.path} can be neither finished nor rolled back, because files were "
        "changed since: look at its history and undo commits by hand",
        ForkwiseWarning,
        stacklevel=3,
    )


def _undo_to(workspace: Workspace, head: int) -> list[Commit]:
    return [workspace.undo(number) for number in commits_to_undo(workspace.history(), head)]


def _intent(workspace: Workspace) -> str:
    return workspace.state_dir.rewind


def _write_intent(workspace: Workspace, head: int, before: int) -> None:
    """Record a rewind as the target of a symlink: creating one is atomic and fails if there is one already."""
    for _ in range(2):
        try:
            os.symlink(json.dumps([head, before, ProcessId.current().dump()]), _intent(workspace))
            return
        except FileExistsError:
            finish_rewind(workspace)  # unless its process still runs
    raise CommitError(f"another process is rewinding {workspace.path}: wait until it has finished")


def _remove_intent(workspace: Workspace) -> None:
    with suppress(FileNotFoundError):
        os.unlink(_intent(workspace))
