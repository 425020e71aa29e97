"""Adoption: histories that were made elsewhere, or changed by hand, as ones that providers take.

Nothing is lost that says something: what cannot stay as it is is put right in the least way that the rules leave.
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

__all__ = ["NOTHING", "UNANSWERED", "Adoption", "adopted", "spoken"]

#: What stands where a message had to be, and nothing was said.
NOTHING = "(nothing)"

#: What stands for the result of a call that nobody ever answered.
UNANSWERED = "There is no result: the call was never carried out."

_LONGEST_ID = 40
_ODD = re.compile(r"[^a-zA-Z0-9_-]")

_Answer = ToolReturnPart | RetryPromptPart


def adopted(messages: Iterable[ModelMessage], taken: Iterable[str] = ()) -> list[ModelMessage]:
    """The same history, so that every rule holds on it; the messages given are not changed. ``taken`` are ids of calls
    that were made before it.

    Messages of one kind behind each other become one. A call that nobody answered is answered by ``UNANSWERED``, a
    result of no call, or a second one, becomes text. Ids are made plain and are each used once. Blank text goes.
    """
    adoption = Adoption(None, taken)
    history: list[ModelMessage] = []
    for message in _merged(messages):
        if not history and isinstance(message, ModelResponse):
            history.append(adoption.take(ModelRequest(parts=[UserPromptPart(NOTHING)])))
        history.append(adoption.take(message))
    if adoption.is_owed:
        history.append(adoption.take(ModelRequest(parts=[])))
    return history


def spoken(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """A run's messages without an answer that broke off before anything was said: who asks again gets the first."""
    last = messages[-1] if messages else None
    return messages[:-1] if isinstance(last, ModelResponse) and not last.parts else messages


class Adoption:
    """One message after the other, put right as they come. ``taken`` are ids of calls made before."""

    def __init__(self, before: ModelMessage | None = None, taken: Iterable[str] = ()) -> None:
        self.names = {id_: id_ for id_ in _calls(before)} if before else {}
        self._before = before
        self._taken = dict.fromkeys(taken, 0)

    @property
    def is_owed(self) -> bool:
        """Whether the last message made calls, whose results have to be in the next."""
        return isinstance(self._before, ModelResponse) and bool(_calls(self._before))

    def take(self, message: ModelMessage) -> ModelMessage:
        """What is to stand behind the messages taken so far. ``names`` has the id that each call of the last response
        goes by now."""
        if isinstance(message, ModelResponse):
            fitting = _response(message)
            self.names = {id_: self._name(id_) for id_ in _calls(fitting)}
            taken: ModelMessage = _renamed_calls(fitting, self.names)
        else:
            taken = _request(_renamed_answers(message, self.names), self._before)
        self._before = taken
        return taken

    def _name(self, id_: str) -> str:
        plain = _ODD.sub("_", id_)[:_LONGEST_ID] or "call"
        name = plain
        while name in self._taken:
            self._taken[plain] += 1
            name = f"{plain[: _LONGEST_ID - 8]}_{self._taken[plain]}"
        self._taken[name] = 0
        return name


def _merged(messages: Iterable[ModelMessage]) -> list[ModelMessage]:
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


def _response(message: ModelResponse) -> ModelResponse:
    parts: list[ModelResponsePart] = []
    seen: set[str] = set()
    for part in message.parts:
        if isinstance(part, TextPart) and not part.content.strip():
            continue
        if isinstance(part, ToolCallPart):
            if part.tool_call_id in seen:
                continue  # the same call, said twice
            seen.add(part.tool_call_id)
        parts.append(part)
    return message if parts == list(message.parts) and parts else replace(message, parts=parts or [TextPart(NOTHING)])


def _request(message: ModelRequest, before: ModelMessage | None) -> ModelRequest:
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


def _renamed_calls(message: ModelResponse, names: Mapping[str, str]) -> ModelResponse:
    parts: list[ModelResponsePart] = [
        replace(p, tool_call_id=names[p.tool_call_id])
        if isinstance(p, ToolCallPart) and names[p.tool_call_id] != p.tool_call_id
        else p
        for p in message.parts
    ]
    return message if all(map(is_, parts, message.parts)) else replace(message, parts=parts)


def _renamed_answers(message: ModelRequest, names: Mapping[str, str]) -> ModelRequest:
    parts: list[ModelRequestPart] = [
        replace(p, tool_call_id=names[p.tool_call_id])
        if isinstance(p, ToolReturnPart | RetryPromptPart)
        and is_answer(p)
        and names.get(p.tool_call_id, p.tool_call_id) != p.tool_call_id
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
