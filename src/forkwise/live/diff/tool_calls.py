"""Tool calls and retries of a conversation, and a diff of the tool calls of two branches."""

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
    "RecordedCall",
    "Retry",
    "StepKind",
    "diff_tool_calls",
    "retries_of",
    "tool_calls_of",
]


_RETRY_KINDS = ("retry-prompt", "retry-feedback")


class Retry(NamedTuple):
    """A request to the model to try again, and the tool call that it refers to, if any."""

    text: str
    tool_call_id: str | None


def retries_of(messages: Sequence[ModelMessage]) -> list[Retry]:
    """Return the requests to the model to try again, in order."""
    return [
        Retry(str(getattr(part, "content", "")), getattr(part, "tool_call_id", None))
        for message in messages
        for part in message.parts
        if part.part_kind in _RETRY_KINDS or getattr(part, "outcome", None) == "retried"
    ]


#: A call made by both, by both with different arguments, or by only one of them.
StepKind = Literal["same", "changed", "left", "right"]


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A tool call; ``arguments`` is JSON with sorted keys, ``failed`` whether the model had to try again."""

    tool: str
    arguments: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class CallStep:
    """One step of two aligned sequences of calls."""

    kind: StepKind
    left: RecordedCall | None
    right: RecordedCall | None


def tool_calls_of(messages: Sequence[ModelMessage]) -> list[RecordedCall]:
    """Return the tool calls of a conversation, in order."""
    retried = {retry.tool_call_id for retry in retries_of(messages)}
    return [
        RecordedCall(part.tool_name, _normalize_arguments(part), part.tool_call_id in retried)
        for message in messages
        if isinstance(message, ModelResponse)
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]


def diff_tool_calls(left: Sequence[ModelMessage], right: Sequence[ModelMessage]) -> list[CallStep]:
    """Align the tool calls of two conversations, with as many in common as possible."""
    left_calls, right_calls = tool_calls_of(left), tool_calls_of(right)
    steps: list[CallStep] = []
    left_start = right_start = 0
    for edit in edits([_encode(call) for call in left_calls], [_encode(call) for call in right_calls]):
        steps += _pair_equal(left_calls[left_start : edit.old_start], right_calls[right_start : edit.new_start])
        steps += _pair_different(
            left_calls[edit.old_start : edit.old_stop], right_calls[edit.new_start : edit.new_stop]
        )
        left_start, right_start = edit.old_stop, edit.new_stop
    steps += _pair_equal(left_calls[left_start:], right_calls[right_start:])
    return steps


def _encode(call: RecordedCall) -> bytes:
    return f"{call.tool} {call.arguments}".encode()


def _normalize_arguments(part: ToolCallPart) -> str:
    """Return the arguments with sorted keys; as they are if they are not valid JSON."""
    try:
        return json.dumps(json.loads(part.args_as_json_str()), sort_keys=True)
    except ValueError:
        return str(part.args)


def _pair_equal(left: Sequence[RecordedCall], right: Sequence[RecordedCall]) -> Iterator[CallStep]:
    return (CallStep("same", one, other) for one, other in zip(left, right, strict=True))


def _pair_different(left: Sequence[RecordedCall], right: Sequence[RecordedCall]) -> Iterator[CallStep]:
    """Pair calls of the same tool at the same position as changed; all others have one side only."""
    for one, other in zip_longest(left, right):
        if one and other and one.tool == other.tool:
            yield CallStep("changed", one, other)
        else:
            if one:
                yield CallStep("left", one, None)
            if other:
                yield CallStep("right", None, other)
