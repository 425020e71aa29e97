"""`Walker`: moves through a conversation from answer to answer. Also here: texts that show its branches.

The walker stops at model messages, at the root, and at prompts without an answer. It skips the messages between them.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Sequence
from itertools import takewhile

from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolReturnPart,
    UserPromptPart,
)

from forkwise.conversation.conversation import Conversation
from forkwise.conversation.flows import leaves
from forkwise.conversation.node import Node, is_answer
from forkwise.conversation.talk import text_of
from forkwise.errors import ConversationError, ConversationNotFoundError

__all__ = [
    "Walker",
    "add_combination",
    "diff_branches",
    "find_common_ancestor",
    "find_next_stops",
    "find_previous_stop",
    "find_result",
    "format_transcript",
]


class Walker:
    """Moves the current node of a conversation."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation

    @property
    def here(self) -> Node:
        """The current node."""
        return self.conversation.here

    def go(self, node: Node) -> Node:
        """Move to a node."""
        self.conversation.here = node
        return node

    def up(self) -> Node:
        """Move to the previous answer, or the root."""
        return self.go(find_previous_stop(self.here))

    def down(self, number: int | None = None) -> Node:
        """Move to the next answer. If there are several, ``number`` selects one, counted from 1."""
        below = find_next_stops(self.here)
        if not below:
            raise ConversationError("the conversation ends here", node=self.here.id)
        if number is None and len(below) > 1:
            raise ConversationError(
                f"{len(below)} branches begin here: choose one, 1 to {len(below)}", node=self.here.id
            )
        return self.go(_select(below, 1 if number is None else number, "branch"))

    def left(self) -> Node:
        """Move to the previous branch, or from the first to the last."""
        return self._go_beside(-1)

    def right(self) -> Node:
        """Move to the next branch, or from the last to the first."""
        return self._go_beside(1)

    def root(self) -> Node:
        """Move to the root."""
        return self.go(self.conversation.root)

    def leaf(self, number: int | None = None) -> Node:
        """Move to the end of a branch below. If there are several, ``number`` selects one, counted from 1."""
        found = leaves(self.here)
        if number is None and len(found) != 1:
            raise ConversationError(
                f"{len(found)} branches end below: choose one, 1 to {len(found)}", node=self.here.id
            )
        return self.go(_select(found, 1 if number is None else number, "leaf"))

    def next_fork(self) -> Node:
        """Move to the nearest node below at which several branches begin."""
        pending = deque(find_next_stops(self.here))
        while pending:
            node = pending.popleft()
            below = find_next_stops(node)
            if len(below) > 1:
                return self.go(node)
            pending.extend(below)
        raise ConversationError("nothing forks below", node=self.here.id)

    def last_fork(self) -> Node:
        """Move to the nearest node above at which several branches begin."""
        node = self.here
        while node.message is not None:
            node = find_previous_stop(node)
            if len(find_next_stops(node)) > 1:
                return self.go(node)
        raise ConversationError("nothing forks above", node=self.here.id)

    def label(self, name: str) -> Node:
        """Label the current node. If the label exists already, move to its node."""
        if name in self.conversation.labels:
            return self.go(self.conversation.labels[name])
        self.conversation.label(name)
        return self.here

    def _go_beside(self, step: int) -> Node:
        beside = find_next_stops(find_previous_stop(self.here)) if self.here.message is not None else []
        if len(beside) < 2:
            raise ConversationError("there is no branch beside this one", node=self.here.id)
        return self.go(beside[(beside.index(self.here) + step) % len(beside)])


def find_next_stops(node: Node) -> list[Node]:
    """Return the nodes at which a walker stops next, one for each branch that begins at ``node``."""
    found = []
    pending = list(reversed(node.replies))
    while pending:
        current = pending.pop()
        if current.is_response or not current.replies:
            found.append(current)
        else:
            pending += reversed(current.replies)
    return found


def find_common_ancestor(nodes: Sequence[Node]) -> Node:
    """Return the last node that is on the path to each of ``nodes``."""
    first, *others = nodes
    for other in others:
        depth = min(first.depth, other.depth)
        first, other = first.ancestor_at(depth), other.ancestor_at(depth)
        while first is not other:
            assert first.parent is not None
            assert other.parent is not None
            first, other = first.parent, other.parent
    return first


def format_transcript(node: Node, since: Node | None = None, *, with_results: bool = False) -> str:
    """Return the messages up to a node as text for people, from the beginning or after ``since``.

    With ``with_results`` each tool call is followed by its result; a long one is cut.
    """
    start = -1 if since is None else since.depth
    path = list(takewhile(lambda ancestor: ancestor.depth > start, node.upwards()))
    return "\n".join(line for ancestor in reversed(path) for line in _lines(ancestor, with_results))


def find_result(node: Node, call: str) -> str | None:
    """Return the result of a call that ``node`` made, as text; None if there is none yet."""
    settled = node.results.get(call)
    if settled is not None:
        return settled.model_response_str()
    for reply in node.replies:
        for part in reply.message.parts if reply.message is not None else ():
            if isinstance(part, ToolReturnPart) and part.tool_call_id == call:
                return part.model_response_str()
            if isinstance(part, RetryPromptPart) and is_answer(part) and part.tool_call_id == call:
                return part.model_response()
    return None


def diff_branches(first: Node, second: Node) -> str:
    """Return a unified diff of the transcripts of two nodes, after their common ancestor."""
    fork = find_common_ancestor([first, second])
    one, two = ([f"{line}\n" for line in format_transcript(node, fork).splitlines()] for node in (first, second))
    return "".join(difflib.unified_diff(one, two, f"message {first.id}", f"message {second.id}"))


def add_combination(conversation: Conversation, nodes: Sequence[Node], text: str) -> Node:
    """Add the combination of several branches to the tree, at their common ancestor, and return its node."""
    fork = find_common_ancestor(nodes)
    if fork.message is not None and not fork.is_response:
        fork = fork.parent or fork
    numbers = ", ".join(str(node.id) for node in nodes)
    asked = conversation.say(f"Combine the branches that end at messages {numbers}.", fork)
    return conversation.add(ModelResponse(parts=[TextPart(text)]), asked)


def find_previous_stop(node: Node) -> Node:
    """Return the node at which a walker stopped before ``node``: the previous answer, or the root."""
    stop = node.parent or node
    while stop.message is not None and not stop.is_response:
        stop = stop.parent or stop
    return stop


def _select(nodes: Sequence[Node], number: int, noun: str) -> Node:
    if not 1 <= number <= len(nodes):
        raise ConversationNotFoundError(f"there is no {noun} {number} here; there are 1 to {len(nodes)}")
    return nodes[number - 1]


_MAX_RESULT = 2000  # characters of a result in a transcript


def _lines(node: Node, with_results: bool) -> list[str]:
    if isinstance(node.message, ModelRequest):
        return [f"user: {p.content}" for p in node.message.parts if isinstance(p, UserPromptPart)]
    text = text_of(node)
    lines = [f"model: {text}"] if text else []
    for call in node.calls:
        lines.append(f"model calls {call.tool_name}({call.args})")
        result = find_result(node, call.tool_call_id) if with_results else None
        if result is not None:
            rest = f"\n[{len(result) - _MAX_RESULT} more characters]" if len(result) > _MAX_RESULT else ""
            lines.append(f"{call.tool_name} returned: {result[:_MAX_RESULT]}{rest}")
    return lines
