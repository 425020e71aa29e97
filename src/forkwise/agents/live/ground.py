"""Ground: what the files of a live fork's branches are forked from.

A directory where there is one, the branch itself inside a branch. Where an agent has no directory the fork gets an
empty one of its own, so that the same engine serves; the files in memory, if there are any, are overlaid in memory.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkwise.agents.live.backend import Backend
from forkwise.agents.live.local_backend import PlaceBackend
from forkwise.agents.live.overlay import BranchOverlay
from forkwise.agents.live.overlay_files import FilesOverlay
from forkwise.agents.live.overlay_memory import MemoryOverlay
from forkwise.agents.live.runtime import BranchRuntime, current_branch
from forkwise.agents.live.state_backend import StateBackend
from forkwise.files.branch import Branch
from forkwise.files.workspace import Workspace
from forkwise.fork.agent_files import AgentFiles
from forkwise.fork.fork import parent_of
from forkwise.fork.landing import ConflictPolicy

__all__ = ["Ground", "Place", "ground_for"]

#: What can be given as an agent's directory.
Place = Workspace | Branch | str | os.PathLike[str]


@dataclass(frozen=True)
class Ground:
    """``parent`` is forked; ``backend`` is what the parent's tools see of the files, or of those in memory."""

    parent: Workspace | Branch
    backend: Backend
    temporary: Path | None = None

    @property
    def is_in_memory(self) -> bool:
        """Whether the files that count are in memory."""
        return not isinstance(self.backend, PlaceBackend)

    def overlay(self, branch: Branch, label: str, policy: ConflictPolicy) -> BranchOverlay:
        """The files of a branch that was made from here."""
        if isinstance(self.backend, PlaceBackend):
            return FilesOverlay(self.backend, label, conflict_policy=policy, branch=branch)
        return MemoryOverlay(self.backend, label, conflict_policy=policy)

    def close(self) -> None:
        """Remove the directory that was made for this fork alone."""
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)


def ground_for(place: Place | None, deps: Any) -> Ground:
    """What a fork of an agent with these deps is made from; ``place`` is the directory it was told of."""
    inside = current_branch()
    if inside is not None and inside.attempt.branch is not None:
        return Ground(inside.attempt.branch, _backend_in(inside, deps))
    backend = getattr(deps, "backend", None)
    if isinstance(backend, PlaceBackend) and (place is None or _is_at(backend, place)):
        return Ground(backend.place, backend)
    if place is not None:
        parent = parent_of(place)
        return Ground(parent, _PlainPlace(parent))
    directory = Path(tempfile.mkdtemp(prefix="forkwise-live-"))
    (directory / "files").mkdir()
    empty = Workspace(directory / "files", state=directory / "state", durable=False)
    return Ground(empty, backend if isinstance(backend, Backend) else StateBackend(), directory)


class _PlainPlace(PlaceBackend):
    """The files of a workspace or of a branch, for those who have no backend."""

    def __init__(self, place: Workspace | Branch) -> None:
        self.files = AgentFiles(place)


def _backend_in(branch: BranchRuntime, deps: Any) -> Backend:
    backend = getattr(deps, "backend", None)
    return backend if isinstance(backend, Backend) else branch.overlay or StateBackend()


def _is_at(backend: PlaceBackend, place: Place) -> bool:
    path = place.branch_path if isinstance(place, Branch) else None
    own = backend.place.branch_path if isinstance(backend.place, Branch) else None
    where = place.workspace.path if isinstance(place, Workspace | Branch) else Path(os.path.realpath(place))
    return path == own and where == backend.place.workspace.path
