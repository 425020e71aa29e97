"""Walking: how a person moves about in a conversation, from one answer to another.

One stands at answers, at the root, and at a prompt that nobody has answered; the messages between those are passed.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Sequence
from itertools import takewhile

from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart

from forkwise.conversation.conversation import Conversation
from forkwise.conversation.flows import leaves
from forkwise.conversation.node import Node
from forkwise.conversation.talk import text_of
from forkwise.errors import ConversationError

__all__ = ["Walker", "above", "combined", "common", "difference", "transcript", "ways"]


class Walker:
    """Somebody who walks in a conversation; where they are is the conversation's own place."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation

    @property
    def here(self) -> Node:
        """Where one is."""
        return self.conversation.here

    def go(self, node: Node) -> Node:
        """Go to a node."""
        self.conversation.here = node
        return node

    def up(self) -> Node:
        """To the answer above, or the root."""
        return self.go(above(self.here))

    def down(self, number: int | None = None) -> Node:
        """To the next answer; where there are several, to the one of that number, counted from 1."""
        below = ways(self.here)
        if not below:
            raise ConversationError("the conversation ends here", node=self.here.id)
        if number is None and len(below) > 1:
            raise ConversationError(
                f"{len(below)} branches begin here: say which, 1 to {len(below)}", node=self.here.id
            )
        return self.go(_picked(below, 1 if number is None else number, "branch"))

    def left(self) -> Node:
        """To the branch before, or to the last where there is none."""
        return self._beside(-1)

    def right(self) -> Node:
        """To the next branch, or to the first where there is none."""
        return self._beside(1)

    def root(self) -> Node:
        """To the beginning."""
        return self.go(self.conversation.root)

    def leaf(self, number: int | None = None) -> Node:
        """To the end of a branch below, by its number, counted from 1; where there is one only, to that."""
        found = leaves(self.here)
        if number is None and len(found) != 1:
            raise ConversationError(f"{len(found)} branches end below: say which, 1 to {len(found)}", node=self.here.id)
        return self.go(_picked(found, 1 if number is None else number, "leaf"))

    def next_fork(self) -> Node:
        """To the nearest place below at which several branches begin."""
        pending = deque(ways(self.here))
        while pending:
            node = pending.popleft()
            below = ways(node)
            if len(below) > 1:
                return self.go(node)
            pending.extend(below)
        raise ConversationError("nothing forks below", node=self.here.id)

    def last_fork(self) -> Node:
        """To the nearest place above at which several branches begin."""
        node = self.here
        while node.message is not None:
            node = above(node)
            if len(ways(node)) > 1:
                return self.go(node)
        raise ConversationError("nothing forks above", node=self.here.id)

    def label(self, name: str) -> Node:
        """Name the place; where the name is another's, go there."""
        if name in self.conversation.labels:
            return self.go(self.conversation.labels[name])
        self.conversation.label(name)
        return self.here

    def _beside(self, step: int) -> Node:
        beside = ways(above(self.here)) if self.here.message is not None else []
        if len(beside) < 2:
            raise ConversationError("there is no branch beside this one", node=self.here.id)
        return self.go(beside[(beside.index(self.here) + step) % len(beside)])


def ways(node: Node) -> list[Node]:
    """The places one comes to next from a node, one for each branch that begins there."""
    found = []
    pending = list(reversed(node.replies))
    while pending:
        one = pending.pop()
        if one.is_response or not one.replies:
            found.append(one)
        else:
            pending += reversed(one.replies)
    return found


def common(nodes: Sequence[Node]) -> Node:
    """The last node that is on the way to all of several."""
    first, *others = nodes
    for other in others:
        depth = min(first.depth, other.depth)
        first, other = first.ancestor_at(depth), other.ancestor_at(depth)
        while first is not other:
            assert first.parent is not None
            assert other.parent is not None
            first, other = first.parent, other.parent
    return first


def transcript(node: Node, since: Node | None = None) -> str:
    """What was said up to a node, from the beginning or behind another node, for people."""
    start = -1 if since is None else since.depth
    way = list(takewhile(lambda one: one.depth > start, node.upwards()))
    return "\n".join(line for one in reversed(way) for line in _lines(one))


def difference(first: Node, second: Node) -> str:
    """How what was said on the way to two nodes differs, from where the ways part, as unified text."""
    fork = common([first, second])
    one, two = ([f"{line}\n" for line in transcript(node, fork).splitlines()] for node in (first, second))
    return "".join(difflib.unified_diff(one, two, f"message {first.id}", f"message {second.id}"))


def combined(conversation: Conversation, nodes: Sequence[Node], text: str) -> Node:
    """Put what several branches became into the tree, where they part; gives its node, from which one can go on."""
    fork = common(nodes)
    if fork.message is not None and not fork.is_response:
        fork = fork.parent or fork
    numbers = ", ".join(str(node.id) for node in nodes)
    asked = conversation.say(f"Combine what the branches that end at messages {numbers} came to.", fork)
    return conversation.add(ModelResponse(parts=[TextPart(text)]), asked)


def above(node: Node) -> Node:
    """The place one comes from to a node: the answer above it, or the root."""
    place = node.parent or node
    while place.message is not None and not place.is_response:
        place = place.parent or place
    return place


def _picked(nodes: Sequence[Node], number: int, noun: str) -> Node:
    if not 1 <= number <= len(nodes):
        raise ConversationError(f"there is no {noun} {number} here; there are 1 to {len(nodes)}")
    return nodes[number - 1]


def _lines(node: Node) -> list[str]:
    if isinstance(node.message, ModelRequest):
        return [f"user: {p.content}" for p in node.message.parts if isinstance(p, UserPromptPart)]
    said = text_of(node)
    return [*([f"model: {said}"] if said else []), *(f"model calls {c.tool_name}({c.args})" for c in node.calls)]
