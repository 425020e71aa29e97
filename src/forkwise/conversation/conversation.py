"""Conversation: a tree of messages, of which every path can be sent to a provider at every moment.

Forking costs nothing: a branch of it is a pointer to a node, and what two branches share exists once. A message that
would make a path no provider takes is refused before it is in the tree.
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
from forkwise.errors import ConversationError

__all__ = ["IN_PROGRESS", "Conversation", "Pointer"]

#: What stands for the result of a call while there is none.
IN_PROGRESS = "In progress: the result is not there yet."


class Conversation:
    """A tree of messages, with labels, and with the place where one is (``here``).

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
        """How many messages it has, on all paths together."""
        return len(self._nodes) - 1

    def __iter__(self) -> Iterator[Node]:
        """All messages, each after the one it follows."""
        return iter(self._nodes[1:])

    def node(self, id_: int) -> Node:
        """A node by its number; the root is 0."""
        if not 0 <= id_ < len(self._nodes):
            raise ConversationError(f"there is no message {id_} in this conversation", node=id_)
        return self._nodes[id_]

    # Speaking

    def add(self, message: ModelMessage, at: Node | None = None, *, awaits: Iterable[str] = ()) -> Node:
        """Put a message behind a node; gives its own. Without a node it goes to the place where one is, and takes that
        with it.

        Raises ConversationError, which names the rule, where no provider would take the path. ``awaits`` are calls of
        the node above that are answered by what is known of them there, also by what will be: see ``settle``.
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
        """Put several messages behind each other; gives the last node."""
        node = self.here if at is None else at
        for message in messages:
            node = self.add(message, node)
        if at is None:
            self.here = node
        return node

    def say(self, prompt: str | Sequence[UserContent], at: Node | None = None) -> Node:
        """A user's message. It answers what calls are made above it by what is known of them, now and later."""
        calls = (self.here if at is None else at).calls
        message = ModelRequest(parts=[UserPromptPart(prompt)])
        return self.add(message, at, awaits=[call.tool_call_id for call in calls])

    def reply(self, text: str, at: Node | None = None) -> Node:
        """A model's message of nothing but text."""
        return self.add(ModelResponse(parts=[TextPart(text)]), at)

    def settle(self, node: Node, call: str, content: object) -> None:
        """Say what came of a call. Every message that awaits it has it from now on, on all branches."""
        for asked in node.calls:
            if asked.tool_call_id == call:
                node.results[call] = ToolReturnPart(asked.tool_name, content, call)
                return
        raise ConversationError(f"{node!r} made no call {call!r}", rule="every result has its call", node=node.id)

    # Reading

    def path(self, node: Node | None = None) -> list[ModelMessage]:
        """The messages from the first to a node, as pydantic-ai takes a history."""
        found = [_told(n) for n in (self.here if node is None else node).upwards()]
        found.reverse()
        return found

    def request(
        self, prompt: str | Sequence[UserContent] | None = None, node: Node | None = None
    ) -> list[ModelMessage]:
        """The messages with which a model can be asked to go on from a node, ending with a user's.

        Behind a model's message a prompt is needed, unless that one has calls: their results are sent then.
        """
        node = self.here if node is None else node
        messages = self.path(node)
        if node.message is not None and not node.is_response:
            if prompt is not None:
                raise ConversationError("a user spoke last: what is said next follows the model's answer", node=node.id)
            return messages
        parts: list[ModelRequestPart] = [_result(node, call.tool_call_id) for call in node.calls]
        if prompt is not None:
            parts.append(UserPromptPart(prompt))
        if not parts:
            raise ConversationError("a model spoke last, and nothing is there to be said to it", node=node.id)
        return [*messages, ModelRequest(parts=parts)]

    def fork(self, at: Node | None = None) -> Pointer:
        """A branch: a pointer of one's own, which moves as its messages are added."""
        return Pointer(self, self.here if at is None else at)

    def label(self, name: str, node: Node | None = None) -> None:
        """Give a node a name, which then names no other."""
        self.labels[name] = self.here if node is None else node


class Pointer:
    """A branch of a conversation: where it is, and nothing else."""

    __slots__ = ("conversation", "node")

    def __init__(self, conversation: Conversation, node: Node) -> None:
        self.conversation = conversation
        self.node = node

    def add(self, message: ModelMessage, *, awaits: Iterable[str] = ()) -> Node:
        """Go on with a message."""
        self.node = self.conversation.add(message, self.node, awaits=awaits)
        return self.node

    def extend(self, messages: Iterable[ModelMessage]) -> Node:
        """Go on with several."""
        self.node = self.conversation.extend(messages, self.node)
        return self.node

    def say(self, prompt: str | Sequence[UserContent]) -> Node:
        """Go on with a user's message."""
        self.node = self.conversation.say(prompt, self.node)
        return self.node

    def reply(self, text: str) -> Node:
        """Go on with a model's message."""
        self.node = self.conversation.reply(text, self.node)
        return self.node

    def fork(self) -> Pointer:
        """Another branch from here."""
        return Pointer(self.conversation, self.node)

    def path(self) -> list[ModelMessage]:
        """The messages up to here."""
        return self.conversation.path(self.node)


def _told(node: Node) -> ModelMessage:
    """A node's message, with the results that it awaits in front."""
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
    return ToolReturnPart(name, IN_PROGRESS, call)
