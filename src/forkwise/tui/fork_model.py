"""ForkModel: a fork of the ledger for the panels, which read and resolve it through this class.

Every method blocks on the disk or on the process that runs the fork, so panels call it in a thread. Tests and
screenshots use a subclass. Modules that resolve forks are imported in the methods, because they would delay the first
frame.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forkwise.concurrency import run_sync
from forkwise.display.board import Row, rows_of
from forkwise.display.subject import has_stream
from forkwise.errors import BranchError, BranchingError, LedgerError
from forkwise.files.workspace import Workspace
from forkwise.fork.stored_fork import branch_of
from forkwise.ledger.logs import follow_log
from forkwise.ledger.records import AttemptRecord, ForkRecord, Summary
from forkwise.ledger.sqlite import open_ledger
from forkwise.linux.scratch_directory import scratch_directory

if TYPE_CHECKING:
    from forkwise.files.selection import AlignedPath, Choice
    from forkwise.files.store.changes import Commit, OnConflict
    from forkwise.fork.combine import Combined, Prepared
    from forkwise.fork.evaluators.tests import Tests
    from forkwise.ledger.change_watch import ChangeWatch

__all__ = [
    "DiffToolCommands",
    "ForkModel",
    "ForkSnapshot",
]


_PAGERS = {"bat", "delta", "diff", "difft", "git", "icdiff", "less", "mcdiff", "more", "most"}
_EDITORS = {"emacs", "helix", "hx", "kak", "micro", "nano", "nvim", "vi", "view", "vim", "vimdiff"}


@dataclass(frozen=True, slots=True)
class DiffToolCommands:
    """The commands that open changes in a diff tool."""

    commands: tuple[tuple[str, ...], ...]

    @property
    def uses_terminal(self) -> bool:
        """Whether the tool draws on the terminal, as vim does; git may start any tool, so it counts as one."""
        return any(os.path.basename(words[0]) in _PAGERS | _EDITORS for words in self.commands)

    def run(self) -> None:
        """Run the commands one after the other."""
        from forkwise.display.difftool import tool_process

        for words, environment in map(tool_process, self.commands):
            subprocess.run(words, env=environment, check=False)

    def run_detached(self) -> None:
        """Run all commands at the same time, away from the terminal, and wait for them."""
        from forkwise.display.difftool import tool_process

        quiet = subprocess.DEVNULL
        started = [
            subprocess.Popen(words, env=environment, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
            for words, environment in map(tool_process, self.commands)
        ]
        for process in started:
            process.wait()


_TAIL = 256 << 10
_LISTED = 100


@dataclass(frozen=True, slots=True)
class ForkSnapshot:
    """A fork at one moment, with its attempts and those of nested forks."""

    fork: ForkRecord
    state: str
    rows: tuple[Row, ...]

    def find_attempt(self, name: str) -> AttemptRecord | None:
        """Return an attempt by its id."""
        return next((row.attempt for row in self.rows if row.attempt.id == name), None)

    @property
    def own(self) -> tuple[AttemptRecord, ...]:
        """The attempts of the fork itself, without nested forks."""
        return tuple(row.attempt for row in self.rows if row.depth == 0)


def _has_steps(steps: Sequence[Mapping[str, Any]]) -> bool:
    return any(step.get("kind") != "note" for step in steps)


class ForkModel:
    """One fork of a workspace's ledger.

    Without ``name`` it is the newest running fork, else the newest fork, else the first one to start. It is replaced by
    a fork that starts after it is over, unless ``choose`` was called or ``is_held`` is set.
    """

    def __init__(self, directory: Path, name: str | None = None) -> None:
        self.directory = directory
        self.workspace = Workspace(directory)
        self._ledger = open_ledger(self.workspace)
        self._copies = ExitStack()
        self.fork = None if name is None else self._ledger.fork(name).id
        self.is_chosen = name is not None
        self.is_held = False

    def close(self) -> None:
        """Close the ledger, and delete the copies made for diff tools."""
        self._copies.close()
        self._ledger.close()

    # Reading

    def now(self) -> float:
        """Return the current time; a test returns a fixed one."""
        return time.time()

    def watch_changes(self) -> ChangeWatch:
        """Watch for changes of the ledger, to read the fork after each."""
        return self._ledger.watch_changes()

    def read(self) -> ForkSnapshot | None:
        """Read the fork; None if there is none yet."""
        self.fork = self.fork or self._find_newest()
        if self.fork is None:
            return None
        fork = self._ledger.fork(self.fork)
        if not self.is_chosen and not self.is_held and fork.state != "running":
            newer = [one for one in self._ledger.forks(state="running") if one.parent is None]
            if newer and newer[0].started >= fork.started:
                fork = newer[0]
                self.fork = fork.id
        return ForkSnapshot(fork, fork.state, tuple(rows_of(self._ledger, fork)))

    def choose(self, fork: str) -> None:
        """Show this fork from now on, whatever starts."""
        self.fork, self.is_chosen = fork, True

    def forks(self) -> list[Summary]:
        """Return the newest forks."""
        return self._ledger.summaries(_LISTED, outermost=True)

    def output(self, attempt: str, start: int) -> tuple[int, bytes]:
        """Return the size of an attempt's log, and its output from byte ``start`` on."""
        return follow_log(self._ledger.fetch_files(attempt), attempt, start, tail=_TAIL)

    def steps(self, attempt: str, after: int) -> tuple[int, str] | None:
        """Return what the agent of an attempt did after event ``after``, as lines, and the number of the last event.

        None if the attempt's output is more useful: it is not a stream of events, or could not be parsed as one. The
        closing message follows the last step, unless it is that step.
        """
        from forkwise.agents.agent_event import format_step

        record = self._ledger.attempt(attempt)
        if not has_stream(self._ledger.fork(record.fork), record):
            return None
        events = [e for e in self._ledger.events(after=after, fork=record.fork) if e.attempt == record.id]
        steps = [step for event in events for step in event.steps]
        is_over = any(event.kind in ("ended", "interrupted") for event in events)
        record = self._ledger.attempt(attempt) if is_over else record
        lines = [line for step in steps for line in format_step(step).splitlines()]
        if is_over and record.answer and not (steps and steps[-1].get("text") == record.answer):
            lines += ["", *record.answer.splitlines()]
        elif is_over and not record.answer and not _has_steps(self._ledger.find_steps(record.id)):
            return None
        return max((event.seq for event in events), default=after), "".join(f"{line}\n" for line in lines)

    def diff(self, attempt: str) -> str:
        """Return the diff of an attempt. The winner's is available even after its commit, when its branch is gone."""
        try:
            return branch_of(self._ledger, self.workspace, attempt).diff()
        except BranchError:
            fork = self._ledger.fork(self._ledger.attempt(attempt).fork)
            if fork.winner != attempt:
                raise
            return self.read_commit(fork)

    def read_commit(self, fork: ForkRecord) -> str:
        """Return the diff of a fork's commit."""
        from forkwise.files.old_versions import commit_diff

        if fork.commit is None or fork.origin != self.workspace.branch_path:
            raise LedgerError(f"fork {fork.id} has no commit in this workspace", subject=fork.id)
        return commit_diff(self.workspace, fork.commit)

    def prepare_difftool(self, attempt: str) -> DiffToolCommands:
        """Copy the files that an attempt changed, and return the commands that show them."""
        from forkwise.display.difftool import tool_commands

        branch = branch_of(self._ledger, self.workspace, attempt)
        directory = self._copies.enter_context(scratch_directory("diff"))
        try:
            _, commands = tool_commands("", Path(directory), {attempt: branch}, between=False)
        except click.ClickException as error:
            raise BranchingError(error.message) from error
        return DiffToolCommands(tuple(map(tuple, commands)))

    def line_up(self, attempts: Sequence[str]) -> list[AlignedPath]:
        """Align the changes of attempts file by file; without names, those of all attempts that have ended."""
        from forkwise.fork.combine import line_up_attempts

        return line_up_attempts(self.workspace, self._require_fork(), attempts or None)

    # Resolving

    def pick(
        self,
        attempt: str,
        *,
        on_conflict: OnConflict = "refuse",
        force: bool = False,
        allow_executable_config: bool | None = None,
    ) -> Commit:
        """Resolve the fork with one attempt."""
        from forkwise.explore.resume import find_retest
        from forkwise.fork.resolve import pick

        tests = find_retest(self.workspace, attempt)
        return pick(
            self.workspace,
            attempt,
            on_conflict=on_conflict,
            force=force,
            tests=tests,
            allow_executable_config=allow_executable_config,
        )

    def combine(
        self, attempts: Sequence[str], *, force: bool = False, allow_executable_config: bool | None = None
    ) -> Combined:
        """Resolve the fork with several attempts, if they merge without conflicts and their tests pass."""
        from forkwise.fork.combine import combine_attempts

        return run_sync(
            combine_attempts(
                self.workspace,
                attempts,
                tests=self.tests(),
                force=force,
                allow_executable_config=allow_executable_config,
            ),
            alone=True,
        )

    async def prepare(self, choice: Mapping[str, Choice]) -> Prepared:
        """Write a choice into a branch and test it; when cancelled, the branch is dropped."""
        from forkwise.fork.combine import prepare_choice

        return await prepare_choice(self.workspace, self._require_fork(), choice, tests=self.tests())

    def commit(
        self,
        prepared: Prepared,
        *,
        on_conflict: OnConflict = "refuse",
        allow_executable_config: bool | None = None,
    ) -> Commit:
        """Resolve the fork with a prepared choice."""
        from forkwise.fork.combine import commit_choice

        return commit_choice(prepared, on_conflict=on_conflict, allow_executable_config=allow_executable_config)

    def drop(self, prepared: Prepared) -> None:
        """Drop a prepared choice."""
        prepared.branch.abort()

    def abort(self) -> None:
        """Abort the fork."""
        from forkwise.fork.control import abort_fork

        abort_fork(self.workspace, self._require_fork())

    def abort_attempt(self, attempt: str) -> None:
        """Abort one attempt; the others continue."""
        from forkwise.fork.control import abort_attempt

        abort_attempt(self.workspace, attempt)

    def undo(self, commit: int) -> Commit:
        """Undo a commit."""
        from forkwise.fork.stored_fork import undo

        return undo(self.workspace, commit)

    def tests(self) -> Tests | None:
        """Return the fork's tests; None if it has none, or if they are a function of a program that is not stored."""
        from forkwise.explore.resume import find_tests

        try:
            return find_tests(self.workspace, self._ledger.fork(self._require_fork()))
        except LedgerError:
            return None

    def _require_fork(self) -> str:
        if self.fork is None:
            raise LedgerError("there is no fork yet")
        return self.fork

    def _find_newest(self) -> str | None:
        running = [fork.id for fork in self._ledger.forks(state="running") if fork.parent is None]
        newest = [summary.fork.id for summary in self._ledger.summaries(1, outermost=True)]
        return next(iter([*running, *newest]), None)
