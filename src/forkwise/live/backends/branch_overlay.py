"""MemoryOverlay: a branch of files that are in memory, or wherever their backend keeps them."""

from __future__ import annotations

import errno
import os
import re
import secrets
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
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
from forkwise.fork.resolve import Landed, land
from forkwise.live.backends.backend import Backend, ExecuteResponse, FileInfo
from forkwise.live.backends.local import PlaceBackend
from forkwise.live.backends.memory import Dated, above, listed, moment, plain_name
from forkwise.live.values import FileChange, FileOperation, FlushError, FlushReport

__all__ = [
    "BranchOverlay",
    "FilesOverlay",
    "MemoryOverlay",
    "Mirror",
    "Standing",
    "conflict_contents",
    "content_of",
    "flushed",
    "replay",
]


def content_of(backend: Backend, name: str) -> bytes | None:
    """What a file holds; None where there is none."""
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
    """Give the files of a backend their new contents (None: removed), all or none, but for conflicts.

    A path is a conflict where ``is_diverged`` says that somebody else has changed it, to something else than the
    branch did.
    """
    found = {path: content_of(parent, path) for path in contents}
    conflicts = [path for path in contents if found[path] != contents[path] and is_diverged(path)]
    left = set(conflicts) if policy == "keep_newer" else set()
    wanted = {path: content for path, content in contents.items() if path not in left}
    lost = {path: contents[path] for path in conflicts if path in left}
    try:
        parent.replace({path: content for path, content in wanted.items() if found[path] != content})
    except OSError as error:
        path = str(error.filename or "")
        operation: FileOperation = "delete" if wanted.get(path, b"") is None else "write"
        failed = FlushError(path, operation, f"nothing was changed: {error.strerror or error}")
        return FlushReport([], 0, conflicts, [failed], conflict_contents=dict(contents))
    return FlushReport(
        applied_paths=sorted(path for path, content in wanted.items() if content is not None),
        applied_changes=sum(change.path in wanted for change in changes),
        conflicts=sorted(conflicts),
        errors=[],
        deleted_paths=sorted(path for path, content in wanted.items() if content is None),
        conflict_contents=lost,
    )


_NOTED = object()  # the mark of what was only told, and has no standing: files in memory lie in no directories


class Mirror(Protocol):
    """What is told of every change as it happens: a ForkMaterializer."""

    def snapshot_parent_path(self, path: str, content: bytes | None) -> None:
        """What the parent has at a path that is changed for the first time."""

    def flush_change(self, branch_label: str, change: FileChange, content: bytes) -> None:
        """A file was written."""

    def flush_delete(self, branch_label: str, change: FileChange) -> None:
        """A file was removed."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a path that differs from the parent came to do so: by what, when, and a mark that any further change of it
    changes."""

    operation: FileOperation
    at: datetime
    mark: object


class BranchOverlay(Backend):
    """The files of a branch over those of ``parent``: what is read and not changed is the parent's, what is written
    stays here until it is flushed.

    Over a `LocalBackend`, or over the overlay of a branch of one, this is a real branch: commands run in its sandbox,
    and whatever changes its files (a command, a person with an editor in ``branch.path``) has changed the branch. Any
    other parent gets an overlay in memory. ``conflict_policy`` says what a flush does about paths that somebody else
    changed in the parent meanwhile.

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
    #: What undoes a flush, after one into a directory.
    commit: Commit | None = None

    def __new__(cls, parent: Backend, *_: Any, **__: Any) -> BranchOverlay:
        if cls is not BranchOverlay:
            return super().__new__(cls)
        from forkwise.live.backends.local import PlaceBackend  # noqa: PLC0415 - both are overlays themselves

        return super().__new__(FilesOverlay if isinstance(parent, PlaceBackend) else MemoryOverlay)

    def __init__(
        self, parent: Backend, label: str = "branch", *, conflict_policy: ConflictPolicy = "keep_newer"
    ) -> None:
        self.parent = parent
        self.conflict_policy = conflict_policy
        self._log: list[tuple[FileChange, object]] = []
        self._mirror: Mirror | None = None
        self._mirrored: set[FileChange] = set()
        self._label = label

    # What it changed

    @abstractmethod
    def standing(self) -> Mapping[str, Standing]:
        """All paths that differ from the parent, in the order of their names."""

    @abstractmethod
    def mark(self, name: str) -> object:
        """The mark that a path's standing has now."""

    @abstractmethod
    def old(self, path: str) -> bytes | None:
        """What the parent has there; None where there is no file."""

    @abstractmethod
    def new(self, path: str) -> bytes | None:
        """What the branch has there; None where there is no file."""

    def changes(self) -> list[FileChange]:
        """What was done to the paths that differ from the parent, in the order of time: each write, edit and deletion
        that was asked for here, and for what was changed otherwise, as by a command, the change as it was found."""
        with self.lock:
            return self._changes(self.standing())

    def _changes(self, standing: Mapping[str, Standing]) -> list[FileChange]:
        with self.lock:
            known = {change.path: mark for change, mark in self._log}
            for path, now in standing.items():
                if path not in known or known[path] != now.mark:
                    self._log.append((FileChange(path, now.operation, now.at), now.mark))
            self._log.sort(key=lambda logged: logged[0].timestamp)
            return [change for change, mark in self._log if change.path in standing or mark is _NOTED]

    def deleted(self) -> set[str]:
        """The files of the parent that are gone here."""
        return {path for path, now in self.standing().items() if now.operation == "delete"}

    def touched(self) -> list[str]:
        """The files that were written or deleted."""
        return [path for path, now in self.standing().items() if now.operation in ("write", "delete")]

    def changed(self, name: str, operation: FileOperation) -> None:
        """Note what was done, and mirror it."""
        change = FileChange(name, operation, datetime.now(UTC))
        self._log.append((change, self.mark(name)))
        if operation == "delete":
            self.mirror_all()  # it may have been a directory
        else:
            self._mirror_one(change)

    def record_mkdir(self, path: str) -> None:
        """Note that a directory was made."""
        self._log.append((FileChange(self.name_of(path), "mkdir", datetime.now(UTC)), _NOTED))

    def record_rmdir(self, path: str) -> None:
        """Note that a directory was removed."""
        self._log.append((FileChange(self.name_of(path), "rmdir", datetime.now(UTC)), _NOTED))

    # For people who look

    def attach_materializer(self, materializer: Mirror, branch_label: str) -> None:
        """Have every change mirrored from now on, and what was changed before at once."""
        self._mirror, self._label = materializer, branch_label
        self.mirror_all()

    @property
    def is_mirrored(self) -> bool:
        """Whether somebody looks."""
        return self._mirror is not None

    def mirror_all(self) -> None:
        """Mirror what was changed and is not mirrored yet, whoever changed it."""
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
        """A directory that shows the branch to a command that may do with it what it likes: nothing of that is kept.
        Nothing is copied, and nothing is left out, so that ``include_venv`` makes no difference."""

    # What becomes of it

    @abstractmethod
    def flush_to(self, parent: Backend, pre_flush_snapshot: Mapping[str, bytes | None] | None = None) -> FlushReport:
        """Make what was changed here the parent's: all of it or nothing, but for conflicts, which the policy decides.

        ``pre_flush_snapshot`` says what the parent had at some paths when the branch was made. Without it, and in a
        directory always, the parent's own dates tell what somebody else has changed since.
        """

    def discard(self) -> None:
        """Let go of it, and of all that was changed."""


_OPERATIONS: dict[tuple[str, bool], FileOperation] = {
    ("added", True): "mkdir",
    ("deleted", True): "rmdir",
    ("added", False): "write",
    ("changed", False): "write",
    ("deleted", False): "delete",
}


class FilesOverlay(BranchOverlay, PlaceBackend):
    """An overlay that is a branch on the disk. ``branch`` is one that was made already; else one is made."""

    parent: PlaceBackend

    def __init__(
        self,
        parent: PlaceBackend,
        label: str = "branch",
        *,
        conflict_policy: ConflictPolicy = "keep_newer",
        branch: Branch | None = None,
    ) -> None:
        super().__init__(parent, label, conflict_policy=conflict_policy)
        self.branch = branch or parent.place.branch(_name(label), None, None)
        self.files = AgentFiles(self.branch, parent.files.confinement)
        self._seen: dict[str, Standing] = {}

    def __repr__(self) -> str:
        return f"<BranchOverlay {self.branch.branch_path} of {self.files.workspace_path}>"

    # Commands

    def execute(self, command: str, timeout: float | None = None) -> ExecuteResponse:
        """Run a shell command in the branch's sandbox, at the workspace's own path."""
        done = super().execute(command, timeout)
        self.mirror_all()
        return done

    async def async_execute(self, command: str, timeout: float | None = None) -> ExecuteResponse:
        """The same for asyncio programs; cancelled, it ends the command with all its descendants."""
        done = await super().async_execute(command, timeout)
        if self.is_mirrored:
            await finish_then_cancel(run_in_thread(self.mirror_all))
        return done

    # What it changed

    def standing(self) -> Mapping[str, Standing]:
        """The branch's delta. What it costs grows with what was changed, not with the files there are."""
        tree = self.files.tree()
        changes = [c for c in self.branch.delta() if (c.kind, c.type == "directory") in _OPERATIONS]
        self._seen = {change.path: self._standing(tree, change) for change in changes}
        return self._seen

    def _standing(self, tree: FileTree, change: Change) -> Standing:
        operation = _OPERATIONS[change.kind, change.type == "directory"]
        entry = None if change.kind == "deleted" else tree.entry(change.path)
        if entry is not None:
            changed = datetime.fromtimestamp(entry.st_ctime_ns / 1e9, UTC)
            return Standing(operation, changed, None if change.type == "directory" else entry.st_ctime_ns)
        before = self._seen.get(change.path)
        at = before.at if before and before.operation == operation else datetime.now(UTC)
        return Standing(operation, at, None)

    def mark(self, name: str) -> object:
        """When the filesystem says that a path was changed last."""
        entry = self.files.tree().entry(name)
        return None if entry is None else entry.st_ctime_ns

    def record_mkdir(self, path: str) -> None:
        """Make a directory."""
        self.files.tree().make_directory(path)

    def record_rmdir(self, path: str) -> None:
        """Remove a directory."""
        self.files.tree().remove(path)

    def old(self, path: str) -> bytes | None:
        """What the parent has."""
        return self.parent.files.tree().content(path)

    def new(self, path: str) -> bytes | None:
        """What the branch has."""
        return self.files.tree().content(path)

    def old_mode(self, path: str) -> int | None:
        """The mode in the parent."""
        entry = self.parent.files.tree().entry(path)
        return None if entry is None else entry.st_mode

    def new_mode(self, path: str) -> int | None:
        """The mode in the branch."""
        entry = self.files.tree().entry(path)
        return None if entry is None else entry.st_mode

    @contextmanager
    def snapshot(self, parent_root: str | Path | None = None, *, include_venv: bool = False) -> Iterator[Path]:
        """A branch of this branch, which is read-only until the block ends."""
        inner = self.branch.branch(f"snapshot-{secrets.token_hex(4)}", None, None)
        try:
            yield inner.path
        finally:
            inner.abort()

    # What becomes of it

    def flush_to(self, parent: Backend, pre_flush_snapshot: Mapping[str, bytes | None] | None = None) -> FlushReport:
        """Commit the branch through the journal, which ends it; ``commit`` is then what undoes it. What could not be
        committed is reported with nothing changed, and the branch is still there."""
        if not isinstance(parent, PlaceBackend) or parent.place.state_dir.path != self.branch.parent.state_dir.path:
            return self._replay(parent, pre_flush_snapshot or {})
        standing = self.standing()
        changes = self._changes(standing)
        if not standing and not len(self.branch.delta()):
            self.branch.abort()
            return FlushReport([], 0, [], [])
        try:
            landed = land(self.branch, self.conflict_policy)
        except CommitError as error:
            failed = error.paths or [""]
            return FlushReport(
                [], 0, [], [FlushError(p, _operation(standing.get(p)), f"nothing was changed: {error}") for p in failed]
            )
        self.commit = landed.commit
        return flushed(landed, standing, changes)

    def _replay(self, parent: Backend, known: Mapping[str, bytes | None]) -> FlushReport:
        """Into files that this is no branch of: their content goes, whatever keeps it."""
        standing = self.standing()
        contents = {p: self.new(p) for p, s in standing.items() if s.operation in ("write", "delete")}

        def is_diverged(path: str) -> bool:
            return content_of(parent, path) != known.get(path, self.old(path))

        return replay(contents, self._changes(standing), parent, is_diverged, self.conflict_policy)

    def discard(self) -> None:
        """Abort the branch, if it is still there."""
        if self.branch.status not in ("committed", "aborted"):
            self.branch.abort()


def _name(label: str) -> str:
    """A branch's name out of a label, which may hold anything.

    >>> _name("../up & away").rpartition("-")[0]
    'up-away'
    """
    plain = re.sub(r"[^\w.]+", "-", label).strip("-.") or "branch"
    return f"{plain[:40]}-{secrets.token_hex(4)}"


def flushed(landed: Landed, standing: Mapping[str, Standing], changes: Sequence[FileChange]) -> FlushReport:
    """What became of a branch that was committed, from what it had changed before."""
    done = set(landed.commit.paths)
    return FlushReport(
        applied_paths=[p for p, s in standing.items() if p in done and s.operation == "write"],
        applied_changes=sum(change.path in done for change in changes),
        conflicts=sorted(conflict.path for conflict in landed.conflicts),
        errors=[],
        deleted_paths=sorted(landed.commit.deleted),
        conflict_contents=conflict_contents(landed),
        kept_branch=landed.kept.branch_path if landed.kept else None,
    )


def _operation(standing: Standing | None) -> FileOperation:
    return "write" if standing is None else standing.operation


def conflict_contents(landed: Landed) -> dict[str, bytes | None]:
    """The winner's version of what was left as the parent has it."""
    if landed.kept is None:
        return {}
    tree = FileTree(os.fspath(landed.kept.path), os.fspath(landed.kept.workspace.path))
    return {conflict.path: tree.content(conflict.path) for conflict in landed.conflicts}


class _Change(NamedTuple):
    """What a path became (None: removed), and when."""

    content: bytes | None
    changed: int
    at: datetime


class MemoryOverlay(BranchOverlay, Dated):
    """An overlay that keeps in memory what was changed."""

    def __init__(
        self, parent: Backend, label: str = "branch", *, conflict_policy: ConflictPolicy = "keep_newer"
    ) -> None:
        super().__init__(parent, label, conflict_policy=conflict_policy)
        self._forked = moment()
        self._layer: dict[str, _Change] = {}
        self._directories: Counter[str] = Counter()  # how many files were written beneath each
        self._base: dict[str, bytes | None] = {}  # what the parent had when a path was first changed

    # Files

    def name_of(self, path: str) -> str:
        """As the parent names it."""
        return self.parent.name_of(path)

    def get(self, name: str) -> bytes:
        """The branch's content, else the parent's."""
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
            self.names(name)  # which raises where all that was in it is gone
            raise

    def put(self, name: str, content: bytes) -> None:
        """Write a file here."""
        with self.lock:
            try:
                self.get(name)
            except FileNotFoundError:
                if any(content_of(self, directory) is not None for directory in above(name)):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name) from None
            self._set_here(name, content)

    def remove(self, name: str) -> None:
        """Hide a file, or all beneath a directory."""
        with self.lock:
            try:
                found = [info["path"] for info in self.walk(name)]
            except NotADirectoryError:
                found = [name]
            for path in found:
                self._set_here(path, None)

    def _set_here(self, name: str, content: bytes | None) -> None:
        before = self._layer.get(name)
        is_there, was_there = content is not None, before is not None and before.content is not None
        if is_there and not was_there:
            self._directories.update(above(name))
        elif was_there and not is_there:
            self._directories.subtract(above(name))
        if name not in self._base:
            self._base[name] = content_of(self.parent, name)
        self._layer[name] = _Change(content, moment(), datetime.now(UTC))

    @property
    def layer(self) -> dict[str, bytes | None]:
        """What was written here, and removed (None), as a copy."""
        return {path: change.content for path, change in dict(self._layer).items()}

    def restore(self, layer: Mapping[str, bytes | None]) -> None:
        """Have what was changed here be this, and no more."""
        with self.lock:
            for path in self._layer.keys() - layer.keys():
                if self._layer[path].content is not None:
                    self._directories.subtract(above(path))
                del self._layer[path], self._base[path]
            for path, content in layer.items():
                if path not in self._layer or self._layer[path].content != content:
                    self._set_here(path, content)

    def names(self, name: str = "") -> Iterator[FileInfo]:
        """The parent's and the branch's together."""
        return listed(((info["path"], info["size"] or 0) for info in self._all()), name)

    def walk(self, name: str = "") -> Iterator[FileInfo]:
        """All files beneath a directory."""
        self.names(name)  # which raises where there is no such directory
        return iter([info for info in self._all() if not name or info["path"].startswith(f"{name}/")])

    def _all(self) -> list[FileInfo]:
        found = {info["path"]: info for info in self.parent.walk()}
        for path, change in dict(self._layer).items():
            if change.content is None:
                found.pop(path, None)
            else:
                found[path] = FileInfo(name=os.path.basename(path), path=path, is_dir=False, size=len(change.content))
        return [found[path] for path in sorted(found)]

    def changed_at(self, name: str) -> int:
        """When a file last changed, here or in the parent."""
        here = self._layer[name].changed if name in self._layer else 0
        return max(here, self.parent.changed_at(name) if isinstance(self.parent, Dated) else 0)

    # What it changed

    def standing(self) -> Mapping[str, Standing]:
        """The paths whose content is another than the parent's was."""
        found = {}
        for path, change in sorted(dict(self._layer).items()):
            if change.content != self._base[path]:
                found[path] = Standing("delete" if change.content is None else "write", change.at, change.changed)
        return found

    def mark(self, name: str) -> object:
        """When a path was changed here."""
        return self._layer[name].changed if name in self._layer else None

    def old(self, path: str) -> bytes | None:
        """What the parent had when the path was first changed."""
        name = path if path in self._base else plain_name(path)
        return self._base[name] if name in self._base else content_of(self.parent, name)

    def new(self, path: str) -> bytes | None:
        """What the branch has."""
        change = self._layer.get(path)
        return content_of(self, plain_name(path)) if change is None else change.content

    @contextmanager
    def snapshot(self, parent_root: str | Path, *, include_venv: bool = False) -> Iterator[Path]:
        """A branch of a directory with this branch's files in it, gone when the block ends."""
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

    # What becomes of it

    def flush_to(self, parent: Backend, pre_flush_snapshot: Mapping[str, bytes | None] | None = None) -> FlushReport:
        """Make what was changed here the parent's, all of it or nothing."""
        known = pre_flush_snapshot or {}

        def is_diverged(path: str) -> bool:
            if path not in known and parent is self.parent and isinstance(parent, Dated):
                return parent.changed_at(path) > self._forked
            return content_of(parent, path) != known.get(path, self._base[path])

        contents = {path: self._layer[path].content for path in self.standing()}
        return replay(contents, self.changes(), parent, is_diverged, self.conflict_policy)
