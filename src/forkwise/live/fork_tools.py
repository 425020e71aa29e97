"""The tools with which an agent forks itself, looks at its branches, and decides between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

from pydantic import TypeAdapter, ValidationError
from pydantic_ai import FunctionToolset, RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolCallPart, UserPromptPart

from forkwise.concurrency import run_in_thread
from forkwise.conversation.adopt import adopted
from forkwise.errors import BranchingError
from forkwise.live.branch_runtime import current_branch, own_turns
from forkwise.live.coordinator import ForkCoordinator
from forkwise.live.diff.diff_report import BranchDiffReport
from forkwise.live.values import BranchIsolation, BranchSpec, ForkCostSummary, MergeResult, MergeStrategy

__all__ = ["NOT_ENABLED_MESSAGE", "create_fork_toolset", "register_coordinator"]

NOT_ENABLED_MESSAGE = "Forking is not enabled for this run."

_GO_ON = (
    "[Merged: what was said since the fork was said in the branch {label}. Go on as that; its files are yours now.]"
)
_PATIENCE = 10.0  # seconds that a look at what has not changed waits for a change
_specs = TypeAdapter(list[BranchSpec])
_isolation = TypeAdapter(BranchIsolation)
_strategy = TypeAdapter(MergeStrategy)
_in_charge: WeakValueDictionary[str, ForkCoordinator] = WeakValueDictionary()


def register_coordinator(run_id: str | None, coordinator: ForkCoordinator) -> None:
    """Have the tools of a run work on a coordinator."""
    if run_id is not None:
        _in_charge[run_id] = coordinator


def _coordinator(ctx: RunContext[Any]) -> ForkCoordinator | None:
    known = _in_charge.get(ctx.run_id or "")
    found = known if known is not None else getattr(ctx.deps, "fork_coordinator", None)
    return found if isinstance(found, ForkCoordinator) else None


async def fork_run(
    ctx: RunContext[Any],
    specs: list[dict[str, Any]],
    isolation: dict[str, Any] | None = None,
    strategy: dict[str, Any] | None = None,
    aggregate_budget_usd: float | None = None,
) -> str:
    """Try several approaches at once: start a branch of yourself for each. A branch goes on from this conversation with
    its own copy of the files. Look at them with inspect_branches until they are done, then decide with merge_or_select
    before you end your turn.

    Args:
        specs: a branch each: label (short name) and steer (what this branch is to do), and if wanted model, budget_usd,
            extra_instructions
        isolation: what branches share with you; leave it out to have them apart
        strategy: how the fork is decided by merge_or_select("auto"): kind, judge_model, confidence_threshold
        aggregate_budget_usd: what all branches together may spend
    """
    coordinator = _coordinator(ctx)
    if coordinator is None:
        return NOT_ENABLED_MESSAGE
    coordinator.usage_limits, coordinator.model = ctx.usage_limits, ctx.model
    try:
        handle = await coordinator.fork(
            _specs.validate_python(specs),
            parent_history=ctx.messages,
            isolation=None if isolation is None else _isolation.validate_python(isolation),
            strategy=None if strategy is None else _strategy.validate_python(strategy),
            aggregate_budget_usd=aggregate_budget_usd,
        )
    except (ValidationError, ValueError, RuntimeError, BranchingError) as error:
        return f"fork_run failed: {error}"
    lines = [f"- {name} ({coordinator.branches[name].spec.label})" for name in handle.branches]
    return "\n".join([f"Forked: fork_id={handle.fork_id}", *lines])


async def inspect_branches(ctx: RunContext[Any]) -> str:
    """Where the branches of the fork stand. Wait until those you care about are done before you decide: who looks again
    and nothing has changed is answered when a branch ends, or after some seconds."""
    coordinator = _coordinator(ctx)
    if coordinator is None:
        return NOT_ENABLED_MESSAGE
    if coordinator.is_resolved:
        return "No active branches."
    if _standing(coordinator) == coordinator.last_look:
        await coordinator.wait_for_change(_PATIENCE)
    coordinator.last_look = _standing(coordinator)
    return coordinator.last_look


def _standing(coordinator: ForkCoordinator) -> str:
    return "\n".join(
        f"- {status.id} ({status.label}): {status.state}{f', error: {status.error}' if status.error else ''}"
        for status in coordinator.inspect_branches()
    )


async def merge_or_select(ctx: RunContext[Any], action: str) -> str:
    """Decide the fork. You go on as the branch that is kept, with its files; all others are gone.

    Args:
        action: pick:<branch_id> keeps that branch (it is waited for), combine:<branch_id>,<branch_id> keeps the work of
            several, auto lets a judge pick, abort keeps none
    """
    coordinator = _coordinator(ctx)
    if coordinator is None:
        return NOT_ENABLED_MESSAGE
    branch = current_branch()
    if branch is not None and branch.merged_inside is not None and coordinator.is_resolved:
        told, branch.merged_inside = branch.merged_inside, None  # by a process that was killed before it said so
        return told
    try:
        result = await coordinator.merge_or_select(action)
    except (ValueError, RuntimeError, BranchingError) as error:
        return f"merge_or_select failed: {error}"
    if not result.winner_branch_id:
        return f"Fork aborted: {len(result.discarded_branches)} branches are gone, and nothing was changed."
    _continue_as(ctx, coordinator, result)
    return _merge_summary(coordinator, result)


def _merge_summary(coordinator: ForkCoordinator, result: MergeResult) -> str:
    winner = coordinator.branches[result.winner_branch_id]
    judged = coordinator.last_verdict
    said = [
        f"winner={winner.spec.label} ({winner.id[:8]})",
        f"judge_pick={judged.winner_branch_id} (confidence={judged.confidence:.2f})" if judged is not None else "",
        f"combined={len(result.combined_branches)}" if result.combined_branches else "",
        f"discarded={len(result.discarded_branches)}",
        f"files={len(result.applied_paths) + len(result.deleted_paths)}",
        f"conflicts={', '.join(result.conflicts)}" if result.conflicts else "",
        f"errors={'; '.join(error.message for error in result.errors)}" if result.errors else "",
        f"history={len(result.history_after_merge)} messages",
    ]
    return f"Merged fork {result.fork_id}: {', '.join(filter(None, said))}"


def _continue_as(ctx: RunContext[Any], coordinator: ForkCoordinator, result: MergeResult) -> None:
    """Put what the winner said behind what this run has said, as if it had said it."""
    chosen = result.combined_branches or [result.winner_branch_id]
    label = " and ".join(repr(coordinator.branches[name].spec.label) for name in chosen)
    used = (p.tool_call_id for m in ctx.messages for p in m.parts if isinstance(p, ToolCallPart))
    ctx.enqueue(*_behind([own_turns(coordinator.branches[name].thread) for name in chosen], used, label))


def _behind(several: Sequence[Sequence[ModelMessage]], used: Any, label: str) -> list[ModelMessage]:
    """Conversations as they can follow one in which these ids are used, ending with a word that leads on."""
    last = ModelRequest(parts=[UserPromptPart(_GO_ON.format(label=label))])
    return adopted([*(message for one in several for message in one), last], used)


async def terminate_branch(ctx: RunContext[Any], branch_id: str) -> str:
    """End one branch that is no longer worth running; it can still be picked with what it did.

    Args:
        branch_id: the branch
    """
    coordinator = _coordinator(ctx)
    if coordinator is None:
        return NOT_ENABLED_MESSAGE
    try:
        await coordinator.terminate_branch(branch_id)
    except (ValueError, RuntimeError) as error:
        return f"terminate_branch failed: {error}"
    return f"Branch {branch_id} terminated."


async def delete_file(ctx: RunContext[Any], path: str) -> str:
    """Delete a file of the branch you are in; when the branch is merged it is deleted there too.

    Args:
        path: the file
    """
    branch = current_branch()
    if branch is None or branch.overlay is None:
        return "error: files are deleted by this in a branch only"
    try:
        is_deleted = await run_in_thread(branch.overlay.delete, path)
    except OSError as error:
        return f"error: {error}"
    return f"deleted: {path}" if is_deleted else f"error: {path!r} does not exist in this branch"


async def diff_branches(ctx: RunContext[Any], fork_id: str, paths: list[str] | None = None) -> BranchDiffReport | str:
    """What each branch changed, file by file, and where they agree.

    Args:
        fork_id: the fork
        paths: only these files
    """
    coordinator = _coordinator(ctx)
    if coordinator is None:
        return NOT_ENABLED_MESSAGE
    if problem := _not_this(coordinator, fork_id):
        return problem
    return await run_in_thread(coordinator.diff_report, paths)


async def fork_cost(ctx: RunContext[Any], fork_id: str) -> ForkCostSummary | str:
    """What the branches have cost so far, and what is left of their budgets.

    Args:
        fork_id: the fork
    """
    coordinator = _coordinator(ctx)
    if coordinator is None:
        return NOT_ENABLED_MESSAGE
    return _not_this(coordinator, fork_id) or coordinator.fork_cost()


def _not_this(coordinator: ForkCoordinator, fork_id: str) -> str | None:
    if coordinator.fork_id is None:
        return "There is no active fork: call fork_run first."
    if coordinator.fork_id != fork_id:
        return f"There is no fork {fork_id!r}; the active one is {coordinator.fork_id}."
    return None


def create_fork_toolset(id: str = "deep-forking") -> FunctionToolset[Any]:  # noqa: A002 - pydantic-ai's word for it
    """The seven tools. They work on the coordinator of the run they are called in."""
    toolset: FunctionToolset[Any] = FunctionToolset(id=id)
    for tool in (
        fork_run, inspect_branches, merge_or_select, terminate_branch, delete_file, diff_branches, fork_cost
    ):  # fmt: skip
        toolset.add_function(tool, takes_ctx=True)
    return toolset
