"""Rewinding: going back to a checkpoint with the conversation and the files, and forth again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_ai.messages import ModelMessage

from forkwise.agents.live.backend import Backend
from forkwise.agents.live.checkpoint import Checkpoint, CheckpointStore, FilesMark
from forkwise.agents.live.local_backend import PlaceBackend
from forkwise.agents.live.overlay_memory import MemoryOverlay
from forkwise.agents.live.state_backend import StateBackend
from forkwise.errors import BranchingError, CommitError
from forkwise.files.branch import Branch
from forkwise.files.commit import Commit
from forkwise.files.duplicating import drop_copy, go_back_to, is_duplicable, keep_copy
from forkwise.files.rewinding import go_back
from forkwise.sandbox.threads import before_leaving, in_thread

__all__ = ["Rewound", "forget_mark", "mark_branch", "mark_files", "restore_files", "rewind"]


@dataclass(frozen=True)
class Rewound:
    """What a rewind went back to. ``messages`` is what to go on with; ``commits`` is what it did to a directory;
    ``before`` is a checkpoint of what was there, to rewind to if this was not what was wanted."""

    checkpoint: Checkpoint
    messages: list[ModelMessage]
    commits: tuple[Commit, ...]
    before: Checkpoint


async def rewind(
    store: CheckpointStore, checkpoint: str, backend: Backend, messages: Sequence[ModelMessage] = ()
) -> Rewound:
    """Go back to a checkpoint, by its id or its label: its files are there again, its messages are given.

    ``messages`` are those of now; with the files as they are they become the checkpoint ``before``. Where the files
    cannot be had back (somebody changed them since, or too much was committed) nothing is changed and a CommitError
    says why. LookupError where there is no such checkpoint.
    """
    found = await store.get_by_label(checkpoint) or (await store.get(checkpoint) if checkpoint.isalnum() else None)
    if found is None:
        raise LookupError(f"there is no checkpoint {checkpoint!r}")
    before = Checkpoint(f"rewind:{found.label}", list(messages), files=await in_thread(mark_files, backend))
    await store.save(before)
    try:
        commits = await before_leaving(in_thread(restore_files, backend, found.files))
    except BranchingError:
        await store.remove(before.id)
        raise
    return Rewound(found, list(found.messages), tuple(commits), before)


def mark_files(backend: Backend) -> FilesMark | None:
    """Where the files of a backend stand; None of those that cannot be had back: another's own backend, and a branch
    that is a whole tree."""
    if isinstance(backend, PlaceBackend):
        place = backend.place
        return mark_branch(place) if isinstance(place, Branch) else FilesMark(place.target, place.place.head)
    if isinstance(backend, MemoryOverlay):
        return FilesMark(changes=backend.layer)
    return FilesMark(contents=backend.files) if isinstance(backend, StateBackend) else None


def mark_branch(branch: Branch) -> FilesMark | None:
    """Where a branch stands: a copy is kept of what it changed."""
    if not is_duplicable(branch):
        return None
    return FilesMark(branch.workspace.target, branch=branch.branch_path, copy=keep_copy(branch))


def forget_mark(backend: Backend, mark: FilesMark | None) -> None:
    """Let go of what was kept for a mark."""
    if isinstance(backend, PlaceBackend) and isinstance(backend.place, Branch) and mark is not None and mark.copy:
        drop_copy(backend.place, mark.copy)


def restore_files(backend: Backend, mark: FilesMark | None) -> list[Commit]:
    """Have files stand where they stood; gives what was done to a directory for it, all of it or nothing."""
    if mark is None:
        return []
    if isinstance(backend, StateBackend) and mark.contents is not None:
        now = backend.files
        gone: dict[str, bytes | None] = dict.fromkeys(now.keys() - mark.contents.keys())
        backend.replace(gone | {p: c for p, c in mark.contents.items() if now.get(p) != c})
        return []
    if isinstance(backend, MemoryOverlay) and mark.changes is not None:
        backend.restore(mark.changes)
        return []
    if not _is_of(backend, mark) or not isinstance(backend, PlaceBackend):
        where = mark.branch or mark.workspace or "memory"
        raise CommitError(f"the checkpoint is of the files in {where}, and not of these")
    if isinstance(backend.place, Branch):
        with backend.lock:
            go_back_to(backend.place, mark.copy or "")
        return []
    return go_back(backend.place, mark.head)


def _is_of(backend: Backend, mark: FilesMark) -> bool:
    if not isinstance(backend, PlaceBackend) or mark.workspace != backend.files.where:
        return False
    own = backend.place.branch_path if isinstance(backend.place, Branch) else None
    return mark.branch == own
