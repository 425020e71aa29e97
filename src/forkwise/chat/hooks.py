"""Showing: the capability by which a chat hears what its agent does, in the conversation and in every branch; which
gives each model the tools it can take, and has some of them approved first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_ai import RunContext, ToolApproved, ToolDenied
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
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models import Model
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, ToolDefinition

from forkwise.chat.events import (
    ApprovalAnswered,
    ApprovalAsked,
    BranchText,
    Feed,
    TextDelta,
    ThoughtDelta,
    ToolCalled,
    ToolReturned,
)
from forkwise.live.branch_runtime import BranchRuntime, current_branch
from forkwise.live.values import PendingApprovalRequest

__all__ = [
    "Approvals",
    "ChatHooks",
    "branch_name",
]


_UNATTENDED = "Nobody is there to be asked."


@dataclass(frozen=True)
class _Open:
    """A question that is not answered."""

    event: ApprovalAsked
    request: PendingApprovalRequest


class Approvals:
    """The questions of one chat. ``is_attended`` is False when nobody can answer any more: what is asked in the
    conversation itself is denied then, and in a branch if somebody waits for it (``is_awaited``). What is asked in a
    branch else stays open, so that the branch can be left as it is."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._open: dict[str, _Open] = {}
        self._asked = 0
        self.is_attended = True
        self.is_awaited = False

    @property
    def pending(self) -> list[ApprovalAsked]:
        """What waits for an answer, the oldest first."""
        return [one.event for one in self._open.values()]

    def answer(self, id_: str | None, is_approved: bool) -> None:
        """Approve or deny; without an id the only question there is. LookupError where that is not plain."""
        if id_ is None:
            if len(self._open) != 1:
                told = ", ".join(self._open) or "none"
                raise LookupError(f"which call? These wait for an answer: {told}")
            id_ = next(iter(self._open))
        if id_ not in self._open:
            raise LookupError(f"no call {id_!r} waits for an answer; these do: {', '.join(self._open) or 'none'}")
        if not self._open[id_].request.response.empty():
            raise LookupError(f"{id_} was answered a moment ago")
        self._open[id_].request.response.put_nowait(is_approved)

    def nobody_answers(self) -> None:
        """From now on nobody can be asked."""
        self.is_attended = False
        self._deny()

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        """While somebody waits for branches."""
        self.is_awaited = True
        try:
            self._deny()
            yield
        finally:
            self.is_awaited = False

    def _is_answered_by(self, branch: str | None) -> bool:
        """Whether there is somebody to answer what a branch asks, now or later."""
        return self.is_attended or (branch is not None and not self.is_awaited)

    def _deny(self) -> None:
        for one in self._open.values():
            if not self._is_answered_by(one.event.branch) and one.request.response.empty():
                one.request.response.put_nowait(False)

    async def decide(self, ctx: RunContext[Any], requests: DeferredToolRequests) -> DeferredToolResults | None:
        """Ask for each call, one after the other."""
        if not requests.approvals:
            return None
        answers: dict[str, bool | ToolApproved | ToolDenied] = {}
        for call in requests.approvals:
            answers[call.tool_call_id] = await self._ask(call, current_branch())
        return DeferredToolResults(approvals=answers)

    async def _ask(self, call: ToolCallPart, branch: BranchRuntime | None) -> ToolApproved | ToolDenied:
        description = f"{call.tool_name}({call.args_as_json_str()})"
        request = PendingApprovalRequest("" if branch is None else branch.id, description)
        if self._is_answered_by(branch_name(branch)):
            is_approved = await self._wait(call, branch, request)
        else:
            is_approved = False
        if is_approved:
            return ToolApproved()
        if branch is not None:
            branch.blocked_commands.append(description)
        return ToolDenied() if self.is_attended else ToolDenied(_UNATTENDED)

    async def _wait(self, call: ToolCallPart, branch: BranchRuntime | None, request: PendingApprovalRequest) -> bool:
        self._asked += 1
        asked = ApprovalAsked(f"a{self._asked}", call.tool_name, call.args_as_json_str(), branch_name(branch))
        self._open[asked.id] = _Open(asked, request)
        if branch is not None:
            branch.pending_approval = request
        answer: bool | None = None
        try:
            self._feed.publish(asked)
            answer = await request.response.get()
            return answer
        finally:
            if branch is not None:
                branch.pending_approval = None
            del self._open[asked.id]
            self._feed.publish(ApprovalAnswered(asked.id, answer))


def branch_name(branch: BranchRuntime | None) -> str | None:
    """What a branch is called: its label, behind that of the branch inside which it is."""
    if branch is None:
        return None
    around = branch_name(branch.coordinator.inside)
    return branch.spec.label if around is None else f"{around}/{branch.spec.label}"


_LONGEST = 20_000  # characters of a result that are shown


@dataclass
class ChatHooks(AbstractCapability[Any]):
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
                    self.feed.publish(TextDelta(text) if branch is None else BranchText(branch, text))
            case (
                PartStartEvent(part=ThinkingPart(content=text))
                | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text)))
            ):
                if text:
                    self.feed.publish(ThoughtDelta(text, branch))
            case FunctionToolCallEvent(part=call):
                self.feed.publish(ToolCalled(call.tool_call_id, call.tool_name, call.args_as_json_str(), branch))
            case FunctionToolResultEvent(part=part):
                self.feed.publish(_returned(part, branch))
                if branch is None:
                    self.returned(part.tool_name or "")


def _returned(part: ToolReturnPart | RetryPromptPart, branch: str | None) -> ToolReturned:
    name = part.tool_name or ""
    if isinstance(part, RetryPromptPart):
        return ToolReturned(part.tool_call_id, name, part.model_response()[:_LONGEST], True, branch)
    text = part.model_response_str()[:_LONGEST]
    return ToolReturned(part.tool_call_id, name, text, part.outcome != "success", branch)
