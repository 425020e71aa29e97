"""Agents that speak the Agent Client Protocol, as `forkwise.agents.acp_client` prints what they send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from forkwise.agents.agent_event import (
    AgentEvent,
    Tokens,
    build_result_event,
    build_tool_event,
    to_amount,
    to_line,
    to_table,
    to_text,
)

__all__ = ["PARTS", "RESULTS", "SKIPPED", "STEPS", "read_event"]

_VERBS = {"execute": "bash", "edit": "edit", "read": "read", "delete": "delete", "move": "move", "fetch": "fetch"}
_SILENT = {
    "agent_thought_chunk",
    "user_message_chunk",
    "available_commands_update",
    "current_mode_update",
    "config_option_update",
    "session_info_update",
}


def _begin(*kinds: str) -> tuple[bytes, ...]:
    return tuple(b'{"type": "update", "update": {"sessionUpdate": "%b"' % kind.encode() for kind in kinds)


RESULTS = _begin("tool_call_update")
"""Beginnings of lines that may say how a tool call ended."""

SKIPPED = (*_begin(*sorted(_SILENT)), *RESULTS)
"""Beginnings of lines without anything to show."""

STEPS = _begin("tool_call", "plan")
"""Beginnings of lines with nothing but steps."""

PARTS = _begin("agent_message_chunk")
"""Beginnings of lines with a part of a message."""


def read_event(data: Mapping[str, Any]) -> Iterator[AgentEvent] | None:
    """Return the events of a line; None if it is of no known type."""
    match data.get("type"):
        case "session":
            return iter((AgentEvent(kind="session", text=to_line(data.get("id"))),))
        case "update":
            return _read_update(to_table(data.get("update")))
        case "permission":
            return iter(())
        case "failure":
            return iter((AgentEvent(kind="failure", text=to_text(data.get("message"))),))
        case "end":
            return _read_end(data)
    return None


def _read_update(update: Mapping[str, Any]) -> Iterator[AgentEvent] | None:
    match update.get("sessionUpdate"):
        case "agent_message_chunk":
            text = to_text(to_table(update.get("content")).get("text"))
            return iter((AgentEvent(kind="message", text=text, is_part=True),))
        case "tool_call":
            return _read_call(update)
        case "tool_call_update":
            return _read_call_end(update)
        case "plan":
            return _read_plan(update.get("entries"))
        case "usage_update":
            cost = to_table(update.get("cost"))
            usd = to_amount(cost.get("amount")) if cost.get("currency") == "USD" else None
            return iter((AgentEvent(kind="usage", usd=usd),))
        case str(kind) if kind in _SILENT:
            return iter(())
    return None


def _read_call(update: Mapping[str, Any]) -> Iterator[AgentEvent]:
    """Return a tool call by its kind and what it is applied to, or else by its title."""
    kind = update.get("kind")
    verb = _VERBS.get(kind) if isinstance(kind, str) else None
    places = update.get("locations")
    place = to_table(places[0]) if isinstance(places, list) and places else {}
    event = build_tool_event(verb, update.get("rawInput") or place, update.get("toolCallId"))
    if verb is None or not event.text:
        event = AgentEvent(kind="tool", text=to_line(update.get("title")), call=event.call)
    yield event
    yield from _read_call_end(update)


def _read_call_end(update: Mapping[str, Any]) -> Iterator[AgentEvent]:
    status = update.get("status")
    if status in ("completed", "failed"):
        yield build_result_event(update.get("toolCallId"), is_failed=status == "failed")


def _read_plan(entries: object) -> Iterator[AgentEvent]:
    """Return the entry of a plan that is being worked on."""
    rows = [to_table(entry) for entry in entries[:200]] if isinstance(entries, list) else []
    for number, row in enumerate(rows, start=1):
        if row.get("status") == "in_progress":
            yield AgentEvent(kind="step", text=f"plan, {number} of {len(rows)}: {to_line(row.get('content'))}")


def _read_end(data: Mapping[str, Any]) -> Iterator[AgentEvent]:
    usage = to_table(data.get("usage"))
    if usage:
        tokens = Tokens.read(usage, "inputTokens", "outputTokens", "cachedReadTokens", "cachedWriteTokens")
        yield AgentEvent(kind="usage", tokens=tokens)
    reason = data.get("reason")
    if reason == "end_turn":
        yield AgentEvent(kind="end")
    else:
        yield AgentEvent(kind="failure", text=f"it stopped: {to_line(reason) or 'no reason given'}")
