"""BranchRuntime: a branch of a live fork while it is there: an attempt, with its conversation, files and purse."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.run import AgentRunResult
from pydantic_ai.workspaces import Workspace as AgentWorkspace

from forkwise.conversation.adopt import Adoption, adopted, spoken
from forkwise.conversation.conversation import IN_PROGRESS, Conversation
from forkwise.conversation.node import Node, is_answer
from forkwise.errors import ConversationError
from forkwise.fork.attempt import Attempt
from forkwise.live.budget import BudgetTracker
from forkwise.live.checkpoints import CheckpointStore
from forkwise.live.values import BranchSpec, BranchState, BranchStatus, PendingApprovalRequest

if TYPE_CHECKING:
    from forkwise.live.coordinator import ForkCoordinator
    from forkwise.live.resume import OrphanedForks

__all__ = [
    "BranchRuntime",
    "Thread",
    "concatenate",
    "conversation_from",
    "current_branch",
    "current_tool",
    "enter_branch",
    "own_turns",
    "started",
]


def conversation_from(history: Sequence[ModelMessage]) -> tuple[Conversation, ModelRequest | None]:
    """A conversation from what a parent said so far, and the request with which it ended, if it ended with one: what a
    branch is told first is said with that."""
    said = adopted(history) if not _awaits(history) else [*adopted(history[:-1]), _plain(history)]
    conversation = Conversation()
    last = said[-1] if said else None
    if isinstance(last, ModelRequest):
        conversation.extend(said[:-1])
        return conversation, last
    conversation.extend(said)
    return conversation, None


def _awaits(history: Sequence[ModelMessage]) -> bool:
    """Whether a history ends with calls, which are the ones that make the fork."""
    last = history[-1] if history else None
    return isinstance(last, ModelResponse) and any(isinstance(part, ToolCallPart) for part in last.parts)


def _plain(history: Sequence[ModelMessage]) -> ModelMessage:
    """The last message of a history, with ids as they are used behind the others."""
    taken = [p.tool_call_id for m in history[:-1] for p in m.parts if isinstance(p, ToolCallPart)]
    return Adoption(None, taken).take(history[-1])


def started(conversation: Conversation, last: ModelRequest | None, steer: str, told: str, label: str) -> Thread:
    """A new thread: the steer is said, and the calls that were being made when the fork was made are answered. Of them
    ``told`` answers the one that made it."""
    here = conversation.here
    parts: list[ModelRequestPart] = [*last.parts] if last is not None else []
    for call in here.calls:
        if not any(is_answer(p) and getattr(p, "tool_call_id", None) == call.tool_call_id for p in parts):
            content = told if call.tool_name == "fork_run" else IN_PROGRESS
            parts.append(ToolReturnPart(call.tool_name, content, call.tool_call_id))
    parts.append(UserPromptPart(steer))
    message = replace(last, parts=parts) if last is not None else ModelRequest(parts=parts)
    return Thread(conversation, conversation.add(message, here), label, here)


class Thread:
    """One branch of a conversation. ``node`` is how far it has come, ``start`` where it was forked."""

    def __init__(self, conversation: Conversation, node: Node, label: str, start: Node) -> None:
        self.conversation = conversation
        self.label = label
        self.start = start
        self.node = node
        self._adoption = Adoption()
        self._seen = 0
        self._move(node)
        self.begin()

    def begin(self) -> None:
        """A run begins here: its first messages are what led here."""
        path = list(self.node.upwards())
        self._seen = len(path)
        self._adoption = Adoption(self.node.message, {call.tool_call_id for node in path for call in node.calls})

    def say(self, prompt: str) -> None:
        """Go on with a user's message; what was asked and is not answered is asked with it."""
        asked, said = self.node, UserPromptPart(prompt)
        told = self.conversation.path(asked)[-1] if asked.message is not None else None
        if isinstance(told, ModelRequest) and asked.parent is not None:
            self._move(self.conversation.add(replace(told, parts=[*told.parts, said]), asked.parent))
        else:
            self._move(self.conversation.add(self._next([said]), asked))
        self.begin()

    def go_back(self, messages: Sequence[ModelMessage]) -> None:
        """Be where the conversation was when these were its messages. What was said since stays in the tree."""
        node = self.node.ancestor_at(min(len(messages), self.node.depth))
        path = self.conversation.path(node)
        if len(path) == len(messages) and all(map(_is_alike, path, messages)):
            self._move(node)
        else:
            self._move(self.conversation.extend(adopted(messages), self.conversation.root))
        self.begin()

    @property
    def is_answered(self) -> bool:
        """Whether the model has spoken last, and calls nothing."""
        return self.node.is_response and not self.node.calls

    @property
    def has_spoken(self) -> bool:
        """Whether the model has said anything in this branch."""
        return any(node.is_response for node in self._own())

    def request(self) -> list[ModelMessage]:
        """The messages with which the model is asked to go on."""
        path = self.conversation.path(self.node)
        return [*path, self._next([])] if self.node.is_response else path

    def history(self) -> list[ModelMessage]:
        """All that was said, so that it can be gone on with: calls that were open when it stopped are answered."""
        path = self.conversation.path(self.node)
        return [*path, self._next([])] if self.node.calls else path

    def _next(self, parts: Sequence[ModelRequestPart]) -> ModelRequest:
        """What can be said next, with the results that are known of the calls above."""
        request = ModelRequest(parts=[*self.node.results.values(), *parts])
        taken = Adoption(self.node.message).take(request)
        assert isinstance(taken, ModelRequest)
        return taken

    def take(self, messages: Sequence[ModelMessage]) -> None:
        """Put what is new of a run's messages into the tree. The last, if it is nothing but results, is kept with the
        calls until more is said. A history that somebody rewrote meanwhile gets a path of its own."""
        messages = spoken(messages)
        if len(messages) < self._seen:
            return self._start_over(messages)
        try:
            for number, message in enumerate(messages[self._seen :], start=self._seen + 1):
                taken = self._adoption.take(message)
                if isinstance(taken, ModelRequest):
                    self._settle(taken)
                    if number == len(messages) and all(map(is_answer, taken.parts)):
                        names = self._adoption.names
                        self._adoption = Adoption(self.node.message, self._taken())
                        self._adoption.names = names  # it is taken once more, with what follows
                        break
                self._move(self.conversation.add(taken, self.node))
                self._seen = number
        except ConversationError:
            self._start_over(messages)
        return None

    def _settle(self, message: ModelRequest) -> None:
        calls = {call.tool_call_id for call in self.node.calls}
        for part in message.parts:
            if isinstance(part, ToolReturnPart) and part.tool_call_id in calls:
                self.node.results[part.tool_call_id] = part

    def _taken(self) -> set[str]:
        return {call.tool_call_id for node in self.node.upwards() for call in node.calls}

    def _start_over(self, messages: Sequence[ModelMessage]) -> None:
        self._move(self.conversation.extend(adopted(messages), self.conversation.root))
        self._seen = len(messages)
        self._adoption = Adoption(self.node.message, self._taken())

    def _move(self, node: Node) -> None:
        self.node = node
        self.conversation.label(self.label, node)

    def _own(self) -> Iterable[Node]:
        return (node for node in self.node.upwards() if not self.start.is_below(node))

    @property
    def last_text(self) -> str:
        """What the model said last in words."""
        for node in self._own():
            if isinstance(node.message, ModelResponse):
                texts = [part.content for part in node.message.parts if isinstance(part, TextPart)]
                if texts:
                    return "\n".join(texts)
        return ""

    def own_messages(self) -> list[ModelMessage]:
        """What was said in this branch alone, from its steer on."""
        history = self.history()
        is_below = self.node.is_below(self.start)
        return history[self.start.depth :] if is_below else history


def _is_alike(known: ModelMessage, other: ModelMessage) -> bool:
    """Whether a message of the tree is one of a run's: that one, or what it became when it was put right."""
    return known is other or (known.kind == other.kind and list(known.parts) == list(other.parts))


def own_turns(thread: Thread) -> list[ModelMessage]:
    """A branch's own messages as they can stand behind another conversation: without the results with which it began,
    and without what its requests said of instructions."""
    turns: list[ModelMessage] = []
    for message in thread.own_messages():
        if isinstance(message, ModelRequest):
            parts = message.parts if turns else [part for part in message.parts if not is_answer(part)]
            turns.append(replace(message, parts=list(parts), instructions=None))
        else:
            turns.append(replace(message, workspace_ref=None))
    return turns


def concatenate(before: Sequence[ModelMessage], *others: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Several conversations behind each other, as one that providers take."""
    return adopted([message for several in (before, *others) for message in several])


_current: ContextVar[BranchRuntime | None] = ContextVar("forkwise_live_branch", default=None)


@dataclass(eq=False)
class BranchRuntime:
    """A branch: what was asked of it, where it stands, and what it has.

    ``task`` ends when the turn under way does, with what the agent gave; ``overlay`` is what it changed in its files,
    None once the fork is resolved. ``partial_history`` is what it had said before its last request. ``steering`` is
    what it is told with its next request. ``inner`` are those who fork the branch itself, ``checkpoints`` its own,
    where its deps have none, ``left`` what a killed process had open inside it,
    ``merged_inside`` what it had merged there without saying so.
    """

    spec: BranchSpec
    status: BranchStatus
    coordinator: ForkCoordinator = field(repr=False)
    attempt: Attempt
    thread: Thread = field(repr=False)
    purse: BudgetTracker = field(repr=False)
    deps: Any = field(default=None, repr=False)
    workspace: AgentWorkspace | None = field(default=None, repr=False)
    overlay: Any = field(default=None, repr=False)
    task: asyncio.Task[Any] = field(init=False, repr=False)
    result: AgentRunResult[Any] | None = field(default=None, repr=False)
    ready: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    partial_history: list[ModelMessage] = field(default_factory=list, repr=False)
    pending_approval: PendingApprovalRequest | None = None
    blocked_commands: list[str] = field(default_factory=list)
    steering: deque[str] = field(default_factory=deque)
    tool_purses: dict[str, BudgetTracker] = field(default_factory=dict, repr=False)
    inner: list[ForkCoordinator] = field(default_factory=list, repr=False)
    checkpoints: CheckpointStore | None = field(default=None, repr=False)
    left: OrphanedForks | None = field(default=None, repr=False)
    merged_inside: str | None = None
    is_looked_into: bool = False

    @property
    def id(self) -> str:
        """Its id, which is that of its attempt in the ledger."""
        return self.attempt.id

    @property
    def budget_usd(self) -> float | None:
        """What it may spend in dollars."""
        return self.purse.budget.usd

    @property
    def cost_tracker(self) -> BudgetTracker:
        """What it has spent."""
        return self.purse

    @property
    def is_running(self) -> bool:
        """Whether a turn is under way."""
        return self.status.state == "running"

    @property
    def depth(self) -> int:
        """How many branches around it, itself included."""
        return self.coordinator.depth + 1

    def run(self, turn: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a turn; nobody has to ask how it ended."""
        self.task = asyncio.create_task(turn)
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self.task

    def end(self, state: BranchState, error: str | None) -> None:
        """A turn is over."""
        self.status.state = state
        self.status.error = None if state == "done" else error
        self.status.last_activity_at = datetime.now(UTC)
        self.coordinator.note_status()

    async def close_inner(self) -> None:
        """Drop the forks that were made inside the branch and not decided."""
        for coordinator in self.inner:
            await coordinator.aclose()
        self.inner.clear()

    def close(self) -> None:
        """Let go of what the branch had while it was not decided."""
        self.overlay = self.workspace = None
        self.partial_history = []
        self.options = {}


#: The tool that is being carried out, in a branch.
current_tool: ContextVar[str | None] = ContextVar("forkwise_live_tool", default=None)


def current_branch() -> BranchRuntime | None:
    """The branch as a part of which the caller runs, if it does."""
    return _current.get()


def enter_branch(runtime: BranchRuntime) -> None:
    """Whatever this task does from now on is part of a branch."""
    _current.set(runtime)
