"""The diff of a commit, long after its branch is gone: what it replaced is in its undo record."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

from forkwise.errors import CommitError
from forkwise.files.branch import Parent
from forkwise.files.file_tree import FileTree
from forkwise.files.store.journal import Run, Step
from forkwise.files.store.overlayfs import Lower, LowerDirectory
from forkwise.files.store.record import Record
from forkwise.files.store.state import StateDir, locked
from forkwise.text.diff import LIMIT, FileDiff, Side, unified

if TYPE_CHECKING:
    from forkwise.files.workspace import Workspace

__all__ = [
    "active_commits",
    "chains_since",
    "commit_diff",
    "find_merge_base",
    "mode_at_fork",
    "slot_of",
    "step_on",
]


_GIT_PATIENCE = 10.0


def find_merge_base(parent: Parent, path: str, generation: int, forked: int) -> bytes | None:
    """What a parent had at ``path`` at the commit ``generation`` and the filesystem's time ``forked``, if known."""
    records = active_commits(parent.place, generation)
    if records is None:
        return None  # the oldest that is left would do no better: what came before it is not in both
    for record in records:
        step = step_on(record, path)
        if step is not None:
            return _kept(parent, record, *step, forked)
    if parent is parent.workspace:
        return _from_git(parent.workspace, path)
    return None


def active_commits(place: StateDir, generation: int) -> list[Record] | None:
    """The commits into a place after ``generation`` that were not taken back, in their order; None where one of them
    was collected. A commit and its undo cancel out; what an undo of an undo brought back counts as the first."""
    chains = chains_since(place, generation)
    return None if chains is None else [chain[0] for chain in chains if len(chain) % 2]


def chains_since(place: StateDir, generation: int) -> list[list[Record]] | None:
    """The commits into a place after ``generation``, each with the undo of it, the undo of that, and so on."""
    chains: dict[int, list[Record]] = {}
    firsts: dict[int, int] = {}
    for number in range(generation + 1, place.head + 1):
        record = Record.load(place.history(number))
        if record is None:
            return None
        first = firsts[number] = firsts.get(record.undoes or number, number)
        chains.setdefault(first, []).append(record)
    return list(chains.values())


def step_on(record: Record, path: str) -> tuple[Run, Step, str] | None:
    """The step that changed a path, and the rest of the path where the step moved a directory above it."""
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
    """The mode a file had at the commit ``generation``, if a commit changed the file since."""
    for record in active_commits(parent.place, generation) or ():
        step = step_on(record, path)
        if step is not None and step[1].code != "put":
            try:
                return stat.S_IMODE(os.lstat(slot_of(parent, record, *step)).st_mode)
            except OSError:
                return None
    return None


def slot_of(parent: Parent, record: Record, run: Run, step: Step, rest: str) -> str:
    """Where a commit keeps what it took the place of."""
    if step.slot:
        slot = f"{parent.place.path}/{record.side}/{step.slot}"
    else:
        slot = f"{parent.place.path}/{record.layer}/{run.directory}/{step.name}"
    return f"{slot}/{rest}" if rest else slot


def _kept(parent: Parent, record: Record, run: Run, step: Step, rest: str, forked: int) -> bytes | None:
    if step.code == "put":
        return _beneath_layer(parent, "/".join(filter(None, [run.directory, step.name, rest])), forked)
    path = slot_of(parent, record, run, step, rest)
    try:
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_mtime_ns >= forked:
            return None  # what the commit found was no longer what the branch was forked from
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _beneath_layer(parent: Parent, path: str, forked: int) -> bytes | None:
    """A layer that had nothing at a path showed what lies below it, unless the directory hid that."""
    directory, _, name = path.rpartition("/")
    with Lower(parent.lowers) as lower, lower.directory(directory) as held:
        below = LowerDirectory(held.fds[1:])
        holder, found = below.holder(name), below.lookup(name)
        if holder is None or found is None or not stat.S_ISREG(found.st_mode) or found.st_ctime_ns >= forked:
            return None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(name, flags, dir_fd=holder), "rb") as file:
            return file.read()


def _from_git(workspace: Workspace, path: str) -> bytes | None:
    """An older ancestor than the fork's is as good: what both sides have since is the same on both."""
    command = ["git", "-C", os.fspath(workspace.path), "cat-file", "blob", f":./{path}"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_GIT_PATIENCE, env=_harmless(), check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _harmless() -> dict[str, str]:
    """A branch may have written the repository's configuration: git is not to fetch, and so to run, anything by it."""
    return {**os.environ, "GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1"}


def commit_diff(workspace: Workspace, number: int) -> str:
    """What a commit into a workspace changed, as unified text that ``git apply`` takes.

    CommitError for one that was undone, or whose record was collected. Where somebody has changed a path since, by
    hand and not by a commit, it is shown as it is now.

    >>> import tempfile
    >>> from forkwise import Workspace
    >>> ws = Workspace(tempfile.mkdtemp())
    >>> with ws.branch("try", on_success="commit") as branch:
    ...     _ = (branch.path / "a.txt").write_text("new\\n")
    >>> print(commit_diff(ws, 1).splitlines()[-1])
    +new
    """
    with locked(workspace.place.state):
        records = active_commits(workspace.place, number - 1)
        if not records or records[0].number != number:
            raise CommitError(f"commit {number} does not stand any more: it was undone, or collected")
        first, *later = records
        tree = FileTree(workspace.target, workspace.target)
        changes = [
            FileDiff(path, _before(workspace, [first], path), _before(workspace, later, path, tree))
            for path in sorted({*first.added, *first.changed, *first.deleted})
        ]
    return unified(changes)


def _before(workspace: Workspace, records: Sequence[Record], path: str, now: FileTree | None = None) -> Side | None:
    """What a path was before the first of some commits that changed it; where none did, what it is ``now``."""
    for record in records:
        if (step := step_on(record, path)) is not None:
            return None if step[1].code in ("put", "mkdir") else _kept_content(slot_of(workspace, record, *step))
    return None if now is None else _found(now, path)


def _kept_content(path: str) -> Side | None:
    """What lies in a slot, where nobody but forkwise writes."""
    directory, _, name = path.rpartition("/")
    return _found(FileTree(directory, directory), name) if os.path.isdir(directory) else None


def _found(tree: FileTree, path: str) -> Side | None:
    entry = tree.entry(path)
    if entry is None or not (stat.S_ISREG(entry.st_mode) or stat.S_ISLNK(entry.st_mode)):
        return None
    return Side(entry.st_mode, None if entry.st_size > LIMIT else tree.content(path), entry.st_size)
