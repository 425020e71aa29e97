"""Replaying: a branch's changes made in a backend that is not a directory's, and the report of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from forkwise.agents.live.backend import Backend
from forkwise.agents.live.merging import FileChange, FileOperation, FlushError, FlushReport
from forkwise.fork.landing import ConflictPolicy

__all__ = ["content_of", "replay"]


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
