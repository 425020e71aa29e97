"""Catalogue: the workspaces that a server shows, and their forks as the pages read them."""

from __future__ import annotations

import hashlib
import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from forkwise.display.attempt_report import AttemptReport, ForkReport, read_report
from forkwise.display.html.diff_table import is_generated
from forkwise.errors import BranchingError, ForkNotFoundError
from forkwise.files.workspace import Workspace
from forkwise.fork.stored_fork import load_side
from forkwise.ledger.sqlite import open_ledger

if TYPE_CHECKING:
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.stored_changes import StoredChanges
    from forkwise.text.diff import FileDiff

__all__ = ["Catalogue", "ForkView", "ServedWorkspace"]

_KEPT_CHANGES = 16  # attempts whose changes stay in memory
_MAX_KEPT = 4 << 20  # bytes of content of an attempt whose changes stay in memory


@dataclass(frozen=True)
class ServedWorkspace:
    """A workspace on the page. ``key`` names it in addresses."""

    key: str
    directory: Path
    workspace: Workspace
    ledger: Ledger
    _changes: OrderedDict[tuple[str, float], Sequence[FileDiff]] = field(default_factory=OrderedDict, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.workspace.path.name or str(self.workspace.path)

    def read_files(self, attempt: AttemptReport) -> Sequence[FileDiff]:
        """Return both versions of each file that an attempt changed, or has changed so far, generated ones last.

        Raises BranchingError if its branch is gone and nothing was kept.
        """
        record = attempt.record
        key = (record.id, record.ended or 0.0)
        if not record.is_over:
            return _sort(load_side(self.ledger, self.workspace, record.id).files)
        with self._lock:
            if key in self._changes:
                self._changes.move_to_end(key)
                return self._changes[key]
        stored: StoredChanges | None = attempt.read_changes()
        files = _sort(stored.files if stored is not None else load_side(self.ledger, self.workspace, record.id).files)
        if sum(len(side.content or b"") for file in files for side in (file.old, file.new) if side) <= _MAX_KEPT:
            with self._lock:
                self._changes[key] = files
                while len(self._changes) > _KEPT_CHANGES:
                    self._changes.popitem(last=False)
        return files


def _sort(files: Sequence[FileDiff]) -> Sequence[FileDiff]:
    return sorted(files, key=lambda file: (is_generated(file), file.path))


class Catalogue:
    """All workspaces that a server shows."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self.workspaces: dict[str, ServedWorkspace] = {}
        for directory in directories:
            workspace = Workspace(directory)
            if any(one.workspace.path == workspace.path for one in self.workspaces.values()):
                continue
            key = self._choose_key(workspace)
            self.workspaces[key] = ServedWorkspace(key, directory, workspace, open_ledger(workspace))

    def _choose_key(self, workspace: Workspace) -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", workspace.path.name.lower()).strip("-")[:40] or "root"
        if slug not in self.workspaces:
            return slug
        return f"{slug}-{hashlib.sha256(os.fsencode(workspace.path)).hexdigest()[:8]}"

    def __iter__(self) -> Iterator[ServedWorkspace]:
        return iter(self.workspaces.values())

    def find(self, key: str) -> ServedWorkspace:
        """Return a workspace by its key. Raises HTTPException if there is none."""
        found = self.workspaces.get(key)
        if found is None:
            raise HTTPException(404, "This server does not show such a workspace.")
        return found

    def open_fork(self, key: str, fork: str, *, is_blind: bool = False) -> ForkView:
        """Read a fork. Raises HTTPException if there is none with exactly this id."""
        served = self.find(key)
        seen = served.ledger.last_event()  # read before the fork: the page fetches later events itself
        try:
            report = read_report(served.ledger, fork)
        except ForkNotFoundError as error:
            raise HTTPException(404, f"There is no fork {fork} in {served.name}.") from error
        if report.fork.id != fork:
            raise HTTPException(404, f"There is no fork {fork} in {served.name}.")
        return ForkView(served, report, is_blind, seen)

    def close(self) -> None:
        """Close the ledgers."""
        for served in self:
            served.ledger.close()


@dataclass(frozen=True)
class ForkView:
    """A fork as a page shows it.

    If it ``is_blind``, its attempts are letters in a shuffled order, and their authors are hidden until the fork is
    decided. ``seen`` is the last event of the ledger that is included.
    """

    served: ServedWorkspace
    report: ForkReport
    is_blind: bool = False
    seen: int = 0

    @property
    def is_hidden(self) -> bool:
        """Whether the authors of the attempts are hidden now."""
        return self.is_blind and not self.report.fork.is_over

    @property
    def path(self) -> str:
        """The address of the fork's page, which ends with a slash."""
        return f"/{'blind' if self.is_blind else 'w'}/{self.served.key}/{self.report.fork.id}/"

    @property
    def events(self) -> str:
        """The address of the fork's events."""
        return f"/events/{self.served.key}/{self.report.fork.id}?after={self.seen}"

    @cached_property
    def attempts(self) -> tuple[AttemptReport, ...]:
        """The attempts in the order of the page."""
        found = self.report.attempts
        if not self.is_hidden:
            return found
        seed = self.report.fork.id

        def draw(attempt: AttemptReport) -> bytes:
            return hashlib.sha256(f"{seed} {attempt.record.id} {self.report.fork.started}".encode()).digest()

        return tuple(sorted(found, key=draw))

    @cached_property
    def _names(self) -> dict[str, str]:
        if not self.is_hidden:
            return {attempt.record.id: attempt.record.id for attempt in self.attempts}
        return {attempt.record.id: _format_letter(number) for number, attempt in enumerate(self.attempts)}

    def name_of(self, attempt: str) -> str:
        """Return the name of an attempt on the page and in addresses."""
        return self._names.get(attempt, attempt)

    def hide(self, text: str) -> str:
        """Replace the ids of attempts in a text by their names."""
        if not self.is_hidden:
            return text
        for attempt, name in self._names.items():
            text = re.sub(rf"{re.escape(attempt)}(?![0-9])", name, text)
        return text

    def find(self, name: str) -> AttemptReport:
        """Return an attempt by its name on the page. Raises HTTPException if there is none."""
        for attempt in self.attempts:
            if self._names[attempt.record.id] == name:
                return attempt
        raise HTTPException(404, f"There is no attempt {name} in this fork.")

    def read_files(self, attempt: AttemptReport) -> Sequence[FileDiff]:
        """Return what an attempt changed; an empty value if its changes were not kept."""
        try:
            return self.served.read_files(attempt)
        except (BranchingError, OSError):
            return ()

    def disguise(self) -> ForkReport:
        """Return the report for the parts that a page shares with other reports; without names if they are hidden."""
        if not self.is_hidden:
            return self.report
        attempts = tuple(
            replace(
                one,
                row=replace(
                    one.row,
                    attempt=replace(one.record, id=self.name_of(one.record.id), label="", agent=None, cost=None),
                ),
                steps=(),
            )
            for one in self.attempts
        )
        return ForkReport(replace(self.report.fork, verdict=None), attempts)


def _format_letter(number: int) -> str:
    """Return A to Z, then A1 and so on.

    >>> _format_letter(0), _format_letter(27)
    ('A', 'B1')
    """
    rounds, letter = divmod(number, 26)
    return f"{chr(ord('A') + letter)}{rounds or ''}"
