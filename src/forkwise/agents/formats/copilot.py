"""GitHub Copilot CLI: ``copilot --output-format json``. It counts requests of the plan, not tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from forkwise.agents.agent_event import (
    AgentEvent,
    build_result_event,
    build_tool_event,
    to_line,
    to_table,
    to_text,
)

__all__ = ["RESULTS", "SKIPPED", "STEPS", "read_event"]

_SILENT = (
    *(b"user.", b"model.", b"assistant.turn_", b"assistant.message_", b"assistant.tool_call_delta"),
    *(b"tool.execution_partial_result", b"tool.execution_complete"),
)
SKIPPED = tuple(b'{"type":"%b' % kind for kind in _SILENT)
"""Beginnings of lines without anything to show."""

RESULTS = (b'{"type":"tool.execution_complete',)
"""Those of them that say how a tool call ended."""

STEPS = (b'{"type":"assistant.message",', b'{"type":"tool.execution_start",')
"""Beginnings of lines with nothing but steps and messages."""

_FAMILIES = ("session.", "assistant.", "user.", "model.", "tool.", "permission.", "hook.", "subagent.", "system.")


def read_event(data: Mapping[str, Any]) -> Iterator[AgentEvent] | None:
    """Return the events of a line; None if it is of no known type."""
    kind, facts = data.get("type"), to_table(data.get("data"))
    match kind:
        case "assistant.message":
            text = to_text(facts.get("content"))
            return iter((AgentEvent(kind="message", text=text),) if text.strip() else ())
        case "tool.execution_start":
            return iter((build_tool_event(facts.get("toolName"), facts.get("arguments"), facts.get("toolCallId")),))
        case "tool.execution_complete":
            return iter((build_result_event(facts.get("toolCallId"), is_failed=facts.get("success") is False),))
        case "session.error":
            return iter((AgentEvent(kind="failure", text=to_text(facts.get("message")) or "it reported an error"),))
        case "result":
            session = AgentEvent(kind="session", text=to_line(data.get("sessionId")))
            return iter((session, AgentEvent(kind="end")) if data.get("exitCode") == 0 else (session,))
        case str() if kind.startswith(_FAMILIES):
            return iter(())
    return None
