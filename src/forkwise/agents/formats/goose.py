"""Goose: ``goose run --output-format stream-json``, after a banner of plain text."""

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

__all__ = ["SKIPPED", "STEPS", "read_event"]

SKIPPED = (b'{"type":"notification",',)
"""Beginnings of lines without anything to show."""

STEPS = (b'{"type":"message",',)
"""Beginnings of lines with nothing but steps and messages, and the model, which is the same in all of them."""


def read_event(data: Mapping[str, Any]) -> Iterator[AgentEvent] | None:
    """Return the events of a line; None if it is of no known type."""
    match data.get("type"):
        case "message":
            return _read_message(to_table(data.get("message")))
        case "notification":
            return iter(())
        case "error":
            return iter((AgentEvent(kind="failure", text=to_text(data.get("error")) or "it reported an error"),))
        case "complete":
            return _read_end(data)
    return None


def _read_message(message: Mapping[str, Any]) -> Iterator[AgentEvent]:
    content = message.get("content")
    parts = [to_table(part) for part in content] if isinstance(content, list) else []
    if message.get("role") != "assistant":
        for part in parts:
            if part.get("type") == "toolResponse":
                yield _read_response(part.get("id"), to_table(part.get("toolResult")))
        return
    inference = to_table(to_table(message.get("metadata")).get("inference"))
    if model := to_line(inference.get("requestedModel")):
        yield AgentEvent(kind="session", model=model)
    for part in parts:
        if part.get("type") == "text":
            yield AgentEvent(kind="message", text=to_text(part.get("text")))
        elif part.get("type") == "toolRequest":
            call = to_table(to_table(part.get("toolCall")).get("value"))
            yield build_tool_event(str(call.get("name", "")).rpartition("__")[2], call.get("arguments"), part.get("id"))


def _read_response(call: object, result: Mapping[str, Any]) -> AgentEvent:
    is_failed = result.get("status") == "error" or to_table(result.get("value")).get("isError") is True
    return build_result_event(call, is_failed=is_failed)


def _read_end(data: Mapping[str, Any]) -> Iterator[AgentEvent]:
    tokens = Tokens.read(data, "input_tokens", "output_tokens", "cache_read_input_tokens", "cache_write_input_tokens")
    yield AgentEvent(kind="usage", tokens=tokens, usd=to_amount(data.get("cost_usd")))
    yield AgentEvent(kind="end")
