"""Embedded calls: tool calls that a model wrote into its text instead of making them, as calls.

``<tool_call>look<arg_key>where</arg_key><arg_value>here</arg_value></tool_call>``
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic_ai.messages import ModelResponse, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart

__all__ = ["with_embedded_calls"]

_CALL = re.compile(r"<tool_call>\s*([\w-]+)(.*?)</tool_call>", re.DOTALL)
_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def with_embedded_calls(response: ModelResponse, parameters: Mapping[str, Mapping[str, Any]]) -> ModelResponse:
    """A response with the calls in its text made calls, if it makes no other. ``parameters`` are the schemas of the
    tools there are, by their names; what only looks like a call of another stays text."""
    if any(isinstance(part, ToolCallPart) for part in response.parts):
        return response
    calls: list[ModelResponsePart] = []
    parts: list[ModelResponsePart] = []
    for part in response.parts:
        if isinstance(part, TextPart | ThinkingPart):
            found = [call for call in _CALL.finditer(part.content) if call[1] in parameters]
            calls += [_call(call[1], call[2], parameters[call[1]]) for call in found]
            if found and isinstance(part, TextPart):
                part = replace(part, content=_without(part.content, found))
        parts.append(part)
    return replace(response, parts=[*parts, *calls]) if calls else response


def _call(name: str, text: str, schema: Mapping[str, Any]) -> ToolCallPart:
    properties = schema.get("properties", {})
    arguments = {key: _value(value, properties.get(key, {})) for key, value in _ARGUMENT.findall(text)}
    return ToolCallPart(name, json.dumps(arguments), f"embedded_{secrets.token_hex(4)}")


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """All that is written is text; where the schema says that it is something else, it is read as JSON."""
    if schema.get("type") in ("integer", "number", "boolean", "array", "object"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text


def _without(text: str, found: list[re.Match[str]]) -> str:
    for call in reversed(found):
        text = text[: call.start()] + text[call.end() :]
    return text
