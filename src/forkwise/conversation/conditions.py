"""Conditions: when to stop prompting. Each looks at what came of the last prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic_ai.messages import ModelRequest, ToolReturnPart

from forkwise.conversation.node import Node
from forkwise.conversation.talk import text_of

__all__ = [
    "Condition",
    "error_in_response",
    "five_iterations",
    "no_new_tools_used",
    "said_DONE",
    "said_READY",
    "tool_not_used",
    "tool_used",
]

#: Is shown where each prompt so far led to, the last one last, and says whether to stop.
Condition = Callable[[Sequence[Node]], bool]


def _turn(node: Node) -> list[Node]:
    """What was said since the last prompt: up to the message of a user that is more than results."""
    said = []
    for one in node.upwards():
        said.append(one)
        if isinstance(one.message, ModelRequest) and any(p.part_kind == "user-prompt" for p in one.message.parts):
            break
    return said


def _tools(node: Node) -> set[str]:
    return {call.tool_name for one in _turn(node) for call in one.calls}


def tool_used(nodes: Sequence[Node]) -> bool:
    """A tool was called."""
    return bool(_tools(nodes[-1]))


def tool_not_used(nodes: Sequence[Node]) -> bool:
    """No tool was called."""
    return not _tools(nodes[-1])


def said_DONE(nodes: Sequence[Node]) -> bool:  # noqa: N802 - it is named after the word
    """The word DONE was said."""
    return "DONE" in text_of(nodes[-1])


def said_READY(nodes: Sequence[Node]) -> bool:  # noqa: N802
    """The word READY was said."""
    return "READY" in text_of(nodes[-1])


def error_in_response(nodes: Sequence[Node]) -> bool:
    """An error was spoken of, or a tool ended in one."""
    failed = any(
        isinstance(part, ToolReturnPart) and getattr(part, "outcome", "success") not in ("success", None)
        for one in _turn(nodes[-1])
        if one.message is not None
        for part in one.message.parts
    )
    return failed or "error" in text_of(nodes[-1]).lower()


def no_new_tools_used(nodes: Sequence[Node]) -> bool:
    """Only tools were called that had been called by the prompts before."""
    before = {name for node in nodes[:-1] for name in _tools(node)}
    return _tools(nodes[-1]) <= before


def five_iterations(nodes: Sequence[Node]) -> bool:
    """There were five prompts."""
    return len(nodes) >= 5
