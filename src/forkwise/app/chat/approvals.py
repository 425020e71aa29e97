"""Approvals: tool calls that wait for a person's word, wherever they were made, each by an id of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pydantic_ai import RunContext, ToolApproved, ToolDenied
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults

from forkwise.agents.live.runtime import BranchRuntime, current_branch
from forkwise.agents.live.status import PendingApprovalRequest
from forkwise.app.chat.events import ApprovalAnswered, ApprovalAsked
from forkwise.app.chat.feed import Feed

__all__ = ["Approvals", "branch_name"]

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
            self._feed.tell(asked)
            answer = await request.response.get()
            return answer
        finally:
            if branch is not None:
                branch.pending_approval = None
            del self._open[asked.id]
            self._feed.tell(ApprovalAnswered(asked.id, answer))


def branch_name(branch: BranchRuntime | None) -> str | None:
    """What a branch is called: its label, behind that of the branch inside which it is."""
    if branch is None:
        return None
    around = branch_name(branch.coordinator.inside)
    return branch.spec.label if around is None else f"{around}/{branch.spec.label}"
