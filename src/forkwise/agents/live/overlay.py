"""BranchOverlay: the files of one branch of a live fork, over those of its parent.

Over a directory it is the face of a real branch; over files in memory it keeps in memory what is changed. What both
have in common is here: the record of what was done, the mirror for people who look, and the report of a merge.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from forkwise.agents.live.backend import Backend
from forkwise.agents.live.merging import FileChange, FileOperation, FlushReport
from forkwise.files.commit import Commit
from forkwise.fork.landing import ConflictPolicy

__all__ = ["BranchOverlay", "Mirror", "Standing"]

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

    >>> from forkwise.agents.live.state_backend import StateBackend
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
        from forkwise.agents.live.local_backend import PlaceBackend  # noqa: PLC0415 - both are overlays themselves
        from forkwise.agents.live.overlay_files import FilesOverlay  # noqa: PLC0415
        from forkwise.agents.live.overlay_memory import MemoryOverlay  # noqa: PLC0415

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
