"""Asking: one request to a module's model, or to the next of its fallbacks, whole or streamed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic import BaseModel
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import InstructionPart, ModelRequest, ModelResponse
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from forkwise.agents.history import History, begun_anew, instructions_of, messages_of
from forkwise.agents.models import Contact, Models, merged, remembered, thinks_first
from forkwise.agents.stream import StreamChunk, chunks
from forkwise.errors import ModuleError

__all__ = ["Question", "ask"]

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


async def ask(models: Models, specs: Sequence[object], question: Question, hear: Hear | None = None) -> ModelResponse:
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
