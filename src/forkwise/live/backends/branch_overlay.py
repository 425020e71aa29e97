"""Overlays: the files of a branch over those of its parent backend, the list of its changes, and its flush.

`BranchOverlay` chooses the kind by its parent: `FilesOverlay` is a real branch of files on disk, `MemoryOverlay` keeps
the changes in memory, over any other backend.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from forkwise.concurrency import finish_then_cancel, run_in_thread
from forkwise.errors import CommitError
from forkwise.files.branch import Branch
from forkwise.files.file_tree import FileTree
from forkwise.files.store.changes import Change, Commit, ConflictPolicy
from forkwise.files.workspace import Workspace
from forkwise.fork.agent_workspace import AgentFiles
from forkwise.fork.land import Landed, land
from forkwise.linux.trees import list_above
from forkwise.live.backends.backend import Backend, ExecuteResponse, FileInfo
from forkwise.live.backends.foreign import ForeignBackend, adapt_backend, find_directory
from forkwise.live.backends.local import DiskBackend
from forkwise.live.backends.memory import DatedBackend, next_tick, normalize_name
from forkwise.live.values import FileChange, FileOperation, FlushError, FlushReport
from forkwise.servers.data_branch import make_branch

__all__ = [
    "BranchOverlay",
    "FilesOverlay",
    "MemoryOverlay",
    "Mirror",
    "PathState",
    "build_flush_report",
    "conflict_contents",
    "content_of",
    "replay",
]


def content_of(backend: Backend, name: str) -> bytes | None:
    """Return the content of a file; None if there is none."""
    try:
        return backend.get(name)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def replay(
    contents: Mapping[str, bytes | None],
    changes: Sequence[FileChange],
    parent: Backend,
    is_diverged: Callable[[str], bool],
    policy: ConflictPolicy,
) -> FlushReport:
    """Apply new contents (None: remove the file) to a backend, all or none, except conflicts.

    A path is a conflict if ``is_diverged`` reports a change in the parent since the fork, and the parent's content is
    not the branch's. ``policy`` decides which version wins. A foreign backend has no transactions: there each path that
    cannot be changed is an error, and the others are applied.
    """
    found = {path: content_of(parent, path) for path in contents}
    conflicts = [path for path in contents if found[path] != contents[path] and is_diverged(path)]
    skipped = set(conflicts) if policy == "keep_newer" else set()
    wanted = {path: content for path, content in contents.items() if path not in skipped}
    lost = {path: contents[path] for path in conflicts if path in skipped}
    changed = {path: content for path, content in wanted.items() if found[path] != content}
    failures: list[FlushError] = []
    try:
        if isinstance(parent, ForeignBackend):
            for path, failure in parent.apply(changed).items():
                failures.append(FlushError(path, _operation(wanted[path]), failure.strerror or str(failure)))
                lost[path] = wanted.pop(path)
        else:
            parent.replace(changed)
    except OSError as error:
        path = str(error.filename or "")
        failed = FlushError(path, _operation(wanted.get(path, b"")), f"nothing was changed: {error.strerror or error}")
        return FlushReport([], 0, conflicts, [failed], conflict_contents=dict(contents))
    return FlushReport(
        applied_paths=sorted(path for path, content in wanted.items() if content is not None),
        applied_changes=sum(change.path in wanted for change in changes),
        conflicts=sorted(conflicts),
        errors=failures,
        deleted_paths=sorted(path for path, content in wanted.items() if content is None),
        conflict_contents=lost,
    )


def _operation(content: bytes | None) -> FileOperation:
    return "delete" if content is None else "write"


_DIRECTORY_MARK = object()  # marks directory changes in memory, where directories have no state of their own


class Mirror(Protocol):
    """A receiver of every change as it happens, such as a ForkMaterializer."""

    def snapshot_parent_path(self, path: str, content: bytes | None) -> None:
        """Save the parent's version of a path before its first change; None for no file."""

    def flush_change(self, branch_label: str, change: FileChange, content: bytes) -> None:
        """Mirror a file that was written."""

    def flush_delete(self, branch_label: str, change: FileChange) -> None:
        """Mirror a file that was removed."""


@dataclass(frozen=True, slots=True)
class PathState:
    """The last change of a path that differs from the parent: the operation, its time, and a mark.

    The mark differs after any further change of the path.
    """

    operation: FileOperation
    at: datetime
    mark: object


class BranchOverlay(Backend):
    """The files of a branch: unchanged files are those of ``parent``, changes stay here until they are flushed.

    Over a `LocalBackend`, or over an overlay of one, this is a real branch: commands run in its sandbox, and changes by
    a command or by a person with an editor in ``branch.path`` are changes of the branch. Any other parent, also a
    backend of another library (see `adapt_backend`), gets an overlay in memory. ``conflict_policy`` decides about paths
    that changed in the parent since the fork.

    >>> from forkwise.live.backends.memory import StateBackend
    >>> parent = StateBackend({"cat.md": "# Cat"})
    >>> branch = BranchOverlay(parent)
    >>> _ = branch.write("dog.md", "# Dog"); branch.exists("cat.md"), parent.exists("dog.md")
    (True, False)
    >>> branch.flush_to(parent).applied_paths, parent.exists("dog.md")
    (['dog.md'], True)
    """

    parent: Backend
    conflict_policy: ConflictPolicy
    #: The commit of a flush into a directory, which can be undone.
    commit: Commit | None = None

    def __new__(cls, parent: Any, *_: Any, **__: Any) -> BranchOverlay:
        if cls is not BranchOverlay:
            return super().__new__(cls)
        return super().__new__(MemoryOverlay if find_directory(parent) is None else FilesOverlay)

    def __init__(self, parent: Any, label: str = "branch", *, conflict_policy: ConflictPolicy = "keep_newer") -> None:
        self.parent = adapt_backend(parent)
        self.conflict_policy = conflict_policy
        self._log: list[tuple[FileChange, object]] = []
        self._found: dict[str, tuple[FileChange, object]] = {}  # the last change of each path that no call logged
        # Not ``lock``, which may be held while a foreign parent waits for the event loop that wants to read the log.
        self._log_lock = threading.Lock()
        self._mirror: Mirror | None = None
        self._mirrored: set[FileChange] = set()
        self._label = label

    # Changes

    @abstractmethod
    def path_states(self) -> Mapping[str, PathState]:
        """Return the state of all paths that differ from the parent, sorted by name."""

    @abstractmethod
    def mark(self, name: str) -> object:
        """Return the current mark of a path."""

    @abstractmethod
    def old(self, path: str) -> bytes | None:
        """Return the content of a file in the parent; None if there is no file."""

    @abstractmethod
    def new(self, path: str) -> bytes | None:
        """Return the content of a file in the branch; None if there is no file."""

    def changes(self) -> list[FileChange]:
        """Return the changes of the paths that differ from the parent, in the order of time.

        These are each write, edit and deletion through this backend, and one change for each path that was changed
        otherwise, for example by a command.
        """
        return self._changes(self.path_states())

    def _changes(self, states: Mapping[str, PathState]) -> list[FileChange]:
        with self._log_lock:
            known = {change.path: mark for change, mark in self._log}
            for path, state in states.items():
                if path not in known or known[path] != state.mark:
                    self._log.append((FileChange(path, state.operation, state.at), state.mark))
                    self._found[path] = self._log[-1]
            self._log.sort(key=lambda entry: entry[0].timestamp)
            return [change for change, mark in self._log if change.path in states or mark is _DIRECTORY_MARK]

    def deleted(self) -> set[str]:
        """Return the parent's files that were deleted here."""
        return {path for path, state in self.path_states().items() if state.operation == "delete"}

    def touched(self) -> list[str]:
        """Return the files that were written or deleted, sorted by name."""
        return [path for path, state in self.path_states().items() if state.operation in ("write", "delete")]

    def record_change(self, name: str, operation: FileOperation) -> None:
        """Log a change, and mirror it."""
        change = FileChange(name, operation, datetime.now(UTC))
        self._append(change, self.mark(name))
        if operation == "delete":
            self.mirror_all()  # a directory may have had several files
        else:
            self._mirror_one(change)

    def record_mkdir(self, path: str) -> None:
        """Record that a directory was created."""
        self._append(FileChange(self.name_of(path), "mkdir", datetime.now(UTC)), _DIRECTORY_MARK)

    def record_rmdir(self, path: str) -> None:
        """Remove a directory with its content."""
        self._append(FileChange(self.name_of(path), "rmdir", datetime.now(UTC)), _DIRECTORY_MARK)

    def _append(self, change: FileChange, mark: object) -> None:
        with self._log_lock:
            found = self._found.pop(change.path, None)
            if found is not None and found[1] == mark:  # another thread found it between the write and this call
                self._log.remove(found)
            self._log.append((change, mark))

    # The mirror

    def attach_materializer(self, materializer: Mirror, branch_label: str) -> None:
        """Mirror the existing changes now, and every further change as it happens."""
        self._mirror, self._label = materializer, branch_label
        self.mirror_all()

    @property
    def is_mirrored(self) -> bool:
        """Whether a mirror is attached."""
        return self._mirror is not None

    def mirror_all(self) -> None:
        """Mirror all changes that are not mirrored yet, including those by commands."""
        if self.is_mirrored:
            for change in self.changes():
                self._mirror_one(change)

    def _mirror_one(self, change: FileChange) -> None:
        if self._mirror is None or change in self._mirrored or change.op in ("mkdir", "rmdir"):
            return
        self._mirrored.add(change)
        self._mirror.snapshot_parent_path(change.path, self.old(change.path))
        content = self.new(change.path)
        if content is not None:
            self._mirror.flush_change(self._label, change, content)
        elif self.old(change.path) is not None:
            self._mirror.flush_delete(self._label, change)

    @abstractmethod
    def snapshot(self, parent_root: str | Path, *, include_venv: bool = False) -> AbstractContextManager[Path]:
        """Return a context manager for a directory with the branch's files, whose changes are discarded at the end.

        Nothing is copied and nothing is left out, so ``include_venv`` has no effect.
        """

    # The end of the branch

    @abstractmethod
    def flush_to(self, parent: Any, pre_flush_snapshot: Mapping[str, bytes | None] | None = None) -> FlushReport:
        """Apply the changes to the parent: all or nothing, except conflicts, which the policy decides.

        ``pre_flush_snapshot`` has the parent's content of some paths at the fork. Without it, and always in a
        directory, the parent's own change times show which paths changed since.
        """

    def discard(self) -> None:
        """Drop the branch and its changes."""


_OPERATIONS: dict[tuple[str, bool], FileOperation] = {
    ("added", True): "mkdir",
    ("deleted", True): "rmdir",
    ("added", False): "write",
    ("changed", False): "write",
    ("deleted", False): "delete",
}


class FilesOverlay(BranchOverlay, DiskBackend):
    """An overlay that is a branch on disk: ``branch``, or a new one."""

    parent: DiskBackend

    def __init__(
        self,
        parent: Any,
        label: str = "branch",
        *,
        conflict_policy: ConflictPolicy = "keep_newer",
        branch: Branch | None = None,
    ) -> None:
        directory = find_directory(parent)
        if directory is None:
            raise TypeError(f"{parent!r} is not a directory")
        super().__init__(directory, label, conflict_policy=conflict_policy)
        self.branch = branch or make_branch(directory.source, _build_name(label))
        self.files = AgentFiles(self.branch, directory.files.confinement)
        self._last_states: dict[str, PathState] = {}

    def __repr__(self) -> str:
        return f"<BranchOverlay {self.branch.branch_path} of {self.files.workspace_path}>"

    # Commands

    @property
    def execute_enabled(self) -> bool:
        """Whether commands can be run in the parent, and so here."""
        return self.parent.execute_enabled

    def execute(self, command: str, timeout: float | None = None) -> ExecuteResponse:
        """Run a shell command in the branch's sandbox, at the workspace's own path."""
        done = super().execute(command, timeout)
        self.mirror_all()
        return done

    async def async_execute(self, command: str, timeout: float | None = None) -> ExecuteResponse:
        """Run `execute` for asyncio programs; cancelling kills the command and its descendants."""
        done = await super().async_execute(command, timeout)
        if self.is_mirrored:
            await finish_then_cancel(run_in_thread(self.mirror_all))
        return done

    # Changes

    def path_states(self) -> Mapping[str, PathState]:
        """Return the states of the paths in the branch's delta.

        The cost grows with the number of changes, not with the number of files.
        """
        tree = self.files.tree()
        changes = [c for c in self.branch.delta() if (c.kind, c.type == "directory") in _OPERATIONS]
        self._last_states = {change.path: self._find_state(tree, change) for change in changes}
        return self._last_states

    def _find_state(self, tree: FileTree, change: Change) -> PathState:
        operation = _OPERATIONS[change.kind, change.type == "directory"]
        entry = None if change.kind == "deleted" else tree.entry(change.path)
        if entry is not None:
            changed = datetime.fromtimestamp(entry.st_ctime_ns / 1e9, UTC)
            return PathState(operation, changed, None if change.type == "directory" else entry.st_ctime_ns)
        before = self._last_states.get(change.path)
        at = before.at if before and before.operation == operation else datetime.now(UTC)
        return PathState(operation, at, None)

    def mark(self, name: str) -> object:
        """Return the ctime of a path; None if there is no file."""
        entry = self.files.tree().entry(name)
        return None if entry is None else entry.st_ctime_ns

    def record_mkdir(self, path: str) -> None:
        """Create a directory."""
        self.files.tree().make_directory(path)

    def record_rmdir(self, path: str) -> None:
        """Remove a directory."""
        self.files.tree().remove(path)

    def old(self, path: str) -> bytes | None:
        """Return the content of a file in the parent; None if there is no file."""
        return self.parent.files.tree().content(path)

    def new(self, path: str) -> bytes | None:
        """Return the content of a file in the branch; None if there is no file."""
        return self.files.tree().content(path)

    def old_mode(self, path: str) -> int | None:
        """Return the mode of a file in the parent; None if there is no file."""
        entry = self.parent.files.tree().entry(path)
        return None if entry is None else entry.st_mode

    def new_mode(self, path: str) -> int | None:
        """Return the mode of a file in the branch; None if there is no file."""
        entry = self.files.tree().entry(path)
        return None if entry is None else entry.st_mode

    @contextmanager
    def snapshot(self, parent_root: str | Path | None = None, *, include_venv: bool = False) -> Iterator[Path]:
        """Yield the directory of a nested branch; this branch is read-only until the block ends."""
        inner = self.branch.branch(f"snapshot-{secrets.token_hex(4)}", None, None)
        try:
            yield inner.path
        finally:
            inner.abort()

    # The end of the branch

    def flush_to(self, parent: Any, pre_flush_snapshot: Mapping[str, bytes | None] | None = None) -> FlushReport:
        """Commit the branch through the journal, which ends the branch, and set ``commit``.

        If the commit fails, nothing is changed, the report has the errors, and the branch still exists.
        """
        directory = find_directory(parent)
        if directory is None or directory.source.state_dir.path != self.branch.parent.state_dir.path:
            return self._replay(adapt_backend(parent), pre_flush_snapshot or {})
        states = self.path_states()
        changes = self._changes(states)
        if not states and not len(self.branch.delta()):
            self.branch.abort()
            return FlushReport([], 0, [], [])
        try:
            landed = land(self.branch, self.conflict_policy)
        except CommitError as error:
            failed = error.paths or [""]
            return FlushReport(
                [],
                0,
                [],
                [FlushError(p, _operation_of(states.get(p)), f"nothing was changed: {error}") for p in failed],
            )
        self.commit = landed.commit
        return build_flush_report(landed, states, changes)

    def _replay(self, parent: Backend, known: Mapping[str, bytes | None]) -> FlushReport:
        """Write the contents into a backend that is not the parent of this branch."""
        states = self.path_states()
        contents = {p: self.new(p) for p, s in states.items() if s.operation in ("write", "delete")}

        def is_diverged(path: str) -> bool:
            return content_of(parent, path) != known.get(path, self.old(path))

        return replay(contents, self._changes(states), parent, is_diverged, self.conflict_policy)

    def discard(self) -> None:
        """Abort the branch, if it still exists."""
        self.branch._abort_if_open()


def _build_name(label: str) -> str:
    """Build a branch name from a label, which may contain any characters.

    >>> _build_name("../up & away").rpartition("-")[0]
    'up-away'
    """
    plain = re.sub(r"[^\w.]+", "-", label).strip("-.") or "branch"
    return f"{plain[:40]}-{secrets.token_hex(4)}"


def build_flush_report(landed: Landed, states: Mapping[str, PathState], changes: Sequence[FileChange]) -> FlushReport:
    """Build the report of a commit, given the branch's states and changes before it."""
    done = set(landed.commit.paths)
    return FlushReport(
        applied_paths=[p for p, s in states.items() if p in done and s.operation == "write"],
        applied_changes=sum(change.path in done for change in changes),
        conflicts=sorted(conflict.path for conflict in landed.conflicts),
        errors=[],
        deleted_paths=sorted(landed.commit.deleted),
        conflict_contents=conflict_contents(landed),
        kept_branch=landed.kept.branch_path if landed.kept else None,
    )


def _operation_of(state: PathState | None) -> FileOperation:
    return "write" if state is None else state.operation


def conflict_contents(landed: Landed) -> dict[str, bytes | None]:
    """Return the branch's versions of the conflicting paths, for which the parent's were kept."""
    if landed.kept is None:
        return {}
    tree = FileTree(os.fspath(landed.kept.path), os.fspath(landed.kept.workspace.path))
    return {conflict.path: tree.content(conflict.path) for conflict in landed.conflicts}


class _LayerEntry(NamedTuple):
    """The content of a changed path (None: removed), and the tick and time of the change."""

    content: bytes | None
    tick: int
    at: datetime


class MemoryOverlay(BranchOverlay, DatedBackend):
    """An overlay that keeps its changes in memory."""

    def __init__(self, parent: Any, label: str = "branch", *, conflict_policy: ConflictPolicy = "keep_newer") -> None:
        super().__init__(parent, label, conflict_policy=conflict_policy)
        self._forked_at = next_tick()
        self._removed_directories: set[str] = set()
        self._layer: dict[str, _LayerEntry] = {}
        self._directories: Counter[str] = Counter()  # the number of written files below each
        self._base: dict[str, bytes | None] = {}  # the parent's contents at the first change of each path

    # Files

    def name_of(self, path: str) -> str:
        """Return the name in the parent."""
        return self.parent.name_of(path)

    def get(self, name: str) -> bytes:
        """Return the content of a file: the branch's, else the parent's."""
        change = self._layer.get(name)
        if change is not None and change.content is not None:
            return change.content
        if not name or self._directories[name]:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if change is not None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        try:
            return self.parent.get(name)
        except IsADirectoryError:
            self.names(name)  # raises if all its files were removed here
            raise

    def put(self, name: str, content: bytes) -> None:
        """Write a file in the branch."""
        with self.lock:
            try:
                self.get(name)
            except FileNotFoundError:
                if any(content_of(self, directory) is not None for directory in list_above(name)):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from None
            self._set_in_layer(name, content)

    def remove(self, name: str) -> None:
        """Remove a file, or all files below a directory, from the branch."""
        with self.lock:
            try:
                found = [info["path"] for info in self.walk(name)]
            except NotADirectoryError:
                found = [name]
            for path in found:
                self._set_in_layer(path, None)

    def _set_in_layer(self, name: str, content: bytes | None) -> None:
        before = self._layer.get(name)
        is_written, was_written = content is not None, before is not None and before.content is not None
        if is_written:
            self._removed_directories.difference_update(list_above(name))
        if is_written and not was_written:
            self._directories.update(list_above(name))
        elif was_written and not is_written:
            self._directories.subtract(list_above(name))
        if name not in self._base:
            self._base[name] = content_of(self.parent, name)
        self._layer[name] = _LayerEntry(content, next_tick(), datetime.now(UTC))

    @property
    def layer(self) -> dict[str, bytes | None]:
        """A copy of the contents that were written here; None for removed files."""
        return {path: change.content for path, change in dict(self._layer).items()}

    def restore(self, layer: Mapping[str, bytes | None]) -> None:
        """Replace all changes of the branch by those of ``layer``."""
        with self.lock:
            for path in self._layer.keys() - layer.keys():
                if self._layer[path].content is not None:
                    self._directories.subtract(list_above(path))
                del self._layer[path], self._base[path]
            self._removed_directories.clear()
            for path, content in layer.items():
                if path not in self._layer or self._layer[path].content != content:
                    self._set_in_layer(path, content)

    def names(self, name: str = "") -> Iterator[FileInfo]:
        """List a directory: the parent's and the branch's files."""
        layer = self._layer_below(name)
        changed = {path[len(name) + 1 if name else 0 :].partition("/")[0] for path in layer}
        entries = {info["name"]: info for info in self._list_parent(name) if info["name"] not in changed}
        prefix = f"{name}/" if name else ""
        for first in changed:  # a directory of the parent is listed if not all its files were removed here
            files = self._list_files_below(prefix + first)
            if prefix + first in files:
                entries[first] = files[prefix + first]
            elif files:
                entries[first] = FileInfo(name=first, path=prefix + first, is_dir=True, size=None)
        if name and not entries:
            own = self._layer.get(name)
            is_file = (content_of(self.parent, name) if own is None else own.content) is not None
            number = errno.ENOTDIR if is_file else errno.ENOENT
            raise (NotADirectoryError if is_file else FileNotFoundError)(number, os.strerror(number), name)
        return iter([entries[first] for first in sorted(entries)])

    def walk(self, name: str = "") -> Iterator[FileInfo]:
        """Iterate over all files below a directory. Raise OSError if there is no such directory."""
        self.names(name)  # raises if there is no such directory
        files = self._list_files_below(name)
        return iter([files[path] for path in sorted(files)])

    def _layer_below(self, name: str) -> dict[str, _LayerEntry]:
        layer = dict(self._layer)
        return {path: entry for path, entry in layer.items() if path.startswith(f"{name}/")} if name else layer

    def _list_parent(self, name: str) -> list[FileInfo]:
        """List a directory of the parent; an empty list if there is none, or if the branch has a file at its path."""
        if self._is_in_layer(name):
            return []
        try:
            return list(self.parent.names(name))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _is_in_layer(self, name: str) -> bool:
        """Return whether a path, or a directory above it, is a file that was written here."""
        entries = (self._layer.get(path) for path in (*list_above(name), name))
        return any(entry is not None and entry.content is not None for entry in entries)

    def _list_files_below(self, name: str) -> dict[str, FileInfo]:
        """Return the files at and below a path."""
        found: dict[str, FileInfo] = {}
        if not self._is_in_layer(name):
            try:
                found = {info["path"]: info for info in self.parent.walk(name)}
            except NotADirectoryError:
                found = {name: FileInfo(name=os.path.basename(name), path=name, is_dir=False, size=None)}
            except FileNotFoundError:
                pass
        own = {name: self._layer[name]} if name in self._layer else {}
        for path, change in (own | self._layer_below(name)).items():
            if change.content is None:
                found.pop(path, None)
            else:
                found[path] = FileInfo(name=os.path.basename(path), path=path, is_dir=False, size=len(change.content))
        return found

    def changed_at(self, name: str) -> int:
        """Return the tick of a file's last change, here or in the parent."""
        here = self._layer[name].tick if name in self._layer else 0
        return max(here, self.parent.changed_at(name) if isinstance(self.parent, DatedBackend) else 0)

    # Changes

    def record_rmdir(self, path: str) -> None:
        """Remove a directory with its content."""
        name = self.name_of(path)
        with self.lock:
            with suppress(FileNotFoundError):  # an empty directory has no state in memory
                self.remove(name)
            self._removed_directories.add(name)
            super().record_rmdir(name)
        self.mirror_all()

    def deleted(self) -> set[str]:
        """Return the parent's files and the directories that were deleted here."""
        return super().deleted() | self._removed_directories

    def path_states(self) -> Mapping[str, PathState]:
        """Return the states of the paths whose content differs from the parent's at their first change."""
        found = {}
        for path, change in sorted(dict(self._layer).items()):
            if change.content != self._base[path]:
                found[path] = PathState("delete" if change.content is None else "write", change.at, change.tick)
        return found

    def mark(self, name: str) -> object:
        """Return the tick of a path's last change here; None if it was not changed."""
        return self._layer[name].tick if name in self._layer else None

    def old(self, path: str) -> bytes | None:
        """Return the parent's content at the first change of the path; None if there was no file."""
        name = path if path in self._base else normalize_name(path)
        return self._base[name] if name in self._base else content_of(self.parent, name)

    def new(self, path: str) -> bytes | None:
        """Return the content of a file in the branch; None if there is no file."""
        change = self._layer.get(path)
        return content_of(self, normalize_name(path)) if change is None else change.content

    @contextmanager
    def snapshot(self, parent_root: str | Path, *, include_venv: bool = False) -> Iterator[Path]:
        """Yield a branch of ``parent_root`` with this branch's files, which is dropped when the block ends."""
        branch = Workspace(parent_root).branch(f"snapshot-{secrets.token_hex(4)}", None, None)
        try:
            tree = FileTree(os.fspath(branch.path), os.fspath(branch.workspace.path))
            for path, change in self._layer.items():
                if change.content is not None:
                    tree.write(path, change.content)
                elif tree.exists(path):
                    tree.remove(path)
            yield branch.path
        finally:
            branch.abort()

    # The end of the branch

    def flush_to(self, parent: Any, pre_flush_snapshot: Mapping[str, bytes | None] | None = None) -> FlushReport:
        """Apply the changes to the parent: all or nothing, except conflicts, which the policy decides."""
        known = pre_flush_snapshot or {}
        backend = adapt_backend(parent)

        def is_diverged(path: str) -> bool:
            if path not in known and backend is self.parent and isinstance(backend, DatedBackend):
                return backend.changed_at(path) > self._forked_at
            return content_of(backend, path) != known.get(path, self._base[path])

        contents = {path: self._layer[path].content for path in self.path_states()}
        changes = self.changes()
        report = replay(contents, changes, backend, is_diverged, self.conflict_policy)
        failed = {*report.conflicts, *(error.path for error in report.errors)}
        gone = {d for d in self._removed_directories if not any(path.startswith(f"{d}/") for path in failed)}
        if not gone or "" in failed:
            return report
        if isinstance(backend, BranchOverlay):
            for directory in gone:
                backend.record_rmdir(directory)
        return replace(
            report,
            applied_changes=report.applied_changes + sum(c.op == "rmdir" and c.path in gone for c in changes),
            deleted_paths=sorted({*report.deleted_paths, *gone}),
        )
