"""Overriding: the branches that a judge decided against, and how one of them takes the place of the one it chose.

Apart from what settles a fork because that is done: the winner's changes are the parent's, and have to be undone first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from forkwise.agents.live.backend import Backend
from forkwise.agents.live.local_backend import PlaceBackend
from forkwise.agents.live.merging import FlushReport
from forkwise.agents.live.overlay import BranchOverlay
from forkwise.agents.live.overlay_files import FilesOverlay, flushed
from forkwise.agents.live.replaying import content_of
from forkwise.errors import BranchingError, CommitError
from forkwise.files.aside import Aside, set_aside
from forkwise.files.workspace import Workspace
from forkwise.fork.landing import ConflictPolicy
from forkwise.fork.overriding import bring_back, put_in_place

__all__ = ["JUDGED", "Losers", "LosersInMemory", "LosersOnDisk"]

#: The ways of deciding a fork after which a person may decide otherwise.
JUDGED = ("auto", "vote")


class Losers(ABC):
    """The branches that did not win, by their ids, as long as somebody may say that one of them should have."""

    @property
    @abstractmethod
    def names(self) -> Collection[str]:
        """Their ids."""

    @abstractmethod
    def put_in_place(self, name: str, label: str, policy: ConflictPolicy) -> FlushReport:
        """Undo what the winner changed, and make the changes of this one the parent's instead. CommitError, with
        nothing changed, where somebody has gone on with what the winner left."""

    @abstractmethod
    def let_go(self) -> None:
        """Nobody will decide otherwise any more."""


@dataclass
class LosersOnDisk(Losers):
    """Branches of a workspace, set aside."""

    fork: str
    workspace: Workspace
    backend: PlaceBackend
    aside: dict[str, Aside]

    @property
    def names(self) -> Collection[str]:
        """Their ids."""
        return self.aside

    def put_in_place(self, name: str, label: str, policy: ConflictPolicy) -> FlushReport:
        """By an undo and a commit; what is meant is in the ledger first."""
        branch = bring_back(self.workspace, self.fork, self.aside[name])
        del self.aside[name]
        overlay = FilesOverlay(self.backend, label, conflict_policy=policy, branch=branch)
        try:
            standing = overlay.standing()
            changes = overlay.changes()
            landed = put_in_place(self.workspace, self.fork, name, policy)
        except BranchingError:
            self.aside[name] = set_aside(branch)
            raise
        return flushed(landed, standing, changes)

    def let_go(self) -> None:
        """Drop the branches."""
        while self.aside:
            self.aside.popitem()[1].let_go()


@dataclass
class LosersInMemory(Losers):
    """Overlays in memory. ``before`` and ``after`` are what the parent had where the winner changed it."""

    backend: Backend
    overlays: dict[str, BranchOverlay]
    before: Mapping[str, bytes | None]
    after: Mapping[str, bytes | None] = field(default_factory=dict)

    @property
    def names(self) -> Collection[str]:
        """Their ids."""
        return self.overlays

    def put_in_place(self, name: str, label: str, policy: ConflictPolicy) -> FlushReport:
        """By giving each file back what it held, and then the loser's changes."""
        with self.backend.lock:
            changed = sorted(path for path, held in self.after.items() if content_of(self.backend, path) != held)
            if changed:
                raise CommitError(
                    f"the fork cannot be decided otherwise: {', '.join(changed)} changed since", paths=changed
                )
            overlay = self.overlays[name]
            self.backend.replace(self.before)
            known = {path: self.before[path] for path in overlay.touched() if path in self.before}
            own = {path: content_of(self.backend, path) for path in overlay.touched()}
            report = overlay.flush_to(self.backend, known)
            if report.errors:
                self.backend.replace(self.after)
                return report
        del self.overlays[name]
        self.before = own
        self.after = {path: content_of(self.backend, path) for path in own}
        return report

    def let_go(self) -> None:
        """Forget the overlays."""
        self.overlays.clear()
