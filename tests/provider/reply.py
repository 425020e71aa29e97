"""Replies of a script, in a form that fits both providers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.provider.request import ToolCall

__all__ = [
    "Answer",
    "Drop",
    "Failure",
    "Part",
    "Reply",
    "Stop",
    "Thinking",
    "Usage",
    "answer",
    "as_reply",
    "call",
    "raw_call",
    "think",
]

Stop = Literal["end", "tool", "length", "refusal"]


@dataclass(frozen=True)
class Thinking:
    """Thinking, signed when it is sent. OpenAI does not return thinking, so it is omitted there."""

    text: str


@dataclass(frozen=True)
class Usage:
    """Token counts; ``None`` is estimated from the content."""

    input: int | None = None
    output: int | None = None
    cache_read: int = 0
    cache_write: int = 0


Part = str | ToolCall | Thinking


@dataclass(frozen=True)
class Reply:
    """A model's turn.

    It starts after ``delay`` seconds, and where it is streamed it comes in pieces of ``piece`` characters, ``pace``
    seconds apart. ``cut`` ends it after that many events (of a whole reply: in the middle): the connection breaks, or,
    with ``cut_by="error"``, the provider says in the stream that it is overloaded.
    """

    parts: tuple[Part, ...]
    usage: Usage = Usage()
    stop: Stop | None = None
    delay: float = 0.0
    pace: float = 0.0
    piece: int = 8
    cut: int | None = None
    cut_by: Literal["drop", "error"] = "drop"


@dataclass(frozen=True)
class Failure:
    """An error in place of a turn: 429, 500, 529 (503 at OpenAI, which does not know it)."""

    status: int
    message: str = ""
    retry_after: float | None = None
    delay: float = 0.0


@dataclass(frozen=True)
class Drop:
    """The connection ends without an answer."""

    delay: float = 0.0


Answer = Reply | Failure | Drop | Part | Sequence[Part]


def answer(*parts: Part, **options: Any) -> Reply:
    """A turn of these parts: ``answer("Done.")``, ``answer("Let me look.", call("read", path="a"), delay=0.1)``."""
    return Reply(parts, **options)


def call(name: str, /, **arguments: Any) -> ToolCall:
    """A tool call: ``call("read", path="a.txt")``."""
    return ToolCall(name, arguments)


def raw_call(name: str, arguments: str) -> ToolCall:
    """A tool call with arguments as they are: ``raw_call("read", '{"path": ')`` is cut short."""
    return ToolCall(name, arguments)


def think(text: str) -> Thinking:
    """A thought before the rest."""
    return Thinking(text)


def as_reply(given: Answer) -> Reply | Failure | Drop:
    """Return a script's answer as a reply."""
    if isinstance(given, Reply | Failure | Drop):
        return given
    return Reply((given,) if isinstance(given, Part) else tuple(given))
