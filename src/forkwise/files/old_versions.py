"""Old versions of files, from what branches and commits recorded: merge bases, modes and diffs of commits.

A commit's record keeps the content that it replaced. So the content of a path at an earlier commit is the content that
the first later commit to that path replaced. Edits by other programs leave no such record, so a branch also records the
parent's versions of the files that it changed, as long as those are still the versions at the fork.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forkwise.errors import CommitError, CommitNotFoundError, StateError
from forkwise.files.file_tree import FileTree
from forkwise.files.store.branch_info import BASES, BranchInfo
from forkwise.files.store.overlayfs import Lower, LowerDirectory
from forkwise.files.store.record import Record
from forkwise.files.store.state import StateDir, locked
from forkwise.linux.file_write import replace_file
from forkwise.linux.process_id import boot_id
from forkwise.text.diff import LIMIT, FileDiff, FileVersion, is_text, unified

if TYPE_CHECKING:
    from forkwise.files.branch import Branch, Parent
    from forkwise.files.store.journal import JournalStep, Run
    from forkwise.files.store.scan import Entry, Scan
    from forkwise.files.workspace import Workspace

__all__ = [
    "active_commits",
    "chains_since",
    "commit_diff",
    "commit_files",
    "find_merge_base",
    "mode_at_fork",
    "note_deleted",
    "record_scanned_bases",
    "slot_of",
    "step_on",
    "version_at",
]

_LARGEST_BASE = 1 << 20
_EXISTED = ".existed"  # next to the base of a path, or without one: the parent had an entry there


def record_scanned_bases(branch: Branch, scan: Scan) -> None:
    """Record the parent's content of the text files that a branch changed, from a scan of the branch.

    A version that is not older than the fork is left out. The cost depends on the size of the changes. Called under the
    lock.
    """
    if branch._commits_into_layer:  # in a branch nothing but commits changes files, and those have records
        return
    forked = BranchInfo.load(branch.home).forked_at_earliest
    both = [e for e in scan.entries if e.new and e.old]
    entries = [e for e in both if e.new and e.old and _is_mergeable(e.new) and _is_mergeable(e.old)]
    if both:
        os.makedirs(f"{branch.home}/{BASES}", mode=0o700, exist_ok=True)
        for path in [e.path for e in both if e.unit and not e.copied]:
            Path(_base_path(branch.home, path) + _EXISTED).touch()
    if entries:
        with Lower(branch.parent.lowers, branch.view_kind.mark_prefixes) as lower:
            for entry in entries:
                _record_base(branch, lower, entry, forked)


def note_deleted(scan: Scan, home: str) -> None:
    """Mark entries that replaced an entry of the parent which was deleted there since, if that was recorded.

    A layer does not show what a new file or directory replaced: only files that were copied up have an origin.
    """
    new = [e for e in scan.entries if e.unit and e.old is None and not e.copied]
    recorded = {name for name in os.listdir(f"{home}/{BASES}") if name.endswith(_EXISTED)} if new else ()
    for entry in new if recorded else ():
        if os.path.basename(_base_path(home, entry.path)) + _EXISTED in recorded:
            entry.copied, entry.above = True, sys.maxsize


def _is_mergeable(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_size <= _LARGEST_BASE


def _record_base(branch: Branch, lower: Lower, entry: Entry, forked: int) -> None:
    path = _base_path(branch.home, entry.path)
    if os.path.exists(path):
        return
    with lower.directory(entry.directory) as held:
        holder = held.holder(entry.name)
        content = None if holder is None else _read_older(holder, entry.name, forked)
    if content is None or not is_text(content):
        return
    replace_file(path, content, beside=f"{path}.new")


def _base_path(home: str, path: str) -> str:
    return f"{home}/{BASES}/{hashlib.sha256(os.fsencode(path)).hexdigest()}"


def _read_base(branch: Branch, path: str, info: BranchInfo) -> bytes | None:
    """Read a recorded base, unless the machine was restarted since and the base may be incomplete."""
    try:
        with open(_base_path(branch.home, path), "rb") as file:
            is_complete = info.boot == boot_id() or os.fstat(file.fileno()).st_ctime_ns < info.synced
            return file.read() if is_complete else None
    except FileNotFoundError:
        return None


def find_merge_base(branch: Branch, path: str, info: BranchInfo) -> bytes | None:
    """Return the parent's content of ``path`` when the branch was forked; None if not known.

    Only what forkwise itself recorded counts. Git's index or ``HEAD`` may hold an earlier or a later version, and a
    merge with any other base silently drops the lines of one side.
    """
    if (base := _read_base(branch, path, info)) is not None:
        return base
    parent = branch.parent
    records = active_commits(parent.state_dir, info.generation)
    if records is None:
        return None  # the oldest remaining version is not a base: it has changes that the branch does not have
    for record in records:
        step = step_on(record, path)
        if step is not None:
            return _read_replaced(parent, record, *step, info.forked_at_earliest)
    return None


def active_commits(state_dir: StateDir, generation: int) -> list[Record] | None:
    """List the commits after ``generation`` that are not undone, oldest first; None if a record was collected.

    A commit and its undo cancel out; a commit that was undone and redone counts as the original one.
    """
    chains = chains_since(state_dir, generation)
    return None if chains is None else [chain[0] for chain in chains if len(chain) % 2]


def chains_since(state_dir: StateDir, generation: int) -> list[list[Record]] | None:
    """List the commits after ``generation``, each followed by its undo, the redo of that, and so on."""
    chains: dict[int, list[Record]] = {}
    firsts: dict[int, int] = {}
    for number in range(generation + 1, state_dir.head + 1):
        try:
            record = Record.load(state_dir.history(number))
        except StateError:
            return None
        if record is None:
            return None
        first = firsts[number] = firsts.get(record.undoes or number, number)
        chains.setdefault(first, []).append(record)
    return list(chains.values())


def step_on(record: Record, path: str) -> tuple[Run, JournalStep, str] | None:
    """Find the step that changed a path. Also return the rest of the path if the step moved a directory above it."""
    for run in record.runs:
        prefix = f"{run.directory}/" if run.directory else ""
        if not path.startswith(prefix):
            continue
        name, _, rest = path[len(prefix) :].partition("/")
        for step in run.steps:
            if step.name == name:
                return run, step, rest
    return None


def mode_at_fork(parent: Parent, path: str, generation: int) -> int | None:
    """Return the mode that a file had at the commit ``generation``, if a later commit changed the file."""
    for record in active_commits(parent.state_dir, generation) or ():
        step = step_on(record, path)
        if step is not None and step[1].code != "put":
            try:
                return stat.S_IMODE(os.lstat(slot_of(parent, record, *step)).st_mode)
            except OSError:
                return None
    return None


def slot_of(parent: Parent, record: Record, run: Run, step: JournalStep, rest: str) -> str:
    """Return the path at which a commit stores what a step replaced."""
    if step.slot:
        slot = f"{parent.state_dir.path}/{record.side}/{step.slot}"
    else:
        slot = f"{parent.state_dir.path}/{record.layer}/{run.directory}/{step.name}"
    return f"{slot}/{rest}" if rest else slot


def _read_replaced(parent: Parent, record: Record, run: Run, step: JournalStep, rest: str, forked: int) -> bytes | None:
    if step.code == "put":
        return _read_below_layer(parent, "/".join(filter(None, [run.directory, step.name, rest])), forked)
    path = slot_of(parent, record, run, step, rest)
    try:
        found = os.lstat(path)
        # The commit has renamed the entry itself, which changed its ctime; the step has the one from before, except in
        # a branch's layer, which nothing but commits can change while the branch has branches of its own.
        changed = found.st_ctime_ns if rest else step.changed[1]
        if not stat.S_ISREG(found.st_mode) or max(changed, found.st_mtime_ns) >= forked:
            return None  # it was changed between the fork and the commit that replaced it
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _read_below_layer(parent: Parent, path: str, forked: int) -> bytes | None:
    """Read what a layer without an entry at ``path`` showed: the entry below it, unless an opaque directory hid it."""
    directory, _, name = path.rpartition("/")
    with Lower(parent.lowers, parent.child_view().mark_prefixes) as lower, lower.directory(directory) as held:
        below = LowerDirectory(held.fds[1:])
        holder = below.holder(name)
        return None if holder is None else _read_older(holder, name, forked)


def _read_older(directory_fd: int, name: str, forked: int) -> bytes | None:
    """Read a regular file; None if it is anything else, or was changed since ``forked``, even during the read."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(name, flags, dir_fd=directory_fd), "rb") as file:
            content = file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
            return content if os.fstat(file.fileno()).st_ctime_ns < forked else None
    except OSError:
        return None


def commit_diff(workspace: Workspace, number: int) -> str:
    """Return the changes of a commit into a workspace as a unified diff that ``git apply`` accepts.

    Raises CommitError if the commit was undone or its record was collected. A path that was edited since, other than
    by a commit, is shown with its current content.

    >>> import tempfile
    >>> from forkwise import Workspace
    >>> ws = Workspace(tempfile.mkdtemp())
    >>> with ws.branch("try", on_success="commit") as branch:
    ...     _ = (branch.path / "a.txt").write_text("new\\n")
    >>> print(commit_diff(ws, 1).splitlines()[-1])
    +new
    """
    return unified(commit_files(workspace, number))


def commit_files(workspace: Workspace, number: int) -> list[FileDiff]:
    """List both versions of each file that a commit into a workspace changed; see ``commit_diff``."""
    with locked(workspace.state_dir.state):
        records = active_commits(workspace.state_dir, number - 1)
        if not records or records[0].number != number:
            raise CommitNotFoundError(
                f"there is no diff of commit {number}: it was undone, or its record was collected"
            )
        first, *later = records
        tree = FileTree(workspace.target, workspace.target)
        return [
            FileDiff(path, _before(workspace, [first], path), _before(workspace, later, path, tree))
            for path in sorted({*first.added, *first.changed, *first.deleted})
        ]


def version_at(workspace: Workspace, generation: int, path: str) -> FileVersion | None:
    """Return the version of a path in a workspace at the commit ``generation``; None if there was none.

    Raises CommitError if the record of a later commit was collected. An edit since, other than by a commit, is not
    known: then the version is the current one.
    """
    with locked(workspace.state_dir.state):
        records = active_commits(workspace.state_dir, generation)
        if records is None:
            raise CommitError(f"the files at commit {generation} are not known: later undo data was collected")
        return _before(workspace, records, path, FileTree(workspace.target, workspace.target))


def _before(
    workspace: Workspace, records: Sequence[Record], path: str, now: FileTree | None = None
) -> FileVersion | None:
    """Return the version of a path before the first of ``records`` that changed it; if none did, the one in ``now``."""
    for record in records:
        if (step := step_on(record, path)) is not None:
            return None if step[1].code in ("put", "mkdir") else _read_slot(slot_of(workspace, record, *step))
    return None if now is None else _read_version(now, path)


def _read_slot(path: str) -> FileVersion | None:
    """Read the version stored in a slot, to which only forkwise writes."""
    directory, _, name = path.rpartition("/")
    return _read_version(FileTree(directory, directory), name) if os.path.isdir(directory) else None


def _read_version(tree: FileTree, path: str) -> FileVersion | None:
    entry = tree.entry(path)
    if entry is None or not (stat.S_ISREG(entry.st_mode) or stat.S_ISLNK(entry.st_mode)):
        return None
    return FileVersion(entry.st_mode, None if entry.st_size > LIMIT else tree.content(path), entry.st_size)
