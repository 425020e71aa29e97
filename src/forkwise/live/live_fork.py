"""LiveFork: one fork of a running agent while it is there: the Fork of its attempts, the conversation that its branches
are branches of, their files and their purse. What a branch does is not known here.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import RunUsage

from forkwise.concurrency import run_in_thread
from forkwise.conversation.store import StoredConversation
from forkwise.errors import BranchingError, CommitError, ForkNotFoundError, ForkResolvedError, LedgerError
from forkwise.files.branch import Branch
from forkwise.files.shelf import ShelvedBranch, shelve
from forkwise.files.workspace import Workspace
from forkwise.fork.agent_workspace import AgentFiles
from forkwise.fork.attempt import Attempt
from forkwise.fork.candidate import Candidate
from forkwise.fork.fork import Fork, ForkSettings, parent_of
from forkwise.fork.resolve import ConflictPolicy, bring_back, replace_winner
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.records import AttemptRecord, AttemptState
from forkwise.live.backends.backend import Backend
from forkwise.live.backends.branch_overlay import BranchOverlay, FilesOverlay, MemoryOverlay, content_of, flushed
from forkwise.live.backends.local import PlaceBackend
from forkwise.live.backends.memory import StateBackend
from forkwise.live.branch_runtime import BranchRuntime, Thread, conversation_from, current_branch, started
from forkwise.live.budget import BudgetTracker
from forkwise.live.fork_plan import KIND, ForkPlan
from forkwise.live.values import BranchSpec, BranchState, BranchStatus, FlushError, FlushReport, ForkHandle

if TYPE_CHECKING:
    from forkwise.live.coordinator import ForkCoordinator

__all__ = [
    "JUDGED",
    "ForkSource",
    "LiveFork",
    "LosersInMemory",
    "LosersOnDisk",
    "Place",
    "RejectedBranches",
    "Run",
    "begin",
    "place_label",
    "reopen",
    "source_for",
    "state_of",
]


#: What can be given as an agent's directory.
Place = Workspace | Branch | str | os.PathLike[str]


@dataclass(frozen=True)
class ForkSource:
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


def source_for(place: Place | None, deps: Any) -> ForkSource:
    """What a fork of an agent with these deps is made from; ``place`` is the directory it was told of."""
    inside = current_branch()
    if inside is not None and inside.attempt.branch is not None:
        return ForkSource(inside.attempt.branch, _backend_in(inside, deps))
    backend = getattr(deps, "backend", None)
    if isinstance(backend, PlaceBackend) and (place is None or _is_at(backend, place)):
        return ForkSource(backend.place, backend)
    if place is not None:
        parent = parent_of(place)
        return ForkSource(parent, _PlainPlace(parent))
    directory = Path(tempfile.mkdtemp(prefix="forkwise-live-"))
    (directory / "files").mkdir()
    empty = Workspace(directory / "files", state=directory / "state", durable=False)
    return ForkSource(empty, backend if isinstance(backend, Backend) else StateBackend(), directory)


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


#: The ways of deciding a fork after which a person may decide otherwise.
JUDGED = ("auto", "vote")


class RejectedBranches(ABC):
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
class LosersOnDisk(RejectedBranches):
    """Branches of a workspace, set aside."""

    fork: str
    workspace: Workspace
    backend: PlaceBackend
    aside: dict[str, ShelvedBranch]

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
            landed = replace_winner(self.workspace, self.fork, name, policy)
        except BranchingError:
            self.aside[name] = shelve(branch)
            raise
        return flushed(landed, standing, changes)

    def let_go(self) -> None:
        """Drop the branches."""
        while self.aside:
            self.aside.popitem()[1].discard()


@dataclass
class LosersInMemory(RejectedBranches):
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


#: Runs one turn of a branch: gives whether it came to an answer, and what that was.
Run = Callable[[BranchRuntime], Awaitable[tuple[bool, str]]]

_TOLD = "You are now in the branch {label!r} of this fork. Do what you are told next; whoever forked picks and merges."


def state_of(state: AttemptState, reason: str | None) -> BranchState:
    """Where a branch stands, from what the ledger says of its attempt."""
    if state in ("pending", "running"):
        return "running"
    if state == "succeeded":
        return "done"
    why = (reason or "").removeprefix("BudgetExceededError: ").partition(":")[0]
    if why == "aggregate_budget_exhausted":
        return "aggregate_budget_exhausted"
    if why == "budget_exhausted":
        return "budget_exhausted"
    return "failed" if state == "failed" else "terminated"


@dataclass(eq=False)
class LiveFork:
    """A fork that is not resolved, or was just now. ``losers`` are those that may still be decided for."""

    fork: Fork
    plan: ForkPlan
    ground: ForkSource
    saved: StoredConversation
    purse: BudgetTracker
    branches: dict[str, BranchRuntime] = field(default_factory=dict)
    losers: RejectedBranches | None = None
    is_resumed: bool = False

    @property
    def handle(self) -> ForkHandle:
        """What names it."""
        began = datetime.fromtimestamp(self.fork.record.started, UTC)
        return ForkHandle(self.fork.id, self.plan.checkpoint, list(self.branches), self.plan.strategy, began)

    def parent_history(self) -> list[ModelMessage]:
        """What was said before the fork."""
        thread = next(iter(self.branches.values())).thread
        return thread.conversation.path(thread.start)

    def add(
        self, spec: BranchSpec, index: int, thread: Thread, run: Run, coordinator: ForkCoordinator
    ) -> BranchRuntime:
        """Have a branch made for a spec, and its first turn run in it; or take over one whose first turn is over."""
        made: list[BranchRuntime] = []

        async def turn(_path: Path) -> tuple[bool, str]:
            return await run(made[0])

        attempt = self.fork.add(Candidate(spec.label, turn), index)
        state = state_of(attempt.state, attempt.reason)
        error = None if state in ("running", "done") else attempt.reason
        status = BranchStatus(attempt.id, spec.label, state, 0, datetime.now(UTC), error=error)
        runtime = BranchRuntime(
            spec, status, coordinator, attempt, thread, BudgetTracker(spec.spending, above=self.purse)
        )
        _recall_cost(runtime, self.fork.ledger)
        runtime.tool_purses = {name: BudgetTracker(budget) for name, budget in spec.tool_budgets.items()}
        made.append(runtime)
        self.branches[attempt.id] = runtime
        return runtime

    async def ended(self, attempt: Attempt) -> None:
        """Wait until an attempt is over, whoever ends it."""
        with suppress(ForkResolvedError):
            await self.fork.run([attempt])

    def record_cost(self, runtime: BranchRuntime) -> None:
        """Write down what a branch has cost so far, with the forks inside it."""
        spent, usage = runtime.purse.spent, runtime.purse.usage
        told = {"usd": spent.usd, "tokens": spent.tokens, "requests": spent.requests}
        own = {"usd": None if usage.cost is None else float(usage.cost), "requests": usage.requests}
        tokens = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
        self.fork.ledger.record_cost(runtime.id, told | tokens | {"own": own | tokens})

    # Its one resolution

    async def commit(self, winner: BranchRuntime, how: str, detail: dict[str, Any]) -> FlushReport:
        """Decide for a branch, and make its changes the parent's. What could not be changed is reported."""
        overlay = winner.overlay
        may_be_overridden = how in JUDGED and self.fork.inside is None
        if not isinstance(overlay, FilesOverlay):
            return await self._commit_in_memory(winner, how, detail, may_be_overridden)
        standing = await run_in_thread(overlay.standing)
        changes = await run_in_thread(overlay.changes)
        try:
            await self.fork.resolve(winner.attempt, how, detail, aside=may_be_overridden)
        except CommitError as error:
            return FlushReport([], 0, [], [FlushError(p, "write", str(error)) for p in error.paths or [""]])
        assert self.fork.landed is not None
        if may_be_overridden:
            place, backend = self.ground.parent.workspace, self.ground.backend
            assert isinstance(backend, PlaceBackend)
            self.losers = LosersOnDisk(self.fork.id, place, backend, self.fork.aside)
        return await run_in_thread(flushed, self.fork.landed, standing, changes)

    async def _commit_in_memory(
        self, winner: BranchRuntime, how: str, detail: dict[str, Any], may_be_overridden: bool
    ) -> FlushReport:
        await self.fork.resolve(winner.attempt, how, detail)
        overlay, backend = winner.overlay, self.ground.backend
        before = {path: content_of(backend, path) for path in overlay.touched()}
        report: FlushReport = overlay.flush_to(backend)
        if may_be_overridden:
            others = {r.id: r.overlay for r in self.branches.values() if r is not winner and r.overlay is not None}
            self.losers = LosersInMemory(backend, others, before, {path: content_of(backend, path) for path in before})
        return report

    def decide_conflicts(self, policy: ConflictPolicy) -> None:
        """What becomes of paths that somebody else changed meanwhile."""
        self.fork.settings = replace(self.fork.settings, policy=policy)


async def begin(
    ground: ForkSource,
    plan: ForkPlan,
    history: Sequence[ModelMessage],
    above: BudgetTracker | None,
    stack: AsyncExitStack,
) -> tuple[LiveFork, list[Thread]]:
    """A new fork, and the threads that its branches begin with; nothing runs yet."""
    conversation, last = await run_in_thread(conversation_from, history)
    threads = [
        started(conversation, last, spec.steer, _TOLD.format(label=spec.label), place_label(number))
        for number, spec in enumerate(plan.specs)
    ]
    fork = Fork(ground.parent, KIND, _settings(plan), spec=plan.as_json())
    await stack.enter_async_context(fork)
    saved = StoredConversation(conversation, fork.ledger.conversations, id_=plan.conversation, title=f"fork {fork.id}")
    await run_in_thread(saved.save)
    return LiveFork(fork, plan, ground, saved, _purse(plan, above)), threads


async def reopen(
    ground: ForkSource, plan: ForkPlan, fork_id: str, above: BudgetTracker | None, stack: AsyncExitStack
) -> tuple[LiveFork, list[Thread]]:
    """A fork that another process left, and its threads as far as they had come."""
    fork = Fork(ground.parent, KIND, _settings(plan), resume=fork_id)
    await stack.enter_async_context(fork)
    try:
        saved = await run_in_thread(StoredConversation.load, fork.ledger.conversations, plan.conversation)
    except LedgerError as error:
        raise ForkNotFoundError(f"fork {fork_id} was killed before it began; it is given up: {error}") from error
    conversation = saved.conversation
    start = conversation.here
    threads = [
        Thread(conversation, conversation.labels[place_label(number)], place_label(number), start)
        for number in range(len(plan.specs))
    ]
    if above is not None:
        _uncount(above, fork.ledger, fork.id)
    return LiveFork(fork, plan, ground, saved, _purse(plan, above), is_resumed=True), threads


def _recall_cost(runtime: BranchRuntime, ledger: Ledger) -> None:
    """Take over what a branch had cost when its process was killed, if one was, with the forks inside it."""
    _count(runtime.purse.usage, ledger.attempt(runtime.id), 1)
    for fork in ledger.children(runtime.id):
        for attempt in _all_in(ledger, fork.id):
            _count(runtime.purse.usage, attempt, 1)


def _uncount(purse: BudgetTracker, ledger: Ledger, fork: str) -> None:
    """A fork inside a branch is gone on with: its branches have purses of their own again."""
    for attempt in _all_in(ledger, fork):
        _count(purse.usage, attempt, -1)


def _all_in(ledger: Ledger, fork: str) -> Iterator[AttemptRecord]:
    for attempt in ledger.attempts(fork):
        yield attempt
        for inner in ledger.children(attempt.id):
            yield from _all_in(ledger, inner.id)


def _count(usage: RunUsage, attempt: AttemptRecord, sign: int) -> None:
    cost = (attempt.cost or {}).get("own") or attempt.cost or {}
    usage.requests += sign * cost.get("requests", 0)
    usage.input_tokens += sign * cost.get("input_tokens", 0)
    usage.output_tokens += sign * cost.get("output_tokens", 0)
    if cost.get("usd") is not None:
        usage.cost = (usage.cost or Decimal(0)) + sign * Decimal(str(cost["usd"]))


def _settings(plan: ForkPlan) -> ForkSettings:
    return ForkSettings(max_parallel=len(plan.specs), policy=plan.strategy.conflict_policy, reopens=True)


def _purse(plan: ForkPlan, above: BudgetTracker | None) -> BudgetTracker:
    return BudgetTracker(plan.budget, "aggregate_budget_exhausted", above, shares=plan.shares)


def place_label(number: int) -> str:
    """How a branch's place in the conversation is labelled."""
    return f"branch-{number}"
