"""Fork: the sibling attempts made at one point, and their one resolution.

Whoever explores is a policy over this: it says which candidates run next and who wins. All that happens is written to
the ledger as it happens; the resolution is written there before anything is touched, and only one can be.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from forkwise.concurrency import finish, run_in_thread
from forkwise.errors import (
    BranchError,
    BranchingError,
    BranchNotFoundError,
    ForkResolvedError,
    ForkwiseWarning,
    LedgerError,
)
from forkwise.files.branch import Branch
from forkwise.files.mounted import MountedWorkspace
from forkwise.files.shelf import ShelvedBranch
from forkwise.files.store import trash
from forkwise.files.store.changes import Commit, ConflictPolicy, OnConflict
from forkwise.files.workspace import Workspace
from forkwise.fork.attempt import Attempt, current_attempt, failed, span
from forkwise.fork.candidate import Candidate, abandon_reason
from forkwise.fork.control import is_decided, poll_requests
from forkwise.fork.evaluation import Evaluator
from forkwise.fork.execute import execute
from forkwise.fork.resolve import Landed, commit_winner, land, shelve_losers
from forkwise.fork.runner import InProcessRunner, Runner
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.logs import remove_output
from forkwise.ledger.records import AttemptRecord, ForkRecord
from forkwise.ledger.sqlite import open_ledger

__all__ = [
    "Fork",
    "ForkSettings",
    "default_parallel",
    "drop",
    "hide",
    "keep_winner",
    "open_ledger",
    "parent_of",
    "write_ends",
    "write_with_retry",
]


async def drop(attempts: Iterable[Attempt], *, keep: bool) -> None:
    """Have the branches of attempts vanish, or be kept. One that cannot is warned of, and the others go."""
    for attempt in attempts:
        if attempt.branch is None:
            continue
        try:
            await run_in_thread(attempt.branch.keep if keep else attempt.branch.abort)
        except BranchNotFoundError:
            continue
        except BranchingError as error:
            warnings.warn(f"the branch of {attempt.id} is left: {error}", ForkwiseWarning, stacklevel=2)


async def hide(attempts: Iterable[Attempt]) -> None:
    """Have the branches of attempts stay, and their views taken down."""
    for attempt in attempts:
        if attempt.branch is not None:
            await run_in_thread(attempt.branch.hide)


def keep_winner(winner: Attempt) -> str:
    """Keep the branch of a winner that was not committed; gives what to tell."""
    try:
        winner.place.keep()
    except BranchingError as error:
        return f"The winner, {winner.id}, could not be kept: {error}"
    return f"The winner, {winner.id}, is kept as the branch {winner.place.branch_path}"


def write_ends(attempts: Sequence[Attempt]) -> None:
    """Write down what could not be written when an attempt ended."""
    for attempt in attempts:
        if not attempt.fork.ledger.attempt(attempt.id).is_over:
            attempt.record_end()


async def write_with_retry(write: Callable[[], object], attempts: Sequence[Attempt]) -> None:
    """Write to the ledger: on a full disk as soon as what was dropped is really gone, or else in the place of what the
    attempts printed."""

    def forget_output() -> None:
        for attempt in attempts:
            remove_output(attempt.fork.ledger.directory, attempt.id)

    for make_room in (trash.wait_until_empty, forget_output):
        try:
            write()
            return
        except LedgerError:
            await run_in_thread(make_room)
    write()


def default_parallel() -> int:
    """How many attempts run at once where nobody says: more than there are processors, as most of them wait."""
    return min(32, (os.cpu_count() or 1) + 4)


def parent_of(place: Workspace | Branch | str | os.PathLike[str]) -> Workspace | Branch:
    """What a fork is made from. An attempt that forks its own directory forks its branch.

    BranchError for a BranchFS or DaxFS mount, whose own branches cannot be compared, tested apart or undone.
    """
    found = _parent_of(place)
    if isinstance(found.workspace, MountedWorkspace):
        raise BranchError(
            f"{found.workspace.path} is a {found.workspace.fstype} mount, which has branches of its own that cannot be "
            "judged or undone: open the directory it was mounted from"
        )
    return found


def _parent_of(place: Workspace | Branch | str | os.PathLike[str]) -> Workspace | Branch:
    if isinstance(place, Branch):
        return place
    path = place.path if isinstance(place, Workspace) else place
    attempt = current_attempt()
    if attempt is not None and os.path.realpath(path) == os.path.realpath(attempt.place.path):
        return attempt.place
    return place if isinstance(place, Workspace) else Workspace(place)


@dataclass(frozen=True, slots=True)
class ForkSettings:
    """How the attempts of a fork run and what becomes of them. ``timeout`` is each one's own, ``evaluator`` is asked
    about those that end well. ``keep`` keeps the branches of all, for somebody to look at. With a ``policy`` conflicts
    are decided and none of the versions is lost (see ``land``), whatever ``on_conflict`` says. ``reopens`` lets an
    attempt that was not over when its process was killed go on in the branch it had, instead of afresh."""

    runner: Runner = field(default_factory=InProcessRunner)
    evaluator: Evaluator | None = None
    timeout: float | None = None
    max_parallel: int | None = None
    keep: bool = False
    on_conflict: OnConflict = "refuse"
    policy: ConflictPolicy | None = None
    reopens: bool = False


class Fork:
    """A fork, as an async context manager: who leaves it unresolved has it aborted, with everything in it.

    ``spec`` is what somebody needs to go on with it after a kill; ``resume`` is the id of one that is gone on with:
    attempts that were over are not run again, unfinished ones start afresh.
    """

    def __init__(
        self,
        parent: Workspace | Branch,
        kind: str,
        settings: ForkSettings | None = None,
        *,
        spec: dict[str, Any] | None = None,
        resume: str | None = None,
        inside: Attempt | None = None,
    ) -> None:
        self.parent = parent
        self.kind = kind
        self.settings = settings or ForkSettings()
        self.attempts: list[Attempt] = []
        self.commit: Commit | None = None
        self.landed: Landed | None = None
        self.aside: dict[str, ShelvedBranch] = {}
        self._spec = spec or {}
        self._resume = resume
        self.inside = inside or _attempt_in(parent)
        self._shares = inside is not None  # its ledger and its room, with the fork inside which it is
        self._open = ExitStack()
        self._ledger: Ledger | None = None
        self._record: ForkRecord | None = None
        self._known: dict[str, AttemptRecord] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots: asyncio.Semaphore = (
            inside.fork._slots if inside else asyncio.Semaphore(_parallel(self.settings.max_parallel))
        )
        self._heeding: asyncio.Task[None] | None = None
        self._is_over = False
        self.is_left = False
        self._is_decided_elsewhere = False

    @property
    def id(self) -> str:
        """Its name in the ledger."""
        return self.record.id

    @property
    def record(self) -> ForkRecord:
        """What the ledger said of it when it was begun."""
        if self._record is None:
            raise RuntimeError("a fork is entered first: async with Fork(...)")
        return self._record

    @property
    def ledger(self) -> Ledger:
        """Where all of it is written."""
        if self._ledger is None:
            raise RuntimeError("a fork is entered first: async with Fork(...)")
        return self._ledger

    async def __aenter__(self) -> Fork:
        above = self.inside.fork if self.inside is not None and self._shares else None
        around = current_attempt()
        try:
            if above is None and around is not None:
                self._open.enter_context(around.within.track())
            self._ledger = above.ledger if above else self._open.enter_context(open_ledger(self.parent.workspace))
            self._record = self._begin(self._ledger)
        except BaseException:
            self._open.close()
            raise
        self._known = {a.key: a for a in self._ledger.attempts(self.id)}
        self._heeding = asyncio.create_task(poll_requests(self))
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _at: object) -> None:
        with self._open:
            try:
                if not self._is_over and isinstance(error, asyncio.CancelledError):
                    await self.abort(str(error) or "it was interrupted", keep=False)
                elif not self._is_over:
                    await self.abort(abandon_reason(error))
            finally:
                if self._heeding is not None:
                    self._heeding.cancel()

    async def stop_decided_elsewhere(self) -> None:
        """End all attempts, because somebody else has decided it: a person who picked, or who aborted it."""
        self._is_decided_elsewhere = True
        await self.cancel(self.attempts, "the fork was decided elsewhere")

    @property
    def is_over(self) -> bool:
        """Whether it was resolved, held or aborted here."""
        return self._is_over

    def _begin(self, ledger: Ledger) -> ForkRecord:
        if self._resume is None:
            return ledger.begin_fork(
                self.kind,
                workspace=str(self.parent.workspace.path),
                spec=self._spec,
                parent=self.inside.id if self.inside else None,
                origin=self.parent.branch_path,
                generation=self.parent.place.head,
            )
        if not ledger.adopt_fork(self._resume):
            record = ledger.fork(self._resume)
            raise ForkResolvedError(f"fork {record.id} cannot be resumed: it is {record.state}", fork=record.id)
        return ledger.fork(self._resume)

    # Attempts

    def add(self, candidate: Candidate, index: int, key: str | None = None, feedback: str | None = None) -> Attempt:
        """Have a candidate run in a branch of its own, as soon as there is room for it. ``key`` names its place in
        what is tried here; the index, where it is the only one of that."""
        key = str(index) if key is None else key
        record = self._known.get(key)
        left = None if record is None else self._left_of(record)
        if is_decided(self):
            raise ForkResolvedError(f"fork {self.id} was decided elsewhere", fork=self.id)
        if record is None or (record.is_over and left is None and record.unwanted is None):
            record = self.ledger.add_attempt(
                self.id,
                key,
                index=index,
                label=candidate.label,
                branch=f"{self.id}-{key}",
                command=candidate.argv,
                round=0 if record is None else record.round + 1,
            )
        attempt = Attempt(self, record, candidate, feedback)
        if left is not None or (record.is_over and record.unwanted is not None):
            attempt.recall(record, left)
        self.attempts.append(attempt)
        self._tasks[attempt.id] = asyncio.create_task(self._perform(attempt, record))
        return attempt

    async def _perform(self, attempt: Attempt, record: AttemptRecord) -> None:
        try:
            async with self._slots:
                if attempt.state != "pending":
                    return  # it was over when the process that ran it was killed
                attempt.begin()
                with span("attempt", id=attempt.id, label=attempt.candidate.label) as made:
                    await execute(attempt, record.branch)
                    if not attempt.success:
                        failed(made, attempt.reason)
        except asyncio.CancelledError as error:
            if attempt.state == "pending":
                attempt.reason = str(error) or "cancelled"
                attempt.record_end()
            raise

    def _left_of(self, record: AttemptRecord) -> Branch | None:
        """The branch of an attempt that was over when its process was killed, if nothing was built upon it yet."""
        if record.state not in ("succeeded", "failed", *(["cancelled"] if self.settings.reopens else [])):
            return None
        inner = [] if self.settings.reopens else self.ledger.children(record.id)
        if any(child.commit is not None and child.started >= (record.ended or 0.0) for child in inner):
            return None
        with suppress(BranchNotFoundError):
            return Branch.open(self.parent, record.branch)
        return None

    async def finished(self, attempts: Iterable[Attempt]) -> AsyncIterator[Attempt]:
        """The attempts as they end, each when it does."""
        waiting = {self._tasks[a.id]: a for a in attempts}
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda t: waiting[t].index):
                attempt = waiting.pop(task)
                if not task.cancelled():
                    task.result()  # what fails here is no attempt: it is forkwise
                if self._is_decided_elsewhere:
                    raise ForkResolvedError(f"fork {self.id} was decided elsewhere", fork=self.id)
                yield attempt

    async def run(self, attempts: Iterable[Attempt]) -> list[Attempt]:
        """Wait for all of them."""
        attempts = list(attempts)
        async for _ in self.finished(attempts):
            pass
        return attempts

    async def cancel(self, attempts: Iterable[Attempt], reason: str) -> None:
        """End those that still run, with all their descendants."""
        going = [self._tasks[a.id] for a in attempts if not self._tasks[a.id].done()]
        for task in going:
            task.cancel(reason)
        if going:
            await asyncio.wait(going)

    # The one resolution

    async def resolve(
        self, winner: Attempt, how: str, detail: dict[str, Any] | None = None, *, aside: bool = False
    ) -> Commit:
        """Decide for a winner: its changes are committed into the parent, all other attempts are gone.

        Raises ForkResolvedError where somebody else decided before. Where the commit is refused (a conflict), that is
        raised, and the winner's branch is kept for somebody to look at. What was decided is carried out: who is
        cancelled meanwhile comes too late. With ``aside`` the branches of the others are set ``aside`` instead of
        dropped, for somebody who decides otherwise.
        """
        if not self.ledger.resolve(self.id, how=how, winner=winner.id, detail=detail):
            await self.abort("it was decided elsewhere")
            raise ForkResolvedError(f"fork {self.id} was decided already", fork=self.id)
        self._is_over = True
        return await finish(asyncio.ensure_future(self._carry_out(winner, aside=aside)))

    async def _carry_out(self, winner: Attempt, *, aside: bool) -> Commit:
        others = [a for a in self.attempts if a is not winner]
        try:
            with span("commit", fork=self.id, attempt=winner.id):
                await self.cancel(others, "another attempt won")
                self.commit = await run_in_thread(self._commit, winner.place)
            if aside:
                self.aside = await run_in_thread(shelve_losers, others)
        except BranchingError as error:
            error.add_note(await run_in_thread(keep_winner, winner))
            raise
        finally:
            await self._drop([attempt for attempt in others if attempt.id not in self.aside])
        commit = self.commit
        await write_with_retry(lambda: self.ledger.record_commit(self.id, commit.id, commit.paths), self.attempts)
        await self._show_parent()
        return commit

    async def _show_parent(self) -> None:
        """Bring the parent's view up again, which a commit takes down, for whoever works there and goes on."""
        parent = self.parent
        if isinstance(parent, Branch) and not self._shares:
            with suppress(BranchingError):  # it is gone: its attempt is over
                await run_in_thread(lambda: parent.path)

    def _commit(self, branch: Branch) -> Commit:
        if self.settings.policy is None:
            return commit_winner(branch, self.settings.on_conflict)
        self.landed = land(branch, self.settings.policy)
        return self.landed.commit

    async def await_pick(self, favourite: Attempt | None, how: str) -> None:
        """Wait for a person's pick: all attempts are over, and their branches are kept until then."""
        await self.cancel(self.attempts, "the fork waits for a pick")
        for attempt in self.attempts:
            if attempt.branch is not None:
                await run_in_thread(attempt.branch.keep)
        if favourite is not None:
            self.ledger.record_verdict(self.id, {"winner": favourite.id, "how": how})
        self.ledger.await_pick(self.id)
        self._is_over = True

    async def detach(self) -> None:
        """Let go of it undecided, as a kill would: what runs is ended, but the ledger has it as running, so that who
        resumes the fork goes on with it. Branches stay, and are mounted no more."""
        self.is_left = True
        await self.cancel(self.attempts, "the fork was left")
        self._is_over = True
        await hide(self.attempts)
        self.ledger.release_fork(self.id)

    async def abort(self, reason: str, *, keep: bool = True) -> None:
        """Give it up: no attempt is left, and the parent is as it was. Where somebody else decided it meanwhile, the
        winner is theirs. With ``keep=False`` no branch is kept, whatever the settings say."""
        self._is_over = True
        await finish(asyncio.ensure_future(self._give_up(reason, keep=keep)))

    async def _give_up(self, reason: str, *, keep: bool) -> None:
        winner = None
        with suppress(LedgerError):  # of a full disk: there is room once the branches are gone
            self.ledger.abort_fork(self.id, reason)
            winner = self.ledger.fork(self.id).winner
        await self.cancel(self.attempts, reason)
        await self._drop([a for a in self.attempts if a.id != winner], keep=keep)
        await write_with_retry(lambda: self.ledger.abort_fork(self.id, reason), self.attempts)

    async def _drop(self, attempts: Sequence[Attempt], *, keep: bool = True) -> None:
        """Have the branches of attempts vanish, or kept if that was asked for; none of them goes on any more."""
        await drop(attempts, keep=keep and self.settings.keep)
        await write_with_retry(lambda: write_ends(self.attempts), self.attempts)


def _parallel(asked: int | None) -> int:
    if asked is not None and asked < 1:
        raise ValueError(f"at least one attempt has to run at a time, not {asked}")
    return asked or default_parallel()


def _attempt_in(parent: Workspace | Branch) -> Attempt | None:
    attempt = current_attempt()
    return attempt if attempt is not None and attempt.branch is parent else None
