"""Recalling: a live fork that another process left, found in the ledger and taken over, or brought to its end."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from forkwise.concurrency import finish, run_in_thread
from forkwise.conversation.store import StoredConversation
from forkwise.errors import ForkNotFoundError, ForkResolvedError, LedgerError
from forkwise.files.workspace import Workspace
from forkwise.fork.control import abort_fork
from forkwise.fork.resolve import Landed, commit_resolved
from forkwise.fork.stored_fork import StoredFork
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.records import ForkRecord
from forkwise.ledger.sqlite import open_ledger
from forkwise.live.backends.branch_overlay import conflict_contents
from forkwise.live.branch_runtime import BranchRuntime, Thread
from forkwise.live.fork_plan import KIND, ForkPlan
from forkwise.live.live_fork import ForkSource, LiveFork, place_label, reopen, source_for
from forkwise.live.merge import concatenate_histories, detach_history
from forkwise.live.values import ForkHandle, MergeResult

if TYPE_CHECKING:
    from forkwise.live.coordinator import ForkCoordinator

__all__ = [
    "ForkStateStore",
    "InMemoryForkStateStore",
    "LedgerForkStore",
    "OrphanedForks",
    "abort_orphans",
    "find_orphans",
    "give_up_inside",
    "handle_of",
    "load_merge_result",
    "resume_fork",
    "unfinished",
]


T = TypeVar("T")


@runtime_checkable
class ForkStateStore(Protocol):
    """Keeps the handles of forks by their ids."""

    async def save(self, handle: ForkHandle) -> None:
        """Keep a handle."""
        ...

    async def get(self, fork_id: str) -> ForkHandle | None:
        """The handle of a fork, if it is known."""
        ...

    async def list_all(self) -> list[ForkHandle]:
        """All handles, the oldest first."""
        ...

    async def remove(self, fork_id: str) -> bool:
        """Forget a fork; whether it was known."""
        ...


class InMemoryForkStateStore:
    """Keeps handles as long as the process lives."""

    def __init__(self) -> None:
        self._handles: dict[str, ForkHandle] = {}

    async def save(self, handle: ForkHandle) -> None:
        """Keep a handle."""
        self._handles[handle.fork_id] = handle

    async def get(self, fork_id: str) -> ForkHandle | None:
        """The handle of a fork, if it is known."""
        return self._handles.get(fork_id)

    async def list_all(self) -> list[ForkHandle]:
        """All handles, the oldest first."""
        return list(self._handles.values())

    async def remove(self, fork_id: str) -> bool:
        """Forget a fork; whether it was known."""
        return self._handles.pop(fork_id, None) is not None


class LedgerForkStore:
    """The forks that the ledger of a workspace knows. It is the fork itself that writes there, with everything in it:
    handles, branches, conversations and costs. So nothing has to be saved here, and what a killed process left is
    found. ``ForkCoordinator.resume`` goes on with it."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    async def save(self, handle: ForkHandle) -> None:
        """See that the ledger knows a fork; ForkNotFoundError where it does not."""
        await run_in_thread(self._read, lambda ledger: ledger.fork(handle.fork_id))

    async def get(self, fork_id: str) -> ForkHandle | None:
        """The handle of a fork, if it is known."""
        try:
            return await run_in_thread(self._read, lambda ledger: handle_of(ledger, ledger.fork(fork_id)))
        except ForkNotFoundError:
            return None

    async def list_all(self) -> list[ForkHandle]:
        """All handles, the oldest first."""
        return await run_in_thread(self._read, lambda ledger: [handle_of(ledger, fork) for fork in _forks(ledger)])

    async def interrupted(self) -> list[ForkHandle]:
        """Those whose process was killed before they were decided, or before that was carried out; the oldest first."""
        return await run_in_thread(
            self._read,
            lambda ledger: [handle_of(ledger, fork) for fork in unfinished(ledger)],
        )

    async def remove(self, fork_id: str) -> bool:
        """Give up a fork that is not over, with its branches; whether it was known. What happened stays on record."""
        handle = await self.get(fork_id)
        if handle is None:
            return False
        await run_in_thread(abort_fork, self.workspace, handle.fork_id)
        return True

    def _read(self, what: Callable[[Ledger], T]) -> T:
        with open_ledger(self.workspace) as ledger:
            return what(ledger)


def unfinished(ledger: Ledger, inside: str | None = None) -> list[ForkRecord]:
    """The live forks whose process was killed before they were decided, or before that was carried out; the oldest
    first. Those made inside a branch of another are a part of that: they are had by that branch."""
    return [fork for fork in _forks(ledger) if fork.parent == inside and (_is_cut(fork) or _is_uncommitted(fork))]


def _forks(ledger: Ledger) -> list[ForkRecord]:
    return [fork for fork in reversed(ledger.forks()) if fork.kind == KIND]


def _is_cut(fork: ForkRecord) -> bool:
    return fork.state == "interrupted"


def _is_uncommitted(fork: ForkRecord) -> bool:
    return fork.stored == "resolved" and fork.commit is None and not fork.owner.alive


def handle_of(ledger: Ledger, fork: ForkRecord) -> ForkHandle:
    """What names a fork that the ledger knows."""
    plan = ForkPlan.from_json(fork.spec, fork.id)
    return ForkHandle(
        fork.id,
        plan.checkpoint,
        [attempt.id for attempt in ledger.attempts(fork.id)],
        plan.strategy,
        datetime.fromtimestamp(fork.started, UTC),
    )


_FORGOTTEN = "its process was killed, and nobody went on with it"


@dataclass
class OrphanedForks:
    """The forks that are open inside a branch, by their ids. Of those that are ``known`` the agent was told."""

    workspace: Workspace
    attempt: str
    plans: dict[str, ForkPlan] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)

    def same_as(self, plan: ForkPlan) -> str | None:
        """The fork that was asked for in the same words, if there is one."""
        return next((name for name, made in self.plans.items() if made.specs == plan.specs), None)

    @property
    def last(self) -> str | None:
        """The one that the agent was told of last."""
        return next((name for name in reversed(self.plans) if name in self.known), None)

    def is_wanted_by(self, tools: Collection[str]) -> bool:
        """Whether a tool that made one of them is called again."""
        return any(plan.maker in tools for plan in self.plans.values())


def find_orphans(live: LiveFork, runtime: BranchRuntime) -> OrphanedForks | None:
    """What is open inside a branch that goes on; None where nothing is. What was decided is carried out, and where the
    agent does not know that yet its branch is told."""
    ledger, workspace = live.fork.ledger, live.ground.parent.workspace
    inside = [fork for fork in ledger.children(runtime.id) if fork.kind == KIND]
    if not inside:
        return None
    said = str(runtime.thread.own_messages())
    left = OrphanedForks(workspace, runtime.id, known={fork.id for fork in inside if f"fork_id={fork.id}" in said})
    for fork in inside:
        plan = ForkPlan.from_json(fork.spec, fork.id)
        if fork.stored == "resolved" and fork.commit is None:
            commit_resolved(ledger, workspace, fork.id, policy=plan.strategy.conflict_policy)
        elif fork.state == "interrupted" and _has_begun(ledger, plan):
            left.plans[fork.id] = plan
        elif fork.state == "interrupted":
            _give_up(ledger, workspace, fork, _FORGOTTEN)
    last = ledger.fork(inside[-1].id)
    if last.stored == "resolved" and last.id in left.known and f"Merged fork {last.id}" not in said:
        winner = last.winner and f"winner={ledger.attempt(last.winner).label} ({last.winner})"
        runtime.merged_inside = f"Merged fork {last.id}: {winner or 'combined'}. Its files are yours."
    return left if left.plans else None


def give_up_inside(ledger: Ledger, workspace: Workspace, attempt: str, reason: str = _FORGOTTEN) -> None:
    """Drop the forks that a dead process had open inside an attempt, and those inside them."""
    for fork in ledger.children(attempt):
        if fork.state == "interrupted":
            _give_up(ledger, workspace, fork, reason)


def _give_up(ledger: Ledger, workspace: Workspace, fork: ForkRecord, reason: str) -> None:
    remains = StoredFork(ledger, workspace, fork.id)
    ledger.abort_fork(fork.id, reason)
    for attempt in remains.attempts:
        give_up_inside(ledger, workspace, attempt.id, reason)
        if not attempt.is_over:
            with suppress(LedgerError):  # it was written down meanwhile
                ledger.end_attempt(attempt.id, "cancelled", reason=reason)
    remains.drop()


def _has_begun(ledger: Ledger, plan: ForkPlan) -> bool:
    try:
        ledger.conversations.load(plan.conversation)
    except LedgerError:
        return False
    return True


async def abort_orphans(runtime: BranchRuntime) -> None:
    """Give up what was left in a branch and nobody took up, so that the branch can be written to again."""
    left, runtime.left = runtime.left, None
    if left is not None:
        await finish(run_in_thread(_give_up_all, left))


def _give_up_all(left: OrphanedForks) -> None:
    with open_ledger(left.workspace) as ledger:
        give_up_inside(ledger, left.workspace, left.attempt)


async def resume_fork(coordinator: ForkCoordinator, fork_id: str | None) -> ForkHandle:
    """Have a coordinator go on with a fork, by default the last that a killed process left."""
    async with AsyncExitStack() as stack:
        ground = await run_in_thread(source_for, coordinator.workspace, coordinator.parent_deps)
        stack.push_async_callback(run_in_thread, ground.close)
        inside = None if coordinator.inside is None else coordinator.inside.id
        record, handle, result = await run_in_thread(_found, ground, fork_id, inside)
        if result is not None:
            coordinator.merge_result = result
            return handle
        plan = ForkPlan.from_json(record.spec, record.id)
        above = coordinator.inside.purse if coordinator.inside is not None else None
        live, threads = await reopen(ground, plan, record.id, above, stack)
        return await coordinator.adopt(live, threads, stack)


def _found(
    ground: ForkSource, fork_id: str | None, inside: str | None
) -> tuple[ForkRecord, ForkHandle, MergeResult | None]:
    """The fork that is to be gone on with. One that was decided is carried out first, and nothing is left to do."""
    workspace = ground.parent.workspace
    with open_ledger(workspace) as ledger:
        left = unfinished(ledger, inside)
        if fork_id is None:
            record = left[-1] if left else None
        else:
            record = next((fork for fork in left if fork.id == ledger.fork(fork_id).id), None)
        if record is None and fork_id is not None:
            state = ledger.fork(fork_id).state
            raise ForkResolvedError(f"fork {fork_id} is {state}: there is nothing to go on with", fork=fork_id)
        if record is None:
            raise ForkNotFoundError(f"no fork of {workspace.path} was interrupted")
        decided = record.stored == "resolved"
        return record, handle_of(ledger, record), _completed(ledger, workspace, record) if decided else None


def _completed(ledger: Ledger, workspace: Workspace, fork: ForkRecord) -> MergeResult:
    """Carry out what was decided when the process was killed."""
    plan = ForkPlan.from_json(fork.spec, fork.id)
    landed = commit_resolved(ledger, workspace, fork.id, policy=plan.strategy.conflict_policy)
    return _result(ledger, fork, plan, landed)


def load_merge_result(ledger: Ledger, workspace: Workspace, fork_id: str) -> MergeResult | None:
    """How a live fork was merged, by this process or by another, whose word on it was lost; None where it was not."""
    fork = ledger.fork(fork_id)
    commit = next((one for one in workspace.history() if one.id == fork.commit), None)
    if fork.stored != "resolved" or commit is None:
        return None
    landed = Landed(commit, commit.conflicts)
    return _result(ledger, fork, ForkPlan.from_json(fork.spec, fork.id), landed)


def _result(ledger: Ledger, fork: ForkRecord, plan: ForkPlan, landed: Landed) -> MergeResult:
    commit = landed.commit
    conversation = StoredConversation.load(ledger.conversations, plan.conversation).conversation
    index = {attempt.id: attempt.index for attempt in ledger.attempts(fork.id)}
    combined = [name for name in (fork.resolution or {}).get("attempts", []) if name in index]
    chosen = [fork.winner] if fork.winner is not None else combined
    threads = [
        Thread(conversation, conversation.labels[place_label(index[n])], place_label(index[n]), conversation.here)
        for n in chosen
    ]
    return MergeResult(
        fork_id=fork.id,
        winner_branch_id=chosen[0],
        discarded_branches=[name for name in index if name not in chosen],
        history_after_merge=concatenate_histories(threads)
        if combined
        else detach_history(threads[0].history(), threads[0].start.depth),
        applied_paths=sorted([*commit.added, *commit.changed]),
        applied_changes=len(commit.paths),
        conflicts=sorted(conflict.path for conflict in landed.conflicts),
        deleted_paths=sorted(commit.deleted),
        conflict_contents=conflict_contents(landed),
        kept_branch=landed.kept.branch_path if landed.kept else None,
        combined_branches=combined,
        commit_id=str(commit.id),
    )
