"""History: what was said in a call, as a list of dictionaries that anybody may change, and the messages it stands for.

The dictionaries have the shape of OpenAI's chat completions. What a model said keeps the message it came in, so that
thoughts and signatures go back as they came.
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

__all__ = ["History", "ModelReply", "begun_anew", "inherited", "instructions_of", "messages_of", "shown_lines"]

History = list[dict[str, Any]]

_GO_ON = "Go on."
_SEEN = "I have seen the results."


class ModelReply(dict[str, Any]):
    """What a model said, with the ``message`` it came in. Where somebody changed the text or the calls, those are
    sent; its thoughts are sent as they were."""

    def __init__(self, message: ModelResponse) -> None:
        super().__init__(_entry(message))
        self.message = message

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelReply:
        copied = ModelReply(self.message)
        copied.clear()
        copied.update(copy.deepcopy(dict(self), memo))
        return copied

    def as_message(self) -> ModelResponse:
        """What is sent for it."""
        if self == _entry(self.message):
            return self.message
        kept = [part for part in self.message.parts if not isinstance(part, TextPart | ToolCallPart)]
        return replace(self.message, parts=[*kept, *_spoken(self)])


def inherited(history: History) -> History:
    """A copy of a history for a branch: without system prompts, and up to the last turn of which all calls are
    answered."""
    told = [entry for entry in history if entry.get("role") != "system"]
    answers = {entry.get("tool_call_id") for entry in told if entry.get("role") == "tool"}
    for number in range(len(told) - 1, -1, -1):
        calls = told[number].get("tool_calls") or []
        if calls:
            if not all(call.get("id") in answers for call in calls):
                ids = {call.get("id") for call in calls}
                told = told[:number] + [e for e in told[number + 1 :] if e.get("tool_call_id") not in ids]
            break
    return copy.deepcopy(told)


def instructions_of(history: History) -> str:
    """The system prompts of a history, as one."""
    told = [str(entry.get("content") or "") for entry in history if entry.get("role") == "system"]
    return "\n\n".join(text for text in told if text.strip())


def messages_of(history: History, cached: Iterable[int] = ()) -> list[ModelMessage]:
    """The messages to be sent for a history, whatever was done to it: every provider takes them. ``cached`` are the
    entries up to which a provider is asked to remember."""
    marks = {_prompt_before(history, number) for number in cached}
    names: dict[str, str] = {}
    messages: list[ModelMessage] = []
    for number, entry in enumerate(history):
        match entry.get("role"):
            case "system":
                pass
            case "user":
                prompt = _prompt(entry.get("content"))
                content = _marked(prompt) if number in marks else prompt
                messages.append(ModelRequest(parts=[UserPromptPart(content)]))
            case "assistant":
                message = entry.as_message() if isinstance(entry, ModelReply) else ModelResponse(parts=_spoken(entry))
                names |= {p.tool_call_id: p.tool_name for p in message.parts if isinstance(p, ToolCallPart)}
                messages.append(message)
            case "tool":
                messages.append(ModelRequest(parts=[_answer(entry, names)]))
            case role:
                raise ModuleError(f"a history has entries of system, user, assistant and tool; this one has {role!r}")
    sent = adopted(messages)
    if not sent or isinstance(sent[-1], ModelResponse):
        sent.append(ModelRequest(parts=[UserPromptPart(_GO_ON)]))
    return sent


def begun_anew(messages: list[ModelMessage], provider: str) -> list[ModelMessage]:
    """The same for a provider that wants a thought of its own before the calls whose results it is given: where there
    is none, because another model made them, their turn is closed and a new one begun."""
    at = next((n for n in range(len(messages) - 1, -1, -1) if isinstance(messages[n], ModelResponse)), None)
    if at is None or not any(isinstance(part, ToolCallPart) for part in messages[at].parts):
        return messages
    first = messages[at].parts[0]
    if isinstance(first, ThinkingPart) and first.provider_name == provider:
        return messages
    [last] = messages[at + 1 :]
    assert isinstance(last, ModelRequest)
    results = [part for part in last.parts if is_answer(part)]
    others = [part for part in last.parts if not is_answer(part)] or [UserPromptPart(_GO_ON)]
    closed: list[ModelMessage] = [
        replace(last, parts=results),
        ModelResponse(parts=[TextPart(_SEEN)]),
        replace(last, parts=others),
    ]
    return [*messages[: at + 1], *closed]


def shown_lines(history: History) -> str:
    """A history as lines of text, for whoever is to sum it up."""
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


def _spoken(entry: Mapping[str, Any]) -> list[ModelResponsePart]:
    """The text and the calls of an entry."""
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


def _marked(prompt: str | list[UserContent]) -> list[UserContent]:
    return [*([prompt] if isinstance(prompt, str) else prompt), CachePoint()]


def _piece(piece: Any) -> UserContent:
    match piece:
        case str():
            return piece
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return BinaryContent.from_data_uri(url) if url.startswith("data:") else ImageUrl(url)
    raise ModuleError(f"a user's message holds text and images (image_url); this one has {piece!r}")


def _prompt_before(history: History, number: int) -> int:
    """The user's message nearest to an entry, not after it: a mark stands behind what a user said."""
    number = number if number >= 0 else len(history) + number
    return next((n for n in range(min(number, len(history) - 1), -1, -1) if history[n].get("role") == "user"), -1)
