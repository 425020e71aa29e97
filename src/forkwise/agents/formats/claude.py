"""Claude Code: ``--output-format stream-json --verbose``."""

from __future__ import annotations

import time
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

__all__ = ["REQUESTS", "RESULTS", "SKIPPED", "read_event", "read_usage"]

SKIPPED = (b'{"type":"user",',)
"""Beginnings of lines without anything to show: the results of tools, which are most of a stream."""

RESULTS = SKIPPED
"""Those of them that say how a tool call ended."""

REQUESTS = (b'{"type":"assistant",',)
"""Beginnings of lines with steps and messages, and with what their request has used so far."""


def read_event(data: Mapping[str, Any]) -> Iterator[AgentEvent] | None:
    """Return the events of a line; None if it is of no known type."""
    match data.get("type"):
        case "system":
            return _read_system(data)
        case "assistant":
            return _read_message(to_table(data.get("message")), is_nested=bool(data.get("parent_tool_use_id")))
        case "result":
            return _read_result(data)
        case "rate_limit_event":
            return _read_limit(to_table(data.get("rate_limit_info")))
        case "user":
            return _read_results(to_table(data.get("message")).get("content"))
        case "stream_event" | "control_response" | "tool_progress" | "auth_status":
            return iter(())
    return None


def _read_system(data: Mapping[str, Any]) -> Iterator[AgentEvent]:
    if data.get("subtype") == "init":
        yield AgentEvent(kind="session", text=to_line(data.get("session_id")), model=to_line(data.get("model")))
    elif data.get("subtype") == "api_retry":
        yield AgentEvent(kind="step", text=f"waits for the provider: {to_line(data.get('error'))}")


def _read_limit(info: Mapping[str, Any]) -> Iterator[AgentEvent]:
    if info.get("status") == "rejected":
        resets = to_count(info.get("resetsAt"))
        yield AgentEvent(kind="limit", delay_s=max(resets - time.time(), 0.0) if resets else None)


def _read_message(message: Mapping[str, Any], *, is_nested: bool) -> Iterator[AgentEvent]:
    content = message.get("content")
    for part in map(to_table, content if isinstance(content, list) else ()):
        if part.get("type") == "tool_use":
            yield build_tool_event(part.get("name"), part.get("input"), part.get("id"))
        elif part.get("type") == "text" and not is_nested:
            yield AgentEvent(kind="message", text=to_text(part.get("text")))
        elif part.get("type") == "thinking":
            yield AgentEvent(kind="step", text="thinks")
    if usage := _read_request(message):
        yield usage


def _read_results(content: object) -> Iterator[AgentEvent]:
    for part in map(to_table, content if isinstance(content, list) else ()):
        if part.get("type") == "tool_result":
            yield build_result_event(part.get("tool_use_id"), is_failed=part.get("is_error") is True)


def read_usage(data: Mapping[str, Any]) -> AgentEvent | None:
    """Return what the request of a line has used so far; None if the line does not say it."""
    return _read_request(to_table(data.get("message")))


def _read_request(message: Mapping[str, Any]) -> AgentEvent | None:
    usage = to_table(message.get("usage"))
    if not usage:
        return None
    request, model = to_line(message.get("id")) or "?", to_line(message.get("model"))
    return AgentEvent(kind="usage", request=request, model=model, tokens=_read_tokens(usage))


def _read_result(data: Mapping[str, Any]) -> Iterator[AgentEvent]:
    usage = to_table(data.get("usage"))
    yield AgentEvent(
        kind="usage", tokens=_read_tokens(usage) if usage else None, usd=to_amount(data.get("total_cost_usd"))
    )
    text = to_text(data.get("result"))
    if data.get("is_error") is True or str(data.get("subtype", "")).startswith("error"):
        errors = data.get("errors")
        listed = "; ".join(to_line(error) for error in errors[:5]) if isinstance(errors, list) else ""
        reason = text or listed or str(to_line(data.get("subtype"))).replace("_", " ")
        status = to_count(data.get("api_error_status"))
        yield AgentEvent(kind="failure", text=f"{reason} (status {status})" if status else reason)
    else:
        yield AgentEvent(kind="end", text=text)


def _read_tokens(usage: Mapping[str, Any]) -> Tokens:
    cached, written = to_count(usage.get("cache_read_input_tokens")), to_count(usage.get("cache_creation_input_tokens"))
    fresh = to_count(usage.get("input_tokens"))
    return Tokens(fresh + cached + written, to_count(usage.get("output_tokens")), cached, written)
