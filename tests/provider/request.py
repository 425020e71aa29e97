"""A request as a script sees it, independent of the provider."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

__all__ = ["Message", "Provider", "Request", "Role", "ToolCall", "ToolResult", "ToolSpec", "joined"]

Provider = Literal["anthropic", "openai"]
Role = Literal["user", "assistant", "system"]


@dataclass(frozen=True)
class ToolCall:
    """A tool call; ``arguments`` given as a string are sent unchanged, well formed or not."""

    name: str
    arguments: Mapping[str, Any] | str
    id: str | None = None


@dataclass(frozen=True)
class ToolResult:
    """A tool's result. OpenAI's requests do not say whether it was an error."""

    id: str
    name: str
    text: str
    is_error: bool = False


@dataclass(frozen=True)
class ToolSpec:
    """A tool on offer."""

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """Consecutive content of one role: text, and calls or results."""

    role: Role
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()


@dataclass(frozen=True)
class Request:
    """One request. ``tool_choice`` is ``auto``, ``required``, ``none`` or the name of the one tool that is allowed."""

    provider: Provider
    model: str
    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    tool_choice: str | None
    response_format: Mapping[str, Any] | None
    stream: bool
    body: Mapping[str, Any]

    @property
    def tool_names(self) -> list[str]:
        """The names of the tools on offer."""
        return [tool.name for tool in self.tools]

    @property
    def last_user_text(self) -> str:
        """The last text of a user, possibly before the tool calls of this run."""
        return next((m.text for m in reversed(self.messages) if m.role == "user" and m.text), "")

    @property
    def first_user_text(self) -> str:
        """The first text of the user."""
        return next((m.text for m in self.messages if m.role == "user" and m.text), "")

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The results in the last turn, if that is a user's."""
        return self.messages[-1].results if self.messages else ()

    @property
    def turn(self) -> int:
        """The number of assistant messages."""
        return sum(message.role == "assistant" for message in self.messages)


def joined(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Consecutive messages of a role as one, and each result with the name of the tool that gave it."""
    found: list[Message] = []
    names: dict[str, str] = {}
    for message in messages:
        names |= {call.id: call.name for call in message.calls if call.id}
        results = tuple(replace(result, name=names.get(result.id, result.name)) for result in message.results)
        if found and found[-1].role == message.role:
            before = found.pop()
            text = "\n".join(filter(None, (before.text, message.text)))
            found.append(Message(message.role, text, before.calls + message.calls, before.results + results))
        else:
            found.append(replace(message, results=results))
    return tuple(found)
