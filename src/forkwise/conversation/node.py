"""Node: one message of a conversation, and the way from it back to the first.

A node never changes once it is in the tree, but for the replies it gets, and for the results of the calls it makes,
which come in when they come in. A message of pydantic-ai's is its content: it is held, never copied and never changed.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, ToolReturnPart

__all__ = ["Node"]


class Node:
    """A message in its place. The root of a tree has no message; above it there is nothing.

    ``awaits`` are ids of calls of the node above that this one answers with what that node knows of them, now and
    later: so all branches that were begun while a call was open see its result once it is there. ``results`` is what is
    known of this one's own calls.
    """

    __slots__ = ("_jump", "awaits", "calls", "depth", "id", "message", "parent", "replies", "results")

    def __init__(
        self, id_: int, parent: Node | None, message: ModelMessage | None, awaits: frozenset[str] = frozenset()
    ) -> None:
        self.id = id_
        self.parent = parent
        self.message = message
        self.awaits = awaits
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.calls = _calls(message)
        self.results: dict[str, ToolReturnPart] = {}
        self.replies: list[Node] = []
        self._jump: Node = _jump_from(parent) or self

    def __repr__(self) -> str:
        kind = "root" if self.message is None else self.message.kind
        return f"<Node {self.id} {kind} at depth {self.depth}>"

    @property
    def is_response(self) -> bool:
        """Whether a model said it."""
        return isinstance(self.message, ModelResponse)

    @property
    def open_calls(self) -> tuple[ToolCallPart, ...]:
        """Its calls of which no result is known."""
        return tuple(call for call in self.calls if call.tool_call_id not in self.results)

    def upwards(self) -> Iterator[Node]:
        """This node, the one above it, and so on; the root, which says nothing, is left out."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def ancestor_at(self, depth: int) -> Node:
        """The node above this one, or this one, at a depth; in logarithmic time."""
        node = self
        while node.depth > depth:
            node = node._jump if node._jump.depth >= depth else node.parent or node
        return node

    def is_below(self, other: Node) -> bool:
        """Whether another node is on the way to this one, or is this one."""
        return self.depth >= other.depth and self.ancestor_at(other.depth) is other


def _calls(message: ModelMessage | None) -> tuple[ToolCallPart, ...]:
    if not isinstance(message, ModelResponse):
        return ()
    return tuple(part for part in message.parts if isinstance(part, ToolCallPart))


def _jump_from(parent: Node | None) -> Node | None:
    """Where a child of a node jumps to: as far again as the last two jumps together, if those were alike."""
    if parent is None:
        return None
    far = parent._jump
    return far._jump if parent.depth - far.depth == far.depth - far._jump.depth else parent
