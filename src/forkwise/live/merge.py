"""Together: a fork decided for the work of several of its branches: their files merged, their conversations in a row.

Branches that were stopped by a budget, terminated, or failed after they had spoken, are taken with what they did until
then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse

from forkwise.concurrency import run_in_thread
from forkwise.errors import ConflictError, ForkResolvedError
from forkwise.files.store.changes import Conflict
from forkwise.files.workspace import Workspace
from forkwise.fork.combine import combine_attempts
from forkwise.ledger.sqlite import open_ledger
from forkwise.live.backends.branch_overlay import FilesOverlay, conflict_contents, content_of, replay
from forkwise.live.branch_runtime import BranchRuntime, Thread, concatenate, own_turns
from forkwise.live.live_fork import LiveFork
from forkwise.live.values import BranchCost, FlushReport, ForkCostSummary, MergeResult
from forkwise.text.merge3 import is_text, merge

__all__ = [
    "check_mergeable",
    "combine_branches",
    "commit_branch",
    "concatenate_histories",
    "costs_of",
    "detach_history",
    "is_mergeable",
    "merge_result",
    "override_winner",
]


def is_mergeable(runtime: BranchRuntime) -> bool:
    """Whether a branch has anything to be merged: it is done, or was stopped when it had begun to speak."""
    state = runtime.status.state
    return state == "done" or (state != "failed" and (bool(runtime.partial_history) or runtime.thread.has_spoken))


def check_mergeable(branches: Sequence[BranchRuntime], *, together: bool = False) -> None:
    """Raise RuntimeError, which says why, where a branch has nothing to be merged. One that failed after it had spoken
    cannot be picked, but its work can be put ``together`` with that of others."""
    for runtime in branches:
        if not is_mergeable(runtime) and not (together and runtime.thread.has_spoken):
            why = f": {runtime.status.error}" if runtime.status.error else ""
            raise RuntimeError(f"branch {runtime.id} cannot be merged, it is {runtime.status.state}{why}")


async def commit_branch(live: LiveFork, winner: BranchRuntime, how: str, detail: Mapping[str, Any]) -> MergeResult:
    """Decide for one branch."""
    forced = {} if winner.attempt.success else {"force": True}
    report = await live.commit(winner, how, {**detail, **forced})
    history = detach_history(winner.thread.history(), winner.thread.start.depth)
    return merge_result(live, [winner], history, report)


def costs_of(live: LiveFork, judge_usd: float | None) -> ForkCostSummary:
    """What a fork has cost."""
    costs = {}
    for runtime in live.branches.values():
        spent, cap = runtime.purse.spent, runtime.purse.cap.usd
        left = None if cap is None else max(0.0, cap - (spent.usd or 0.0))
        state = runtime.status.state
        costs[runtime.id] = BranchCost(
            runtime.id, runtime.spec.label, spent.usd, runtime.budget_usd, left, state, spent.tokens, spent.requests
        )
    total, cap = live.purse.spent.usd, live.purse.budget.usd
    left = None if cap is None else max(0.0, cap - (total or 0.0))
    return ForkCostSummary(live.fork.id, costs, total, cap, left, judge_usd)


async def override_winner(live: LiveFork, runtime: BranchRuntime) -> MergeResult:
    """Have a branch that lost by the word of a judge take the winner's place."""
    losers = live.losers
    if losers is None:
        raise RuntimeError(
            f"fork {live.fork.id} was not decided by a judge, or inside a branch: only what auto or vote merged into "
            "the agent's own files can be overridden"
        )
    if runtime.id not in losers.names or not is_mergeable(runtime):
        raise RuntimeError(f"branch {runtime.id} ({runtime.spec.label}) is what is there now, or has nothing to merge")
    report = await run_in_thread(
        losers.put_in_place, runtime.id, runtime.spec.label, live.plan.strategy.conflict_policy
    )
    history = detach_history(runtime.thread.history(), runtime.thread.start.depth)
    return merge_result(live, [runtime], history, report)


def merge_result(
    live: LiveFork, chosen: Sequence[BranchRuntime], history: list[ModelMessage], report: FlushReport
) -> MergeResult:
    """How a fork ended that was decided for some of its branches."""
    names = {runtime.id for runtime in chosen}
    commit = None
    if not live.ground.is_in_memory and isinstance(live.ground.parent, Workspace):
        with open_ledger(live.ground.parent) as ledger:
            commit = ledger.fork(live.fork.id).commit
    return MergeResult(
        fork_id=live.fork.id,
        winner_branch_id=chosen[0].id,
        discarded_branches=[name for name in live.branches if name not in names],
        history_after_merge=history,
        applied_paths=report.applied_paths,
        applied_changes=report.applied_changes,
        conflicts=report.conflicts,
        errors=report.errors,
        deleted_paths=report.deleted_paths,
        blocked_commands=[command for runtime in chosen for command in runtime.blocked_commands],
        conflict_contents=report.conflict_contents,
        kept_branch=report.kept_branch,
        combined_branches=[runtime.id for runtime in chosen] if len(chosen) > 1 else [],
        commit_id=None if commit is None else str(commit),
    )


def detach_history(history: Sequence[ModelMessage], before: int) -> list[ModelMessage]:
    """A branch's conversation as the parent's: what was said in the branch no longer names the branch's workspace."""
    return [
        replace(message, workspace_ref=None)
        if number >= before and isinstance(message, ModelResponse) and message.workspace_ref is not None
        else message
        for number, message in enumerate(history)
    ]


async def combine_branches(
    live: LiveFork, chosen: Sequence[BranchRuntime], prefer: Mapping[str, str], favourites: Sequence[str]
) -> MergeResult:
    """Decide for the work of several branches. Where they clash and nobody says whose version it is, the one that a
    judge chose counts; where none did, ConflictError names the paths, and nothing is decided."""
    if len({runtime.id for runtime in chosen}) < 2:
        raise ValueError("two branches at least are combined")
    if live.ground.is_in_memory:
        report = _combine_in_memory(live, chosen, prefer, favourites)
    else:
        report = await _combine_files(live, chosen, prefer, favourites)
    return merge_result(live, chosen, concatenate_histories([runtime.thread for runtime in chosen]), report)


def concatenate_histories(threads: Sequence[Thread]) -> list[ModelMessage]:
    """What was said before the fork, and then in one branch after the other, as providers take it."""
    first, *others = threads
    return concatenate(detach_history(first.history(), first.start.depth), *map(own_turns, others))


async def _combine_files(
    live: LiveFork, chosen: Sequence[BranchRuntime], prefer: Mapping[str, str], favourites: Sequence[str]
) -> FlushReport:
    overlays = [runtime.overlay for runtime in chosen if isinstance(runtime.overlay, FilesOverlay)]
    changes = [change for overlay in overlays for change in await run_in_thread(overlay.changes)]
    ids = {name: runtime.id for runtime in chosen for name in (runtime.id, runtime.spec.label)}
    done = await combine_attempts(
        live.ground.parent.workspace,
        [runtime.id for runtime in chosen],
        tests=None,
        prefer={path: ids.get(name, name) for path, name in prefer.items()},
        favour=[name for name in favourites if name in ids],
        partial=True,
        policy=live.fork.settings.policy,
    )
    if done.landed is None:
        raise _clash([Conflict(one.path, "unmerged", one.detail) for one in done.conflicts])
    parent, landed = live.ground.parent, done.landed
    await run_in_thread(lambda: parent.path)  # its view went down with the commit; whoever works there goes on
    touched = set(landed.commit.paths)
    return FlushReport(
        applied_paths=sorted([*landed.commit.added, *landed.commit.changed]),
        applied_changes=sum(change.path in touched for change in changes),
        conflicts=sorted(conflict.path for conflict in landed.conflicts),
        errors=[],
        deleted_paths=sorted(landed.commit.deleted),
        conflict_contents=await run_in_thread(conflict_contents, landed),
        kept_branch=landed.kept.branch_path if landed.kept else None,
    )


def _combine_in_memory(
    live: LiveFork, chosen: Sequence[BranchRuntime], prefer: Mapping[str, str], favourites: Sequence[str]
) -> FlushReport:
    touched = {runtime.id: set(runtime.overlay.touched()) for runtime in chosen}
    made: dict[str, bytes | None] = {}
    base: dict[str, bytes | None] = {}
    clashes = []
    for path in sorted(frozenset[str]().union(*touched.values())):
        those = [runtime for runtime in chosen if path in touched[runtime.id]]
        base[path] = those[0].overlay.old(path)
        versions = {runtime.id: runtime.overlay.new(path) for runtime in those}
        decided = [r.id for r in those if prefer.get(path) in (r.id, r.spec.label)] + [*favourites]
        whose = next((name for name in decided if name in versions), None)
        if whose is not None or len(set(versions.values())) == 1:
            made[path] = versions[whose or those[0].id]
            continue
        made[path] = _merged(base[path], list(versions.values()))
        if made[path] is None:
            clashes.append(Conflict(path, "unmerged", f"{' and '.join(versions)} changed it differently"))
    if clashes:
        raise _clash(clashes)
    backend, fork = live.ground.backend, live.fork
    if not fork.ledger.resolve(fork.id, how="combination", detail={"attempts": [r.id for r in chosen]}):
        raise ForkResolvedError(f"fork {fork.id} was decided meanwhile", fork=fork.id)
    changes = [change for runtime in chosen for change in runtime.overlay.changes()]
    policy = live.plan.strategy.conflict_policy
    return replay(made, changes, backend, lambda path: content_of(backend, path) != base[path], policy)


def _merged(base: bytes | None, versions: Sequence[bytes | None]) -> bytes | None:
    """All versions of a text in one; None where they do not go together."""
    if base is None or not is_text(base):
        return None
    whole = base
    for version in versions:
        if version is None or not is_text(version) or not (made := merge(base, whole, version)).clean:
            return None
        whole = made.content
    return whole


def _clash(conflicts: Sequence[Conflict]) -> ConflictError:
    """The error that says on what branches do not agree."""
    told = "; ".join(map(str, conflicts[:5]))
    return ConflictError(
        f"nothing was merged: {told}. Say whose version it is to be, or pick one branch", conflicts=conflicts
    )
