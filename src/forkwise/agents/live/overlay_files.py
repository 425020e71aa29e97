"""FilesOverlay: a real branch of a directory as the overlay of a live branch."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from forkwise.agents.live.backend import Backend, ExecuteResponse
from forkwise.agents.live.local_backend import PlaceBackend
from forkwise.agents.live.merging import FileChange, FileOperation, FlushError, FlushReport
from forkwise.agents.live.overlay import BranchOverlay, Standing
from forkwise.agents.live.replaying import content_of, replay
from forkwise.errors import CommitError
from forkwise.files.addressed import AddressedTree
from forkwise.files.branch import Branch
from forkwise.files.delta import Change
from forkwise.fork.agent_files import AgentFiles
from forkwise.fork.landing import ConflictPolicy, Landed, land
from forkwise.sandbox.threads import before_leaving, in_thread

__all__ = ["FilesOverlay", "conflict_contents", "flushed"]

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
        return f"<BranchOverlay {self.branch.branch_path} of {self.files.where}>"

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
            await before_leaving(in_thread(self.mirror_all))
        return done

    # What it changed

    def standing(self) -> Mapping[str, Standing]:
        """The branch's delta. What it costs grows with what was changed, not with the files there are."""
        tree = self.files.tree()
        changes = [c for c in self.branch.delta() if (c.kind, c.type == "directory") in _OPERATIONS]
        self._seen = {change.path: self._standing(tree, change) for change in changes}
        return self._seen

    def _standing(self, tree: AddressedTree, change: Change) -> Standing:
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
        if not isinstance(parent, PlaceBackend) or parent.place.place.path != self.branch.parent.place.path:
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
    tree = AddressedTree(os.fspath(landed.kept.path), os.fspath(landed.kept.workspace.path))
    return {conflict.path: tree.content(conflict.path) for conflict in landed.conflicts}
