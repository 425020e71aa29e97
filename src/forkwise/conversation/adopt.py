"""Repair of message histories, so that providers accept them.

A history made by another program, or edited by hand, may break a provider's rules (see `node`). Content is never lost:
only what a rule forbids is changed, and as little as possible.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import is_

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from forkwise.conversation.node import is_answer

__all__ = ["NOTHING", "UNANSWERED", "Adoption", "adopted", "drop_empty_response"]

#: The text of a message that has no content but must exist. Models read it.
NOTHING = "(nothing)"

#: The result of a tool call that has none. Models read it.
UNANSWERED = "There is no result: the call was never carried out."

_MAX_ID_LENGTH = 40
_INVALID_ID_CHARACTER = re.compile(r"[^a-zA-Z0-9_-]")

_Answer = ToolReturnPart | RetryPromptPart


def adopted(messages: Iterable[ModelMessage], taken: Iterable[str] = ()) -> list[ModelMessage]:
    """Return a copy of a history that follows every rule; the given messages are not changed.

    ``taken`` are call ids that earlier messages used. Consecutive messages of one kind become one. A call without a
    result gets ``UNANSWERED``; a result without a call, or a second one, becomes text. Call ids are made plain and
    unique. Blank text is removed.
    """
    adoption = Adoption(None, taken)
    history: list[ModelMessage] = []
    for message in _merge_consecutive(messages):
        if not history and isinstance(message, ModelResponse):
            history.append(adoption.adopt(ModelRequest(parts=[UserPromptPart(NOTHING)])))
        history.append(adoption.adopt(message))
    if adoption.has_open_calls:
        history.append(adoption.adopt(ModelRequest(parts=[])))
    return history


def drop_empty_response(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """Return a run's messages without a last response that is empty because it broke off; a retry replaces it."""
    last = messages[-1] if messages else None
    return messages[:-1] if isinstance(last, ModelResponse) and not last.parts else messages


class Adoption:
    """The repair of a history, message by message.

    ``before`` is the message that the first one follows, ``taken`` are call ids that earlier messages used. After
    ``adopt``, ``call_ids`` maps the call ids of the last response to the ids that replaced them.
    """

    def __init__(self, before: ModelMessage | None = None, taken: Iterable[str] = ()) -> None:
        self.call_ids = {id_: id_ for id_ in _calls(before)} if before else {}
        self._before = before
        self._taken = dict.fromkeys(taken, 0)

    @property
    def has_open_calls(self) -> bool:
        """Whether the last message made calls, whose results the next message must have."""
        return isinstance(self._before, ModelResponse) and bool(_calls(self._before))

    def adopt(self, message: ModelMessage) -> ModelMessage:
        """Return ``message`` repaired so that it can follow the messages adopted so far."""
        if isinstance(message, ModelResponse):
            response = _repair_response(message)
            self.call_ids = {id_: self._unique_id(id_) for id_ in _calls(response)}
            adopted_message: ModelMessage = _rename_calls(response, self.call_ids)
        else:
            adopted_message = _repair_request(_rename_answers(message, self.call_ids), self._before)
        self._before = adopted_message
        return adopted_message

    def _unique_id(self, id_: str) -> str:
        plain = _INVALID_ID_CHARACTER.sub("_", id_)[:_MAX_ID_LENGTH] or "call"
        unique = plain
        while unique in self._taken:
            self._taken[plain] += 1
            unique = f"{plain[: _MAX_ID_LENGTH - 8]}_{self._taken[plain]}"
        self._taken[unique] = 0
        return unique


def _merge_consecutive(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
    merged: list[ModelMessage] = []
    for message in messages:
        last = merged[-1] if merged else None
        if isinstance(message, ModelRequest) and isinstance(last, ModelRequest):
            merged[-1] = replace(last, parts=[*last.parts, *message.parts], instructions=message.instructions)
        elif isinstance(message, ModelResponse) and isinstance(last, ModelResponse):
            merged[-1] = replace(last, parts=[*last.parts, *message.parts])
        else:
            merged.append(message)
    return merged


def _repair_response(message: ModelResponse) -> ModelResponse:
    parts: list[ModelResponsePart] = []
    seen: set[str] = set()
    for part in message.parts:
        if isinstance(part, TextPart) and not part.content.strip():
            continue
        if isinstance(part, ToolCallPart):
            if part.tool_call_id in seen:
                continue  # the same call, repeated
            seen.add(part.tool_call_id)
        parts.append(part)
    return message if parts == list(message.parts) and parts else replace(message, parts=parts or [TextPart(NOTHING)])


def _repair_request(message: ModelRequest, before: ModelMessage | None) -> ModelRequest:
    calls = _calls(before) if isinstance(before, ModelResponse) else {}
    answers: dict[str, _Answer] = {}
    others: list[ModelRequestPart] = []
    for part in message.parts:
        if isinstance(part, ToolReturnPart | RetryPromptPart) and is_answer(part):
            if part.tool_call_id in calls and part.tool_call_id not in answers:
                answers[part.tool_call_id] = part
            else:
                others.append(UserPromptPart(f"[Result of {part.tool_name}]\n{_text(part) or NOTHING}"))
        elif not (isinstance(part, UserPromptPart) and _is_blank(part)):
            others.append(part)
    for id_, call in calls.items():
        if id_ not in answers:
            answers[id_] = ToolReturnPart(call.tool_name, UNANSWERED, id_)
    if before is None and not any(isinstance(part, UserPromptPart) for part in others):
        others.append(UserPromptPart(NOTHING))
    parts: list[ModelRequestPart] = [*answers.values(), *others]
    if parts == list(message.parts) and parts:
        return message
    return replace(message, parts=parts or [UserPromptPart(NOTHING)])


def _rename_calls(message: ModelResponse, call_ids: Mapping[str, str]) -> ModelResponse:
    parts: list[ModelResponsePart] = [
        replace(p, tool_call_id=call_ids[p.tool_call_id])
        if isinstance(p, ToolCallPart) and call_ids[p.tool_call_id] != p.tool_call_id
        else p
        for p in message.parts
    ]
    return message if all(map(is_, parts, message.parts)) else replace(message, parts=parts)


def _rename_answers(message: ModelRequest, call_ids: Mapping[str, str]) -> ModelRequest:
    parts: list[ModelRequestPart] = [
        replace(p, tool_call_id=call_ids[p.tool_call_id])
        if isinstance(p, ToolReturnPart | RetryPromptPart)
        and is_answer(p)
        and call_ids.get(p.tool_call_id, p.tool_call_id) != p.tool_call_id
        else p
        for p in message.parts
    ]
    return message if all(map(is_, parts, message.parts)) else replace(message, parts=parts)


def _calls(message: ModelMessage) -> dict[str, ToolCallPart]:
    return {p.tool_call_id: p for p in message.parts if isinstance(p, ToolCallPart)}


def _text(part: _Answer) -> str:
    return part.model_response_str() if isinstance(part, ToolReturnPart) else part.model_response()


def _is_blank(part: UserPromptPart) -> bool:
    content = part.content
    if isinstance(content, str):
        return not content.strip()
    return not any(not isinstance(c, str) or c.strip() for c in content)
