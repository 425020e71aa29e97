"""Watched: a fork of a ledger as panels need it, read and decided through the floors below.

Every method blocks, on the disk or on whoever runs the fork, and is meant to be called in a thread: a panel that waits
is a panel that does not answer keys. What a screenshot or a test shows instead is a subclass. What decides is loaded
when it is needed: a first frame has no time for it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forkwise.display.board import Row, rows_of
from forkwise.errors import BranchError, BranchingError, LedgerError
from forkwise.files.workspace import Workspace
from forkwise.fork.stored_fork import branch_of
from forkwise.ledger.logs import follow_log
from forkwise.ledger.records import AttemptRecord, ForkRecord, Summary
from forkwise.ledger.sqlite import open_ledger

if TYPE_CHECKING:
    from forkwise.files.selection import AlignedPath, Choice
    from forkwise.files.store.changes import Commit, OnConflict
    from forkwise.fork.combine import Combined, Prepared
    from forkwise.fork.evaluation import Tests

__all__ = [
    "Look",
    "Opening",
    "Watched",
]


_PAGERS = {"bat", "delta", "diff", "difft", "git", "icdiff", "less", "mcdiff", "more", "most"}
_EDITORS = {"emacs", "helix", "hx", "kak", "micro", "nano", "nvim", "vi", "view", "vim", "vimdiff"}


@dataclass(frozen=True, slots=True)
class Opening:
    """The commands that show what is to be shown."""

    commands: tuple[tuple[str, ...], ...]

    @property
    def in_terminal(self) -> bool:
        """Whether the tool draws on the terminal, as vim does; git starts whichever it is set up with, so it may."""
        return any(os.path.basename(words[0]) in _PAGERS | _EDITORS for words in self.commands)

    def run(self) -> None:
        """Start them one after the other, each once the one before has ended."""
        for words in self.commands:
            subprocess.run(words, check=False)

    def run_beside(self) -> None:
        """Start them all where they do not touch the terminal, and wait for them."""
        quiet = subprocess.DEVNULL
        started = [
            subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
            for words in self.commands
        ]
        for process in started:
            process.wait()


_TAIL = 256 << 10
_LISTED = 100


@dataclass(frozen=True, slots=True)
class Look:
    """A fork at one moment, with its attempts and those of the forks inside them."""

    fork: ForkRecord
    state: str
    rows: tuple[Row, ...]

    def attempt(self, name: str) -> AttemptRecord | None:
        """One of the attempts."""
        return next((row.attempt for row in self.rows if row.attempt.id == name), None)

    @property
    def own(self) -> tuple[AttemptRecord, ...]:
        """The attempts of the fork itself."""
        return tuple(row.attempt for row in self.rows if row.depth == 0)


class Watched:
    """One fork of a workspace's ledger. Without a name it is the newest that runs, or the newest there is, or, where
    there is none yet, the first that comes."""

    def __init__(self, directory: Path, name: str | None = None) -> None:
        self.directory = directory
        self.workspace = Workspace(directory)
        self._ledger = open_ledger(self.workspace)
        self._opened = ExitStack()
        self.fork = None if name is None else self._ledger.fork(name).id

    def close(self) -> None:
        """Let go of the ledger, and of the copies that were made for other tools."""
        self._opened.close()
        self._ledger.close()

    # Looking

    def now(self) -> float:
        """The time by which is told how long something has taken."""
        return time.time()

    def look(self) -> Look | None:
        """The fork as it is; None where there is none yet."""
        self.fork = self.fork or self._newest()
        if self.fork is None:
            return None
        fork = self._ledger.fork(self.fork)
        return Look(fork, fork.state, tuple(rows_of(self._ledger, fork)))

    def forks(self) -> list[Summary]:
        """The newest forks there are."""
        return self._ledger.summaries(_LISTED, outermost=True)

    def output(self, attempt: str, start: int) -> tuple[int, bytes]:
        """What an attempt has printed since its log had so many bytes, and how many it has now."""
        return follow_log(self._ledger.directory, attempt, start, tail=_TAIL)

    def diff(self, attempt: str) -> str:
        """What an attempt changed; for the winner also when it was committed, and its branch is gone."""
        try:
            return branch_of(self._ledger, self.workspace, attempt).diff()
        except BranchError:
            fork = self._ledger.fork(self._ledger.attempt(attempt).fork)
            if fork.winner != attempt:
                raise
            return self.committed(fork)

    def committed(self, fork: ForkRecord) -> str:
        """What a fork's commit changed."""
        from forkwise.files.old_versions import commit_diff

        if fork.commit is None or fork.origin != self.workspace.branch_path:
            raise LedgerError(f"nothing of fork {fork.id} was committed to the workspace", subject=fork.id)
        return commit_diff(self.workspace, fork.commit)

    def open(self, attempt: str) -> Opening:
        """Copies of what an attempt changed, and the commands that show them."""
        from forkwise.display.difftool import tool_commands

        branch = branch_of(self._ledger, self.workspace, attempt)
        place = self._opened.enter_context(tempfile.TemporaryDirectory(prefix=f"forkwise-{attempt}-"))
        try:
            _, commands = tool_commands("", Path(place), {attempt: branch}, between=False)
        except click.ClickException as error:
            raise BranchingError(error.message) from error
        return Opening(tuple(map(tuple, commands)))

    def line_up(self, attempts: Sequence[str]) -> list[AlignedPath]:
        """What attempts changed, file by file; of all that are over, where none is named."""
        from forkwise.fork.combine import line_up_attempts

        return line_up_attempts(self.workspace, self._name(), attempts or None)

    # Deciding

    def pick(self, attempt: str, *, on_conflict: OnConflict = "refuse", force: bool = False) -> Commit:
        """Decide the fork for an attempt."""
        from forkwise.fork.resolve import pick

        return pick(self.workspace, attempt, on_conflict=on_conflict, force=force)

    def combine(self, attempts: Sequence[str], *, force: bool = False) -> Combined:
        """Decide the fork for several attempts together, where they go together and their tests pass."""
        from forkwise.fork.combine import combine_attempts

        return asyncio.run(combine_attempts(self.workspace, attempts, tests=self.tests(), force=force))

    async def prepare(self, choice: Mapping[str, Choice]) -> Prepared:
        """Put what was chosen into a branch, and test it. Cancelled, it leaves nothing."""
        from forkwise.fork.combine import prepare_choice

        return await prepare_choice(self.workspace, self._name(), choice, tests=self.tests())

    def commit(self, prepared: Prepared, *, on_conflict: OnConflict = "refuse") -> Commit:
        """Decide the fork for what was prepared."""
        from forkwise.fork.combine import commit_choice

        return commit_choice(prepared, on_conflict=on_conflict)

    def drop(self, prepared: Prepared) -> None:
        """Give up what was prepared."""
        prepared.branch.abort()

    def abort(self) -> None:
        """Give the fork up."""
        from forkwise.fork.control import abort_fork

        abort_fork(self.workspace, self._name())

    def end(self, attempt: str) -> None:
        """End one attempt; the others go on."""
        from forkwise.fork.control import abort_attempt

        abort_attempt(self.workspace, attempt)

    def undo(self, commit: int) -> Commit:
        """Take back what was committed."""
        from forkwise.fork.stored_fork import undo

        return undo(self.workspace, commit)

    def tests(self) -> Tests | None:
        """The fork's own tests; None where it has none, or where they are a program's and not written down."""
        from forkwise.explore.resume import judging_tests

        try:
            return judging_tests(self._ledger.fork(self._name()))
        except LedgerError:
            return None

    def _name(self) -> str:
        if self.fork is None:
            raise LedgerError("there is no fork yet")
        return self.fork

    def _newest(self) -> str | None:
        running = [fork.id for fork in self._ledger.forks(state="running") if fork.parent is None]
        newest = [summary.fork.id for summary in self._ledger.summaries(1, outermost=True)]
        return next(iter([*running, *newest]), None)
