"""The seven tools for an agent that forks itself: it starts branches, inspects them and merges one.

Their docstrings are the descriptions that the model sees.
"""

from __future__ import annotations

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

_MERGED_PROMPT = (
    "[Merged: the messages since the fork are those of the branch {label}, and its files are yours now. "
    "Continue from there.]"
)
_INSPECT_TIMEOUT_S = 10.0  # how long inspect_branches waits for a change
_specs = TypeAdapter(list[BranchSpec])
_isolation = TypeAdapter(BranchIsolation)
_strategy = TypeAdapter(MergeStrategy)
_coordinators: WeakValueDictionary[str, ForkCoordinator] = WeakValueDictionary()


def register_coordinator(run_id: str | None, coordinator: ForkCoordinator) -> None:
    """Have the tools of a run use a coordinator."""
    if run_id is not None:
        _coordinators[run_id] = coordinator


def _find_coordinator(ctx: RunContext[Any]) -> ForkCoordinator | None:
    registered = _coordinators.get(ctx.run_id or "")
    found = registered if registered is not None else getattr(ctx.deps, "fork_coordinator", None)
    return found if isinstance(found, ForkCoordinator) else None


async def fork_run(
    ctx: RunContext[Any],
    specs: list[dict[str, Any]],
    isolation: dict[str, Any] | None = None,
    strategy: dict[str, Any] | None = None,
    aggregate_budget_usd: float | None = None,
) -> str:
    """Try several approaches in parallel: start a branch of yourself for each.

    A branch continues this conversation with its own copy of the files. Call inspect_branches until the branches are
    done, then decide with merge_or_select before you end your turn.

    Args:
        specs: one object per branch: label (short name), steer (what the branch is to do), and optionally model,
            budget_usd, extra_instructions
        isolation: what the branches share with you; omit it for separate copies
        strategy: how merge_or_select("auto") decides: kind, judge_model, confidence_threshold
        aggregate_budget_usd: the most dollars that all branches together may spend
    """
    coordinator = _find_coordinator(ctx)
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
    """Report the status of each branch of the fork.

    Wait until the branches you care about are done before you decide. If nothing has changed since the last call, the
    answer comes when a branch ends, or after some seconds.
    """
    coordinator = _find_coordinator(ctx)
    if coordinator is None:
        return NOT_ENABLED_MESSAGE
    if coordinator.is_resolved:
        return "No active branches."
    if _format_statuses(coordinator) == coordinator.last_inspection:
        await coordinator.wait_for_change(_INSPECT_TIMEOUT_S)
    coordinator.last_inspection = _format_statuses(coordinator)
    return coordinator.last_inspection


def _format_statuses(coordinator: ForkCoordinator) -> str:
    return "\n".join(
        f"- {status.id} ({status.label}): {status.state}{f', error: {status.error}' if status.error else ''}"
        for status in coordinator.inspect_branches()
    )


async def merge_or_select(ctx: RunContext[Any], action: str) -> str:
    """Resolve the fork. You continue as the branch that is merged, with its files; all other branches are dropped.

    Args:
        action: pick:<branch_id> merges that branch (and waits for it), combine:<branch_id>,<branch_id> merges the work
            of several, auto lets a judge pick, abort merges none
    """
    coordinator = _find_coordinator(ctx)
    if coordinator is None:
        return NOT_ENABLED_MESSAGE
    branch = current_branch()
    if branch is not None and branch.nested_merge is not None and coordinator.is_resolved:
        summary, branch.nested_merge = branch.nested_merge, None  # the merging process was killed before it answered
        return summary
    try:
        result = await coordinator.merge_or_select(action)
    except (ValueError, RuntimeError, BranchingError) as error:
        return f"merge_or_select failed: {error}"
    if not result.winner_branch_id:
        return f"Fork aborted: {len(result.discarded_branches)} branches were dropped, and no files were changed."
    _continue_as(ctx, coordinator, result)
    return _merge_summary(coordinator, result)


def _merge_summary(coordinator: ForkCoordinator, result: MergeResult) -> str:
    winner = coordinator.branches[result.winner_branch_id]
    verdict = coordinator.last_verdict
    fields = [
        f"winner={winner.spec.label} ({winner.id[:8]})",
        f"judge_pick={verdict.winner_branch_id} (confidence={verdict.confidence:.2f})" if verdict is not None else "",
        f"combined={len(result.combined_branches)}" if result.combined_branches else "",
        f"discarded={len(result.discarded_branches)}",
        f"files={len(result.applied_paths) + len(result.deleted_paths)}",
        f"conflicts={', '.join(result.conflicts)}" if result.conflicts else "",
        f"errors={'; '.join(error.message for error in result.errors)}" if result.errors else "",
        f"git={'; '.join(result.left_repositories)}" if result.left_repositories else "",
        f"history={len(result.history_after_merge)} messages",
    ]
    return f"Merged fork {result.fork_id}: {', '.join(filter(None, fields))}"


def _continue_as(ctx: RunContext[Any], coordinator: ForkCoordinator, result: MergeResult) -> None:
    """Append the messages of the merged branches to those of this run."""
    chosen = result.combined_branches or [result.winner_branch_id]
    label = " and ".join(repr(coordinator.branches[name].spec.label) for name in chosen)
    used_ids = (p.tool_call_id for m in ctx.messages for p in m.parts if isinstance(p, ToolCallPart))
    messages: list[ModelMessage] = [m for name in chosen for m in own_turns(coordinator.branches[name].thread)]
    messages.append(ModelRequest(parts=[UserPromptPart(_MERGED_PROMPT.format(label=label))]))
    ctx.enqueue(*adopted(messages, used_ids))


async def terminate_branch(ctx: RunContext[Any], branch_id: str) -> str:
    """Stop a branch that is no longer worth running; it can still be picked with what it did.

    Args:
        branch_id: the branch
    """
    coordinator = _find_coordinator(ctx)
    if coordinator is None:
        return NOT_ENABLED_MESSAGE
    try:
        await coordinator.terminate_branch(branch_id)
    except (ValueError, RuntimeError) as error:
        return f"terminate_branch failed: {error}"
    return f"Branch {branch_id} terminated."


async def delete_file(ctx: RunContext[Any], path: str) -> str:  # noqa: ARG001 - as pydantic-ai calls tools
    """Delete a file in your branch; a merge of the branch deletes it in the parent too.

    Args:
        path: the file
    """
    branch = current_branch()
    if branch is None or branch.overlay is None:
        return "error: delete_file works inside a branch only"
    try:
        is_deleted = await run_in_thread(branch.overlay.delete, path)
    except OSError as error:
        return f"error: {error}"
    return f"deleted: {path}" if is_deleted else f"error: {path!r} does not exist in this branch"


async def diff_branches(ctx: RunContext[Any], fork_id: str, paths: list[str] | None = None) -> BranchDiffReport | str:
    """Compare the changes of the branches, file by file.

    Args:
        fork_id: the fork
        paths: compare only these files
    """
    coordinator = _find_coordinator(ctx)
    if coordinator is None:
        return NOT_ENABLED_MESSAGE
    if problem := _check_fork_id(coordinator, fork_id):
        return problem
    return await run_in_thread(coordinator.diff_report, paths)


async def fork_cost(ctx: RunContext[Any], fork_id: str) -> ForkCostSummary | str:
    """Report what the branches have cost so far, and what is left of their budgets.

    Args:
        fork_id: the fork
    """
    coordinator = _find_coordinator(ctx)
    if coordinator is None:
        return NOT_ENABLED_MESSAGE
    return _check_fork_id(coordinator, fork_id) or coordinator.fork_cost()


def _check_fork_id(coordinator: ForkCoordinator, fork_id: str) -> str | None:
    if coordinator.fork_id is None:
        return "There is no active fork: call fork_run first."
    if coordinator.fork_id != fork_id:
        return f"There is no fork {fork_id!r}; the active one is {coordinator.fork_id}."
    return None


def create_fork_toolset(id: str = "deep-forking") -> FunctionToolset[Any]:  # noqa: A002 - pydantic-ai's word for it
    """Create the toolset of the seven tools, which use the coordinator of the run they are called in."""
    toolset: FunctionToolset[Any] = FunctionToolset(id=id)
    for tool in (
        fork_run, inspect_branches, merge_or_select, terminate_branch, delete_file, diff_branches, fork_cost
    ):  # fmt: skip
        toolset.add_function(tool, takes_ctx=True)
    return toolset
