"""LiveFork: one fork of a running agent while it is there: the Fork of its attempts, the conversation that its branches
are branches of, their files and their purse. What a branch does is not known here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import ModelMessage
from pydantic_ai.usage import RunUsage

from forkwise.agents.live.fork_plan import KIND, ForkPlan
from forkwise.agents.live.ground import Ground
from forkwise.agents.live.local_backend import PlaceBackend
from forkwise.agents.live.merging import FlushError, FlushReport
from forkwise.agents.live.overlay_files import FilesOverlay, flushed
from forkwise.agents.live.overriding import JUDGED, Losers, LosersInMemory, LosersOnDisk
from forkwise.agents.live.purse import Purse
from forkwise.agents.live.replaying import content_of
from forkwise.agents.live.runtime import BranchRuntime
from forkwise.agents.live.specs import BranchSpec, ConflictPolicy
from forkwise.agents.live.status import BranchState, BranchStatus, ForkHandle
from forkwise.agents.live.thread import Thread, ground_of, started
from forkwise.conversation.saving import Saved
from forkwise.errors import CommitError, ForkNotFoundError, ForkResolvedError, LedgerError
from forkwise.fork.attempt import Attempt
from forkwise.fork.candidate import Candidate
from forkwise.fork.fork import Fork, Settings
from forkwise.ledger.protocol import Ledger
from forkwise.ledger.record import AttemptRecord, AttemptState
from forkwise.sandbox.threads import in_thread

if TYPE_CHECKING:
    from forkwise.agents.live.coordinator import ForkCoordinator

__all__ = ["LiveFork", "Run", "begin", "place_label", "reopen", "state_of"]

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
    ground: Ground
    saved: Saved
    purse: Purse
    branches: dict[str, BranchRuntime] = field(default_factory=dict)
    losers: Losers | None = None
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
        runtime = BranchRuntime(spec, status, coordinator, attempt, thread, Purse(spec.spending, above=self.purse))
        _recall_cost(runtime, self.fork.ledger)
        runtime.tool_purses = {name: Purse(budget) for name, budget in spec.tool_budgets.items()}
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
        standing = await in_thread(overlay.standing)
        changes = await in_thread(overlay.changes)
        try:
            await self.fork.resolve(winner.attempt, how, detail, aside=may_be_overridden)
        except CommitError as error:
            return FlushReport([], 0, [], [FlushError(p, "write", str(error)) for p in error.paths or [""]])
        assert self.fork.landed is not None
        if may_be_overridden:
            place, backend = self.ground.parent.workspace, self.ground.backend
            assert isinstance(backend, PlaceBackend)
            self.losers = LosersOnDisk(self.fork.id, place, backend, self.fork.aside)
        return await in_thread(flushed, self.fork.landed, standing, changes)

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
    ground: Ground, plan: ForkPlan, history: Sequence[ModelMessage], above: Purse | None, stack: AsyncExitStack
) -> tuple[LiveFork, list[Thread]]:
    """A new fork, and the threads that its branches begin with; nothing runs yet."""
    conversation, last = await in_thread(ground_of, history)
    threads = [
        started(conversation, last, spec.steer, _TOLD.format(label=spec.label), place_label(number))
        for number, spec in enumerate(plan.specs)
    ]
    fork = Fork(ground.parent, KIND, _settings(plan), spec=plan.as_json())
    await stack.enter_async_context(fork)
    saved = Saved(conversation, fork.ledger.conversations, id_=plan.conversation, title=f"fork {fork.id}")
    await in_thread(saved.save)
    return LiveFork(fork, plan, ground, saved, _purse(plan, above)), threads


async def reopen(
    ground: Ground, plan: ForkPlan, fork_id: str, above: Purse | None, stack: AsyncExitStack
) -> tuple[LiveFork, list[Thread]]:
    """A fork that another process left, and its threads as far as they had come."""
    fork = Fork(ground.parent, KIND, _settings(plan), resume=fork_id)
    await stack.enter_async_context(fork)
    try:
        saved = await in_thread(Saved.load, fork.ledger.conversations, plan.conversation)
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


def _uncount(purse: Purse, ledger: Ledger, fork: str) -> None:
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


def _settings(plan: ForkPlan) -> Settings:
    return Settings(max_parallel=len(plan.specs), policy=plan.strategy.conflict_policy, reopens=True)


def _purse(plan: ForkPlan, above: Purse | None) -> Purse:
    return Purse(plan.budget, "aggregate_budget_exhausted", above, shares=plan.shares)


def place_label(number: int) -> str:
    """How a branch's place in the conversation is labelled."""
    return f"branch-{number}"
