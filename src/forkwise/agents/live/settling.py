"""Settling a fork: the work of one branch, or of several together, made the parent's, and what that comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse

from forkwise.agents.live.cost import BranchCost, ForkCostSummary
from forkwise.agents.live.live_fork import LiveFork
from forkwise.agents.live.merging import FlushReport, MergeResult
from forkwise.agents.live.overlay_files import FilesOverlay
from forkwise.agents.live.replaying import content_of, replay
from forkwise.agents.live.runtime import BranchRuntime
from forkwise.agents.live.specs import ConflictPolicy
from forkwise.agents.live.thread import own_turns, successive
from forkwise.errors import ConflictError
from forkwise.files.conflict import Conflict, OnConflict
from forkwise.files.merge import is_text, merge
from forkwise.fork.combining import combine_attempts
from forkwise.sandbox.threads import in_thread

__all__ = [
    "ON_CONFLICT",
    "as_parents",
    "check_mergeable",
    "clash",
    "combine_branches",
    "commit_branch",
    "costs_of",
    "is_mergeable",
]

#: How a policy is told to a commit.
ON_CONFLICT: dict[ConflictPolicy, OnConflict] = {"keep_newer": "theirs", "last_write_wins": "ours"}


def is_mergeable(runtime: BranchRuntime) -> bool:
    """Whether a branch has anything to be merged: it is done, or was stopped when it had begun to speak."""
    state = runtime.status.state
    return state == "done" or (state != "failed" and (bool(runtime.partial_history) or runtime.thread.has_spoken))


def check_mergeable(branches: Sequence[BranchRuntime]) -> None:
    """Raise RuntimeError, which says why, where a branch has nothing to be merged."""
    for runtime in branches:
        if not is_mergeable(runtime):
            why = f": {runtime.status.error}" if runtime.status.error else ""
            raise RuntimeError(f"branch {runtime.id} cannot be merged, it is {runtime.status.state}{why}")


async def commit_branch(live: LiveFork, winner: BranchRuntime, how: str, detail: Mapping[str, Any]) -> MergeResult:
    """Decide for one branch."""
    forced = {} if winner.attempt.success else {"force": True}
    report = await live.commit(winner, how, {**detail, **forced})
    history = as_parents(winner.thread.history(), winner.thread.start.depth)
    commit = None if live.ground.is_in_memory or live.fork.commit is None else str(live.fork.commit.id)
    return _result(live, [winner], history, report, commit)


async def combine_branches(
    live: LiveFork, chosen: Sequence[BranchRuntime], prefer: Mapping[str, str], favourites: Sequence[str]
) -> MergeResult:
    """Decide for the work of several branches. Where they clash and nobody says whose version it is, the one that a
    judge chose counts; where none did, ConflictError names the paths, and nothing is decided."""
    if len({runtime.id for runtime in chosen}) < 2:
        raise ValueError("two branches at least are combined")
    if live.ground.is_in_memory:
        report = await _combine_in_memory(live, chosen, prefer, favourites)
    else:
        report = await _combine_files(live, chosen, prefer, favourites)
    first, *others = chosen
    history = successive(
        as_parents(first.thread.history(), first.thread.start.depth), *(own_turns(one.thread) for one in others)
    )
    commit = None if live.ground.is_in_memory else live.fork.ledger.fork(live.fork.id).commit
    return _result(live, chosen, history, report, None if commit is None else str(commit))


async def _combine_files(
    live: LiveFork, chosen: Sequence[BranchRuntime], prefer: Mapping[str, str], favourites: Sequence[str]
) -> FlushReport:
    overlays = [runtime.overlay for runtime in chosen if isinstance(runtime.overlay, FilesOverlay)]
    changes = [change for overlay in overlays for change in await in_thread(overlay.changes)]
    ids = {name: runtime.id for runtime in chosen for name in (runtime.id, runtime.spec.label)}
    done = await combine_attempts(
        live.ground.parent.workspace,
        [runtime.id for runtime in chosen],
        tests=None,
        prefer={path: ids.get(name, name) for path, name in prefer.items()},
        favour=[name for name in favourites if name in ids],
        on_conflict=ON_CONFLICT[live.plan.strategy.conflict_policy],
    )
    if done.commit is None:
        raise clash([Conflict(one.path, "unmerged", one.detail) for one in done.conflicts])
    touched = set(done.commit.paths)
    return FlushReport(
        applied_paths=sorted([*done.commit.added, *done.commit.changed]),
        applied_changes=sum(change.path in touched for change in changes),
        conflicts=sorted(conflict.path for conflict in done.commit.conflicts),
        errors=[],
        deleted_paths=sorted(done.commit.deleted),
    )


async def _combine_in_memory(
    live: LiveFork, chosen: Sequence[BranchRuntime], prefer: Mapping[str, str], favourites: Sequence[str]
) -> FlushReport:
    made: dict[str, bytes | None] = {}
    clashes = []
    for path in sorted({path for runtime in chosen for path in runtime.overlay.touched()}):
        versions = {r.id: r.overlay.new(path) for r in chosen if path in r.overlay.touched()}
        decided = [r.id for r in chosen if prefer.get(path) in (r.id, r.spec.label)] + [*favourites]
        whose = next((name for name in decided if name in versions), None)
        if whose is not None or len(set(versions.values())) == 1:
            made[path] = versions[whose or next(iter(versions))]
            continue
        made[path] = _merged(chosen[0].overlay.old(path), list(versions.values()))
        if made[path] is None:
            clashes.append(Conflict(path, "unmerged", f"{' and '.join(versions)} changed it differently"))
    if clashes:
        raise clash(clashes)
    backend = live.ground.backend
    old = {path: chosen[0].overlay.old(path) for path in made}
    live.fork.ledger.resolve(live.fork.id, how="combination", detail={"attempts": [r.id for r in chosen]})
    changes = [change for runtime in chosen for change in runtime.overlay.changes()]
    policy = live.plan.strategy.conflict_policy
    return replay(made, changes, backend, lambda path: content_of(backend, path) != old[path], policy)


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


def clash(conflicts: Sequence[Conflict]) -> ConflictError:
    """The error that says on what branches do not agree."""
    told = "; ".join(map(str, conflicts[:5]))
    return ConflictError(
        f"nothing was merged: {told}. Say whose version it is to be, or pick one branch", conflicts=conflicts
    )


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


def _result(
    live: LiveFork,
    chosen: Sequence[BranchRuntime],
    history: list[ModelMessage],
    report: FlushReport,
    commit: str | None,
) -> MergeResult:
    names = {runtime.id for runtime in chosen}
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
        commit_id=commit,
    )


def as_parents(history: Sequence[ModelMessage], before: int) -> list[ModelMessage]:
    """A branch's conversation as the parent's: what was said in the branch no longer names the branch's workspace."""
    return [
        replace(message, workspace_ref=None)
        if number >= before and isinstance(message, ModelResponse) and message.workspace_ref is not None
        else message
        for number, message in enumerate(history)
    ]
