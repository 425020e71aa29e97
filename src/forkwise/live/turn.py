"""One turn of a branch: its agent run where the branch stands, with what the branch has, until it answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Protocol

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

from forkwise.concurrency import run_in_thread
from forkwise.errors import BudgetExceededError
from forkwise.fork.agent_workspace import agent_workspace
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
from forkwise.live.fork_plan import ForkPlan
from forkwise.live.live_fork import ForkSource
from forkwise.live.resume import abort_orphans
from forkwise.live.values import Budget, PendingApprovalRequest

__all__ = [
    "BranchCapability",
    "BranchRunner",
    "checkpoints_of",
    "limits_of",
    "mark_branch_now",
    "open_files",
    "rewind_branch_to",
    "run_agent",
    "take_turn",
    "workspace_for",
]


def checkpoints_of(runtime: BranchRuntime) -> CheckpointStore:
    """Where the checkpoints of a branch are: those of its deps, or else of its own."""
    found = getattr(runtime.deps, "checkpoint_store", None)
    if isinstance(found, CheckpointStore):
        return found
    if runtime.checkpoints is None:
        runtime.checkpoints = InMemoryCheckpointStore()
    return runtime.checkpoints


async def mark_branch_now(runtime: BranchRuntime, label: str) -> Checkpoint:
    """Keep a branch as it is."""
    _check(runtime)
    return await save_checkpoint(checkpoints_of(runtime), label, runtime.thread.history(), runtime.overlay)


async def rewind_branch_to(runtime: BranchRuntime, checkpoint: str) -> Rewound:
    """Have a branch be as it was, with its files; it is then one that can be told to go on."""
    _check(runtime)
    back = await rewind(checkpoints_of(runtime), checkpoint, runtime.overlay, runtime.thread.history())
    runtime.thread.go_back(back.messages)
    runtime.partial_history = list(back.messages)
    runtime.end("done", None)
    await run_in_thread(runtime.overlay.mirror_all)
    return back


def _check(runtime: BranchRuntime) -> None:
    if runtime.is_running:
        raise RuntimeError(f"branch {runtime.id} is running: wait until it is done, or terminate it")
    if runtime.overlay is None:
        raise RuntimeError(f"branch {runtime.id} has no files: it never came to run, or its fork is resolved")


_PREVIEW = 200  # characters
_MILLISECONDS = "milliseconds"


def limits_of(runtime: BranchRuntime, around: UsageLimits | None) -> UsageLimits:
    """What pydantic-ai is to stop a branch's run at: its budget, and the limits of the run that it was forked from."""
    limits = replace(around) if around is not None else UsageLimits()
    budget, spent = runtime.purse.cap, runtime.purse.spent
    if limits.request_limit is not None:
        limits.request_limit += spent.requests  # a further turn has as many requests as the first
    if budget.requests is not None:
        limits.request_limit = min(budget.requests, limits.request_limit or budget.requests)
    if budget.tokens is not None:
        limits.total_tokens_limit = min(budget.tokens, limits.total_tokens_limit or budget.tokens)
    if budget.usd is not None:
        limits.cost_limit = min(Decimal(str(budget.usd)), limits.cost_limit or Decimal(str(budget.usd)))
    return limits


@dataclass
class BranchCapability(AbstractCapability[Any]):
    """The hooks of one turn of a branch."""

    runtime: BranchRuntime = field(kw_only=True, repr=False)
    _messages: Sequence[ModelMessage] = field(default=(), init=False, repr=False)
    _estimate: RequestEstimate | None = field(default=None, init=False, repr=False)
    _cap: Budget = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._cap = self.runtime.purse.cap  # which its limits were made of

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """It is made for one run of one branch, and for no other."""
        return None

    def get_ordering(self) -> CapabilityOrdering:
        """It sees what is sent: all others have had their say before."""
        return CapabilityOrdering(position="innermost")

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Keep what was said so far, and wait until the request can be paid for."""
        runtime = self.runtime
        while runtime.steering:
            ctx.enqueue(runtime.steering.popleft())
        self._messages = ctx.messages  # which goes on to grow as the run does
        runtime.status.last_activity_at = datetime.now(UTC)
        runtime.coordinator.capture_partial_history(runtime.id, ctx.messages)
        self.keep()
        if runtime.purse.limits_requests:
            estimate = estimate_request(ctx.model, request_context.messages, request_context.model_settings)
            await runtime.purse.admit(estimate)
            self._estimate = estimate
            if ctx.usage_limits is not None:
                self._raise_limits(ctx.usage_limits)
        return request_context

    def _raise_limits(self, limits: UsageLimits) -> None:
        """Have pydantic-ai know what others have left to the branch, where its own budget is what limits it."""
        before, now = self._cap, self.runtime.purse.cap
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
        """Show what was said, and whether forks that were left in the branch are wanted."""
        calls = [part.tool_name for part in response.parts if isinstance(part, ToolCallPart)]
        if self.runtime.left is not None and not self.runtime.left.is_wanted_by(calls):
            await abort_orphans(self.runtime)
        texts = [part.content for part in response.parts if isinstance(part, TextPart) and part.content.strip()]
        if texts:
            self.runtime.status.last_message_preview = texts[-1].strip()[:_PREVIEW]
        return response

    async def wrap_node_run(self, ctx: RunContext[Any], *, node: Any, handler: Any) -> Any:
        """Whatever comes of a request, it is under way no more, and is paid for. Where that was the last that could be,
        an answer still counts, but no tool is called any more."""
        try:
            following = await handler(node)
        finally:
            if self._estimate is not None:
                estimate, self._estimate = self._estimate, None
                self.runtime.purse.settle(estimate)
            if Agent.is_model_request_node(node):
                self.runtime.coordinator.record_cost(self.runtime)
        if Agent.is_call_tools_node(following) and self.runtime.purse.limits_requests:
            is_final = not following.model_response.tool_calls
            self.runtime.coordinator.stop_spent(but=self.runtime if is_final else None)
        return following

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask whoever watches the fork for each approval, one after the other."""
        if not requests.approvals:
            return None
        approvals: dict[str, bool | ToolApproved | ToolDenied] = {}
        for call in requests.approvals:
            approvals[call.tool_call_id] = await self._approval(call)
        return DeferredToolResults(approvals=approvals)

    async def _approval(self, call: ToolCallPart) -> ToolApproved | ToolDenied:
        runtime = self.runtime
        description = f"{call.tool_name}({call.args_as_json_str()})"
        runtime.pending_approval = asked = PendingApprovalRequest(runtime.id, description)
        try:
            is_approved = await asked.response.get()
        finally:
            runtime.pending_approval = None
        if is_approved:
            return ToolApproved()
        runtime.blocked_commands.append(description)
        return ToolDenied()

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: Any, args: dict[str, Any], handler: Any
    ) -> Any:
        """Carry a tool out if it has something left to spend. Each call of it counts as a request; what its own agents
        spend by the run's usage counts as well."""
        token = current_tool.set(call.tool_name)
        try:
            purse = self.runtime.tool_purses.get(call.tool_name)
            return await (handler(args) if purse is None else self._paid(purse, ctx, call, args, handler))
        finally:
            current_tool.reset(token)

    async def _paid(
        self, purse: BudgetTracker, ctx: RunContext[Any], call: ToolCallPart, args: Any, handler: Any
    ) -> Any:
        seconds = purse.budget.seconds
        left = None if seconds is None else seconds - purse.usage.details.get(_MILLISECONDS, 0) / 1000
        if purse.is_empty or (left is not None and left <= 0):
            raise SkipToolExecution(f"{call.tool_name} was not carried out: its budget in this branch is spent. Go on.")
        begun, before = time.monotonic(), copy(ctx.usage)
        purse.usage.requests += 1
        try:
            async with asyncio.timeout(left):
                return await handler(args)
        except TimeoutError:
            if left is None or time.monotonic() - begun < left:
                raise
            raise SkipToolExecution(f"{call.tool_name} was stopped: it had {left:.1f} s left. Go on.") from None
        finally:
            _charge(purse, ctx.usage, before, time.monotonic() - begun)

    def keep(self) -> None:
        """Put what was said into the conversation, and that into the ledger."""
        if self._messages:
            self.runtime.thread.take(self._messages)
            self.runtime.coordinator.save()


def _charge(purse: BudgetTracker, usage: RunUsage, before: RunUsage, seconds: float) -> None:
    grown = usage - before
    purse.usage.input_tokens += grown.input_tokens
    purse.usage.output_tokens += grown.output_tokens
    if grown.cost is not None:
        purse.usage.cost = (purse.usage.cost or Decimal(0)) + grown.cost
    purse.usage.details[_MILLISECONDS] = purse.usage.details.get(_MILLISECONDS, 0) + round(seconds * 1000)


class BranchRunner(Protocol):
    """Runs an agent in a branch instead of ``Agent.run``, such as to show what it says as it says it.

    With ``steer`` None the history ends with what is to be answered. ``runtime.options`` has all else that the run is
    to be given: model, workspace, limits, capabilities.
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
        """Run it to its end."""
        ...


async def run_agent(
    agent: Agent[Any, Any],
    steer: str | None,
    message_history: Sequence[ModelMessage],
    deps: Any,
    deferred_results: DeferredToolResults | None,
    runtime: BranchRuntime,
) -> AgentRunResult[Any]:
    """Run an agent in a branch as it is run where nobody looks on."""
    return await agent.run(
        steer, message_history=message_history, deps=deps, deferred_tool_results=deferred_results, **runtime.options
    )


async def take_turn(
    runtime: BranchRuntime, agent: Agent[Any, Any], runner: BranchRunner, limits: UsageLimits | None
) -> AgentRunResult[Any] | None:
    """Have the agent answer what was said last in a branch; None where it had answered already. Stopped by a budget,
    this raises BudgetExceededError. Whatever it said is in the conversation, however it ends."""
    enter_branch(runtime)
    thread = runtime.thread
    if thread.is_answered:
        await abort_orphans(runtime)
        return None
    run = BranchCapability(runtime=runtime)
    runtime.options = _options(runtime, run, limits)
    steer, history = _asked(thread.request())
    try:
        with runtime.purse.closing():
            return await runner(agent, steer, history, runtime.deps, None, runtime)
    except (UsageLimitExceeded, RunTimedOut) as error:
        raise BudgetExceededError(str(error).partition(". Consider ")[0]) from error
    finally:
        await runtime.close_inner()
        await abort_orphans(runtime)
        run.keep()


def workspace_for(runtime: BranchRuntime, share: str) -> AgentWorkspace | None:
    """What the agent has as its workspace: its branch, or the parent's files where those are shared."""
    overlay = runtime.overlay
    if not isinstance(overlay, FilesOverlay):
        return None
    shown = overlay if share == "copy" else overlay.parent
    found = agent_workspace(shown.place, shown.files.confinement)
    return AgentWorkspace(ReadOnlyWorkspace(found)) if share == "share_readonly" else found


def open_files(
    runtime: BranchRuntime, ground: ForkSource, plan: ForkPlan, deps: Any, materializer: ForkMaterializer | None
) -> None:
    """Give a branch its files, and deps that know of them. Its attempt has made its branch by now."""
    isolation, label = plan.isolation, runtime.spec.label
    runtime.overlay = ground.overlay(runtime.attempt.place, label, plan.strategy.conflict_policy)
    if materializer is not None:
        runtime.overlay.attach_materializer(materializer, label)
    runtime.workspace = workspace_for(runtime, isolation.backend)
    runtime.deps = deps
    if isinstance(deps, DeepAgentDeps):
        apart = isolation.backend == "copy"
        own = clone_for_branch(deps, replace(isolation, backend="share") if apart else isolation, label)
        runtime.deps = replace(own, branch_id=runtime.id, backend=runtime.overlay if apart else own.backend)


def _options(runtime: BranchRuntime, run: BranchCapability, limits: UsageLimits | None) -> dict[str, Any]:
    spec = runtime.spec
    options: dict[str, Any] = {
        "capabilities": [run],
        "usage": runtime.purse.usage,
        "usage_limits": limits_of(runtime, limits),
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


def _asked(messages: list[ModelMessage]) -> tuple[str | None, list[ModelMessage]]:
    """What an agent is run with. A conversation that begins here is begun by a prompt, so that the agent's system
    prompt is in it."""
    first = messages[0]
    if len(messages) == 1 and isinstance(first, ModelRequest) and len(first.parts) == 1:
        [part] = first.parts
        if isinstance(part, UserPromptPart) and isinstance(part.content, str):
            return part.content, []
    return None, messages
