"""`Brain`: a model for tests whose answers a function decides, and which records its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from forkwise.conversation.conversation import Conversation

__all__ = ["Asked", "Brain", "call", "finish", "text"]

Said = str | ModelResponsePart | Sequence[ModelResponsePart | str]


@dataclass(frozen=True)
class Asked:
    """One request, as a model sees it."""

    messages: list[ModelMessage]
    info: AgentInfo

    @property
    def system(self) -> str:
        return self.info.instructions or ""

    @property
    def tools(self) -> list[str]:
        return [tool.name for tool in self.info.function_tools]

    @property
    def prompts(self) -> list[str]:
        """The text of all user messages, in order."""
        return [
            "".join(piece for piece in part.content if isinstance(piece, str))
            for message in self.messages
            if isinstance(message, ModelRequest)
            for part in message.parts
            if isinstance(part, UserPromptPart)
        ]

    @property
    def results(self) -> list[str]:
        """All tool results, in order."""
        return [
            str(part.content)
            for message in self.messages
            if isinstance(message, ModelRequest)
            for part in message.parts
            if isinstance(part, ToolReturnPart)
        ]

    @property
    def turn(self) -> int:
        """The number of responses so far."""
        return sum(isinstance(message, ModelResponse) for message in self.messages)

    @property
    def temperature(self) -> float | None:
        return (self.info.model_settings or {}).get("temperature")


class Brain(FunctionModel):
    """Returns the given answers in order, or those that a function decides. Every request is checked by the rules."""

    def __init__(
        self, *answers: Said, decide: Callable[[Asked], Said] | None = None, seconds: float = 0, name: str | None = None
    ) -> None:
        self.asked: list[Asked] = []
        self.at_once = self.most_at_once = 0
        left = list(answers)

        async def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
            Conversation().extend(messages)  # raises if a rule is broken
            asked = Asked(list(messages), info)
            self.asked.append(asked)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            try:
                await asyncio.sleep(seconds)
                said = decide(asked) if decide is not None else left.pop(0)
            finally:
                self.at_once -= 1
            return ModelResponse(parts=_parts(said))

        super().__init__(think, model_name=name)

    @property
    def model(self) -> FunctionModel:
        """The pydantic-ai model."""
        return self


def _parts(said: Said) -> list[ModelResponsePart]:
    pieces = list(said) if isinstance(said, list | tuple) else [said]
    return [TextPart(piece) if isinstance(piece, str) else piece for piece in pieces]


def call(tool: str, /, **arguments: Any) -> ToolCallPart:
    """Return a tool call."""
    return ToolCallPart(tool, arguments)


def finish(**output: Any) -> ToolCallPart:
    """Return the call that ends a module."""
    return call("__finish__", **output)


def text(words: str) -> TextPart:
    """Return a text part."""
    return TextPart(words)
