"""`LiveFork`: one fork of a running agent, with its source, its branches and its budget.

Also here: what a fork is made from (`ForkSource`) and what a later override needs (`RejectedBranches`). How a branch
runs is not known here.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic_ai
import pydantic_graph
from pydantic_ai.messages import ModelMessage

from forkwise.concurrency import finish, finish_on_idle_loop, run_in_thread
from forkwise.conversation.store import StoredConversation
from forkwise.errors import (
    BranchingError,
    CommitError,
    ForkNotFoundError,
    ForkResolvedError,
    ForkwiseWarning,
    LedgerError,
    RetestError,
)
from forkwise.files.branch import Branch
from forkwise.files.shelf import ShelvedBranch, shelve
from forkwise.files.workspace import Workspace
from forkwise.fork.agent_workspace import AgentFiles
from forkwise.fork.candidate import Candidate
from forkwise.fork.evaluators.tests import Tests
from forkwise.fork.fork import Fork, ForkSettings, parent_of, require_revocable
from forkwise.fork.land import check_executables
from forkwise.fork.memory_fork import MemoryFork
from forkwise.fork.resolve import replace_winner, unshelve_loser
from forkwise.fork.runner import InProcessRunner
from forkwise.linux import fds
from forkwise.live.backends.backend import Backend
from forkwise.live.backends.branch_overlay import (
    BranchOverlay,
    FilesOverlay,
    MemoryOverlay,
    build_flush_report,
    content_of,
)
from forkwise.live.backends.foreign import adapt_backend, find_directory
from forkwise.live.backends.local import DiskBackend
from forkwise.live.backends.memory import StateBackend
from forkwise.live.branch_runtime import BranchRuntime, Thread, conversation_from, current_branch, start_thread
from forkwise.live.budget import BudgetTracker, ForkBudget
from forkwise.live.checkpoints import Checkpoint, CheckpointStore, mark_files
from forkwise.live.deps import DeepAgentDeps
from forkwise.live.diff.mirror import ForkMaterializer
from forkwise.live.fork_plan import KIND, ForkPlan
from forkwise.live.values import BranchSpec, BranchState, BranchStatus, FlushError, FlushReport, ForkHandle
from forkwise.testing.report import TestReport

if TYPE_CHECKING:
    from forkwise.files.store.changes import ConflictPolicy
    from forkwise.fork.attempt import Attempt
    from forkwise.ledger.records import AttemptState
    from forkwise.live.coordinator import ForkCoordinator

__all__ = [
    "JUDGED_KINDS",
    "ForkSource",
    "LiveFork",
    "RejectedBranches",
    "RejectedInMemory",
    "RejectedOnDisk",
    "RunTurn",
    "WorkspaceLike",
    "branch_state",
    "find_source",
    "reopen_fork",
    "start_fork",
    "thread_label",
]


#: The accepted types of an agent's directory.
WorkspaceLike = Workspace | Branch | str | os.PathLike[str]


@dataclass(frozen=True)
class ForkSource:
    """The source of a fork: ``backend`` has the files that the parent's tools see.

    ``directory`` is the workspace or branch that is forked; None if the changes of branches are in memory.
    """

    directory: Workspace | Branch | None
    backend: Backend

    @property
    def is_in_memory(self) -> bool:
        """Whether the changes of branches are in memory."""
        return self.directory is None

    @property
    def parent(self) -> Workspace | Branch:
        """The workspace or branch that is forked. Raises RuntimeError if the changes of branches are in memory."""
        if self.directory is None:
            raise RuntimeError("a fork in memory has no directory")
        return self.directory

    def overlay(self, branch: Branch | None, label: str, policy: ConflictPolicy) -> BranchOverlay:
        """Return the files of a branch of this source."""
        if self.directory is not None:
            return FilesOverlay(self.backend, label, conflict_policy=policy, branch=branch)
        return MemoryOverlay(self.backend, label, conflict_policy=policy)


async def find_source(workspace: WorkspaceLike | None, deps: Any) -> ForkSource:
    """Find what to fork: the current branch, else ``workspace``, else the backend of ``deps``.

    Raises BranchError if the backend lacks a method that a branch needs.
    """
    inside = current_branch()
    given = getattr(deps, "backend", None)
    is_backend = isinstance(given, Backend) or (given is not None and isinstance(deps, DeepAgentDeps))
    backend = adapt_backend(given) if is_backend else None  # on the event loop, to which async methods belong
    if inside is not None and inside.attempt.branch is not None:
        return ForkSource(inside.attempt.branch, backend or inside.overlay)
    if workspace is None and (backend is None or isinstance(backend, MemoryOverlay | StateBackend)):
        inherited = None if inside is None else inside.overlay
        return ForkSource(None, backend or inherited or StateBackend())
    return await run_in_thread(_find_directory_source, workspace, given if is_backend else None)


def _find_directory_source(workspace: WorkspaceLike | None, given: Any) -> ForkSource:
    directory = find_directory(given)
    if directory is not None and (workspace is None or _has_same_files(directory, workspace)):
        return ForkSource(require_revocable(directory.source), directory)
    if workspace is not None:
        parent = require_revocable(parent_of(workspace))
        return ForkSource(parent, _PlainBackend(parent))
    return ForkSource(None, adapt_backend(given))


class _PlainBackend(DiskBackend):
    """The files of a workspace or branch, for an agent whose deps have no backend."""

    def __init__(self, parent: Workspace | Branch) -> None:
        self.files = AgentFiles(parent)


def _has_same_files(backend: DiskBackend, workspace: WorkspaceLike) -> bool:
    branch_path = workspace.branch_path if isinstance(workspace, Branch) else None
    own = backend.source.branch_path if isinstance(backend.source, Branch) else None
    if isinstance(workspace, Workspace | Branch):
        directory = workspace.workspace.path
    else:
        directory = Path(os.path.realpath(workspace))
    return branch_path == own and directory == backend.source.workspace.path


#: The kinds of resolution that `ForkCoordinator.override` may replace.
JUDGED_KINDS = ("auto", "vote")


class RejectedBranches(ABC):
    """The branches that lost, by id, as long as one of them may still replace the winner."""

    @property
    @abstractmethod
    def ids(self) -> Collection[str]:
        """The ids of the branches."""

    @abstractmethod
    def replace_winner(
        self,
        branch_id: str,
        label: str,
        policy: ConflictPolicy,
        *,
        tests: Tests | None,
        allow_executable_config: bool | None,
    ) -> FlushReport:
        """Undo the winner's changes, and apply those of another branch instead.

        Raises CommitError, with nothing changed, if the parent was changed since, and ExecutableConfigError. ``tests``
        are those that the other branch has to pass again if the parent was changed since it passed them.
        """

    @abstractmethod
    def discard(self) -> None:
        """Drop the branches: an override is no longer possible."""


@dataclass
class RejectedOnDisk(RejectedBranches):
    """Shelved branches of a workspace."""

    fork: str
    workspace: Workspace
    backend: DiskBackend
    shelved: dict[str, ShelvedBranch]

    @property
    def ids(self) -> Collection[str]:
        """The ids of the branches."""
        return self.shelved

    def replace_winner(
        self,
        branch_id: str,
        label: str,
        policy: ConflictPolicy,
        *,
        tests: Tests | None,
        allow_executable_config: bool | None,
    ) -> FlushReport:
        """Undo the winner's commit and commit another branch; the ledger records the intent first."""
        branch = unshelve_loser(self.workspace, self.fork, self.shelved[branch_id])
        del self.shelved[branch_id]
        overlay = FilesOverlay(self.backend, label, conflict_policy=policy, branch=branch)
        try:
            states = overlay.path_states()
            changes = overlay.changes()
            landed = replace_winner(
                self.workspace,
                self.fork,
                branch_id,
                policy,
                tests=tests,
                allow_executable_config=allow_executable_config,
            )
        except BranchingError:
            self.shelved[branch_id] = shelve(branch)
            raise
        return build_flush_report(landed, states, changes)

    def discard(self) -> None:
        """Drop the branches."""
        while self.shelved:
            self.shelved.popitem()[1].discard()


@dataclass
class RejectedInMemory(RejectedBranches):
    """Overlays in memory. ``before`` and ``after`` are the parent's contents of the paths that the winner changed."""

    backend: Backend
    overlays: dict[str, BranchOverlay]
    before: Mapping[str, bytes | None]
    after: Mapping[str, bytes | None] = field(default_factory=dict)

    @property
    def ids(self) -> Collection[str]:
        """The ids of the branches."""
        return self.overlays

    def replace_winner(
        self,
        branch_id: str,
        label: str,
        policy: ConflictPolicy,
        *,
        tests: Tests | None,
        allow_executable_config: bool | None,
    ) -> FlushReport:
        """Restore the contents from before the winner, and apply another branch's changes."""
        with self.backend.lock:
            changed = sorted(path for path, content in self.after.items() if content_of(self.backend, path) != content)
            if changed:
                raise CommitError(
                    f"the winner cannot be overridden: {', '.join(changed)} changed since the merge", paths=changed
                )
            overlay = self.overlays[branch_id]
            self.backend.replace(self.before)
            known = {path: self.before[path] for path in overlay.touched() if path in self.before}
            own = {path: content_of(self.backend, path) for path in overlay.touched()}
            report = overlay.flush_to(self.backend, known)
            if report.errors:
                self.backend.replace(self.after)
                return report
        del self.overlays[branch_id]
        self.before = own
        self.after = {path: content_of(self.backend, path) for path in own}
        return report

    def discard(self) -> None:
        """Drop the overlays."""
        self.overlays.clear()


#: Runs the first turn of a branch; returns whether it succeeded, and the text of the last response.
RunTurn = Callable[[BranchRuntime], Awaitable[tuple[bool, str]]]

_FORK_RESULT = (
    "You are now in the branch {label!r} of this fork. Follow the next instruction; the parent run picks and merges."
)


def branch_state(state: AttemptState, reason: str | None) -> BranchState:
    """Return the state of a branch, from the state of its attempt in the ledger."""
    if state in ("pending", "running"):
        return "running"
    if state == "succeeded":
        return "done"
    cause = (reason or "").removeprefix("BudgetExceededError: ").partition(":")[0]
    if cause == "aggregate_budget_exhausted":
        return "aggregate_budget_exhausted"
    if cause == "budget_exhausted":
        return "budget_exhausted"
    return state if state in ("failed", "faulted") else "terminated"


@dataclass(eq=False)
class LiveFork:
    """A fork of a running agent, until the next one.

    ``fork`` runs the branches as attempts. ``resources`` closes what the fork has open. ``is_over`` says that it was
    resolved, aborted or detached; ``rejected`` are the branches that an override may still choose.
    """

    fork: Fork
    plan: ForkPlan
    source: ForkSource
    conversation: StoredConversation | None
    budget: ForkBudget
    branches: dict[str, BranchRuntime] = field(default_factory=dict)
    resources: AsyncExitStack = field(default_factory=AsyncExitStack)
    rejected: RejectedBranches | None = None
    is_resumed: bool = False
    is_over: bool = False
    mirror: ForkMaterializer | None = None
    loop: asyncio.AbstractEventLoop | None = None

    def hold(self) -> None:
        """Keep the fork until `release`: its tasks are not collected as garbage, and it ends with this process.

        Forks whose event loop was closed without them are dropped here, because nothing can await them any more.
        """
        for other in _list_held():
            if other.loop is not None and other.loop.is_closed():
                other.drop()
        self.loop = asyncio.get_running_loop()
        _held[self] = fds.process_token()

    def release(self) -> None:
        """End what `hold` began."""
        _held.pop(self, None)

    def drop(self) -> None:
        """Drop the fork without its event loop, which is closed or cannot run any more: its tasks and its mirror."""
        self.release()
        if self.loop is not None:
            for task in asyncio.all_tasks(self.loop):
                code = getattr(task.get_coro(), "cr_code", None)
                if code is not None and code.co_filename.startswith(_TASK_SOURCES):
                    # As asyncio does with tasks that it abandons: otherwise it logs them when they are destroyed.
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
        if self.mirror is not None:
            self.mirror.cleanup()

    @property
    def handle(self) -> ForkHandle:
        """The handle of the fork."""
        started = datetime.fromtimestamp(self.fork.record.started, UTC)
        return ForkHandle(self.fork.id, self.plan.checkpoint, list(self.branches), self.plan.strategy, started)

    def save(self) -> None:
        """Save the conversations of the branches in the ledger; those of a fork in memory end with it."""
        if self.conversation is not None:
            self.conversation.save()

    def parent_history(self) -> list[ModelMessage]:
        """Return the messages from before the fork."""
        thread = next(iter(self.branches.values())).thread
        return thread.conversation.path(thread.start)

    def add(
        self, spec: BranchSpec, index: int, thread: Thread, run_turn: RunTurn, coordinator: ForkCoordinator
    ) -> BranchRuntime:
        """Add a branch whose attempt runs its first turn; in a resumed fork that turn may be over already."""

        async def turn(_path: Path) -> tuple[bool, str]:
            return await run_turn(runtime)

        attempt = self.fork.add(Candidate(spec.label, turn, has_feedback=True), index)
        state = branch_state(attempt.state, attempt.reason)
        error = None if state in ("running", "done") else attempt.reason
        status = BranchStatus(attempt.id, spec.label, state, 0, datetime.now(UTC), error=error)
        tracker = self.budget.track_branch(attempt.id, spec.spending)
        runtime = BranchRuntime(spec, status, coordinator, attempt, thread, tracker, self)
        runtime.tool_trackers = {name: BudgetTracker(budget) for name, budget in spec.tool_budgets.items()}
        self.branches[attempt.id] = runtime
        return runtime

    async def wait_for(self, attempt: Attempt) -> None:
        """Wait until an attempt has ended, even if another process resolved the fork."""
        with suppress(ForkResolvedError):
            await self.fork.run([attempt])

    async def save_anchor(
        self, store: CheckpointStore | None, label: str, messages: list[ModelMessage], id_: str | None = None
    ) -> None:
        """Save a checkpoint of the parent before the fork (which has an ``id_``) or after it, if there is a store."""
        if store is not None:
            files = await run_in_thread(mark_files, self.source.backend)
            await store.save(Checkpoint(label, messages, files=files, id=id_ or secrets.token_hex(6)))

    def warn_without_checkpoints(self) -> None:
        """Warn that no checkpoint was saved before the fork."""
        remedy = "it cannot be undone" if self.source.is_in_memory else "Workspace.undo reverts its files"
        warnings.warn(
            f"there is no checkpoint store, so there is no checkpoint to return to after a merge ({remedy}): pass "
            "checkpoint_store, or include_checkpoints=True",
            ForkwiseWarning,
            stacklevel=5,
        )

    async def commit(self, winner: BranchRuntime, how: str, detail: dict[str, Any]) -> FlushReport:
        """Resolve the fork for a branch and apply its changes to the parent; the report lists what failed.

        Raises RetestError, and leaves the fork undecided.
        """
        overlay = winner.overlay
        can_be_overridden = how in JUDGED_KINDS and self.fork.inside is None
        if not isinstance(overlay, FilesOverlay):
            return await self._commit_in_memory(winner, how, detail, can_be_overridden)
        states = await run_in_thread(overlay.path_states)
        changes = await run_in_thread(overlay.changes)
        try:
            await self.fork.resolve(winner.attempt, how, detail, shelve=can_be_overridden)
        except RetestError:
            raise  # the fork is undecided: another branch can be merged
        except CommitError as error:
            return FlushReport([], 0, [], [FlushError(p, "write", str(error)) for p in error.paths or [""]])
        assert self.fork.landed is not None
        if can_be_overridden:
            workspace, backend = self.source.parent.workspace, self.source.backend
            assert isinstance(backend, DiskBackend)
            self.rejected = RejectedOnDisk(self.fork.id, workspace, backend, self.fork.shelved)
        return await run_in_thread(build_flush_report, self.fork.landed, states, changes)

    async def _commit_in_memory(
        self, winner: BranchRuntime, how: str, detail: dict[str, Any], can_be_overridden: bool
    ) -> FlushReport:
        assert isinstance(self.fork, MemoryFork)
        await self.fork.decide(winner.attempt, how, detail)
        return await finish(run_in_thread(self._flush, winner, can_be_overridden))

    def _flush(self, winner: BranchRuntime, can_be_overridden: bool) -> FlushReport:
        overlay, backend = winner.overlay, self.source.backend
        before = {path: content_of(backend, path) for path in overlay.touched()}
        report: FlushReport = overlay.flush_to(backend)
        if can_be_overridden:
            others = {r.id: r.overlay for r in self.branches.values() if r is not winner and r.overlay is not None}
            after = {path: content_of(backend, path) for path in before}
            self.rejected = RejectedInMemory(backend, others, before, after)
        return report

    def set_conflict_policy(self, policy: ConflictPolicy) -> None:
        """Set which version wins if another writer changed a path in the parent meanwhile."""
        self.fork.settings = replace(self.fork.settings, policy=policy)

    def set_executable_config(self, allow: bool | None) -> None:
        """Set whether the merge may change what the user's machine will run; None is the workspace's setting."""
        self.fork.settings = replace(self.fork.settings, allow_executable_config=allow)

    async def check_executables(self, winner: BranchRuntime) -> None:
        """Raise ExecutableConfigError if the merge of a branch would be refused, before anything is decided."""
        if not self.source.is_in_memory and winner.attempt.branch is not None:
            allow = self.fork.settings.allow_executable_config
            await run_in_thread(check_executables, winner.attempt.branch, allow)

    def set_retest(self, chosen: Sequence[BranchRuntime], tests: Tests) -> None:
        """Require a branch that passed ``tests`` to pass them again before its merge, if the parent changed meanwhile.

        Several branches that all passed them have to pass them together.
        """
        reports = [self.fork.ledger.attempt(runtime.id).tests for runtime in chosen]
        has_passed = all(report is not None and TestReport.from_json(report).is_pass for report in reports)
        self.fork.settings = replace(self.fork.settings, retest=tests if has_passed else None)


#: The forks that are not resolved, each with the process that opened it.
_held: dict[LiveFork, object] = {}
#: The directories of packages whose tasks belong to a fork.
_TASK_SOURCES = tuple(
    os.path.dirname(p) + "/" for p in (os.path.dirname(__file__), pydantic_ai.__file__, pydantic_graph.__file__)
)


def _list_held() -> list[LiveFork]:
    """List the forks that this process opened, and not the one that it was forked from."""
    return [fork for fork, owner in _held.items() if owner is fds.process_token()]


@atexit.register
def _end_held() -> None:
    """End the unresolved forks of this process: abort them on their event loops, as far as those can still run."""
    for live in _list_held():
        if live.loop is not None and live.branches:
            coordinator = next(iter(live.branches.values())).coordinator
            with suppress(Exception):  # the process exits, and the mirror is removed below
                finish_on_idle_loop(live.loop, coordinator.leave)
        live.drop()


async def start_fork(
    source: ForkSource,
    plan: ForkPlan,
    history: Sequence[ModelMessage],
    parent_tracker: BudgetTracker | None,
    stack: AsyncExitStack,
) -> tuple[LiveFork, list[Thread]]:
    """Start a fork, and the threads of its branches; nothing runs yet. ``stack`` closes the fork."""
    conversation, last = conversation_from(history) if not history else await run_in_thread(conversation_from, history)
    threads = [
        start_thread(conversation, last, spec.steer, _FORK_RESULT.format(label=spec.label), thread_label(number))
        for number, spec in enumerate(plan.specs)
    ]
    stored = None
    if source.is_in_memory:
        fork: Fork = MemoryFork(KIND, _settings(plan))
        await stack.enter_async_context(fork)
    else:
        fork = Fork(source.parent, KIND, _settings(plan), spec=plan.as_json())
        await stack.enter_async_context(fork)
        conversations = fork.ledger.conversations
        stored = StoredConversation(conversation, conversations, id_=plan.conversation, title=f"fork {fork.id}")
        await run_in_thread(stored.save)
    return LiveFork(fork, plan, source, stored, _fork_budget(fork, plan, parent_tracker)), threads


async def reopen_fork(
    source: ForkSource, plan: ForkPlan, fork_id: str, parent_tracker: BudgetTracker | None, stack: AsyncExitStack
) -> tuple[LiveFork, list[Thread]]:
    """Reopen a fork that another process left, with its threads at their last saved nodes."""
    fork = Fork(source.parent, KIND, _settings(plan), resume=fork_id)
    await stack.enter_async_context(fork)
    try:
        stored = await run_in_thread(StoredConversation.load, fork.ledger.conversations, plan.conversation)
    except LedgerError as error:
        raise ForkNotFoundError(f"fork {fork_id} was killed before it started and is dropped: {error}") from error
    conversation = stored.conversation
    start = conversation.here
    threads = [
        Thread(conversation, conversation.labels[thread_label(number)], thread_label(number), start)
        for number in range(len(plan.specs))
    ]
    budget = _fork_budget(fork, plan, parent_tracker)
    budget.take_over(fork.id)
    return LiveFork(fork, plan, source, stored, budget, is_resumed=True), threads


def _settings(plan: ForkPlan) -> ForkSettings:
    policy = plan.strategy.conflict_policy
    return ForkSettings(runner=_runner(), max_parallel=len(plan.specs), policy=policy, reopens=True)


@cache
def _runner() -> InProcessRunner:
    return InProcessRunner()


def _fork_budget(fork: Fork, plan: ForkPlan, parent_tracker: BudgetTracker | None) -> ForkBudget:
    return ForkBudget(plan.budget, fork.ledger, parent_tracker, shares_unspent=plan.shares)


def thread_label(number: int) -> str:
    """Return the label of a branch's node in the stored conversation."""
    return f"branch-{number}"
