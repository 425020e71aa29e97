"""BranchRun: what is added to an agent's run in a branch. It puts what is said into the fork's conversation, asks the
purses before each request, and leaves approvals to whoever watches the fork."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from pydantic_ai import Agent, RunContext, ToolApproved, ToolDenied
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import SkipToolExecution
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults
from pydantic_ai.usage import RunUsage, UsageLimits

from forkwise.agents.live.estimate import RequestEstimate, estimate_request
from forkwise.agents.live.left_inside import give_up_left
from forkwise.agents.live.purse import Purse
from forkwise.agents.live.runtime import BranchRuntime, current_tool
from forkwise.agents.live.specs import Budget
from forkwise.agents.live.status import PendingApprovalRequest

__all__ = ["BranchRun", "limits_of"]

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
class BranchRun(AbstractCapability[Any]):
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
            await give_up_left(self.runtime)
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

    async def _paid(self, purse: Purse, ctx: RunContext[Any], call: ToolCallPart, args: Any, handler: Any) -> Any:
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


def _charge(purse: Purse, usage: RunUsage, before: RunUsage, seconds: float) -> None:
    grown = usage - before
    purse.usage.input_tokens += grown.input_tokens
    purse.usage.output_tokens += grown.output_tokens
    if grown.cost is not None:
        purse.usage.cost = (purse.usage.cost or Decimal(0)) + grown.cost
    purse.usage.details[_MILLISECONDS] = purse.usage.details.get(_MILLISECONDS, 0) + round(seconds * 1000)
