"""Codex: ``codex exec --json``."""

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

__all__ = ["SKIPPED", "STEPS", "read_event"]

SKIPPED = (b'{"type":"item.updated",', b'{"type":"turn.started"}')
"""Beginnings of lines without anything to show."""

_CALLS = ("command_execution", "file_change", "mcp_tool_call", "web_search")

STEPS = (b'{"type":"item.',)
"""Beginnings of lines with nothing but steps and messages."""


def read_event(data: Mapping[str, Any]) -> Iterator[AgentEvent] | None:
    """Return the events of a line; None if it is of no known type."""
    match data.get("type"):
        case "thread.started":
            return iter((AgentEvent(kind="session", text=to_line(data.get("thread_id"))),))
        case "turn.started" | "item.updated":
            return iter(())
        case "item.started" | "item.completed" as kind:
            return _read_item(to_table(data.get("item")), is_started=kind == "item.started")
        case "turn.completed":
            return _read_end(to_table(data.get("usage")))
        case "turn.failed":
            reason = to_text(to_table(data.get("error")).get("message"))
            return iter((AgentEvent(kind="failure", text=reason or "its turn failed"),))
        case "error":  # also for a request that is then retried
            return iter((AgentEvent(kind="step", text=to_line(data.get("message"))),))
    return None


def _read_item(item: Mapping[str, Any], *, is_started: bool) -> Iterator[AgentEvent]:
    call = item.get("id")
    match item.get("type"):
        case "command_execution" if is_started:
            yield build_tool_event("bash", item, call)
        case "file_change" if not is_started:
            changes = item.get("changes")
            for change in map(to_table, changes[:20] if isinstance(changes, list) else ()):
                yield build_tool_event("write" if change.get("kind") == "add" else "edit", change, call)
        case "mcp_tool_call" if is_started:
            yield build_tool_event(item.get("tool"), item.get("arguments"), call)
        case "web_search" if not is_started:
            yield build_tool_event("search", item, call)
        case "agent_message" if not is_started:
            yield AgentEvent(kind="message", text=to_text(item.get("text")))
        case "reasoning" if not is_started:
            yield AgentEvent(kind="step", text="thinks")
    if not is_started and item.get("type") in _CALLS:
        yield build_result_event(call, is_failed=item.get("status") == "failed")


def _read_end(usage: Mapping[str, Any]) -> Iterator[AgentEvent]:
    # OpenAI counts the cached tokens among those of the input.
    tokens = Tokens.read(usage, "input_tokens", "output_tokens", "cached_input_tokens", "cache_write_input_tokens")
    yield AgentEvent(kind="usage", tokens=tokens)
    yield AgentEvent(kind="end")
