"""Showing: the capability by which a chat hears what its agent does, in the conversation and in every branch; which
gives each model the tools it can take, and has some of them approved first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolCallEvent,
    FunctionToolResultEvent,
    PartDeltaEvent,
    PartStartEvent,
    RetryPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolReturnPart,
)
from pydantic_ai.models import Model
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolDefinition

from forkwise.agents.live.runtime import current_branch
from forkwise.app.chat.approvals import Approvals, branch_name
from forkwise.app.chat.events import BranchText, TextDelta, ThoughtDelta, ToolCalled, ToolReturned
from forkwise.app.chat.feed import Feed

__all__ = ["Showing"]

_LONGEST = 20_000  # characters of a result that are shown


@dataclass
class Showing(AbstractCapability[Any]):
    """Tells a feed. ``open_model`` is how models are had by name; ``returned`` hears of tools of the conversation
    itself, by name, once they have given their result."""

    feed: Feed
    approvals: Approvals
    open_model: Callable[[str], Model]
    ask: frozenset[str] = frozenset()
    returned: Callable[[str], None] = field(default=lambda _tool: None)

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """It is made for one chat, and for no other."""
        return None

    async def resolve_model_id(self, ctx: Any, *, model_id: str) -> Model | None:
        """A model by the name that a person gave it."""
        return self.open_model(model_id)

    async def prepare_tools(self, ctx: RunContext[Any], tool_defs: list[ToolDefinition]) -> list[ToolDefinition]:
        """No tools for a model that takes none; and those that are asked about first are marked."""
        if isinstance(ctx.model, Model) and not ctx.model.profile.get("supports_tools", True):
            return []
        return [replace(one, kind="unapproved") if one.name in self.ask else one for one in tool_defs]

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Have a person decide."""
        return await self.approvals.decide(ctx, requests)

    async def on_event(self, ctx: RunContext[Any], *, event: AgentStreamEvent) -> None:
        """Tell what happened."""
        branch = branch_name(current_branch())
        match event:
            case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                if text:
                    self.feed.tell(TextDelta(text) if branch is None else BranchText(branch, text))
            case (
                PartStartEvent(part=ThinkingPart(content=text))
                | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text)))
            ):
                if text:
                    self.feed.tell(ThoughtDelta(text, branch))
            case FunctionToolCallEvent(part=call):
                self.feed.tell(ToolCalled(call.tool_call_id, call.tool_name, call.args_as_json_str(), branch))
            case FunctionToolResultEvent(part=part):
                self.feed.tell(_returned(part, branch))
                if branch is None:
                    self.returned(part.tool_name or "")


def _returned(part: ToolReturnPart | RetryPromptPart, branch: str | None) -> ToolReturned:
    name = part.tool_name or ""
    if isinstance(part, RetryPromptPart):
        return ToolReturned(part.tool_call_id, name, part.model_response()[:_LONGEST], True, branch)
    text = part.model_response_str()[:_LONGEST]
    return ToolReturned(part.tool_call_id, name, text, part.outcome != "success", branch)
