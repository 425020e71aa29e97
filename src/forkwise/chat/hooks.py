"""The capability that connects a chat to its agent, and the approvals of tool calls.

The hooks run in the conversation itself and in every branch. They publish what the agent does as events, hide tools
from models that support none, and have the user approve some tool calls first.
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
    "qualify_label",
]


_UNATTENDED = "No user is there to approve it."


@dataclass(frozen=True)
class _PendingApproval:
    """An approval that was requested and is not answered."""

    event: ApprovalAsked
    request: PendingApprovalRequest


class Approvals:
    """The approvals of one chat.

    ``is_attended`` is False when no user can answer any more. Approvals of the conversation itself are denied then.
    Those of a branch are denied only while a command waits for the branch (`deny_unattended`): otherwise they stay
    pending, so that the next chat can resume the branch.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._pending: dict[str, _PendingApproval] = {}
        self._count = 0
        self.is_attended = True
        self._is_awaited = False

    @property
    def pending(self) -> list[ApprovalAsked]:
        """The pending approvals, the oldest first."""
        return [approval.event for approval in self._pending.values()]

    def answer(self, id_: str | None, is_approved: bool) -> None:
        """Approve or deny a tool call by its id; without an id the only pending one.

        Raises LookupError if no such call is pending, or if there are several and ``id_`` is None.
        """
        names = ", ".join(self._pending) or "none"
        if id_ is None:
            if len(self._pending) != 1:
                raise LookupError(f"name a tool call by its id; these wait for approval: {names}")
            id_ = next(iter(self._pending))
        if id_ not in self._pending:
            raise LookupError(f"no tool call {id_!r} waits for approval; these do: {names}")
        if not self._pending[id_].request.response.empty():
            raise LookupError(f"tool call {id_} is already answered")
        self._pending[id_].request.response.put_nowait(is_approved)

    def detach_user(self) -> None:
        """Record that no user can answer from now on."""
        self.is_attended = False
        self._deny_unanswerable()

    @contextmanager
    def deny_unattended(self) -> Iterator[None]:
        """Within the block, deny approvals of branches too if no user can answer: the block waits for the branches."""
        self._is_awaited = True
        try:
            self._deny_unanswerable()
            yield
        finally:
            self._is_awaited = False

    def _is_answerable(self, branch: str | None) -> bool:
        """Whether a user can answer an approval of ``branch``, now or in a later chat."""
        return self.is_attended or (branch is not None and not self._is_awaited)

    def _deny_unanswerable(self) -> None:
        for approval in self._pending.values():
            if not self._is_answerable(approval.event.branch) and approval.request.response.empty():
                approval.request.response.put_nowait(False)

    async def decide(self, ctx: RunContext[Any], requests: DeferredToolRequests) -> DeferredToolResults | None:
        """Ask the user about each call, one after the other."""
        if not requests.approvals:
            return None
        answers: dict[str, bool | ToolApproved | ToolDenied] = {}
        for call in requests.approvals:
            answers[call.tool_call_id] = await self._ask(call, current_branch())
        return DeferredToolResults(approvals=answers)

    async def _ask(self, call: ToolCallPart, branch: BranchRuntime | None) -> ToolApproved | ToolDenied:
        description = f"{call.tool_name}({call.args_as_json_str()})"
        request = PendingApprovalRequest("" if branch is None else branch.id, description)
        if self._is_answerable(qualify_label(branch)):
            is_approved = await self._wait_for_answer(call, branch, request)
        else:
            is_approved = False
        if is_approved:
            return ToolApproved()
        if branch is not None:
            branch.blocked_commands.append(description)
        return ToolDenied() if self.is_attended else ToolDenied(_UNATTENDED)

    async def _wait_for_answer(
        self, call: ToolCallPart, branch: BranchRuntime | None, request: PendingApprovalRequest
    ) -> bool:
        self._count += 1
        event = ApprovalAsked(f"a{self._count}", call.tool_name, call.args_as_json_str(), qualify_label(branch))
        self._pending[event.id] = _PendingApproval(event, request)
        if branch is not None:
            branch.pending_approval = request
        answer: bool | None = None
        try:
            self._feed.publish(event)
            answer = await request.response.get()
            return answer
        finally:
            if branch is not None:
                branch.pending_approval = None
            del self._pending[event.id]
            self._feed.publish(ApprovalAnswered(event.id, answer))


def qualify_label(branch: BranchRuntime | None) -> str | None:
    """Return a branch's label, prefixed with the label of the branch it was forked in; None for no branch."""
    if branch is None:
        return None
    outer = qualify_label(branch.coordinator.inside)
    return branch.spec.label if outer is None else f"{outer}/{branch.spec.label}"


_MAX_RESULT_CHARS = 20_000  # characters of a result in its event; a longer one is truncated


@dataclass
class ChatHooks(AbstractCapability[Any]):
    """The hooks of one chat's agent, which publish to ``feed``.

    ``open_model`` opens a model by name, ``ask`` are the tools that need approval. ``on_tool_returned`` is called with
    the name of each tool that returned in the conversation itself, not in a branch.
    """

    feed: Feed
    approvals: Approvals
    open_model: Callable[[str], Model]
    ask: frozenset[str] = frozenset()
    on_tool_returned: Callable[[str], None] = field(default=lambda _tool: None)

    @classmethod
    def get_serialization_name(cls) -> str | None:
        """Return None: the hooks belong to one chat and cannot be serialized."""
        return None

    async def resolve_model_id(self, ctx: Any, *, model_id: str) -> Model | None:
        """Open a model by the name that the user gave it."""
        return self.open_model(model_id)

    async def prepare_tools(self, ctx: RunContext[Any], tool_defs: list[ToolDefinition]) -> list[ToolDefinition]:
        """Hide all tools from a model that supports none, and mark those that need approval."""
        if isinstance(ctx.model, Model) and not ctx.model.profile.get("supports_tools", True):
            return []
        return [replace(tool, kind="unapproved") if tool.name in self.ask else tool for tool in tool_defs]

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask the user."""
        return await self.approvals.decide(ctx, requests)

    async def on_event(self, ctx: RunContext[Any], *, event: AgentStreamEvent) -> None:
        """Publish what the agent did."""
        branch = qualify_label(current_branch())
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
                self.feed.publish(_build_returned_event(part, branch))
                if branch is None:
                    self.on_tool_returned(part.tool_name or "")


def _build_returned_event(part: ToolReturnPart | RetryPromptPart, branch: str | None) -> ToolReturned:
    name = part.tool_name or ""
    if isinstance(part, RetryPromptPart):
        return ToolReturned(part.tool_call_id, name, part.model_response()[:_MAX_RESULT_CHARS], True, branch)
    text = part.model_response_str()[:_MAX_RESULT_CHARS]
    return ToolReturned(part.tool_call_id, name, text, part.outcome != "success", branch)
