"""Requested: a model's call of a tool as it came, which may be no call that can be made."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pydantic_ai.messages import ToolCallPart

from forkwise.agents.step import ToolCall, ToolResult

__all__ = ["Requested"]


@dataclass(frozen=True)
class Requested:
    """A call, the text of its arguments, and what is wrong with that if something is."""

    call: ToolCall
    raw: str
    error: str | None = None

    @classmethod
    def of(cls, part: ToolCallPart) -> Requested:
        """A part of a response."""
        raw = part.args if isinstance(part.args, str) else json.dumps(part.args or {})
        try:
            arguments = json.loads(raw or "{}")
        except (ValueError, RecursionError) as error:
            return cls(ToolCall(part.tool_call_id, part.tool_name, {}), raw, f"the arguments are no JSON: {error}")
        if not isinstance(arguments, dict):
            return cls(ToolCall(part.tool_call_id, part.tool_name, {}), raw, "the arguments are no JSON object")
        return cls(ToolCall(part.tool_call_id, part.tool_name, arguments), raw)

    @property
    def id(self) -> str:
        """The id of the call."""
        return self.call.id

    @property
    def name(self) -> str:
        """The name of the tool that is called."""
        return self.call.name

    def failed(self, why: str) -> ToolResult:
        """The result of a call that failed."""
        return ToolResult(self.id, self.name, None, why)
