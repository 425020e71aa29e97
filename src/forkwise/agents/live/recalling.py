"""Recalling: a live fork that another process left, found in the ledger and taken over, or brought to its end."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from forkwise.agents.live.fork_plan import ForkPlan
from forkwise.agents.live.ground import Ground, ground_for
from forkwise.agents.live.live_fork import place_label, reopen
from forkwise.agents.live.merging import MergeResult
from forkwise.agents.live.overlay_files import conflict_contents
from forkwise.agents.live.settling import as_parents
from forkwise.agents.live.status import ForkHandle
from forkwise.agents.live.store import handle_of, unfinished
from forkwise.agents.live.thread import Thread
from forkwise.agents.live.together import in_a_row
from forkwise.conversation.saving import Saved
from forkwise.errors import ForkNotFoundError, ForkResolvedError
from forkwise.files.workspace import Workspace
from forkwise.fork.landing import Landed
from forkwise.fork.picking import complete
from forkwise.ledger.opening import open_ledger
from forkwise.ledger.protocol import Ledger
from forkwise.ledger.record import ForkRecord
from forkwise.sandbox.threads import in_thread

if TYPE_CHECKING:
    from forkwise.agents.live.coordinator import ForkCoordinator

__all__ = ["recall", "recall_merge"]


async def recall(coordinator: ForkCoordinator, fork_id: str | None) -> ForkHandle:
    """Have a coordinator go on with a fork, by default the last that a killed process left."""
    async with AsyncExitStack() as stack:
        ground = await in_thread(ground_for, coordinator.workspace, coordinator.parent_deps)
        stack.push_async_callback(in_thread, ground.close)
        inside = None if coordinator.inside is None else coordinator.inside.id
        record, handle, result = await in_thread(_found, ground, fork_id, inside)
        if result is not None:
            coordinator.merge_result = result
            return handle
        plan = ForkPlan.from_json(record.spec, record.id)
        above = coordinator.inside.purse if coordinator.inside is not None else None
        live, threads = await reopen(ground, plan, record.id, above, stack)
        return await coordinator.adopt(live, threads, stack)


def _found(
    ground: Ground, fork_id: str | None, inside: str | None
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
    landed = complete(ledger, workspace, fork.id, policy=plan.strategy.conflict_policy)
    return _result(ledger, fork, plan, landed)


def recall_merge(ledger: Ledger, workspace: Workspace, fork_id: str) -> MergeResult | None:
    """How a live fork was merged, by this process or by another, whose word on it was lost; None where it was not."""
    fork = ledger.fork(fork_id)
    commit = next((one for one in workspace.history() if one.id == fork.commit), None)
    if fork.stored != "resolved" or commit is None:
        return None
    landed = Landed(commit, commit.conflicts)
    return _result(ledger, fork, ForkPlan.from_json(fork.spec, fork.id), landed)


def _result(ledger: Ledger, fork: ForkRecord, plan: ForkPlan, landed: Landed) -> MergeResult:
    commit = landed.commit
    conversation = Saved.load(ledger.conversations, plan.conversation).conversation
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
        history_after_merge=in_a_row(threads) if combined else as_parents(threads[0].history(), threads[0].start.depth),
        applied_paths=sorted([*commit.added, *commit.changed]),
        applied_changes=len(commit.paths),
        conflicts=sorted(conflict.path for conflict in landed.conflicts),
        deleted_paths=sorted(commit.deleted),
        conflict_contents=conflict_contents(landed),
        kept_branch=landed.kept.branch_path if landed.kept else None,
        combined_branches=combined,
        commit_id=str(commit.id),
    )
