"""One request to a module's model, or to the next of its fallbacks, streamed if wanted.

Streaming reports the final output as far as it has arrived: `PartialJson` parses it, `Partial` is its type.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import (
    InstructionPart,
    ModelRequest,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from forkwise.errors import ModuleError
from forkwise.modules.message_history import History, build_messages, join_instructions, start_new_turn
from forkwise.modules.models import ConfiguredModel, Models, find_cache_points, is_thinking_required, merge_settings
from forkwise.modules.tools import FINISH

__all__ = [
    "OnChunk",
    "Partial",
    "PartialJson",
    "Question",
    "StreamChunk",
    "read_chunks",
    "send",
]


_MARKS = re.compile(r'["{}\[\],]')
_IN_STRING = re.compile(r'["\\]')


def Partial(model: Any) -> type[BaseModel]:  # noqa: N802 - used like a type
    """Return a model with the same fields, each optional and None by default.

    >>> class Point(BaseModel):
    ...     x: int
    ...     y: int
    >>> Partial(Point)(x=1)
    PartialPoint(x=1, y=None)
    """
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise TypeError(f"Partial takes a pydantic model, not {model!r}")
    fields: dict[str, Any] = {
        name: (
            Optional[field.rebuild_annotation()],  # noqa: UP045 - the annotation may be no class, which "|" needs
            Field(None, validation_alias=field.validation_alias, description=field.description),
        )
        for name, field in model.model_fields.items()
    }
    config = ConfigDict(arbitrary_types_allowed=True, validate_by_name=True, validate_by_alias=True)
    return create_model(f"Partial{model.__name__}", __config__=config, __doc__=model.__doc__, **fields)


class PartialJson:
    """A JSON object that arrives in pieces, and a partial model of its complete fields.

    Every character is scanned once, however many pieces arrive.

    >>> class Point(BaseModel):
    ...     x: int
    ...     y: int
    >>> partial_json = PartialJson(Point)
    >>> partial_json.feed('{"x": 12, "y')
    PartialPoint(x=12, y=None)
    >>> partial_json.feed('": 3}')
    PartialPoint(x=12, y=3)
    """

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = Partial(model)
        self._field: list[str] = []  # the pieces of the incomplete field
        self._depth = 0
        self._in_string = False
        self._escaping = 0  # characters of the next piece that a backslash at the end of the last one escapes
        self._values: dict[str, Any] = {}
        self._partial = self._model()

    def feed(self, piece: str) -> BaseModel:
        """Parse the next piece and return the model as far as it is complete."""
        begin, position, self._escaping = 0, self._escaping, 0
        while (mark := (_IN_STRING if self._in_string else _MARKS).search(piece, position)) is not None:
            position = mark.end()
            match mark[0]:
                case "\\":
                    position += 1
                case '"':
                    self._in_string = not self._in_string
                case "{" | "[":
                    self._depth += 1
                    if self._depth == 1:
                        begin = position
                case closing:
                    if self._depth == 1:
                        self._complete(piece[begin : mark.start()])
                        begin = position
                    self._depth -= closing != ","
        self._escaping = max(0, position - len(piece))
        self._field.append(piece[begin:])
        return self._partial

    def _complete(self, end: str) -> None:
        text = "".join([*self._field, end])
        self._field.clear()
        try:
            found = json.loads(f"{{{text}}}")
            self._partial = self._model(**{**self._values, **found})
        except (ValueError, ValidationError):
            return  # the complete output is validated at the end
        self._values.update(found)


@dataclass
class StreamChunk:
    """A piece of a model's response: text, the final output as far as it is complete, or part of a tool call.

    The last chunk of a response has only ``done``.
    """

    content: str | None = None
    partial: BaseModel | None = None
    tool_call: dict[str, Any] | None = None
    done: bool = False


async def read_chunks(
    events: AsyncIterator[ModelResponseStreamEvent], output: type[BaseModel] | None
) -> AsyncIterator[StreamChunk]:
    """Yield the chunks for the events of a stream."""
    finishing: dict[int, PartialJson] = {}
    async for event in events:
        match event:
            case PartStartEvent(part=TextPart(content=text)) if text:
                yield StreamChunk(content=text)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)) if text:
                yield StreamChunk(content=text)
            case PartStartEvent(index=index, part=ToolCallPart() as call):
                if call.tool_name == FINISH and output is not None:
                    finishing[index] = PartialJson(output)
                delta = call.args_as_json_str() if call.args else ""
                yield _call_chunk(index, delta, finishing)
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=str(delta))):
                yield _call_chunk(index, delta, finishing)
    yield StreamChunk(done=True)


def _call_chunk(index: int, delta: str, finishing: dict[int, PartialJson]) -> StreamChunk:
    if index in finishing:
        return StreamChunk(partial=finishing[index].feed(delta))
    return StreamChunk(tool_call={"index": index, "delta": delta})


#: Receives the chunks of a streamed response.
OnChunk = Callable[[StreamChunk], Awaitable[None]]


@dataclass(frozen=True)
class Question:
    """The content of a request: history, tools and settings. With ``must_call`` the model must call a tool."""

    history: History
    tools: Sequence[ToolDefinition]
    settings: ModelSettings
    cache: Any = None
    metadata: dict[str, Any] | None = None
    stream_options: dict[str, Any] | None = None
    must_call: bool = False
    output: type[BaseModel] | None = None

    def parameters(self) -> ModelRequestParameters:
        """Return the tools and the system prompt in pydantic-ai's form."""
        instructions = join_instructions(self.history)
        return ModelRequestParameters(
            function_tools=list(self.tools),
            allow_text_output=not self.must_call,
            instruction_parts=[InstructionPart(content=instructions)] if instructions else [],
        )


async def send(
    models: Models, specs: Sequence[object], question: Question, on_chunk: OnChunk | None = None
) -> ModelResponse:
    """Return the response of the first model in ``specs`` whose provider does not fail.

    ``on_chunk`` receives the response as it streams; after the first chunk no other model is tried. Raises
    `ModuleError`, with the last model's error as its cause, if none responds.
    """
    for number, spec in enumerate(specs, start=1):
        sink = None if on_chunk is None else _ChunkSink(on_chunk)
        try:
            return await _request(await models.get(spec), question, sink)
        except Exception as error:
            if isinstance(error, ModuleError) or (sink is not None and sink.failure is error):
                raise
            is_last = number == len(specs) or (sink is not None and sink.has_received)
            if is_last or not isinstance(error, ModelAPIError):
                raise ModuleError(f"LLM call failed: {str(error) or type(error).__name__}") from error
    raise ModuleError("there is no model to ask")


class _ChunkSink:
    """An `OnChunk`, whether it received a chunk, and the error it raised."""

    def __init__(self, on_chunk: OnChunk) -> None:
        self._on_chunk = on_chunk
        self.has_received = False
        self.failure: Exception | None = None

    async def __call__(self, chunk: StreamChunk) -> None:
        self.has_received = True
        try:
            await self._on_chunk(chunk)
        except Exception as error:
            self.failure = error
            raise


async def _request(configured: ConfiguredModel, question: Question, on_chunk: OnChunk | None) -> ModelResponse:
    settings = merge_settings(question.settings, configured)
    cache, entries = find_cache_points(question.cache, question.history)
    if cache is not None:
        settings["cache"] = cache
    messages = build_messages(question.history, entries)
    if is_thinking_required(configured):
        messages = start_new_turn(messages, configured.model.system)
    last = messages[-1]
    if question.metadata and isinstance(last, ModelRequest):
        messages[-1] = replace(last, metadata=question.metadata)
    parameters = question.parameters()
    if on_chunk is None:
        return await model_request(
            configured.model, messages, model_settings=settings, model_request_parameters=parameters
        )
    if question.stream_options and configured.model.system == "openai":
        body = cast(dict[str, Any], settings.get("extra_body") or {})
        settings["extra_body"] = {**body, "stream_options": question.stream_options}
    async with model_request_stream(
        configured.model, messages, model_settings=settings, model_request_parameters=parameters
    ) as stream:
        async for chunk in read_chunks(aiter(stream), question.output):
            await on_chunk(chunk)
        return stream.get()
