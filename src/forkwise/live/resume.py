"""Forks that a killed process left in the ledger: resumed, committed if they were resolved, or dropped.

Also the stores of fork handles. `LedgerForkStore` lists the forks that can be resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol, TypeVar, runtime_checkable

from forkwise.concurrency import finish, run_in_thread
from forkwise.conversation.store import StoredConversation
from forkwise.errors import ForkNotFoundError, ForkResolvedError, LedgerError
from forkwise.files.workspace import Workspace
from forkwise.fork.control import abort_fork
from forkwise.fork.land import Landed
from forkwise.fork.resolve import commit_resolved
from forkwise.fork.stored_fork import StoredFork
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.records import ForkRecord
from forkwise.ledger.sqlite import open_ledger
from forkwise.live.backends.branch_overlay import conflict_contents
from forkwise.live.branch_runtime import BranchRuntime, Thread
from forkwise.live.fork_plan import KIND, ForkPlan
from forkwise.live.live_fork import ForkSource, LiveFork, thread_label
from forkwise.live.merge import detach_history, join_threads
from forkwise.live.values import ForkHandle, MergeResult

__all__ = [
    "ForkStateStore",
    "InMemoryForkStateStore",
    "LedgerForkStore",
    "OrphanedForks",
    "abort_forks_inside",
    "abort_orphans",
    "build_handle",
    "find_orphans",
    "list_unfinished",
    "load_merge_result",
    "load_unfinished",
]


T = TypeVar("T")


@runtime_checkable
class ForkStateStore(Protocol):
    """A store of fork handles, by fork id."""

    async def save(self, handle: ForkHandle) -> None:
        """Save a handle."""
        ...

    async def get(self, fork_id: str) -> ForkHandle | None:
        """Return the handle of a fork; None if it is unknown."""
        ...

    async def list_all(self) -> list[ForkHandle]:
        """Return all handles, the oldest first."""
        ...

    async def remove(self, fork_id: str) -> bool:
        """Remove a handle. Return whether it was known."""
        ...


class InMemoryForkStateStore:
    """A store of handles in memory, for the lifetime of the process."""

    def __init__(self) -> None:
        self._handles: dict[str, ForkHandle] = {}

    async def save(self, handle: ForkHandle) -> None:
        """Save a handle."""
        self._handles[handle.fork_id] = handle

    async def get(self, fork_id: str) -> ForkHandle | None:
        """Return the handle of a fork; None if it is unknown."""
        return self._handles.get(fork_id)

    async def list_all(self) -> list[ForkHandle]:
        """Return all handles, the oldest first."""
        return list(self._handles.values())

    async def remove(self, fork_id: str) -> bool:
        """Remove a handle. Return whether it was known."""
        return self._handles.pop(fork_id, None) is not None


class LedgerForkStore:
    """The live forks in the ledger of a workspace.

    Forks write their handles, branches, conversations and costs into the ledger themselves, so ``save`` writes nothing,
    and forks of a killed process are found. ``ForkCoordinator.resume`` resumes them.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    async def save(self, handle: ForkHandle) -> None:
        """Check that the ledger knows the fork. Raises ForkNotFoundError if not."""
        await run_in_thread(self._read, lambda ledger: ledger.fork(handle.fork_id))

    async def get(self, fork_id: str) -> ForkHandle | None:
        """Return the handle of a fork; None if it is unknown."""
        try:
            return await run_in_thread(self._read, lambda ledger: build_handle(ledger, ledger.fork(fork_id)))
        except ForkNotFoundError:
            return None

    async def list_all(self) -> list[ForkHandle]:
        """Return all handles, the oldest first."""
        return await run_in_thread(
            self._read, lambda ledger: [build_handle(ledger, fork) for fork in _list_forks(ledger)]
        )

    async def interrupted(self) -> list[ForkHandle]:
        """Return the forks whose process was killed before they were resolved and committed, the oldest first."""
        return await run_in_thread(
            self._read,
            lambda ledger: [build_handle(ledger, fork) for fork in list_unfinished(ledger)],
        )

    async def remove(self, fork_id: str) -> bool:
        """Abort a fork and drop its branches. Return whether it was known; its record stays in the ledger."""
        handle = await self.get(fork_id)
        if handle is None:
            return False
        await run_in_thread(abort_fork, self.workspace, handle.fork_id)
        return True

    def _read(self, query: Callable[[Ledger], T]) -> T:
        with open_ledger(self.workspace) as ledger:
            return query(ledger)


def list_unfinished(ledger: Ledger, inside: str | None = None) -> list[ForkRecord]:
    """Return the live forks whose process was killed before they were resolved and committed, the oldest first.

    ``inside`` is the attempt that they were started in: forks inside a branch are resumed by that branch alone.
    """
    return [
        fork
        for fork in _list_forks(ledger)
        if fork.parent == inside and (_is_interrupted(fork) or _is_uncommitted(fork))
    ]


def _list_forks(ledger: Ledger) -> list[ForkRecord]:
    return [fork for fork in reversed(ledger.forks()) if fork.kind == KIND]


def _is_interrupted(fork: ForkRecord) -> bool:
    return fork.state == "interrupted"


def _is_uncommitted(fork: ForkRecord) -> bool:
    return fork.stored == "resolved" and fork.commit is None and not fork.owner.alive


def build_handle(ledger: Ledger, fork: ForkRecord) -> ForkHandle:
    """Build the handle of a fork from its records."""
    plan = ForkPlan.from_json(fork.spec, fork.id)
    return ForkHandle(
        fork.id,
        plan.checkpoint,
        [attempt.id for attempt in ledger.attempts(fork.id)],
        plan.strategy,
        datetime.fromtimestamp(fork.started, UTC),
    )


_NOT_RESUMED = "its process was killed, and it was not resumed"


@dataclass
class OrphanedForks:
    """The plans of the forks that a killed process left open inside a branch, by id.

    ``known`` are the ids that occur in the agent's messages.
    """

    workspace: Workspace
    attempt: str
    plans: dict[str, ForkPlan] = field(default_factory=dict)
    known: set[str] = field(default_factory=set)

    def same_as(self, plan: ForkPlan) -> str | None:
        """Return the fork with the same specs; None if there is none."""
        return next((name for name, known in self.plans.items() if known.specs == plan.specs), None)

    @property
    def last(self) -> str | None:
        """The last fork that the agent knows."""
        return next((name for name in reversed(self.plans) if name in self.known), None)

    def is_wanted_by(self, tools: Collection[str]) -> bool:
        """Return whether one of ``tools`` started one of the forks."""
        return any(plan.maker in tools for plan in self.plans.values())


def find_orphans(live: LiveFork, runtime: BranchRuntime) -> OrphanedForks | None:
    """Find the forks that are open inside a resumed branch; return None if there are none.

    A fork that was resolved is committed. If the agent has not seen that yet, ``nested_merge`` of the branch says so.
    """
    ledger, workspace = live.fork.ledger, live.source.parent.workspace
    inside = [fork for fork in ledger.children(runtime.id) if fork.kind == KIND]
    if not inside:
        return None
    messages = str(runtime.thread.own_messages())
    known = {fork.id for fork in inside if f"fork_id={fork.id}" in messages}
    orphans = OrphanedForks(workspace, runtime.id, known=known)
    for fork in inside:
        plan = ForkPlan.from_json(fork.spec, fork.id)
        if fork.stored == "resolved" and fork.commit is None:
            commit_resolved(ledger, workspace, fork.id, policy=plan.strategy.conflict_policy)
        elif fork.state == "interrupted" and _has_conversation(ledger, plan):
            orphans.plans[fork.id] = plan
        elif fork.state == "interrupted":
            _abort_stored_fork(ledger, workspace, fork, _NOT_RESUMED)
    last = ledger.fork(inside[-1].id)
    if last.stored == "resolved" and last.id in known and f"Merged fork {last.id}" not in messages:
        winner = last.winner and f"winner={ledger.attempt(last.winner).label} ({last.winner})"
        runtime.nested_merge = f"Merged fork {last.id}: {winner or 'combined'}. Its files are in your branch now."
    return orphans if orphans.plans else None


def abort_forks_inside(ledger: Ledger, workspace: Workspace, attempt: str, reason: str = _NOT_RESUMED) -> None:
    """Abort the forks that a dead process left open inside an attempt, and the forks inside those."""
    for fork in ledger.children(attempt):
        if fork.state == "interrupted":
            _abort_stored_fork(ledger, workspace, fork, reason)


def _abort_stored_fork(ledger: Ledger, workspace: Workspace, fork: ForkRecord, reason: str) -> None:
    stored = StoredFork(ledger, workspace, fork.id)
    ledger.abort_fork(fork.id, reason)
    for attempt in stored.attempts:
        abort_forks_inside(ledger, workspace, attempt.id, reason)
        if not attempt.is_over:
            with suppress(LedgerError):  # another process has recorded its end meanwhile
                ledger.end_attempt(attempt.id, "cancelled", reason=reason)
    stored.drop()


def _has_conversation(ledger: Ledger, plan: ForkPlan) -> bool:
    try:
        ledger.conversations.load(plan.conversation)
    except LedgerError:
        return False
    return True


async def abort_orphans(runtime: BranchRuntime) -> None:
    """Abort the orphaned forks of a branch that were not resumed, so that the branch becomes writable again."""
    orphans, runtime.orphans = runtime.orphans, None
    if orphans is not None:
        await finish(run_in_thread(_abort_all, orphans))


def _abort_all(orphans: OrphanedForks) -> None:
    with open_ledger(orphans.workspace) as ledger:
        abort_forks_inside(ledger, orphans.workspace, orphans.attempt)


def load_unfinished(
    source: ForkSource, fork_id: str | None, inside: str | None, allow: bool | None
) -> tuple[ForkRecord, ForkHandle, MergeResult | None]:
    """Load the fork to resume, by default the last one that a killed process left.

    If it was resolved already, commit it and return the result with it. ``inside`` is the branch that the agent runs
    in. Raises ForkNotFoundError if there is none.
    """
    if source.is_in_memory:
        raise ForkNotFoundError("no fork was interrupted: a fork in memory ends with its process")
    workspace = source.parent.workspace
    with open_ledger(workspace) as ledger:
        forks = list_unfinished(ledger, inside)
        if fork_id is None:
            record = forks[-1] if forks else None
        else:
            record = next((fork for fork in forks if fork.id == ledger.fork(fork_id).id), None)
        if record is None and fork_id is not None:
            state = ledger.fork(fork_id).state
            raise ForkResolvedError(f"fork {fork_id} is {state}: only an interrupted fork can be resumed", fork=fork_id)
        if record is None:
            raise ForkNotFoundError(f"no fork of {workspace.path} was interrupted")
        result = _commit_stored(ledger, workspace, record, allow) if record.stored == "resolved" else None
        return record, build_handle(ledger, record), result


def _commit_stored(ledger: Ledger, workspace: Workspace, fork: ForkRecord, allow: bool | None) -> MergeResult:
    """Commit a fork whose process was killed between its resolution and its commit."""
    plan = ForkPlan.from_json(fork.spec, fork.id)
    policy = plan.strategy.conflict_policy
    landed = commit_resolved(ledger, workspace, fork.id, policy=policy, allow_executable_config=allow)
    return _build_stored_result(ledger, fork, plan, landed)


def load_merge_result(ledger: Ledger, workspace: Workspace, fork_id: str) -> MergeResult | None:
    """Load the result of a live fork that any process merged; return None if it was not merged."""
    fork = ledger.fork(fork_id)
    commit = next((known for known in workspace.history() if known.id == fork.commit), None)
    if fork.stored != "resolved" or commit is None:
        return None
    landed = Landed(commit, commit.conflicts)
    return _build_stored_result(ledger, fork, ForkPlan.from_json(fork.spec, fork.id), landed)


def _build_stored_result(ledger: Ledger, fork: ForkRecord, plan: ForkPlan, landed: Landed) -> MergeResult:
    commit = landed.commit
    conversation = StoredConversation.load(ledger.conversations, plan.conversation).conversation
    index = {attempt.id: attempt.index for attempt in ledger.attempts(fork.id)}
    combined = [name for name in (fork.resolution or {}).get("attempts", []) if name in index]
    chosen = [fork.winner] if fork.winner is not None else combined
    threads = [
        Thread(conversation, conversation.labels[thread_label(index[n])], thread_label(index[n]), conversation.here)
        for n in chosen
    ]
    return MergeResult(
        fork_id=fork.id,
        winner_branch_id=chosen[0],
        discarded_branches=[name for name in index if name not in chosen],
        history_after_merge=join_threads(threads)
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
