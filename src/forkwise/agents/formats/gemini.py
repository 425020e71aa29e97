"""Gemini CLI, and Qwen Code before it had a format of its own: ``--output-format stream-json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from forkwise.agents.agent_event import (
    AgentEvent,
    Tokens,
    build_result_event,
    build_tool_event,
    to_line,
    to_table,
    to_text,
)

__all__ = ["PARTS", "RESULTS", "SKIPPED", "STEPS", "read_event"]

SKIPPED = (b'{"type":"tool_result",',)
"""Beginnings of lines without anything to show."""

RESULTS = SKIPPED
"""Those of them that say how a tool call ended."""

STEPS = (b'{"type":"tool_use",',)
"""Beginnings of lines with nothing but steps."""

PARTS = (b'{"type":"message",',)
"""Beginnings of lines with a part of a message, or with the prompt."""


def read_event(data: Mapping[str, Any]) -> Iterator[AgentEvent] | None:
    """Return the events of a line; None if it is of no known type."""
    match data.get("type"):
        case "init":
            return iter(
                (AgentEvent(kind="session", text=to_line(data.get("session_id")), model=to_line(data.get("model"))),)
            )
        case "message" if data.get("role") == "assistant":
            is_part = data.get("delta") is True
            return iter((AgentEvent(kind="message", text=to_text(data.get("content")), is_part=is_part),))
        case "message":
            return iter(())
        case "tool_result":
            return iter((build_result_event(data.get("tool_id"), is_failed=data.get("status") == "error"),))
        case "tool_use":
            return iter((build_tool_event(data.get("tool_name"), data.get("parameters"), data.get("tool_id")),))
        case "error":
            return iter((AgentEvent(kind="step", text=to_line(data.get("message"))),))
        case "result":
            return _read_result(data)
    return None


def _read_result(data: Mapping[str, Any]) -> Iterator[AgentEvent]:
    stats = to_table(data.get("stats"))
    models = to_table(stats.get("models"))
    for name, used in list(models.items())[:20]:
        request = to_line(name) or "?"
        tokens = _read_tokens(to_table(used))
        yield AgentEvent(kind="usage", request=request, model=request.partition(":")[0], tokens=tokens)
    if stats and not models:
        yield AgentEvent(kind="usage", tokens=_read_tokens(stats))
    if data.get("status") == "success":
        yield AgentEvent(kind="end")
    else:
        reason = to_text(to_table(data.get("error")).get("message"))
        yield AgentEvent(kind="failure", text=reason or to_line(data.get("status")) or "it reported an error")


def _read_tokens(usage: Mapping[str, Any]) -> Tokens:
    return Tokens.read(usage, "input_tokens", "output_tokens", "cached")
