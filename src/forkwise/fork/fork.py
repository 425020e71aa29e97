"""Fork: sibling attempts that start from the same parent, and their one resolution.

A pattern is a policy over a fork: it decides which candidates run next and which attempt wins. The ledger records every
step; the resolution is written there before any file changes, and only the first one counts.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forkwise.concurrency import finish, run_in_thread
from forkwise.errors import (
    BranchError,
    BranchingError,
    BranchNotFoundError,
    CommitError,
    ForkResolvedError,
    ForkwiseWarning,
    LedgerError,
    RetestError,
)
from forkwise.files.branch import Branch
from forkwise.files.edits.edit_watch import EditWatch
from forkwise.files.store import trash
from forkwise.files.store.state import is_ordinary
from forkwise.files.workspace import Workspace
from forkwise.fork.agent_paths.sessions import conclude_agent_paths
from forkwise.fork.attempt import Attempt, current_attempt
from forkwise.fork.candidate import Candidate, abandon_reason
from forkwise.fork.evaluation import Evaluator, Retest
from forkwise.fork.execute import execute
from forkwise.fork.limits.provider_limit import ProviderLimit, ProviderRules
from forkwise.fork.limits.spend_budget import SpendBudget, SpendLimits, TimeBudget
from forkwise.fork.limits.start_gate import Preparation, StartGate
from forkwise.fork.runner import InProcessRunner, Runner
from forkwise.git.repository_change import read_head_commit
from forkwise.ledger.logs import remove_log
from forkwise.ledger.sqlite import open_ledger
from forkwise.linux.process_id import ProcessId
from forkwise.telemetry import mark_failed, operation_span, record_usage, span

if TYPE_CHECKING:
    from forkwise.files.branch import Parent
    from forkwise.files.shelf import ShelvedBranch
    from forkwise.files.store.changes import Commit, ConflictPolicy, OnConflict
    from forkwise.fork.land import Landed
    from forkwise.git.ignore_rules import Ignore
    from forkwise.ledger.change_watch import ChangeWatch
    from forkwise.ledger.ledger import Ledger
    from forkwise.ledger.records import AttemptRecord, ForkRecord
    from forkwise.testing.baseline import Baseline

__all__ = [
    "Fork",
    "ForkSettings",
    "default_parallel",
    "drop",
    "hide",
    "keep_winner",
    "open_ledger",
    "parent_of",
    "require_revocable",
    "write_ends",
    "write_with_retry",
]

_POLL_INTERVAL = 0.25  # seconds
_LONGEST_INTERVAL = 15.0  # if the ledger announces requests
_REQUESTS = ("unwanted", "resolved", "aborted", "adopted")  # events by which other processes end a fork or an attempt


async def drop(attempts: Iterable[Attempt], *, keep: bool) -> None:
    """Drop the branches of attempts, or keep them. Warn about a branch that cannot be dropped, and continue."""
    for attempt in attempts:
        if attempt.branch is None:
            continue
        try:
            await run_in_thread(attempt.branch.keep if keep else attempt.branch.abort)
        except BranchNotFoundError:
            continue
        except BranchingError as error:
            warnings.warn(f"the branch of {attempt.id} was not removed: {error}", ForkwiseWarning, stacklevel=2)


async def hide(attempts: Iterable[Attempt]) -> None:
    """Unmount the views of the attempts' branches; the branches stay."""
    for attempt in attempts:
        if attempt.branch is not None:
            await run_in_thread(attempt.branch.hide)


def keep_winner(winner: Attempt) -> str:
    """Keep the branch of a winner that could not be committed. Return a note about it for the user."""
    try:
        winner.own_branch.keep()
    except BranchingError as error:
        return f"The winner, {winner.id}, could not be kept: {error}"
    return f"The winner, {winner.id}, is kept as the branch {winner.own_branch.branch_path}"


def write_ends(attempts: Sequence[Attempt]) -> None:
    """Record the ends of attempts that could not be recorded when they ended."""
    for attempt in attempts:
        if not attempt.fork.ledger.attempt(attempt.id).is_over:
            attempt.record_end()


async def write_with_retry(write: Callable[[], object], attempts: Sequence[Attempt]) -> None:
    """Write to the ledger. On a full disk, wait until the trash is empty, then remove the attempts' logs, and retry."""

    def remove_logs() -> None:
        from forkwise.ledger.stored_changes import remove_changes  # noqa: PLC0415 - for a full disk only

        for attempt in attempts:
            remove_log(attempt.fork.ledger.directory, attempt.id)
            remove_changes(attempt.fork.ledger.directory, attempt.id)

    for free_space in (trash.wait_until_empty, remove_logs):
        try:
            write()
            return
        except LedgerError:
            await run_in_thread(free_space)
    write()


def default_parallel() -> int:
    """Return how many attempts run at once by default: more than there are processors, as agents mostly wait."""
    return min(32, (os.cpu_count() or 1) + 4)


def parent_of(target: Workspace | Branch | str | os.PathLike[str]) -> Workspace | Branch:
    """Open the parent of a new fork. In an attempt, its own directory stands for its branch.

    Raises BranchError in an attempt on DaxFS: a commit of the inner fork would commit the attempt's branch with it.
    """
    found = _parent_of(target)
    attempt = current_attempt()
    if attempt is not None and found is attempt.branch and attempt.branch.view_kind.ends_chain:
        raise BranchError(
            f"attempt {attempt.id} cannot fork its branch on {attempt.branch.view}, whose commits include the branches "
            "around the committed one: the attempt would be committed before it is evaluated"
        )
    return found


def require_revocable(parent: Workspace | Branch) -> Workspace | Branch:
    """Return the parent of a fork whose decision can be overridden and undone.

    Raises BranchError if it is on a BranchFS or DaxFS mount, whose commits cannot be undone.
    """
    if parent.child_view().native:
        raise BranchError(
            f"{parent.workspace.path} is on a {parent.workspace.fstype} mount, whose commits cannot be undone: a live "
            "fork needs that. Open the directory that is mounted there"
        )
    return parent


def _parent_of(target: Workspace | Branch | str | os.PathLike[str]) -> Workspace | Branch:
    if isinstance(target, Branch):
        return target
    path = target.path if isinstance(target, Workspace) else target
    attempt = current_attempt()
    branch = None if attempt is None else attempt.branch  # an attempt in memory has none
    if branch is not None and os.path.realpath(path) == os.path.realpath(branch.path):
        return branch
    return target if isinstance(target, Workspace) else Workspace(target)


@dataclass(frozen=True, slots=True)
class ForkSettings:
    """How the attempts of a fork run and how the fork is resolved.

    ``timeout`` applies to each attempt, ``evaluator`` scores those that succeed. ``keep`` keeps the branches of all
    attempts. A ``policy`` decides conflicts without losing either version (see ``land``), and overrides
    ``on_conflict``. With ``reopens``, an attempt whose process was killed continues in its branch instead of a new one.
    ``retest`` are the tests that a winner has to pass again if the parent was changed since the fork.
    ``allow_executable_config`` is that of the commit. With ``holds_on_interrupt``, attempts that had succeeded when the
    fork is cancelled wait for a pick, instead of being dropped with the others.

    ``ignore`` is what attempts' branches leave out (see ``Branch.set_ignore``). An attempt that changed nothing ranks
    below those that did, and fails if ``has_prompt`` says that something was to be done, unless ``allow_empty`` is set.
    ``time_budget`` is the running time in seconds of all attempts together, ``spend_limits`` is what they may spend,
    ``provider_rules`` say how attempts by agents share their providers. ``make_branch`` creates the branches of
    attempts that do not start from the parent's files as they are.
    """

    runner: Runner = field(default_factory=InProcessRunner)
    evaluator: Evaluator | None = None
    timeout: float | None = None
    max_parallel: int | None = None
    keep: bool = False
    on_conflict: OnConflict = "refuse"
    policy: ConflictPolicy | None = None
    reopens: bool = False
    retest: Evaluator | None = None
    allow_executable_config: bool | None = None
    holds_on_interrupt: bool = False
    ignore: Ignore | None = None
    allow_empty: bool = False
    has_prompt: bool = False
    time_budget: float | None = None
    spend_limits: SpendLimits | None = None
    provider_rules: ProviderRules | None = None
    make_branch: Callable[[Parent, str], Branch] | None = None


class Fork:
    """A fork, as an async context manager that aborts the fork if it is still unresolved at the end of the block.

    ``spec`` is stored for resuming the fork after a kill. ``resume`` is the id of an interrupted fork to continue: its
    finished attempts are not run again, unfinished ones start over.
    """

    def __init__(
        self,
        parent: Workspace | Branch | None,
        kind: str,
        settings: ForkSettings | None = None,
        *,
        spec: dict[str, Any] | None = None,
        resume: str | None = None,
        inside: Attempt | None = None,
    ) -> None:
        self._parent = parent
        self.kind = kind
        self.settings = settings or ForkSettings()
        self.attempts: list[Attempt] = []
        self.commit: Commit | None = None
        self.landed: Landed | None = None
        self.shelved: dict[str, ShelvedBranch] = {}
        self._spec = spec or {}
        self._resume = resume
        self.inside = inside or _attempt_in(parent)
        #: Whether there is something to do, so that an attempt that changes nothing fails: a prompt, or failing tests.
        self.has_work: bool = inside.fork.has_work if inside is not None else self.settings.has_prompt
        self._shares_ledger = inside is not None  # and the slots, with the fork around it
        self._open = ExitStack()
        self._ledger: Ledger | None = None
        self._record: ForkRecord | None = None
        self._known: dict[str, AttemptRecord] = {}
        self._numbers: dict[str, int] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots: asyncio.Semaphore = (
            inside.fork._slots
            if inside
            else asyncio.Semaphore(_check_parallel(self.settings.max_parallel, self.settings.runner.max_parallel))
        )
        self.time_budget: TimeBudget = inside.fork.time_budget if inside else TimeBudget(self.settings.time_budget)
        self.spend_budget: SpendBudget = inside.fork.spend_budget if inside else SpendBudget(self.settings.spend_limits)
        self.preparation = Preparation()
        self._gates: dict[str, StartGate] = {}
        self.provider_rules = self.settings.provider_rules or ProviderRules()
        self._limits: dict[str, ProviderLimit] = inside.fork._limits if inside else {}
        self._polling: asyncio.Task[None] | None = None
        self._edit_watch: EditWatch | None = None
        self._is_over = False
        self.is_detached = False
        self._is_decided_elsewhere = False
        self._retest: Retest | None = None  # while it runs
        self._refusals: dict[str, CommitError] = {}
        self._rejected: list[Attempt] = []
        self.baselines: dict[Evaluator, Baseline] = {}

    @property
    def parent(self) -> Workspace | Branch:
        """The workspace or branch that is forked. Raises RuntimeError for a fork in memory, which has none."""
        if self._parent is None:
            raise RuntimeError("a fork in memory has no parent")
        return self._parent

    @property
    def is_inner(self) -> bool:
        """Whether the fork is a part of the search that the fork around it belongs to."""
        return self._shares_ledger

    @property
    def id(self) -> str:
        """The fork's id in the ledger."""
        return self.record.id

    @property
    def record(self) -> ForkRecord:
        """The fork's ledger record as of its start."""
        if self._record is None:
            raise RuntimeError("the fork is not open: use async with Fork(...)")
        return self._record

    @property
    def ledger(self) -> Ledger:
        """The ledger that records the fork."""
        if self._ledger is None:
            raise RuntimeError("the fork is not open: use async with Fork(...)")
        return self._ledger

    async def __aenter__(self) -> Fork:
        outer_fork = self.inside.fork if self.inside is not None and self._shares_ledger else None
        outer_attempt = current_attempt()
        try:
            if outer_fork is None and outer_attempt is not None:
                self._open.enter_context(outer_attempt.nested_runs.track())
            self._ledger = outer_fork.ledger if outer_fork else self._open.enter_context(self._open_ledger())
            self._record = self._open_record(self._ledger)
        except BaseException:
            self._open.close()
            raise
        known = self._ledger.attempts(self.id)
        self._known = {a.key: a for a in known}
        self._numbers = {a.key: a.number for a in reversed(known)}
        self.time_budget.use(sum(a.wall or 0.0 for a in known))
        for attempt in known:
            self.spend_budget.use(attempt.id, attempt.cost or {})
        self._polling = self._start_polling()
        self._watch_edits()
        return self

    def _watch_edits(self) -> None:
        """Have the kernel report what other programs change in the workspace, if this user may watch it."""
        with suppress(OSError):  # the workspace was removed: its attempts fail for that reason
            if isinstance(self._parent, Workspace) and self.inside is None and is_ordinary(self._parent.path):
                self._edit_watch = EditWatch(self._parent, self.record.generation, self.record_edits)
                self._open.callback(self._edit_watch.close)

    @property
    def reports_edits(self) -> bool:
        """Whether the kernel has reported all that other programs changed in the workspace so far."""
        return self._edit_watch is not None and self._edit_watch.is_complete

    def record_edits(self, paths: Sequence[str]) -> None:
        """Record paths of the workspace that other programs changed. Any thread may call this."""
        with suppress(LedgerError):  # such as a full disk: it is only a notice
            self.ledger.record_edits(self.id, paths)

    def _open_ledger(self) -> Ledger:
        return open_ledger(self.parent.workspace)

    def _start_polling(self) -> asyncio.Task[None] | None:
        return asyncio.create_task(_poll_requests(self))

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        with self._open:
            try:
                if not self._is_over and isinstance(error, asyncio.CancelledError):
                    reason = str(error) or "it was interrupted"
                    if not await finish(asyncio.ensure_future(self._hold_successes(reason))):
                        await self.abort(reason, keep=False)
                elif not self._is_over:
                    await self.abort(abandon_reason(error))
            finally:
                if self._polling is not None:
                    self._polling.cancel()

    async def _hold_successes(self, reason: str) -> bool:
        """Leave successful attempts for a pick, and drop the others; return whether any succeeded."""
        if not self.settings.holds_on_interrupt or self.inside is not None or _is_decided(self):
            return False
        await self.cancel(self.attempts, reason)
        held = [attempt for attempt in self.attempts if attempt.success and attempt.branch is not None]
        if not held:
            return False
        try:
            await drop([attempt for attempt in self.attempts if attempt not in held], keep=False)
            for attempt in held:
                await run_in_thread(attempt.own_branch.keep)
            write_ends(self.attempts)
            best = max(held, key=lambda attempt: attempt.scores)
            self.ledger.record_verdict(self.id, {"winner": best.id, "how": "best when interrupted"})
            self.ledger.await_pick(self.id)
        except BranchingError as error:  # such as a full disk, or another process that has decided meanwhile
            warnings.warn(f"attempts of {self.id} could not be kept for a pick: {error}", ForkwiseWarning, stacklevel=2)
            return False
        self._is_over = True
        return True

    async def stop_decided_elsewhere(self) -> None:
        """Cancel all attempts because another process has picked a winner or aborted the fork."""
        self._is_decided_elsewhere = True
        if self._retest is not None:
            self._retest.cancel()
        await self.cancel(self.attempts, "the fork was decided elsewhere")

    @property
    def is_over(self) -> bool:
        """Whether this process resolved, aborted or detached the fork, or left it for a pick."""
        return self._is_over

    def _open_record(self, ledger: Ledger) -> ForkRecord:
        if self._resume is None:
            return ledger.begin_fork(
                self.kind,
                workspace=str(self.parent.workspace.path),
                spec=self._spec,
                parent=self.inside.id if self.inside else None,
                origin=self.parent.branch_path,
                generation=self.parent.state_dir.head,
                head=read_head_commit(str(self.parent.workspace.path)) if self.parent.branch_path == "/main" else None,
            )
        if not ledger.adopt_fork(self._resume):
            record = ledger.fork(self._resume)
            raise ForkResolvedError(f"fork {record.id} cannot be resumed: it is {record.state}", fork=record.id)
        return ledger.fork(self._resume)

    # Attempts

    def add(self, candidate: Candidate, index: int, key: str | None = None, feedback: str | None = None) -> Attempt:
        """Run a candidate in a new branch, as soon as a slot is free.

        ``key`` identifies the attempt within the fork when it is resumed; by default it is ``index``. An attempt
        that is run again then has a new id, and keeps its number and its branch's name.
        """
        candidate = candidate.select(index)
        key = str(index) if key is None else key
        record = self._known.get(key)
        left = None if record is None else self._find_reusable_branch(record)
        if _is_decided(self):
            raise ForkResolvedError(f"fork {self.id} was decided elsewhere", fork=self.id)
        if record is None or (record.is_over and left is None and record.unwanted is None):
            record = self.ledger.add_attempt(
                self.id,
                key,
                index=index,
                label=candidate.label,
                branch=self._choose_branch(key, index),
                command=candidate.argv,
                round=0 if record is None else record.round + 1,
                agent=candidate.agent,
                variation=candidate.variation,
                variant=candidate.variant,
            )
        attempt = Attempt(self, record, candidate, feedback, number=self._numbers.setdefault(key, record.number))
        if left is not None or (record.is_over and record.unwanted is not None):
            attempt.restore(record, left)
        self.attempts.append(attempt)
        self._tasks[attempt.id] = asyncio.create_task(self._run_attempt(attempt, record))
        return attempt

    def _choose_branch(self, key: str, index: int) -> str | None:
        """Return the name of the branch to resume; None if a new branch can have its usual name."""
        if key in self._known:
            return self._known[key].branch
        # Earlier versions counted branches from 0, so that the branch of another attempt may have this name.
        is_taken = any(record.branch == f"{self.id}-{index + 1}" for record in self._known.values())
        return f"{self.id}-{key}-new" if is_taken else None

    async def _run_attempt(self, attempt: Attempt, record: AttemptRecord) -> None:
        try:
            async with self._slots:
                if attempt.state != "pending":
                    return  # restored from the ledger
                if (reason := self.time_budget.reason or self.spend_budget.reason) is not None:
                    attempt.reason = reason
                    attempt.record_end()
                    return
                if attempt.candidate.agent is not None:
                    await self.find_gate(attempt).wait(attempt.id)
                    if (reason := self.find_gate(attempt).reason) is not None:
                        attempt.state, attempt.reason, attempt.fault = "faulted", reason, "provider"
                        attempt.record_end()
                        return
                    await self.find_limit(attempt).enter(attempt.id)
                attempt.make_current()
                with _trace_attempt(attempt) as made:
                    await self._execute(attempt, record.branch)
                    if made.is_recording() and attempt.reader is not None:
                        record_usage(made, attempt.reader.find_cost())
                    if not attempt.success:
                        mark_failed(made, attempt.reason)
        except asyncio.CancelledError as error:
            if attempt.state == "pending":
                attempt.reason = str(error) or "cancelled"
                attempt.record_end()
            raise
        finally:
            self.find_limit(attempt).leave(attempt.id)

    def find_limit(self, attempt: Attempt) -> ProviderLimit:
        """Return the limit that an attempt shares with those whose agents use the same provider."""
        candidate = attempt.candidate
        at_once = self.provider_rules.at_once or candidate.at_once
        return self._limits.setdefault(candidate.provider or candidate.agent or "", ProviderLimit(at_once))

    def find_gate(self, attempt: Attempt) -> StartGate:
        """Return what the attempts of the same agent wait for before they start."""
        return self._gates.setdefault(attempt.candidate.agent or "", StartGate(attempt.id))

    async def _execute(self, attempt: Attempt, branch: str) -> None:
        await execute(attempt, branch)

    def _find_reusable_branch(self, record: AttemptRecord) -> Branch | None:
        """Open the branch of an attempt that ended before its process was killed.

        Returns None if the branch no longer exists, or if a fork inside the attempt has changed it since.
        """
        if record.state not in ("succeeded", "failed", *(["cancelled"] if self.settings.reopens else [])):
            return None
        inner = [] if self.settings.reopens else self.ledger.children(record.id)
        if any(child.commit is not None and child.started >= (record.ended or 0.0) for child in inner):
            return None
        with suppress(BranchNotFoundError):
            return Branch.open(self.parent, record.branch)
        return None

    async def finished(self, attempts: Iterable[Attempt]) -> AsyncIterator[Attempt]:
        """Yield the attempts in the order in which they end."""
        waiting = {self._tasks[a.id]: a for a in attempts}
        ended: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
        for task in waiting:  # asyncio.wait would add a callback to every task again each time one ends
            task.add_done_callback(ended.put_nowait)
        while waiting:
            done = [await ended.get()]
            while not ended.empty():
                done.append(ended.get_nowait())
            for task in sorted(done, key=lambda t: waiting[t].index):
                attempt = waiting.pop(task)
                if not task.cancelled():
                    task.result()  # raises errors of forkwise itself; those of a candidate are in the attempt
                if self._is_decided_elsewhere:
                    raise ForkResolvedError(f"fork {self.id} was decided elsewhere", fork=self.id)
                yield attempt

    async def run(self, attempts: Iterable[Attempt]) -> list[Attempt]:
        """Wait for all ``attempts`` and return them."""
        attempts = list(attempts)
        async for _ in self.finished(attempts):
            pass
        return attempts

    async def cancel(self, attempts: Iterable[Attempt], reason: str) -> None:
        """Cancel the attempts that still run, with all their descendants."""
        running = [self._tasks[a.id] for a in attempts if not self._tasks[a.id].done()]
        for task in running:
            task.cancel(reason)
        if running:
            await asyncio.wait(running)

    # The one resolution

    async def resolve(
        self, winner: Attempt, how: str, detail: dict[str, Any] | None = None, *, shelve: bool = False
    ) -> Commit:
        """Resolve the fork: commit the winner's changes into the parent and drop all other attempts.

        Raises ForkResolvedError if another process decided the fork first. If the commit is refused (a conflict), the
        error is raised and the winner's branch is kept. Cancellation does not interrupt a resolution. With ``shelve``
        the losers' branches are moved to ``shelved`` instead of dropped, so that the decision can be overridden.

        Raises RetestError, with nothing committed and the fork undecided, if the winner has to be tested again (see
        ``prepare``) and fails.
        """
        await self.prepare(winner)
        if not self.ledger.resolve(self.id, how=how, winner=winner.id, detail=detail):
            await self.abort("it was decided elsewhere")
            raise ForkResolvedError(f"fork {self.id} was decided already", fork=self.id)
        self._is_over = True
        return await finish(asyncio.ensure_future(self._carry_out(winner, shelve=shelve)))

    async def prepare(self, winner: Attempt) -> None:
        """Rebase a winner and test it again, if the parent was changed since the fork and the settings say so.

        The fork stays undecided meanwhile. Raises RetestError if the tests fail; ``resolve`` raises other errors.
        """
        retest = self._build_retest()
        if retest is None or winner.id in self._refusals or winner.own_branch.view_kind.native:
            return
        if self._is_decided_elsewhere or _is_decided(self):
            return
        from forkwise.fork.land import decide_conflicts, prepare_commit  # noqa: PLC0415 - needed only at the end

        on_conflict, merges = self.settings.on_conflict, True
        if self.settings.policy is not None:
            on_conflict, merges = decide_conflicts(self.settings.policy), False
        self._retest = retest
        work = run_in_thread(prepare_commit, winner.own_branch, on_conflict, retest, merges=merges)
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            retest.cancel()
            with suppress(BranchingError, OSError):
                await finish(work)
            raise
        except RetestError:
            raise
        except CommitError as error:
            if not self._is_decided_elsewhere:
                self._refusals[winner.id] = error
        except BranchNotFoundError:
            return  # another process committed or dropped it: ``resolve`` finds that out
        finally:
            self._retest = None

    def _build_retest(self) -> Retest | None:
        tests = self.settings.retest
        if tests is None or not tests.has_tests:
            return None
        return Retest(tests, asyncio.get_running_loop())

    async def reject(self, attempt: Attempt, error: RetestError) -> None:
        """Record that an attempt that had succeeded failed its retest: it cannot win any more."""
        from forkwise.testing.report import TestReport  # noqa: PLC0415 - only the end of an attempt needs it

        if attempt.state == "succeeded":
            attempt.state, attempt.reason, attempt.error = "failed", error.reason, error
            if error.tests is not None:
                attempt.tests = TestReport.from_json(error.tests)
            if not self._is_over:  # it has won this fork, inside an attempt that fails
                self._rejected.append(attempt)
                self.ledger.reject_attempt(attempt.id, error.reason, error.tests)

    async def _carry_out(self, winner: Attempt, *, shelve: bool) -> Commit:
        from forkwise.fork.resolve import shelve_losers  # noqa: PLC0415 - only the end of an attempt needs it
        from forkwise.fork.stored_fork import warn_if_unrecorded  # noqa: PLC0415 - only the end of an attempt needs it

        others = [a for a in self.attempts if a is not winner]
        retest = self._build_retest()
        try:
            with span("commit", fork=self.id, attempt=winner.id):
                await self.cancel(others, "another attempt won")
                if winner.id in self._refusals:
                    raise self._refusals[winner.id]
                self.commit = await run_in_thread(self._commit, winner.own_branch, retest)
            if shelve:
                self.shelved = await run_in_thread(shelve_losers, others)
        except RetestError as error:  # the parent was changed after the fork was decided: it is undecided again
            self.ledger.withdraw(self.id, error.reason, "running")
            self._is_over = False
            self._polling = self._start_polling()
            raise
        except BaseException as error:
            if isinstance(error, BranchingError):
                error.add_note(await run_in_thread(keep_winner, winner))
            await self._drop([attempt for attempt in others if attempt.id not in self.shelved])
            raise
        commit = self.commit
        await drop([attempt for attempt in others if attempt.id not in self.shelved], keep=self.settings.keep)
        with warn_if_unrecorded(f"fork {self.id} was committed as {commit.id}"):
            await write_with_retry(lambda: self.ledger.record_commit(self.id, commit.id, commit.paths), self.attempts)
            await write_with_retry(lambda: write_ends(self.attempts), self.attempts)
        await self._remount_parent()
        return commit

    async def _remount_parent(self) -> None:
        """Mount the parent's view again, which a commit unmounts: the attempt around this fork still works there."""
        parent = self.parent
        if isinstance(parent, Branch) and not self._shares_ledger:
            with suppress(BranchingError):  # the branch was dropped with its attempt
                await run_in_thread(lambda: parent.path)

    def _commit(self, branch: Branch, retest: Retest | None) -> Commit:
        from forkwise.fork.land import commit_winner, land  # noqa: PLC0415 - only the end of an attempt needs it

        allow = self.settings.allow_executable_config
        with conclude_agent_paths(branch):
            if self.settings.policy is None:
                return commit_winner(branch, self.settings.on_conflict, retest=retest, allow_executable_config=allow)
            self.landed = land(branch, self.settings.policy, retest=retest, allow_executable_config=allow)
            return self.landed.commit

    async def await_pick(self, favourite: Attempt | None, how: str) -> None:
        """End all attempts and keep their branches, so that the user can pick the winner later."""
        await self.cancel(self.attempts, "the fork waits for a pick")
        for attempt in self.attempts:
            if attempt.branch is not None:
                await run_in_thread(attempt.branch.keep)
        if favourite is not None:
            known = self.ledger.fork(self.id).verdict or {}  # such as a judge's votes
            self.ledger.record_verdict(self.id, {**known, "winner": favourite.id, "how": how})
        self.ledger.await_pick(self.id)
        self._is_over = True

    async def detach(self) -> None:
        """Detach without deciding: stop the attempts, unmount their branches, leave the fork resumable."""
        self.is_detached = True
        await self.cancel(self.attempts, "the fork was detached")
        self._is_over = True
        await hide(self.attempts)
        self.ledger.release_fork(self.id)

    async def abort(self, reason: str, *, keep: bool = True) -> None:
        """Abort the fork: drop all attempts and leave the parent unchanged.

        A winner that another process picked in the meantime keeps its branch. ``keep=False`` overrides the settings.
        """
        self._is_over = True
        await finish(asyncio.ensure_future(self._abort(reason, keep=keep)))

    async def _abort(self, reason: str, *, keep: bool) -> None:
        winner = None
        with suppress(LedgerError):  # a full disk: dropping the branches frees space for the write below
            self.ledger.abort_fork(self.id, reason)
            winner = self.ledger.fork(self.id).winner
        await self.cancel(self.attempts, reason)
        rejected = self._rejected if keep and not self.settings.keep else []
        await self._keep_rejected([a for a in rejected if a.id != winner])
        await self._drop([a for a in self.attempts if a.id != winner and a not in rejected], keep=keep)
        await write_with_retry(lambda: self.ledger.abort_fork(self.id, reason), self.attempts)

    async def _keep_rejected(self, attempts: Sequence[Attempt]) -> None:
        """Keep the branches of attempts that failed only their retest, because a fix may make them useful."""
        for attempt in attempts:
            if attempt.branch is not None:
                try:
                    kept = await run_in_thread(attempt.branch.keep)
                except BranchNotFoundError:
                    continue
                warnings.warn(
                    f"{attempt.id} {attempt.reason}. It is kept as the branch {kept.branch_path}",
                    ForkwiseWarning,
                    stacklevel=2,
                )

    async def _drop(self, attempts: Sequence[Attempt], *, keep: bool = True) -> None:
        """Drop the attempts' branches, or keep them if ``keep`` and the settings say so, and record their ends."""
        await drop(attempts, keep=keep and self.settings.keep)
        await write_with_retry(lambda: write_ends(self.attempts), self.attempts)


def _check_parallel(max_parallel: int | None, usual: int | None) -> int:
    if max_parallel is not None and max_parallel < 1:
        raise ValueError(f"max_parallel must be at least 1, not {max_parallel}")
    return max_parallel or usual or default_parallel()


def _attempt_in(parent: Workspace | Branch | None) -> Attempt | None:
    attempt = current_attempt()
    return attempt if attempt is not None and attempt.branch is parent else None


async def _poll_requests(fork: Fork) -> None:
    """Cancel all attempts once another process decides the fork, and each attempt that another process aborts."""
    with fork.ledger.watch_changes(fork.id, _REQUESTS) as watch:
        await _follow_requests(fork, watch)


async def _follow_requests(fork: Fork, watch: ChangeWatch) -> None:
    unwanted: dict[str, str] = {}
    seen = 0
    while True:
        await watch.wait_async(_POLL_INTERVAL, _LONGEST_INTERVAL)
        if fork.is_over:
            return
        if _is_decided_elsewhere(fork):
            await fork.stop_decided_elsewhere()
            return
        with suppress(LedgerError):  # the ledger is unreadable for now: the next poll retries
            for event in fork.ledger.events(after=seen, fork=fork.id):
                seen = event.seq
                if event.kind == "unwanted" and event.attempt is not None:
                    unwanted[event.attempt] = event.data["unwanted"]
        requested = [attempt for attempt in fork.attempts if attempt.id in unwanted]
        await asyncio.gather(*(fork.cancel([attempt], unwanted[attempt.id]) for attempt in requested))


def _is_decided(fork: Fork) -> bool:
    """Return whether a fork was decided, by this or another process."""
    with suppress(LedgerError):  # the ledger is unreadable for now: the next write to it raises
        return fork.ledger.fork(fork.id).is_over
    return False


def _is_decided_elsewhere(fork: Fork) -> bool:
    """Return whether a fork was decided, or adopted by another process because the lease of this one had expired."""
    with suppress(LedgerError):
        record = fork.ledger.fork(fork.id)
        return record.is_over or record.owner not in (ProcessId.current(), ProcessId.nobody())
    return False


def _trace_attempt(attempt: Attempt) -> AbstractContextManager[Any]:
    """Trace an attempt: one by a coding agent as an invocation of that agent, any other as an attempt."""
    candidate = attempt.candidate
    if candidate.agent is None:
        return span("attempt", id=attempt.id, label=candidate.label)
    facts = {"agent.name": candidate.agent, "provider.name": candidate.provider}
    return operation_span("invoke_agent", candidate.agent, facts, id=attempt.id, label=candidate.label)
