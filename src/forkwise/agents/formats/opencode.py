"""opencode: ``opencode run --format json``."""

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

__all__ = ["STEPS", "read_event"]

STEPS = tuple(b'{"type":"%b",' % kind for kind in (b"text", b"tool_use", b"reasoning", b"step_start"))
"""Beginnings of lines with nothing but steps and messages, and the session, which is the same in all of them."""


def read_event(data: Mapping[str, Any]) -> Iterator[AgentEvent] | None:
    """Return the events of a line; None if it is of no known type."""
    part = to_table(data.get("part"))
    match data.get("type"):
        case "step_start":
            return iter((AgentEvent(kind="session", text=to_line(data.get("sessionID"))),))
        case "text":
            return iter((AgentEvent(kind="message", text=to_text(part.get("text"))),))
        case "reasoning":
            return iter((AgentEvent(kind="step", text="thinks"),))
        case "tool_use":
            return _read_call(part, to_table(part.get("state")))
        case "step_finish":
            return _read_step(part)
        case "error":
            error = to_table(data.get("error"))
            reason = to_text(to_table(error.get("data")).get("message")) or to_line(error.get("name"))
            return iter((AgentEvent(kind="failure", text=reason or "it reported an error"),))
    return None


def _read_call(part: Mapping[str, Any], state: Mapping[str, Any]) -> Iterator[AgentEvent]:
    """Return a tool call and its end: the line is printed when it is over."""
    call, times = part.get("callID"), to_table(state.get("time"))
    yield build_tool_event(part.get("tool"), state.get("input"), call, times.get("start"))
    yield build_result_event(call, is_failed=state.get("status") == "error", at_ms=times.get("end"))


def _read_step(part: Mapping[str, Any]) -> Iterator[AgentEvent]:
    used = to_table(part.get("tokens"))
    cache = to_table(used.get("cache"))
    cached, written = to_count(cache.get("read")), to_count(cache.get("write"))
    output = to_count(used.get("output")) + to_count(used.get("reasoning"))
    tokens = Tokens(to_count(used.get("input")) + cached + written, output, cached, written)
    request = to_line(part.get("id")) or "?"
    yield AgentEvent(kind="usage", request=request, tokens=tokens, usd=to_amount(part.get("cost")))
    if part.get("reason") == "stop":
        yield AgentEvent(kind="end")
