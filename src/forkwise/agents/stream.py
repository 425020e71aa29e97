"""Stream: what a model says while it says it, in chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_ai.messages import (
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)

from forkwise.agents.finish import FINISH
from forkwise.agents.partial import Arriving

__all__ = ["StreamChunk", "chunks"]


@dataclass
class StreamChunk:
    """A piece of what a model says: of its text, of its final output as far as that is complete, or of a call.

    The last one of an answer is ``done``, and nothing else.
    """

    content: str | None = None
    partial: BaseModel | None = None
    tool_call: dict[str, Any] | None = None
    done: bool = False


async def chunks(
    events: AsyncIterator[ModelResponseStreamEvent], output: type[BaseModel] | None
) -> AsyncIterator[StreamChunk]:
    """What the events of a stream say."""
    finishing: dict[int, Arriving] = {}
    async for event in events:
        match event:
            case PartStartEvent(part=TextPart(content=text)) if text:
                yield StreamChunk(content=text)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)) if text:
                yield StreamChunk(content=text)
            case PartStartEvent(index=index, part=ToolCallPart() as call):
                if call.tool_name == FINISH and output is not None:
                    finishing[index] = Arriving(output)
                delta = call.args_as_json_str() if call.args else ""
                yield _of_call(index, delta, finishing)
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=str(delta))):
                yield _of_call(index, delta, finishing)
    yield StreamChunk(done=True)


def _of_call(index: int, delta: str, finishing: dict[int, Arriving]) -> StreamChunk:
    if index in finishing:
        return StreamChunk(partial=finishing[index].feed(delta))
    return StreamChunk(tool_call={"index": index, "delta": delta})
