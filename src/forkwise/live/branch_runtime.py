"""Branches of a live fork at run time: `Thread`, the branch's path in the conversation, and `BranchRuntime`.

A context variable names the branch that the current task runs in; tools and nested forks find it there.
"""

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

from forkwise.conversation.adopt import Adoption, adopted, drop_empty_response
from forkwise.conversation.conversation import IN_PROGRESS, Conversation
from forkwise.conversation.node import Node, is_answer
from forkwise.errors import ConversationError

if TYPE_CHECKING:
    from forkwise.fork.attempt import Attempt
    from forkwise.live.budget import BudgetTracker
    from forkwise.live.checkpoints import CheckpointStore
    from forkwise.live.coordinator import ForkCoordinator
    from forkwise.live.live_fork import LiveFork
    from forkwise.live.resume import OrphanedForks
    from forkwise.live.values import BranchSpec, BranchState, BranchStatus, PendingApprovalRequest

__all__ = [
    "BranchRuntime",
    "Thread",
    "concatenate",
    "conversation_from",
    "current_branch",
    "current_tool",
    "enter_branch",
    "own_turns",
    "start_thread",
]


def conversation_from(history: Sequence[ModelMessage]) -> tuple[Conversation, ModelRequest | None]:
    """Build a conversation from the parent's history.

    Return it with the last message if that is a request: a branch's steer is sent together with that request.
    """
    messages = adopted(history) if not _ends_with_calls(history) else [*adopted(history[:-1]), _adopt_last(history)]
    conversation = Conversation()
    last = messages[-1] if messages else None
    if isinstance(last, ModelRequest):
        conversation.extend(messages[:-1])
        return conversation, last
    conversation.extend(messages)
    return conversation, None


def _ends_with_calls(history: Sequence[ModelMessage]) -> bool:
    """Return whether the history ends with open tool calls; one of them is the call that forks."""
    last = history[-1] if history else None
    return isinstance(last, ModelResponse) and any(isinstance(part, ToolCallPart) for part in last.parts)


def _adopt_last(history: Sequence[ModelMessage]) -> ModelMessage:
    """Return the last message with call ids that no earlier message uses, and with its calls left open."""
    used_ids = [p.tool_call_id for m in history[:-1] for p in m.parts if isinstance(p, ToolCallPart)]
    return Adoption(None, used_ids).adopt(history[-1])


def start_thread(
    conversation: Conversation, last: ModelRequest | None, steer: str, fork_result: str, label: str
) -> Thread:
    """Start a thread with ``steer`` as its first prompt.

    The calls that were open at the fork are answered: the one that forked by ``fork_result``.
    """
    here = conversation.here
    parts: list[ModelRequestPart] = [*last.parts] if last is not None else []
    for call in here.calls:
        if not any(is_answer(p) and getattr(p, "tool_call_id", None) == call.tool_call_id for p in parts):
            content = fork_result if call.tool_name == "fork_run" else IN_PROGRESS
            parts.append(ToolReturnPart(call.tool_name, content, call.tool_call_id))
    parts.append(UserPromptPart(steer))
    message = replace(last, parts=parts) if last is not None else ModelRequest(parts=parts)
    return Thread(conversation, conversation.add(message, here), label, here)


class Thread:
    """The path of one branch through a conversation: ``start`` is the node it was forked at, ``node`` its last one."""

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
        """Begin a run at ``node``: the messages on the path to it are known, later ones are new."""
        path = list(self.node.upwards())
        self._seen = len(path)
        self._adoption = Adoption(self.node.message, {call.tool_call_id for node in path for call in node.calls})

    def say(self, prompt: str) -> None:
        """Add a user prompt. A request that has no response yet is replaced by one with both prompts."""
        node, part = self.node, UserPromptPart(prompt)
        last = self.conversation.path(node)[-1] if node.message is not None else None
        if isinstance(last, ModelRequest) and node.parent is not None:
            self._move(self.conversation.add(replace(last, parts=[*last.parts, part]), node.parent))
        else:
            self._move(self.conversation.add(self._build_request([part]), node))
        self.begin()

    def rewind_to(self, messages: Sequence[ModelMessage]) -> None:
        """Move back to the node whose path is ``messages``. Later messages stay in the tree."""
        node = self.node.ancestor_at(min(len(messages), self.node.depth))
        path = self.conversation.path(node)
        if len(path) == len(messages) and all(map(_is_same, path, messages)):
            self._move(node)
        else:
            self._move(self.conversation.extend(adopted(messages), self.conversation.root))
        self.begin()

    @property
    def is_answered(self) -> bool:
        """Whether the last message is a response without tool calls."""
        return self.node.is_response and not self.node.calls

    @property
    def has_response(self) -> bool:
        """Whether the branch has a response of its own."""
        return any(node.is_response for node in self._own_nodes())

    def request(self) -> list[ModelMessage]:
        """Return the messages to send to the model next."""
        path = self.conversation.path(self.node)
        return [*path, self._build_request([])] if self.node.is_response else path

    def history(self) -> list[ModelMessage]:
        """Return all messages as a history that an agent can continue: open calls are answered."""
        path = self.conversation.path(self.node)
        return [*path, self._build_request([])] if self.node.calls else path

    def _build_request(self, parts: Sequence[ModelRequestPart]) -> ModelRequest:
        """Build the next request: the known results of the last calls, then ``parts``."""
        request = ModelRequest(parts=[*self.node.results.values(), *parts])
        adopted_request = Adoption(self.node.message).adopt(request)
        assert isinstance(adopted_request, ModelRequest)
        return adopted_request

    def update(self, messages: Sequence[ModelMessage]) -> None:
        """Add the new messages of a run to the tree.

        A last request with nothing but results is stored with its calls until more parts follow. A history that a
        history processor has rewritten gets its own path.
        """
        messages = drop_empty_response(messages)
        if len(messages) < self._seen:
            return self._start_over(messages)
        try:
            for number, message in enumerate(messages[self._seen :], start=self._seen + 1):
                adopted_message = self._adoption.adopt(message)
                if isinstance(adopted_message, ModelRequest):
                    self._store_results(adopted_message)
                    if number == len(messages) and all(map(is_answer, adopted_message.parts)):
                        names = self._adoption.call_ids
                        self._adoption = Adoption(self.node.message, self._used_call_ids())
                        self._adoption.call_ids = names  # the next update adopts this message again, with further parts
                        break
                self._move(self.conversation.add(adopted_message, self.node))
                self._seen = number
        except ConversationError:
            self._start_over(messages)
        return None

    def _store_results(self, message: ModelRequest) -> None:
        calls = {call.tool_call_id for call in self.node.calls}
        for part in message.parts:
            if isinstance(part, ToolReturnPart) and part.tool_call_id in calls:
                self.node.results[part.tool_call_id] = part

    def _used_call_ids(self) -> set[str]:
        return {call.tool_call_id for node in self.node.upwards() for call in node.calls}

    def _start_over(self, messages: Sequence[ModelMessage]) -> None:
        self._move(self.conversation.extend(adopted(messages), self.conversation.root))
        self._seen = len(messages)
        self._adoption = Adoption(self.node.message, self._used_call_ids())

    def _move(self, node: Node) -> None:
        self.node = node
        self.conversation.label(self.label, node)

    def _own_nodes(self) -> Iterable[Node]:
        return (node for node in self.node.upwards() if not self.start.is_below(node))

    @property
    def last_text(self) -> str:
        """The text of the branch's last response that has text."""
        for node in self._own_nodes():
            if isinstance(node.message, ModelResponse):
                texts = [part.content for part in node.message.parts if isinstance(part, TextPart)]
                if texts:
                    return "\n".join(texts)
        return ""

    def own_messages(self) -> list[ModelMessage]:
        """Return the messages of this branch alone, from its steer on."""
        history = self.history()
        is_below = self.node.is_below(self.start)
        return history[self.start.depth :] if is_below else history


def _is_same(known: ModelMessage, other: ModelMessage) -> bool:
    """Return whether a message of the tree is a given one, or equal to it except for fields besides the parts."""
    return known is other or (known.kind == other.kind and list(known.parts) == list(other.parts))


def own_turns(thread: Thread) -> list[ModelMessage]:
    """Return a branch's own messages in a form that can follow another conversation.

    The tool results that its first request starts with are removed, and the instructions of all requests.
    """
    turns: list[ModelMessage] = []
    for message in thread.own_messages():
        if isinstance(message, ModelRequest):
            parts = message.parts if turns else [part for part in message.parts if not is_answer(part)]
            turns.append(replace(message, parts=list(parts), instructions=None))
        else:
            turns.append(replace(message, workspace_ref=None))
    return turns


def concatenate(before: Sequence[ModelMessage], *others: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Join conversations into one that providers accept."""
    return adopted([message for history in (before, *others) for message in history])


_current: ContextVar[BranchRuntime | None] = ContextVar("forkwise_live_branch", default=None)


@dataclass(eq=False)
class BranchRuntime:
    """A branch of a live fork: its spec, its status and its resources.

    ``task`` is the current turn; its result is the agent's. ``overlay`` holds the branch's changes to the files, and is
    None once the fork is resolved. ``cost_tracker`` tracks its budget, ``tool_trackers`` those of single tools.
    ``partial_history`` has the messages before the last request. ``steering`` are messages to send with the next
    request. ``inner`` are the coordinators of forks inside the branch. ``checkpoints`` is used if the deps have no
    checkpoint store. ``orphans`` are the forks that a killed process left open inside the branch, ``nested_merge`` is
    the summary of a merge there that the agent has not seen yet.
    """

    spec: BranchSpec
    status: BranchStatus
    coordinator: ForkCoordinator = field(repr=False)
    attempt: Attempt
    thread: Thread = field(repr=False)
    cost_tracker: BudgetTracker = field(repr=False)
    live_fork: LiveFork = field(repr=False)
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
    tool_trackers: dict[str, BudgetTracker] = field(default_factory=dict, repr=False)
    inner: list[ForkCoordinator] = field(default_factory=list, repr=False)
    checkpoints: CheckpointStore | None = field(default=None, repr=False)
    orphans: OrphanedForks | None = field(default=None, repr=False)
    has_looked_for_orphans: bool = False
    nested_merge: str | None = None

    @property
    def id(self) -> str:
        """The id of the branch, which is the id of its attempt in the ledger."""
        return self.attempt.id

    @property
    def budget_usd(self) -> float | None:
        """The most dollars the branch may spend; None if dollars are not limited."""
        return self.cost_tracker.budget.usd

    @property
    def is_running(self) -> bool:
        """Whether a turn is running."""
        return self.status.state == "running"

    @property
    def depth(self) -> int:
        """The nesting depth: 1 for a branch of an agent that runs in no branch."""
        return self.coordinator.depth + 1

    def run(self, turn: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a turn as ``task``, whose exception the caller does not have to retrieve."""
        self.task = asyncio.create_task(turn)
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self.task

    def end(self, state: BranchState, error: str | None) -> None:
        """Record the end of a turn, and update the mirror's manifest."""
        self.status.state = state
        self.status.error = None if state == "done" else error
        self.status.last_activity_at = datetime.now(UTC)
        self.coordinator.update_manifest()

    async def close_inner(self) -> None:
        """Drop the unresolved forks inside the branch."""
        for coordinator in self.inner:
            await coordinator.aclose()
        self.inner.clear()

    def close(self) -> None:
        """Release what the branch needs only until the fork is resolved."""
        self.overlay = self.workspace = None
        self.partial_history = []
        self.options = {}


#: The name of the tool that the current task executes in a branch.
current_tool: ContextVar[str | None] = ContextVar("forkwise_live_tool", default=None)


def current_branch() -> BranchRuntime | None:
    """Return the branch that the current task runs in; None outside a branch."""
    return _current.get()


def enter_branch(runtime: BranchRuntime) -> None:
    """Mark the current task as running in a branch."""
    _current.set(runtime)
