"""Asking: one request to a module's model, or to the next of its fallbacks, whole or streamed."""

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
from forkwise.modules.message_history import History, begun_anew, instructions_of, messages_of
from forkwise.modules.models import Contact, Models, merged, remembered, thinks_first
from forkwise.modules.tools import FINISH

__all__ = [
    "Partial",
    "PartialJson",
    "Question",
    "StreamChunk",
    "chunks",
    "send",
]


_MARKS = re.compile(r'["{}\[\],]')
_IN_STRING = re.compile(r'["\\]')


def Partial(model: Any) -> type[BaseModel]:  # noqa: N802 - it is used like a type
    """The same model with every field optional, and None by default.

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
            Optional[field.rebuild_annotation()],  # noqa: UP045 - what is there may be no class
            Field(None, validation_alias=field.validation_alias, description=field.description),
        )
        for name, field in model.model_fields.items()
    }
    config = ConfigDict(arbitrary_types_allowed=True, validate_by_name=True, validate_by_alias=True)
    return create_model(f"Partial{model.__name__}", __config__=config, __doc__=model.__doc__, **fields)


class PartialJson:
    """The JSON of an object as it arrives, and a partial model of the fields that are complete.

    Every character is looked at once, in however many pieces they come.

    >>> class Point(BaseModel):
    ...     x: int
    ...     y: int
    >>> arriving = Arriving(Point)
    >>> arriving.feed('{"x": 12, "y')
    PartialPoint(x=12, y=None)
    >>> arriving.feed('": 3}')
    PartialPoint(x=12, y=3)
    """

    def __init__(self, model: type[BaseModel]) -> None:
        self._model = Partial(model)
        self._field: list[str] = []  # the pieces of the field that is arriving
        self._depth = 0
        self._in_string = False
        self._escaping = 0  # characters of the next piece that a backslash at the end of the last one takes
        self._values: dict[str, Any] = {}
        self._partial = self._model()

    def feed(self, piece: str) -> BaseModel:
        """Take the next piece; gives what is complete so far."""
        begin, at, self._escaping = 0, self._escaping, 0
        while (mark := (_IN_STRING if self._in_string else _MARKS).search(piece, at)) is not None:
            at = mark.end()
            match mark[0]:
                case "\\":
                    at += 1
                case '"':
                    self._in_string = not self._in_string
                case "{" | "[":
                    self._depth += 1
                    if self._depth == 1:
                        begin = at
                case closing:
                    if self._depth == 1:
                        self._complete(piece[begin : mark.start()])
                        begin = at
                    self._depth -= closing != ","
        self._escaping = max(0, at - len(piece))
        self._field.append(piece[begin:])
        return self._partial

    def _complete(self, end: str) -> None:
        text = "".join([*self._field, end])
        self._field.clear()
        try:
            found = json.loads(f"{{{text}}}")
            self._partial = self._model(**{**self._values, **found})
        except (ValueError, ValidationError):
            return  # what it is worth is decided when all of it is there
        self._values.update(found)


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
                yield _of_call(index, delta, finishing)
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=str(delta))):
                yield _of_call(index, delta, finishing)
    yield StreamChunk(done=True)


def _of_call(index: int, delta: str, finishing: dict[int, PartialJson]) -> StreamChunk:
    if index in finishing:
        return StreamChunk(partial=finishing[index].feed(delta))
    return StreamChunk(tool_call={"index": index, "delta": delta})


Hear = Callable[[StreamChunk], Awaitable[None]]


@dataclass(frozen=True)
class Question:
    """What is asked: a history, the tools there are, and how. ``must_call`` is of models that would rather talk."""

    history: History
    tools: Sequence[ToolDefinition]
    settings: ModelSettings
    cache: Any = None
    metadata: dict[str, Any] | None = None
    stream_options: dict[str, Any] | None = None
    must_call: bool = False
    output: type[BaseModel] | None = None

    def parameters(self) -> ModelRequestParameters:
        """The tools and the system prompt, as pydantic-ai takes them."""
        instructions = instructions_of(self.history)
        return ModelRequestParameters(
            function_tools=list(self.tools),
            allow_text_output=not self.must_call,
            instruction_parts=[InstructionPart(content=instructions)] if instructions else [],
        )


async def send(models: Models, specs: Sequence[object], question: Question, hear: Hear | None = None) -> ModelResponse:
    """The answer of the first model that gives one; the next is asked where a provider fails. ``hear`` is told what
    it says while it says it; once something was heard, nobody else is asked.

    ModuleError, with the last one's error as its cause, where none gives one.
    """
    for number, spec in enumerate(specs, start=1):
        ear = None if hear is None else _Ear(hear)
        try:
            return await _answer(await models.get(spec), question, ear)
        except Exception as error:
            if isinstance(error, ModuleError) or (ear is not None and ear.failure is error):
                raise
            is_last = number == len(specs) or (ear is not None and ear.has_heard)
            if is_last or not isinstance(error, ModelAPIError):
                raise ModuleError(f"LLM call failed: {str(error) or type(error).__name__}") from error
    raise ModuleError("there is no model to ask")


class _Ear:
    """Who listens, whether anything was heard, and what went wrong with the listening."""

    def __init__(self, hear: Hear) -> None:
        self._hear = hear
        self.has_heard = False
        self.failure: Exception | None = None

    async def __call__(self, chunk: StreamChunk) -> None:
        self.has_heard = True
        try:
            await self._hear(chunk)
        except Exception as error:
            self.failure = error
            raise


async def _answer(contact: Contact, question: Question, hear: Hear | None) -> ModelResponse:
    settings = merged(question.settings, contact)
    cache, entries = remembered(question.cache, question.history)
    if cache is not None:
        settings["cache"] = cache
    messages = messages_of(question.history, entries)
    if thinks_first(contact):
        messages = begun_anew(messages, contact.model.system)
    last = messages[-1]
    if question.metadata and isinstance(last, ModelRequest):
        messages[-1] = replace(last, metadata=question.metadata)
    parameters = question.parameters()
    if hear is None:
        return await model_request(
            contact.model, messages, model_settings=settings, model_request_parameters=parameters
        )
    if question.stream_options and contact.model.system == "openai":
        body = cast(dict[str, Any], settings.get("extra_body") or {})
        settings["extra_body"] = {**body, "stream_options": question.stream_options}
    async with model_request_stream(
        contact.model, messages, model_settings=settings, model_request_parameters=parameters
    ) as stream:
        async for piece in chunks(aiter(stream), question.output):
            await hear(piece)
        return stream.get()
