"""Tool calls: what two branches did, call by call, from their conversations, and where they went different ways."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, NamedTuple

from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart

from forkwise.text.diff import edits

__all__ = [
    "CallStep",
    "MadeCall",
    "Retry",
    "StepKind",
    "diff_tool_calls",
    "retries_of",
    "tool_calls_of",
]


_KINDS = ("retry-prompt", "retry-feedback")


class Retry(NamedTuple):
    """What a model was told, and the tool call it was told of, if any."""

    text: str
    tool_call_id: str | None


def retries_of(messages: Sequence[ModelMessage]) -> list[Retry]:
    """Every time that a model was told to try again, in order."""
    return [
        Retry(str(getattr(part, "content", "")), getattr(part, "tool_call_id", None))
        for message in messages
        for part in message.parts
        if part.part_kind in _KINDS or getattr(part, "outcome", None) == "retried"
    ]


#: Made by both alike, by both with other arguments, or only by one of them.
StepKind = Literal["same", "changed", "left", "right"]


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call that a model made; ``arguments`` is JSON with its keys in order. ``failed``: it was told to try again."""

    tool: str
    arguments: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class CallStep:
    """A step of two sequences of calls held side by side."""

    kind: StepKind
    left: MadeCall | None
    right: MadeCall | None


def tool_calls_of(messages: Sequence[ModelMessage]) -> list[MadeCall]:
    """The calls in a conversation, in their order."""
    retried = {retry.tool_call_id for retry in retries_of(messages)}
    return [
        MadeCall(part.tool_name, _arguments(part), part.tool_call_id in retried)
        for message in messages
        if isinstance(message, ModelResponse)
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]


def diff_tool_calls(left: Sequence[ModelMessage], right: Sequence[ModelMessage]) -> list[CallStep]:
    """The calls of two conversations held side by side, with as many as can be in common."""
    ours, its = tool_calls_of(left), tool_calls_of(right)
    steps: list[CallStep] = []
    at_left = at_right = 0
    for edit in edits([_key(call) for call in ours], [_key(call) for call in its]):
        steps += _same(ours[at_left : edit.old_start], its[at_right : edit.new_start])
        steps += _different(ours[edit.old_start : edit.old_stop], its[edit.new_start : edit.new_stop])
        at_left, at_right = edit.old_stop, edit.new_stop
    steps += _same(ours[at_left:], its[at_right:])
    return steps


def _key(call: MadeCall) -> bytes:
    return f"{call.tool} {call.arguments}".encode()


def _arguments(part: ToolCallPart) -> str:
    """Arguments in one form, whatever order a model wrote them in; what is no JSON stays as it is."""
    try:
        return json.dumps(json.loads(part.args_as_json_str()), sort_keys=True)
    except ValueError:
        return str(part.args)


def _same(left: Sequence[MadeCall], right: Sequence[MadeCall]) -> Iterator[CallStep]:
    return (CallStep("same", one, other) for one, other in zip(left, right, strict=True))


def _different(left: Sequence[MadeCall], right: Sequence[MadeCall]) -> Iterator[CallStep]:
    """Calls of the same tool at the same place are one step that changed; all others stand alone."""
    for one, other in zip_longest(left, right):
        if one and other and one.tool == other.tool:
            yield CallStep("changed", one, other)
        else:
            if one:
                yield CallStep("left", one, None)
            if other:
                yield CallStep("right", None, other)
