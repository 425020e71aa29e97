"""The history of a call: a list of dictionaries that users may change, and the messages built from it.

The dictionaries have the format of OpenAI's chat completions. A model's entry keeps the message it came from, so that
thinking parts and their signatures are sent back unchanged.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from forkwise.conversation.adopt import adopted
from forkwise.conversation.node import is_answer
from forkwise.errors import ModuleError

__all__ = [
    "History",
    "ModelReply",
    "build_messages",
    "copy_for_branch",
    "format_history",
    "join_instructions",
    "start_new_turn",
]

History = list[dict[str, Any]]

_CONTINUE = "Go on."
_ACKNOWLEDGE = "I have seen the results."


class ModelReply(dict[str, Any]):
    """A model's entry in a history, with the ``message`` it came from.

    If its text or calls were changed, the changed ones are sent; thinking parts are sent as they were.
    """

    def __init__(self, message: ModelResponse) -> None:
        super().__init__(_entry(message))
        self.message = message

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelReply:
        copied = ModelReply(self.message)
        copied.clear()
        copied.update(copy.deepcopy(dict(self), memo))
        return copied

    def to_message(self) -> ModelResponse:
        """Return the message to send for this entry."""
        if self == _entry(self.message):
            return self.message
        others = [part for part in self.message.parts if not isinstance(part, TextPart | ToolCallPart)]
        return replace(self.message, parts=[*others, *_parts(self)])


def copy_for_branch(history: History) -> History:
    """Return a copy of a history for a branch, without system prompts and without a last turn that has open calls."""
    entries = [entry for entry in history if entry.get("role") != "system"]
    answers = {entry.get("tool_call_id") for entry in entries if entry.get("role") == "tool"}
    for number in range(len(entries) - 1, -1, -1):
        calls = entries[number].get("tool_calls") or []
        if calls:
            if not all(call.get("id") in answers for call in calls):
                ids = {call.get("id") for call in calls}
                entries = entries[:number] + [e for e in entries[number + 1 :] if e.get("tool_call_id") not in ids]
            break
    return copy.deepcopy(entries)


def join_instructions(history: History) -> str:
    """Return the system prompts of a history as one text."""
    prompts = [str(entry.get("content") or "") for entry in history if entry.get("role") == "system"]
    return "\n\n".join(text for text in prompts if text.strip())


def build_messages(history: History, cached: Iterable[int] = ()) -> list[ModelMessage]:
    """Return the messages to send for a history. Every provider accepts them, however the history was changed.

    ``cached`` are the indices of the entries up to which the provider is asked to cache.
    """
    marks = {_find_prompt_before(history, number) for number in cached}
    names: dict[str, str] = {}
    messages: list[ModelMessage] = []
    for number, entry in enumerate(history):
        match entry.get("role"):
            case "system":
                pass
            case "user":
                prompt = _prompt(entry.get("content"))
                content = _add_cache_point(prompt) if number in marks else prompt
                messages.append(ModelRequest(parts=[UserPromptPart(content)]))
            case "assistant":
                message = entry.to_message() if isinstance(entry, ModelReply) else ModelResponse(parts=_parts(entry))
                names |= {p.tool_call_id: p.tool_name for p in message.parts if isinstance(p, ToolCallPart)}
                messages.append(message)
            case "tool":
                messages.append(ModelRequest(parts=[_answer(entry, names)]))
            case role:
                raise ModuleError(f"a history has the roles system, user, assistant and tool; this one has {role!r}")
    valid = adopted(messages)
    if not valid or isinstance(valid[-1], ModelResponse):
        valid.append(ModelRequest(parts=[UserPromptPart(_CONTINUE)]))
    return valid


def start_new_turn(messages: list[ModelMessage], provider: str) -> list[ModelMessage]:
    """Return messages for a provider that accepts tool results only after a thinking part of its own.

    If the last calls have none, because another model made them, their turn is closed and a new one started.
    """
    index = next((n for n in range(len(messages) - 1, -1, -1) if isinstance(messages[n], ModelResponse)), None)
    if index is None or not any(isinstance(part, ToolCallPart) for part in messages[index].parts):
        return messages
    first = messages[index].parts[0]
    if isinstance(first, ThinkingPart) and first.provider_name == provider:
        return messages
    [last] = messages[index + 1 :]
    assert isinstance(last, ModelRequest)
    results = [part for part in last.parts if is_answer(part)]
    others = [part for part in last.parts if not is_answer(part)] or [UserPromptPart(_CONTINUE)]
    closed: list[ModelMessage] = [
        replace(last, parts=results),
        ModelResponse(parts=[TextPart(_ACKNOWLEDGE)]),
        replace(last, parts=others),
    ]
    return [*messages[: index + 1], *closed]


def format_history(history: History) -> str:
    """Return a history as lines of text, for a model that summarizes it."""
    lines = []
    for entry in history:
        content = entry.get("content")
        if entry.get("role") == "assistant":
            if content:
                lines.append(f"[Assistant] {content}")
            calls = [call["function"] for call in entry.get("tool_calls") or []]
            lines += [f"[Assistant] Called {call['name']}({call['arguments']})" for call in calls]
        elif entry.get("role") in ("tool", "user"):
            lines.append(f"[{'User' if entry['role'] == 'user' else 'Tool Result'}] {content}")
    return "\n".join(lines)


def _entry(message: ModelResponse) -> dict[str, Any]:
    text = "".join(part.content for part in message.parts if isinstance(part, TextPart))
    thoughts = "".join(part.content for part in message.parts if isinstance(part, ThinkingPart))
    calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
    entry: dict[str, Any] = {"role": "assistant", "content": text or None}
    if thoughts:
        entry["reasoning_content"] = thoughts
    if calls:
        entry["tool_calls"] = [
            {
                "id": call.tool_call_id,
                "type": "function",
                "function": {"name": call.tool_name, "arguments": _arguments(call)},
            }
            for call in calls
        ]
    return entry


def _arguments(call: ToolCallPart) -> str:
    return call.args if isinstance(call.args, str) else json.dumps(call.args or {})


def _parts(entry: Mapping[str, Any]) -> list[ModelResponsePart]:
    """Return the text and the calls of an entry."""
    parts: list[ModelResponsePart] = []
    if entry.get("content"):
        parts.append(TextPart(str(entry["content"])))
    for call in entry.get("tool_calls") or []:
        function = call.get("function") or {}
        arguments = function.get("arguments") or "{}"
        parts.append(ToolCallPart(str(function.get("name")), arguments, str(call.get("id"))))
    return parts


def _answer(entry: Mapping[str, Any], names: Mapping[str, str]) -> ToolReturnPart:
    id_, content = str(entry.get("tool_call_id")), str(entry.get("content") or "")
    return ToolReturnPart(names.get(id_, "tool"), content, id_)


def _prompt(content: object) -> str | list[UserContent]:
    if isinstance(content, list):
        return [_piece(piece) for piece in content]
    return str(content if content is not None else "")


def _add_cache_point(prompt: str | list[UserContent]) -> list[UserContent]:
    return [*([prompt] if isinstance(prompt, str) else prompt), CachePoint()]


def _piece(piece: Any) -> UserContent:
    match piece:
        case str():
            return piece
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return BinaryContent.from_data_uri(url) if url.startswith("data:") else ImageUrl(url)
    raise ModuleError(f"a user message holds text and images (image_url); this one has {piece!r}")


def _find_prompt_before(history: History, number: int) -> int:
    """Return the index of the last user message up to an entry: a cache point can follow only a user message."""
    number = number if number >= 0 else len(history) + number
    return next((n for n in range(min(number, len(history) - 1), -1, -1) if history[n].get("role") == "user"), -1)
