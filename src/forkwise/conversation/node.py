"""The providers' rules on what may follow what, checked before a message gets into the tree.

What passes here is accepted by Anthropic's Messages API and by OpenAI's chat completions alike, on every path and at
every moment, so that no request is refused later for what was done to the tree. The names of rules are ours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from forkwise.errors import ConversationError

__all__ = [
    "Node",
    "answers",
    "check",
    "is_answer",
]


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


_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}\Z")


def is_answer(part: object) -> bool:
    """Whether a part of a request answers a tool call."""
    return isinstance(part, ToolReturnPart) or (isinstance(part, RetryPromptPart) and part.tool_name is not None)


def answers(message: ModelRequest) -> list[str]:
    """The ids of the calls that a request answers, in its order."""
    return [
        part.tool_call_id
        for part in message.parts
        if isinstance(part, ToolReturnPart | RetryPromptPart) and is_answer(part)
    ]


def check(message: ModelMessage, parent: Node, awaits: frozenset[str], known: Iterable[Node]) -> None:
    """Raise ConversationError unless a message may be said there. ``known`` are the nodes, anywhere in the tree, that
    make a call by one of the message's ids."""
    if isinstance(message, ModelRequest):
        _check_request(message, parent, awaits)
    else:
        _check_response(message, parent, known)


def _check_request(message: ModelRequest, parent: Node, awaits: frozenset[str]) -> None:
    if parent.message is not None and not parent.is_response:
        _refuse("turns alternate", parent, "a user's message follows another; say both in one")
    asked = [call.tool_call_id for call in parent.calls]
    given = [*answers(message), *awaits]
    _all_once(asked, given, parent)
    seen_other = False
    for part in message.parts:
        if is_answer(part) and seen_other:
            _refuse("results come first", parent, "a tool's result stands behind other content")
        seen_other = seen_other or not is_answer(part)
    if not message.parts and not awaits and not message.instructions:
        _refuse("no message is empty", parent, "a user's message has no content")
    if parent.message is None and not any(isinstance(p, UserPromptPart) for p in message.parts):
        _refuse("a user speaks first", parent, "the first message has no user's prompt")
    for prompt in message.parts:
        if isinstance(prompt, UserPromptPart) and _is_blank(prompt.content):
            _refuse("no text is blank", parent, "a user's prompt is empty or only space")


def _all_once(asked: Sequence[str], given: Sequence[str], parent: Node) -> None:
    counted = Counter(given)
    if missing := [call for call in asked if not counted[call]]:
        _refuse("every call is answered at once", parent, f"no result for {', '.join(missing)}", missing)
    if unknown := [call for call in counted if call not in asked]:
        _refuse("every result has its call", parent, f"nobody called {', '.join(unknown)}", unknown)
    if twice := [call for call, times in counted.items() if times > 1]:
        _refuse("every call is answered once", parent, f"several results for {', '.join(twice)}", twice)


def _check_response(message: ModelResponse, parent: Node, known: Iterable[Node]) -> None:
    if not isinstance(parent.message, ModelRequest):
        _refuse("turns alternate", parent, "a model's message follows no user's")
    calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
    texts = [part for part in message.parts if isinstance(part, TextPart)]
    if not message.parts or (len(texts) == len(message.parts) and not any(t.content.strip() for t in texts)):
        _refuse("no message is empty", parent, "a model's message has no content")
    if any(not text.content.strip() for text in texts):
        _refuse("no text is blank", parent, "a part of a model's message is empty or only space")
    ids = [call.tool_call_id for call in calls]
    for call in ids:
        if not _ID.match(call):
            _refuse("ids are plain", parent, f"{call!r} is not 1 to 40 letters, digits, _ and -", [call])
    again = [call for call, times in Counter(ids).items() if times > 1]
    again += [c.tool_call_id for node in known if parent.is_below(node) for c in node.calls if c.tool_call_id in ids]
    if again:
        _refuse("no id twice on a path", parent, f"{', '.join(again)} was used before", again)


def _is_blank(content: object) -> bool:
    if isinstance(content, str):
        return not content.strip()
    return isinstance(content, Sequence) and not any(not isinstance(c, str) or c.strip() for c in content)


def _refuse(rule: str, parent: Node, why: str, calls: Sequence[str] = ()) -> None:
    raise ConversationError(
        f"no provider would take that (rule: {rule}): {why}", rule=rule, node=parent.id, calls=calls
    )
