"""The rules of OpenAI's ``POST /v1/chat/completions``, with the text, parameter and code of its errors.

The numbers (O1 to O10) are next to the texts. An id may come back in a later turn, and arguments may be any string:
only the turn before a tool message is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.provider.fault import Fault, openai_refusal

__all__ = ["openai_fault"]

MAX_ID = 40
#: What an assistant message may consist of in place of content.
INSTEAD_OF_CONTENT = ("tool_calls", "function_call", "refusal", "audio")

EMPTY_ARRAY = "Invalid '{}': empty array. Expected an array with minimum length 1, but got an empty array instead."
TOO_LONG = (
    "Invalid '{}': string too long. Expected a string with maximum length {}, but got a string with length {} instead."
)
INVALID_TYPE = "Invalid type for '{}': expected {}, but got {} instead."
UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The "
    "following tool_call_ids did not have response messages: {}"
)
NO_CALLS = "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
UNKNOWN_ID = "Invalid parameter: 'tool_call_id' of '{}' not found in 'tool_calls' of previous message."
NO_ID = "Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'."
TWICE = "Duplicate value for 'tool_call_id' of '{}' in message[{}]"
ONLY_WITH_TOOLS = "Invalid value for '{0}': '{0}' is only allowed when 'tools' are specified."

Faults = Iterator[Fault]


def openai_fault(request: Mapping[str, Any]) -> Fault | None:
    """Return the error for ``request``, or ``None`` if it follows every rule."""
    return next(_faults(request), None)


def _faults(request: Mapping[str, Any]) -> Faults:
    # Nothing runs past the first fault: each check may rely on the ones before it.
    for field in ("model", "messages"):
        if field not in request:
            yield _missing(field)
    messages = request["messages"]
    if not isinstance(messages, list):
        yield _mistyped("messages", "an array of objects", messages)
    if not messages:
        yield openai_refusal(EMPTY_ARRAY.format("messages"), "messages", "empty_array", "O10")
    for number, message in enumerate(messages):
        yield from _shape(f"messages[{number}]", message)
    for field in ("tool_choice", "parallel_tool_calls"):
        if request.get(field) is not None and not request.get("tools"):
            yield openai_refusal(ONLY_WITH_TOOLS.format(field), field, rule="O9")
    yield from _answers(messages)


def _shape(path: str, message: Any) -> Faults:
    if not isinstance(message, dict):
        yield _mistyped(path, "an object", message)
    if "role" not in message:
        yield _missing(f"{path}.role")
    content = message.get("content")
    is_left_out = content is None and message["role"] == "assistant" and any(map(message.get, INSTEAD_OF_CONTENT))
    is_list = isinstance(content, list) and all(isinstance(part, dict) for part in content)
    calls = message.get("tool_calls")
    if calls is not None and message["role"] == "assistant":
        yield from _calls(f"{path}.tool_calls", calls)
    if not (isinstance(content, str) or is_list or is_left_out):
        yield _mistyped(f"{path}.content", "one of a string or array of objects", content)


def _calls(path: str, calls: Any) -> Faults:
    if not isinstance(calls, list):
        yield _mistyped(path, "an array of objects", calls)
    if not calls:
        yield openai_refusal(EMPTY_ARRAY.format(path), path, "empty_array", "O6")
    for number, call in enumerate(calls):
        at = f"{path}[{number}]"
        for field in ("id", "type", "function"):
            if field not in call:
                yield _missing(f"{at}.{field}")
        if len(call["id"]) > MAX_ID:
            said = TOO_LONG.format(f"{at}.id", MAX_ID, len(call["id"]))
            yield openai_refusal(said, f"{at}.id", "string_above_max_length", "O7")
        if call["type"] == "function" and not isinstance(call["function"].get("arguments"), str):
            yield _mistyped(f"{at}.function.arguments", "a string", call["function"].get("arguments"))


def _answers(messages: list[dict[str, Any]]) -> Faults:
    calls: list[str] | None = None  # of the assistant message whose tool messages may come now
    answered: set[str] = set()
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            yield from _answer(number, message.get("tool_call_id"), calls, answered)
            answered.add(message["tool_call_id"])
            continue
        yield from _unanswered(f"messages.[{number}].role", calls, answered)
        made = message.get("tool_calls") if message["role"] == "assistant" else None
        calls, answered = [call["id"] for call in made] if made else None, set()
    yield from _unanswered("messages", calls, answered)


def _answer(number: int, name: Any, calls: list[str] | None, answered: set[str]) -> Faults:
    place = f"messages.[{number}].tool_call_id"
    if not isinstance(name, str) or not name:
        yield openai_refusal(NO_ID, place, rule="O4")
    if calls is None:
        yield openai_refusal(NO_CALLS, f"messages.[{number}].role", rule="O2")
    elif name not in calls:
        yield openai_refusal(UNKNOWN_ID.format(name), place, rule="O3")
    elif name in answered:
        yield openai_refusal(TWICE.format(name, number), None, rule="O5")


def _unanswered(param: str, calls: list[str] | None, answered: set[str]) -> Faults:
    missing = [name for name in calls or [] if name not in answered]
    if missing:
        yield openai_refusal(UNANSWERED.format(", ".join(missing)), param, rule="O1")


def _missing(path: str) -> Fault:
    return openai_refusal(f"Missing required parameter: '{path}'.", path, "missing_required_parameter")


def _mistyped(path: str, expected: str, value: Any) -> Fault:
    return openai_refusal(INVALID_TYPE.format(path, expected, _named(value)), path, "invalid_type", "O8")


def _named(value: Any) -> str:
    """Return the provider's name for the type of a JSON value."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "an integer", float: "a decimal", str: "a string", list: "an array"}
    return names.get(type(value), "an object")
