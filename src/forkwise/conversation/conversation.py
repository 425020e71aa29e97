"""`Conversation`: a tree of messages in which every path can be sent to a provider at any time.

Forking is free: a branch is a pointer to a node, and shared history is stored once. A message that would make a path
invalid for a provider is refused before it enters the tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from forkwise.conversation.node import Node, answers, check
from forkwise.errors import ConversationError, ConversationNotFoundError

__all__ = ["BRANCHING_IN_PROGRESS", "IN_PROGRESS", "Conversation", "Pointer"]

#: The placeholder for the result of a call that is still open. Models read it.
IN_PROGRESS = "In progress: the result is not there yet."

#: The same for a call of ``branch_self``: a branch that reads it knows that it is a branch.
BRANCHING_IN_PROGRESS = "Branching In Progress..."


class Conversation:
    """A tree of messages with labels and a current node (``here``).

    >>> talk = Conversation()
    >>> question = talk.say("What is 6 x 7?")
    >>> answer = talk.reply("42")
    >>> elsewhere = talk.fork(at=question)
    >>> _ = elsewhere.reply("Six sevens are 42.")
    >>> len(question.replies), talk.here is answer
    (2, True)
    """

    def __init__(self) -> None:
        self.root = Node(0, None, None)
        self.here = self.root
        self.labels: dict[str, Node] = {}
        self._nodes = [self.root]
        self._callers: dict[str, list[Node]] = {}

    def __len__(self) -> int:
        """Return the number of messages on all paths together."""
        return len(self._nodes) - 1

    def __iter__(self) -> Iterator[Node]:
        """Iterate over all messages, parents before children."""
        return iter(self._nodes[1:])

    def node(self, id_: int) -> Node:
        """Return a node by its number; the root is 0."""
        if not 0 <= id_ < len(self._nodes):
            raise ConversationNotFoundError(f"there is no message {id_} in this conversation", node=id_)
        return self._nodes[id_]

    # Writing

    def add(self, message: ModelMessage, at: Node | None = None, *, awaits: Iterable[str] = ()) -> Node:
        """Append a message and return its node.

        ``at`` is the node to append to. Without it the message is appended to ``here``, which then moves to the new
        node. ``awaits`` are ids of the parent's calls that are answered with their present or future results; see
        ``settle``. Raises `ConversationError`, which names the rule, if a provider would reject the path.
        """
        parent = self.here if at is None else at
        awaited = frozenset(awaits)
        ids = [part.tool_call_id for part in message.parts if isinstance(part, ToolCallPart)]
        check(message, parent, awaited, [n for i in ids for n in self._callers.get(i, ())])
        node = Node(len(self._nodes), parent, message, awaited)
        parent.replies.append(node)
        self._nodes.append(node)
        for call in node.calls:
            self._callers.setdefault(call.tool_call_id, []).append(node)
        if at is None:
            self.here = node
        return node

    def extend(self, messages: Iterable[ModelMessage], at: Node | None = None) -> Node:
        """Append several messages, one after another, and return the last node."""
        node = self.here if at is None else at
        for message in messages:
            node = self.add(message, node)
        if at is None:
            self.here = node
        return node

    def say(self, prompt: str | Sequence[UserContent], at: Node | None = None) -> Node:
        """Append a user message. It answers the parent's open calls with their present or future results."""
        calls = (self.here if at is None else at).calls
        message = ModelRequest(parts=[UserPromptPart(prompt)])
        return self.add(message, at, awaits=[call.tool_call_id for call in calls])

    def reply(self, text: str, at: Node | None = None) -> Node:
        """Append a model message that consists of text only."""
        return self.add(ModelResponse(parts=[TextPart(text)]), at)

    def settle(self, node: Node, call: str, content: object) -> None:
        """Record the result of a call. Every message that awaits it includes it from now on, on all branches."""
        for asked in node.calls:
            if asked.tool_call_id == call:
                node.results[call] = ToolReturnPart(asked.tool_name, content, call)
                return
        raise ConversationError(f"{node!r} made no call {call!r}", rule="every result has its call", node=node.id)

    # Reading

    def path(self, node: Node | None = None) -> list[ModelMessage]:
        """Return the messages from the first to ``node`` as a pydantic-ai message history."""
        found = [_message_with_results(n) for n in (self.here if node is None else node).upwards()]
        found.reverse()
        return found

    def request(
        self, prompt: str | Sequence[UserContent] | None = None, node: Node | None = None
    ) -> list[ModelMessage]:
        """Return the messages of a request that continues from ``node``; the last one is a user message.

        After a model message a prompt is required, unless that message has calls, whose results are sent then.
        """
        node = self.here if node is None else node
        messages = self.path(node)
        if node.message is not None and not node.is_response:
            if prompt is not None:
                raise ConversationError(
                    "the last message is a user message: a prompt can follow only after the model's answer",
                    node=node.id,
                )
            return messages
        parts: list[ModelRequestPart] = [_result(node, call.tool_call_id) for call in node.calls]
        if prompt is not None:
            parts.append(UserPromptPart(prompt))
        if not parts:
            raise ConversationError("the last message is the model's, so a prompt is required", node=node.id)
        return [*messages, ModelRequest(parts=parts)]

    def instructions(self, node: Node | None = None) -> str:
        """Return the instructions that were last sent on the path to ``node``; empty if none are known."""
        for ancestor in (self.here if node is None else node).upwards():
            if isinstance(ancestor.message, ModelRequest) and ancestor.message.instructions:
                return ancestor.message.instructions
        return ""

    def fork(self, at: Node | None = None) -> Pointer:
        """Return a branch: a pointer that moves as messages are added through it."""
        return Pointer(self, self.here if at is None else at)

    def label(self, name: str, node: Node | None = None) -> None:
        """Label a node. A label names one node at a time."""
        self.labels[name] = self.here if node is None else node


class Pointer:
    """A branch of a conversation: a pointer to a node."""

    __slots__ = ("conversation", "node")

    def __init__(self, conversation: Conversation, node: Node) -> None:
        self.conversation = conversation
        self.node = node

    def add(self, message: ModelMessage, *, awaits: Iterable[str] = ()) -> Node:
        """Append a message and move to it."""
        self.node = self.conversation.add(message, self.node, awaits=awaits)
        return self.node

    def extend(self, messages: Iterable[ModelMessage]) -> Node:
        """Append several messages and move to the last."""
        self.node = self.conversation.extend(messages, self.node)
        return self.node

    def say(self, prompt: str | Sequence[UserContent]) -> Node:
        """Append a user message and move to it."""
        self.node = self.conversation.say(prompt, self.node)
        return self.node

    def reply(self, text: str) -> Node:
        """Append a model message and move to it."""
        self.node = self.conversation.reply(text, self.node)
        return self.node

    def fork(self) -> Pointer:
        """Return another branch that starts here."""
        return Pointer(self.conversation, self.node)

    def path(self) -> list[ModelMessage]:
        """Return the messages up to this branch's node."""
        return self.conversation.path(self.node)


def _message_with_results(node: Node) -> ModelMessage:
    """Return a node's message, preceded by the results it awaits."""
    message = node.message
    assert message is not None
    if not node.awaits:
        return message
    assert isinstance(message, ModelRequest)
    assert node.parent is not None
    own = set(answers(message))
    results = [_result(node.parent, call.tool_call_id) for call in node.parent.calls if call.tool_call_id not in own]
    return replace(message, parts=[*results, *message.parts])


def _result(node: Node, call: str) -> ToolReturnPart:
    known = node.results.get(call)
    if known is not None:
        return known
    name = next(c.tool_name for c in node.calls if c.tool_call_id == call)
    return ToolReturnPart(name, BRANCHING_IN_PROGRESS if name.endswith("branch_self") else IN_PROGRESS, call)
