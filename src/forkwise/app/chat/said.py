"""Said: a conversation line by line, for a face that shows what was said before it looked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    RetryPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

__all__ = ["Said", "said"]


@dataclass(frozen=True, slots=True)
class Said:
    """Something that was said, or done. ``name`` is the tool's, where it is one's."""

    who: Literal["user", "agent", "call", "result"]
    text: str
    name: str = ""


def said(messages: Iterable[ModelMessage]) -> list[Said]:
    """What messages say, for people."""
    found = []
    for message in messages:
        for part in message.parts:
            match part:
                case UserPromptPart(content=str(text)):
                    found.append(Said("user", text))
                case UserPromptPart(content=several):
                    found.append(Said("user", " ".join(one for one in several if isinstance(one, str))))
                case TextPart(content=text) if text:
                    found.append(Said("agent", text))
                case ToolCallPart():
                    found.append(Said("call", part.args_as_json_str(), part.tool_name))
                case ToolReturnPart():
                    found.append(Said("result", part.model_response_str(), part.tool_name))
                case RetryPromptPart() if isinstance(message, ModelRequest):
                    found.append(Said("result", part.model_response(), part.tool_name or ""))
    return found
