"""Short constructors for request bodies of each provider."""

from __future__ import annotations

import json
from typing import Any

__all__ = [
    "anthropic_body",
    "assistant",
    "called",
    "calling",
    "openai_body",
    "result",
    "text",
    "thought",
    "tool_message",
    "use",
    "user",
    "without",
]

Json = dict[str, Any]


def anthropic_body(*messages: Json, **more: Any) -> Json:
    """A body for ``POST /v1/messages``."""
    return {"model": "claude-sonnet-4-6", "max_tokens": 1000, "messages": list(messages), **more}


def openai_body(*messages: Json, **more: Any) -> Json:
    """A body for ``POST /v1/chat/completions``."""
    return {"model": "gpt-5.2", "messages": list(messages), **more}


def user(*content: Json | str) -> Json:
    """A user's message: one string as it is, else blocks."""
    return _message("user", content)


def assistant(*content: Json | str) -> Json:
    """An assistant's message: one string as it is, else blocks."""
    return _message("assistant", content)


def _message(role: str, content: tuple[Json | str, ...]) -> Json:
    if len(content) == 1 and isinstance(content[0], str):
        return {"role": role, "content": content[0]}
    return {"role": role, "content": [text(part) if isinstance(part, str) else part for part in content]}


def text(words: str, **more: Any) -> Json:
    """A text block."""
    return {"type": "text", "text": words, **more}


def use(name: str, **more: Any) -> Json:
    """A tool_use block with this id."""
    return {"type": "tool_use", "id": name, "name": "look", "input": {}, **more}


def result(name: str, **more: Any) -> Json:
    """A tool_result block for this id."""
    return {"type": "tool_result", "tool_use_id": name, "content": "found", **more}


def thought(words: str, signature: str) -> Json:
    """A thinking block."""
    return {"type": "thinking", "thinking": words, "signature": signature}


def called(name: str, arguments: Any = None) -> Json:
    """An OpenAI tool call with this id."""
    written = json.dumps({}) if arguments is None else arguments
    return {"id": name, "type": "function", "function": {"name": "look", "arguments": written}}


def calling(*names: str, **more: Any) -> Json:
    """An OpenAI assistant message with these calls."""
    return {"role": "assistant", "content": None, "tool_calls": [called(name) for name in names], **more}


def tool_message(name: str, content: Any = "found") -> Json:
    """An OpenAI tool message for this id."""
    return {"role": "tool", "tool_call_id": name, "content": content}


def without(body: Json, key: str) -> Json:
    """A copy that lacks one key."""
    return {name: value for name, value in body.items() if name != key}
