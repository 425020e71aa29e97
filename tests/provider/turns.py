"""Turns: an Anthropic request's messages as the provider sees them, grouped by role, each block with its path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Block", "Turn", "blocks_of", "turns_of"]


@dataclass(frozen=True)
class Block:
    """One content block and its position."""

    message: int
    index: int
    role: str
    data: Mapping[str, Any]

    @property
    def type(self) -> str:
        """Its kind: ``text``, ``tool_use``, ``tool_result``, …"""
        return str(self.data.get("type"))

    @property
    def place(self) -> str:
        """Its path as the provider writes it."""
        return f"messages.{self.message}.content.{self.index}"


@dataclass(frozen=True)
class Turn:
    """Consecutive messages of one role."""

    role: str
    messages: tuple[int, ...]
    blocks: tuple[Block, ...]

    def of_type(self, kind: str) -> list[Block]:
        """Its blocks of one kind."""
        return [block for block in self.blocks if block.type == kind]

    def leading(self, kind: str) -> list[Block]:
        """Return its leading blocks of one kind."""
        found: list[Block] = []
        for block in self.blocks:
            if block.type != kind:
                break
            found.append(block)
        return found


def blocks_of(messages: Sequence[Mapping[str, Any]]) -> Iterator[Block]:
    """Every block; a string is a message of one text block, an empty one has none."""
    for number, message in enumerate(messages):
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}] if content else []
        for index, data in enumerate(content):
            yield Block(number, index, message["role"], data)


def turns_of(messages: Sequence[Mapping[str, Any]]) -> list[Turn]:
    """The turns, in order."""
    by_message: list[list[Block]] = [[] for _ in messages]
    for block in blocks_of(messages):
        by_message[block.message].append(block)
    turns: list[Turn] = []
    for number, message in enumerate(messages):
        blocks = tuple(by_message[number])
        if turns and turns[-1].role == message["role"]:
            before = turns.pop()
            turns.append(Turn(before.role, (*before.messages, number), before.blocks + blocks))
        else:
            turns.append(Turn(message["role"], (number,), blocks))
    return turns
