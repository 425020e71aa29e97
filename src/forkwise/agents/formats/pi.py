"""Pi: ``pi --mode json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from forkwise.agents.agent_event import (
    AgentEvent,
    Tokens,
    build_result_event,
    build_tool_event,
    to_amount,
    to_count,
    to_line,
    to_table,
    to_text,
)

__all__ = ["SKIPPED", "read_event"]

SKIPPED = (b'{"type":"message_update",', b'{"type":"tool_execution_update",', b'{"type":"turn_end",')
"""Beginnings of lines without anything to show: most of them repeat the message so far."""


def read_event(data: Mapping[str, Any]) -> Iterator[AgentEvent] | None:
    """Return the events of a line; None if it is of no known type."""
    match data.get("type"):
        case "session":
            return iter((AgentEvent(kind="session", text=to_line(data.get("id"))),))
        case "message_end":
            return _read_message(to_table(data.get("message")))
        case "tool_execution_start":
            return iter((build_tool_event(data.get("toolName"), data.get("args"), data.get("toolCallId")),))
        case "agent_end":
            return iter((AgentEvent(kind="end"),))
        case "agent_start" | "turn_start" | "turn_end" | "message_start" | "message_update":
            return iter(())
        case "tool_execution_update":
            return iter(())
        case "tool_execution_end":
            return iter((build_result_event(data.get("toolCallId"), is_failed=data.get("isError") is True),))
    return None


def _read_message(message: Mapping[str, Any]) -> Iterator[AgentEvent]:
    if message.get("role") != "assistant":
        return
    content = message.get("content")
    parts = [to_table(part) for part in content[:1000]] if isinstance(content, list) else []
    text = "".join(to_text(part.get("text")) for part in parts if part.get("type") == "text")
    if text:
        yield AgentEvent(kind="message", text=text)
    used = to_table(message.get("usage"))
    cached, written = to_count(used.get("cacheRead")), to_count(used.get("cacheWrite"))
    tokens = Tokens(to_count(used.get("input")) + cached + written, to_count(used.get("output")), cached, written)
    request = to_line(message.get("responseId")) or str(message.get("timestamp"))[:40]
    # Pi reports a cost of 0 for a model whose price it does not know.
    usd = to_amount(to_table(used.get("cost")).get("total")) or None
    yield AgentEvent(kind="usage", request=request, model=to_line(message.get("model")), tokens=tokens, usd=usd)
    if message.get("stopReason") == "error":
        yield AgentEvent(kind="failure", text=to_text(message.get("errorMessage")) or "it reported an error")
