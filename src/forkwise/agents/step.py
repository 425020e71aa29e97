"""Step: one turn of a call, as ``on_step`` sees it, and may change what follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from forkwise.agents.finish import FINISH
from forkwise.agents.tool import Tool, by_name, shown

__all__ = ["Step", "ToolCall", "ToolResult"]


@dataclass
class ToolCall:
    """A model's call of a tool."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass
class ToolResult:
    """What came of a call: an output, or an error."""

    id: str
    name: str
    output: Any
    error: str | None = None

    @property
    def text(self) -> str:
        """What the model reads."""
        return shown(self.output) if self.error is None else f"Error: {self.error}"


@dataclass
class Step:
    """A turn: what the model answered, what it called, and what came of that.

    What ``on_step`` sets here holds from the next turn on: ``model``, ``temperature``, ``max_tokens``, ``tools``. What
    it does to ``tool_results`` is what the model is told.
    """

    counter: int
    model: Any
    temperature: float | None
    max_tokens: int | None
    tools: list[Any] = field(default_factory=list)
    response: dict[str, Any] = field(default_factory=dict)
    tool_calls: list[ToolCall] = field(default_factory=list)
    tool_results: list[ToolResult] = field(default_factory=list)
    finishing: dict[str, Any] | None = field(default=None, repr=False)

    def add_tool(self, function: Callable[..., Any]) -> None:
        """Give the model another tool from the next turn on; branches have it too."""
        self.tools[:] = by_name([*self.tools, function], {FINISH}).values()

    def remove_tool(self, name: str) -> None:
        """Take a tool away from the next turn on."""
        kept = [tool for tool in self.tools if Tool.of(tool).name != name]
        if len(kept) == len(self.tools):
            raise ValueError(f"there is no tool {name!r}")
        self.tools[:] = kept

    def finish(self, **output: Any) -> None:
        """End the call with this output, once ``on_step`` returns."""
        self.finishing = output
