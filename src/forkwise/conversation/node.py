"""`Node`, a message in a conversation tree, and the providers' rules on which message may follow which.

A message is checked before it enters the tree. One that passes is accepted by Anthropic's Messages API and by OpenAI's
chat completions on every path, so that no request is rejected later because of the tree's shape. The rules' names are
forkwise's own.
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
    """A message and its position in the tree. The root has no message and no parent.

    ``awaits`` are ids of the parent's tool calls that this message answers with the parent's ``results``, present or
    future: every branch started while a call was open sees its result as soon as it arrives. ``results`` are the
    results of this node's own calls.
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
        """Whether the message is a model's response."""
        return isinstance(self.message, ModelResponse)

    @property
    def open_calls(self) -> tuple[ToolCallPart, ...]:
        """The tool calls that have no result yet."""
        return tuple(call for call in self.calls if call.tool_call_id not in self.results)

    def upwards(self) -> Iterator[Node]:
        """Yield this node and its ancestors, nearest first, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent

    def ancestor_at(self, depth: int) -> Node:
        """Return the ancestor at ``depth``, or this node itself, in logarithmic time."""
        node = self
        while node.depth > depth:
            node = node._jump if node._jump.depth >= depth else node.parent or node
        return node

    def is_below(self, other: Node) -> bool:
        """Return whether ``other`` is this node or one of its ancestors."""
        return self.depth >= other.depth and self.ancestor_at(other.depth) is other


def _calls(message: ModelMessage | None) -> tuple[ToolCallPart, ...]:
    if not isinstance(message, ModelResponse):
        return ()
    return tuple(part for part in message.parts if isinstance(part, ToolCallPart))


def _jump_from(parent: Node | None) -> Node | None:
    """Return the skip pointer for a child of ``parent``.

    It spans the last two jumps if those were equally long, which makes paths to any depth logarithmic.
    """
    if parent is None:
        return None
    far = parent._jump
    return far._jump if parent.depth - far.depth == far.depth - far._jump.depth else parent


_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}\Z")


def is_answer(part: object) -> bool:
    """Return whether a part of a request answers a tool call."""
    return isinstance(part, ToolReturnPart) or (isinstance(part, RetryPromptPart) and part.tool_name is not None)


def answers(message: ModelRequest) -> list[str]:
    """Return the ids of the calls that a request answers, in order."""
    return [
        part.tool_call_id
        for part in message.parts
        if isinstance(part, ToolReturnPart | RetryPromptPart) and is_answer(part)
    ]


def check(message: ModelMessage, parent: Node, awaits: frozenset[str], known: Iterable[Node]) -> None:
    """Raise `ConversationError` unless ``message`` may follow ``parent``.

    ``known`` are all nodes of the tree that make a call with one of the message's ids.
    """
    if isinstance(message, ModelRequest):
        _check_request(message, parent, awaits)
    else:
        _check_response(message, parent, known)


def _check_request(message: ModelRequest, parent: Node, awaits: frozenset[str]) -> None:
    if parent.message is not None and not parent.is_response:
        _refuse("turns alternate", parent, "a user message follows another; send both as one message")
    calls = [call.tool_call_id for call in parent.calls]
    answered = [*answers(message), *awaits]
    _require_one_answer_each(calls, answered, parent)
    seen_other = False
    for part in message.parts:
        if is_answer(part) and seen_other:
            _refuse("results come first", parent, "a tool result comes after other content")
        seen_other = seen_other or not is_answer(part)
    if not message.parts and not awaits and not message.instructions:
        _refuse("no message is empty", parent, "a user message has no content")
    if parent.message is None and not any(isinstance(p, UserPromptPart) for p in message.parts):
        _refuse("a user speaks first", parent, "the first message has no user prompt")
    for prompt in message.parts:
        if isinstance(prompt, UserPromptPart) and _is_blank(prompt.content):
            _refuse("no text is blank", parent, "a user prompt is empty or only whitespace")


def _require_one_answer_each(calls: Sequence[str], answered: Sequence[str], parent: Node) -> None:
    counted = Counter(answered)
    if missing := [call for call in calls if not counted[call]]:
        _refuse("every call is answered at once", parent, f"no result for {', '.join(missing)}", missing)
    if unknown := [call for call in counted if call not in calls]:
        _refuse("every result has its call", parent, f"no call has the id {', '.join(unknown)}", unknown)
    if twice := [call for call, times in counted.items() if times > 1]:
        _refuse("every call is answered once", parent, f"several results for {', '.join(twice)}", twice)


def _check_response(message: ModelResponse, parent: Node, known: Iterable[Node]) -> None:
    if not isinstance(parent.message, ModelRequest):
        _refuse("turns alternate", parent, "a model message does not follow a user message")
    calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
    texts = [part for part in message.parts if isinstance(part, TextPart)]
    if not message.parts or (len(texts) == len(message.parts) and not any(t.content.strip() for t in texts)):
        _refuse("no message is empty", parent, "a model message has no content")
    if any(not text.content.strip() for text in texts):
        _refuse("no text is blank", parent, "a text part of a model message is empty or only whitespace")
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


def _refuse(rule: str, parent: Node, reason: str, calls: Sequence[str] = ()) -> None:
    raise ConversationError(
        f"a provider would reject this message (rule: {rule}): {reason}", rule=rule, node=parent.id, calls=calls
    )
