"""Retries: where a model was told to try again, in whatever form its conversation keeps that.

A conversation of an older pydantic-ai has one part for all of them; newer ones say it in the result of the call, or
as feedback on an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydantic_ai.messages import ModelMessage

__all__ = ["Retry", "retries_of"]

_KINDS = ("retry-prompt", "retry-feedback")


class Retry(NamedTuple):
    """What a model was told, and the tool call it was told of, if any."""

    text: str
    tool_call_id: str | None


def retries_of(messages: Sequence[ModelMessage]) -> list[Retry]:
    """Every time that a model was told to try again, in order."""
    return [
        Retry(str(getattr(part, "content", "")), getattr(part, "tool_call_id", None))
        for message in messages
        for part in message.parts
        if part.part_kind in _KINDS or getattr(part, "outcome", None) == "retried"
    ]
