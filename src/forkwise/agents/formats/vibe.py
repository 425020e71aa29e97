"""Mistral Vibe: ``vibe --output streaming``. It prints entries of its session, without tokens."""

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

__all__ = ["STEPS", "read_event"]

STEPS = (b'{"id":"',)
"""Beginnings of lines with nothing but steps and messages, and the session, which is the same in all of them."""


def read_event(data: Mapping[str, Any]) -> Iterator[AgentEvent] | None:
    """Return the events of a line; None if it is of no known type."""
    if not isinstance(data.get("sessionId"), str):
        return None
    return _read_entry(data)


def _read_entry(data: Mapping[str, Any]) -> Iterator[AgentEvent]:
    yield AgentEvent(kind="session", text=to_line(data.get("sessionId")))
    if data.get("type") == "effect":
        detail = to_table(data.get("detail"))
        name, call = to_line(detail.get("toolName")).rpartition(".")[2], data.get("id")
        yield build_tool_event(name, detail.get("input"), call, data.get("createdAt"))
        yield build_result_event(call, is_failed=data.get("generationStatus") == "failed", at_ms=data.get("updatedAt"))
    elif data.get("type") == "message" and data.get("role") == "assistant":
        content = data.get("content")
        parts = [to_table(part) for part in content[:1000]] if isinstance(content, list) else []
        text = "".join(to_text(part.get("text")) for part in parts if part.get("type") == "text")
        if text.strip():
            yield AgentEvent(kind="message", text=text)
