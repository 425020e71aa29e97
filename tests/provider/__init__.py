"""A provider on the loopback: it enforces the rules of Anthropic and OpenAI, and answers from a script.

The real clients talk to it. Only ``fixtures`` needs pytest, only ``models`` needs pydantic-ai.
"""

from __future__ import annotations

from tests.provider.reply import Drop, Failure, Reply, Usage, answer, call, raw_call, think
from tests.provider.request import Message, Request, ToolCall, ToolResult, ToolSpec
from tests.provider.rules import AnthropicOptions, Fault, anthropic_fault, openai_fault
from tests.provider.script import Cases, Script, ScriptEnded, Turns, says, structured
from tests.provider.server import ProviderServer

__all__ = [
    "AnthropicOptions",
    "Cases",
    "Drop",
    "Failure",
    "Fault",
    "Message",
    "ProviderServer",
    "Reply",
    "Request",
    "Script",
    "ScriptEnded",
    "ToolCall",
    "ToolResult",
    "ToolSpec",
    "Turns",
    "Usage",
    "answer",
    "anthropic_fault",
    "call",
    "openai_fault",
    "raw_call",
    "says",
    "structured",
    "think",
]
