"""The turns of branches: `BranchTurns` starts and stops them, `take_turn` runs the agent for one of them.

`BranchCapability` is the hook into the agent's run: it saves the conversation, enforces budgets and asks for approvals.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Protocol

from pydantic_ai import Agent, RunContext, ToolApproved, ToolDenied
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import RunTimedOut, SkipToolExecution, UsageLimitExceeded
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults
from pydantic_ai.usage import RunUsage, UsageLimits
from pydantic_ai.workspaces import ReadOnlyWorkspace
from pydantic_ai.workspaces import Workspace as AgentWorkspace

from forkwise.concurrency import finish, run_in_thread
from forkwise.errors import BudgetExceededError
from forkwise.fork.agent_workspace import agent_workspace
from forkwise.fork.fault import find_fault
from forkwise.live.backends.branch_overlay import FilesOverlay
from forkwise.live.branch_runtime import BranchRuntime, current_tool, enter_branch
from forkwise.live.budget import BudgetTracker, RequestEstimate, estimate_request
from forkwise.live.checkpoints import (
    Checkpoint,
    CheckpointStore,
    InMemoryCheckpointStore,
    Rewound,
    rewind,
    save_checkpoint,
)
from forkwise.live.deps import DeepAgentDeps, clone_for_branch
from forkwise.live.diff.mirror import ForkMaterializer
from forkwise.live.live_fork import branch_state
from forkwise.live.resume import abort_orphans, find_orphans
from forkwise.live.values import BranchState, Budget, PendingApprovalRequest

if TYPE_CHECKING:
    from forkwise.live.coordinator import ForkCoordinator

__all__ = [
    "BUDGET_STATES",
    "BranchCapability",
    "BranchRunner",
    "BranchTurns",
    "checkpoint_branch",
    "checkpoint_store_of",
    "open_files",
    "rewind_branch",
    "run_agent",
    "take_turn",
]

#: The states of a branch that a budget stopped.
BUDGET_STATES: tuple[BranchState, ...] = ("budget_exhausted", "aggregate_budget_exhausted")


class BranchTurns:
    """The turns of a coordinator's branches: starts them, follows them to their end, and stops them.

    The first turn of a branch is the run of its attempt; later turns are tasks of their own.
    """

    def __init__(self, coordinator: ForkCoordinator) -> None:
        self._coordinator = coordinator
        self._stop_tasks: set[asyncio.Task[None]] = set()

    async def open_files(self, runtime: BranchRuntime) -> None:
        """Give a branch its files and deps."""
        deps, mirror = self._coordinator.parent_deps, self._coordinator.materializer
        if runtime.live_fork.source.is_in_memory:
            open_files(runtime, deps, mirror)  # nothing is read or written, so a thread would only cost time
        else:
            await run_in_thread(open_files, runtime, deps, mirror)
        runtime.ready.set()

    async def wait_for_files(self, branches: Iterable[BranchRuntime]) -> None:
        """Wait until each branch has its files, or has failed to get them."""
        for runtime in branches:
            ready = asyncio.ensure_future(runtime.ready.wait())
            try:
                await asyncio.wait([ready, runtime.task], return_when=asyncio.FIRST_COMPLETED)
            finally:
                ready.cancel()

    async def run_first(self, runtime: BranchRuntime) -> tuple[bool, str]:
        """Run the first turn, as the work of the branch's attempt."""
        await self._run(runtime)
        return True, runtime.thread.last_text

    async def _run(self, runtime: BranchRuntime) -> Any:
        if runtime.overlay is None:
            await self.open_files(runtime)
        if runtime.live_fork.is_resumed and not runtime.has_looked_for_orphans:
            runtime.has_looked_for_orphans = True
            runtime.orphans = await run_in_thread(find_orphans, runtime.live_fork, runtime)
        runner = self._coordinator.branch_runner or run_agent
        runtime.result = await take_turn(runtime, self._coordinator.agent, runner, self._coordinator.usage_limits)
        return runtime.result

    def start_first(self, runtime: BranchRuntime) -> None:
        """Start the attempt of a branch; its ``task`` ends as the first turn does."""
        runtime.run(self._follow_attempt(runtime))

    async def _follow_attempt(self, runtime: BranchRuntime) -> Any:
        live, attempt = runtime.live_fork, runtime.attempt
        try:
            await live.wait_for(attempt)
        except asyncio.CancelledError:
            await finish(asyncio.ensure_future(live.fork.cancel([attempt], "terminated")))
            raise
        finally:
            runtime.end(branch_state(attempt.state, attempt.reason), attempt.reason)
        if runtime.status.state == "done":
            return runtime.result
        raise attempt.error or asyncio.CancelledError(attempt.reason)

    def start_next(self, runtime: BranchRuntime) -> asyncio.Task[Any]:
        """Start a further turn of a branch that does not run, and return its task."""
        runtime.status.state = "running"
        runtime.status.current_turn += 1
        self._coordinator.update_manifest()
        return runtime.run(self._run_next(runtime))

    async def _run_next(self, runtime: BranchRuntime) -> Any:
        runtime.attempt.make_current()
        try:
            result = await self._run(runtime)
        except BudgetExceededError as error:
            runtime.end("budget_exhausted" if error.state == BUDGET_STATES[0] else BUDGET_STATES[1], str(error))
            raise
        except asyncio.CancelledError as error:
            runtime.end(branch_state("cancelled", str(error)), str(error) or "terminated")
            raise
        except Exception as error:
            runtime.end("faulted" if find_fault(error) else "failed", f"{type(error).__name__}: {error}")
            raise
        runtime.end("done", None)
        return result

    async def stop(self, runtime: BranchRuntime, reason: str) -> None:
        """Stop a branch, and wait until it has stopped. A branch that does not run stays as it is."""
        if not runtime.is_running:
            return
        if runtime.status.current_turn:
            runtime.task.cancel(reason)
        else:
            await runtime.live_fork.fork.cancel([runtime.attempt], reason)
        await asyncio.wait([runtime.task])

    def stop_soon(self, branches: Iterable[BranchRuntime], reason: str) -> None:
        """Stop branches in the background, for callers that may run in one of them."""
        for runtime in branches:
            if runtime.is_running:
                task = asyncio.create_task(self.stop(runtime, reason))
                self._stop_tasks.add(task)
                task.add_done_callback(self._stop_tasks.discard)


def checkpoint_store_of(runtime: BranchRuntime) -> CheckpointStore:
    """Return the checkpoint store of a branch: that of its deps, else its own."""
    found = getattr(runtime.deps, "checkpoint_store", None)
    if isinstance(found, CheckpointStore):
        return found
    if runtime.checkpoints is None:
        runtime.checkpoints = InMemoryCheckpointStore()
    return runtime.checkpoints


async def checkpoint_branch(runtime: BranchRuntime, label: str) -> Checkpoint:
    """Save a checkpoint of a branch's conversation and files. Raises RuntimeError if the branch runs."""
    _check_idle(runtime)
    return await save_checkpoint(checkpoint_store_of(runtime), label, runtime.thread.history(), runtime.overlay)


async def rewind_branch(runtime: BranchRuntime, checkpoint: str) -> Rewound:
    """Rewind a branch and its files to a checkpoint; it is done then, and can run again."""
    _check_idle(runtime)
    rewound = await rewind(checkpoint_store_of(runtime), checkpoint, runtime.overlay, runtime.thread.history())
    runtime.thread.rewind_to(rewound.messages)
    runtime.partial_history = list(rewound.messages)
    runtime.end("done", None)
    await run_in_thread(runtime.overlay.mirror_all)
    return rewound


def _check_idle(runtime: BranchRuntime) -> None:
    if runtime.is_running:
        raise RuntimeError(f"branch {runtime.id} is running: wait until it is done, or terminate it")
    if runtime.overlay is None:
        raise RuntimeError(f"branch {runtime.id} has no files: it never started, or its fork is resolved")


_PREVIEW_LENGTH = 200  # characters
_MILLISECONDS = "milliseconds"  # the key in the usage of a tool


def _build_limits(runtime: BranchRuntime, parent_limits: UsageLimits | None) -> UsageLimits:
    """Build the limits at which pydantic-ai stops a branch's run: its budget, and the limits of the parent's run."""
    limits = replace(parent_limits) if parent_limits is not None else UsageLimits()
    budget, spent = runtime.cost_tracker.cap, runtime.cost_tracker.spent
    if limits.request_limit is not None:
        limits.request_limit += spent.requests  # each turn may make as many requests as the first
    if budget.requests is not None:
        limits.request_limit = min(budget.requests, limits.request_limit or budget.requests)
    if budget.tokens is not None:
        limits.total_tokens_limit = min(budget.tokens, limits.total_tokens_limit or budget.tokens)
    if budget.usd is not None:
        limits.cost_limit = min(Decimal(str(budget.usd)), limits.cost_limit or Decimal(str(budget.usd)))
    return limits


@dataclass
class BranchCapability(AbstractCapability[Any]):
    """The hooks into the agent's run for one turn of a branch."""

    runtime: BranchRuntime = field(kw_only=True, repr=False)
    _run_task: asyncio.Task[Any] | None = field(default=None, init=False, repr=False)
    _messages: Sequence[ModelMessage] = field(default=(), init=False, repr=False)
    _estimate: RequestEstimate | None = field(default=None, init=False, repr=False)
    _cap: Budget = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._cap = self.runtime.cost_tracker.cap  # the limits of the run were built from it

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """Return None: the capability belongs to one run and is not serialized."""
        return None

    async def wrap_run(self, ctx: RunContext[Any], *, handler: Any) -> AgentRunResult[Any]:
        """Run, in a task that pydantic-ai made for it."""
        self._run_task = asyncio.current_task()
        result: AgentRunResult[Any] = await handler()
        return result

    async def end_run(self) -> None:
        """End the task of a run that was cancelled: pydantic-ai leaves it waiting if the run had only just begun."""
        task = self._run_task
        if task is not None and task is not asyncio.current_task() and not task.done():
            task.cancel()
            await finish(asyncio.ensure_future(asyncio.wait([task])))

    def get_ordering(self) -> CapabilityOrdering:
        """Run innermost, to see the request as it is sent."""
        return CapabilityOrdering(position="innermost")

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Save the messages so far, and wait until the budgets admit the request."""
        runtime = self.runtime
        while runtime.steering:
            ctx.enqueue(runtime.steering.popleft())
        self._messages = ctx.messages  # a live list that grows with the run
        runtime.status.last_activity_at = datetime.now(UTC)
        runtime.coordinator.capture_partial_history(runtime.id, ctx.messages)
        self.save_messages()
        if runtime.cost_tracker.is_limited:
            estimate = estimate_request(ctx.model, request_context.messages, request_context.model_settings)
            await runtime.cost_tracker.admit(estimate)
            self._estimate = estimate
            if ctx.usage_limits is not None:
                self._raise_limits(ctx.usage_limits)
        return request_context

    def _raise_limits(self, limits: UsageLimits) -> None:
        """Raise the limits of the run, if they come from the branch's budget, by what finished branches left."""
        before, now = self._cap, self.runtime.cost_tracker.cap
        self._cap = now
        if now.usd is not None and limits.cost_limit == Decimal(str(before.usd)):
            limits.cost_limit = Decimal(str(now.usd))
        if now.tokens is not None and limits.total_tokens_limit == before.tokens:
            limits.total_tokens_limit = now.tokens
        if now.requests is not None and limits.request_limit == before.requests:
            limits.request_limit = now.requests

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Update the preview, and abort orphaned forks unless a tool that started one is called again."""
        calls = [part.tool_name for part in response.parts if isinstance(part, ToolCallPart)]
        if self.runtime.orphans is not None and not self.runtime.orphans.is_wanted_by(calls):
            await abort_orphans(self.runtime)
        texts = [part.content for part in response.parts if isinstance(part, TextPart) and part.content.strip()]
        if texts:
            self.runtime.status.last_message_preview = texts[-1].strip()[:_PREVIEW_LENGTH]
        return response

    async def wrap_node_run(self, ctx: RunContext[Any], *, node: Any, handler: Any) -> Any:
        """Settle the request and record its cost, whether it succeeded or failed.

        If it exhausted the budget, a final answer still counts, but tool calls are not executed.
        """
        try:
            following = await handler(node)
        finally:
            if self._estimate is not None:
                estimate, self._estimate = self._estimate, None
                self.runtime.cost_tracker.settle(estimate)
            if Agent.is_model_request_node(node):
                self.runtime.coordinator.record_cost(self.runtime)
        if Agent.is_call_tools_node(following) and self.runtime.cost_tracker.is_limited:
            is_final = not following.model_response.tool_calls
            self.runtime.coordinator.stop_if_spent(except_for=self.runtime if is_final else None)
        return following

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask the user for each approval, one after the other."""
        if not requests.approvals:
            return None
        approvals: dict[str, bool | ToolApproved | ToolDenied] = {}
        for call in requests.approvals:
            approvals[call.tool_call_id] = await self._wait_for_approval(call)
        return DeferredToolResults(approvals=approvals)

    async def _wait_for_approval(self, call: ToolCallPart) -> ToolApproved | ToolDenied:
        runtime = self.runtime
        description = f"{call.tool_name}({call.args_as_json_str()})"
        runtime.pending_approval = request = PendingApprovalRequest(runtime.id, description)
        try:
            is_approved = await request.response.get()
        finally:
            runtime.pending_approval = None
        if is_approved:
            return ToolApproved()
        runtime.blocked_commands.append(description)
        return ToolDenied()

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: Any, args: dict[str, Any], handler: Any
    ) -> Any:
        """Execute a tool unless its budget is spent.

        Each call counts as a request; what agents inside the tool add to the run's usage counts too.
        """
        token = current_tool.set(call.tool_name)
        try:
            tracker = self.runtime.tool_trackers.get(call.tool_name)
            if tracker is None:
                return await handler(args)
            return await self._execute_tracked(tracker, ctx, call, args, handler)
        finally:
            current_tool.reset(token)

    async def _execute_tracked(
        self, tracker: BudgetTracker, ctx: RunContext[Any], call: ToolCallPart, args: Any, handler: Any
    ) -> Any:
        seconds = tracker.budget.seconds
        remaining = None if seconds is None else seconds - tracker.usage.details.get(_MILLISECONDS, 0) / 1000
        if tracker.is_spent or (remaining is not None and remaining <= 0):
            raise SkipToolExecution(
                f"{call.tool_name} was not executed: its budget in this branch is spent. Continue without it."
            )
        started, before = time.monotonic(), copy(ctx.usage)
        tracker.usage.requests += 1
        try:
            async with asyncio.timeout(remaining):
                return await handler(args)
        except TimeoutError:
            if remaining is None or time.monotonic() - started < remaining:
                raise
            raise SkipToolExecution(
                f"{call.tool_name} was stopped: its time budget had {remaining:.1f} s left. Continue without it."
            ) from None
        finally:
            _charge(tracker, ctx.usage, before, time.monotonic() - started)

    def save_messages(self) -> None:
        """Add the run's new messages to the conversation, and save it in the ledger."""
        if self._messages:
            self.runtime.thread.update(self._messages)
            self.runtime.coordinator.save()


def _charge(tracker: BudgetTracker, usage: RunUsage, before: RunUsage, seconds: float) -> None:
    added = usage - before
    tracker.usage.input_tokens += added.input_tokens
    tracker.usage.output_tokens += added.output_tokens
    if added.cost is not None:
        tracker.usage.cost = (tracker.usage.cost or Decimal(0)) + added.cost
    tracker.usage.details[_MILLISECONDS] = tracker.usage.details.get(_MILLISECONDS, 0) + round(seconds * 1000)


class BranchRunner(Protocol):
    """A function that runs an agent in a branch instead of ``Agent.run``, for example to stream its output.

    If ``steer`` is None, the history ends with the request to answer. ``runtime.options`` has the other arguments of
    the run: model, workspace, limits, capabilities.
    """

    def __call__(
        self,
        agent: Agent[Any, Any],
        steer: str | None,
        message_history: Sequence[ModelMessage],
        deps: Any,
        deferred_results: DeferredToolResults | None,
        runtime: BranchRuntime,
    ) -> Awaitable[AgentRunResult[Any]]:
        """Run the agent to its end."""
        ...


async def run_agent(
    agent: Agent[Any, Any],
    steer: str | None,
    message_history: Sequence[ModelMessage],
    deps: Any,
    deferred_results: DeferredToolResults | None,
    runtime: BranchRuntime,
) -> AgentRunResult[Any]:
    """Run an agent in a branch by ``Agent.run``."""
    return await agent.run(
        steer, message_history=message_history, deps=deps, deferred_tool_results=deferred_results, **runtime.options
    )


async def take_turn(
    runtime: BranchRuntime, agent: Agent[Any, Any], runner: BranchRunner, limits: UsageLimits | None
) -> AgentRunResult[Any] | None:
    """Run the agent until it answers the last request of a branch; return None if that has an answer already.

    Raises BudgetExceededError if a budget stops the run. The messages are in the conversation however the run ends.
    """
    enter_branch(runtime)
    thread = runtime.thread
    if thread.is_answered:
        await abort_orphans(runtime)
        return None
    capability = BranchCapability(runtime=runtime)
    runtime.options = _build_options(runtime, capability, limits)
    steer, history = _split_prompt(thread.request())
    try:
        with runtime.cost_tracker.hold_open():
            return await runner(agent, steer, history, runtime.deps, None, runtime)
    except (UsageLimitExceeded, RunTimedOut) as error:
        raise BudgetExceededError(str(error).partition(". Consider ")[0]) from error
    finally:
        await capability.end_run()
        await runtime.close_inner()
        await abort_orphans(runtime)
        capability.save_messages()


def open_files(runtime: BranchRuntime, deps: Any, materializer: ForkMaterializer | None) -> None:
    """Give a branch its files, and deps that refer to them. The attempt must have created its branch."""
    plan, label = runtime.live_fork.plan, runtime.spec.label
    isolation = plan.isolation
    branch = None if runtime.live_fork.source.is_in_memory else runtime.attempt.own_branch
    runtime.overlay = runtime.live_fork.source.overlay(branch, label, plan.strategy.conflict_policy)
    if materializer is not None:
        runtime.overlay.attach_materializer(materializer, label)
    runtime.workspace = _choose_workspace(runtime, isolation.backend)
    runtime.deps = deps
    if isinstance(deps, DeepAgentDeps):
        is_copy = isolation.backend == "copy"
        own = clone_for_branch(deps, replace(isolation, backend="share") if is_copy else isolation, label)
        runtime.deps = replace(own, branch_id=runtime.id, backend=runtime.overlay if is_copy else own.backend)


def _choose_workspace(runtime: BranchRuntime, isolation: str) -> AgentWorkspace | None:
    """Return the workspace of the agent's run: the branch, or the parent's files if the backend is shared."""
    overlay = runtime.overlay
    if not isinstance(overlay, FilesOverlay):
        return None
    backend = overlay if isolation == "copy" else overlay.parent
    workspace = agent_workspace(backend.source, backend.files.confinement)
    return AgentWorkspace(ReadOnlyWorkspace(workspace)) if isolation == "share_readonly" else workspace


def _build_options(runtime: BranchRuntime, capability: BranchCapability, limits: UsageLimits | None) -> dict[str, Any]:
    spec = runtime.spec
    options: dict[str, Any] = {
        "capabilities": [capability],
        "usage": runtime.cost_tracker.usage,
        "usage_limits": _build_limits(runtime, limits),
    }
    if runtime.workspace is not None:
        options["workspace"] = runtime.workspace
    if (model := spec.model or runtime.coordinator.model) is not None:
        options["model"] = model
    if spec.extra_instructions:
        options["instructions"] = spec.extra_instructions
    if spec.spending.seconds is not None:
        options["timeout"] = spec.spending.seconds
    return options


def _split_prompt(messages: list[ModelMessage]) -> tuple[str | None, list[ModelMessage]]:
    """Split messages into prompt and history.

    The only message of a new conversation is passed as a prompt, so that pydantic-ai adds the agent's system prompt.
    """
    first = messages[0]
    if len(messages) == 1 and isinstance(first, ModelRequest) and len(first.parts) == 1:
        [part] = first.parts
        if isinstance(part, UserPromptPart) and isinstance(part.content, str):
            return part.content, []
    return None, messages
