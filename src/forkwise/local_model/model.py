"""The local model as pydantic-ai knows models: it streams, and fills a JSON schema exactly, but it takes no tools.

Structured output goes as a schema in ``response_format``, by which the server constrains every token it picks.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import httpx2
from openai import AsyncOpenAI
from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from forkwise.errors import LocalModelError
from forkwise.local_model import NAME
from forkwise.local_model.server import CONTEXT, MODEL, leave, take

__all__ = ["LocalModel"]

_PROFILE = OpenAIModelProfile(
    supports_tools=False,
    supports_json_schema_output=True,
    supports_json_object_output=True,
    default_structured_output_mode="native",
    json_schema_transformer=None,  # the server keeps lengths and bounds that OpenAI refuses
    supports_image_input=False,
    supports_document_input=False,
    supports_audio_file_input=False,
    supports_video_input=False,
    context_window=CONTEXT,
)

# A model this small does not always know when to stop.
_SETTINGS = ModelSettings(max_tokens=CONTEXT // 8)


class _Provider(OpenAIProvider):
    """Not OpenAI: neither what it costs nor what it remembers."""

    @property
    def name(self) -> str:
        return NAME


class LocalModel(OpenAIChatModel):
    """A user of the shared server, from its first request until it is collected or its ``async with`` block ends."""

    def __init__(self) -> None:
        # No proxy is asked about the loopback. No connection is kept, so that any event loop can use the client.
        http = httpx2.AsyncClient(trust_env=False, limits=httpx2.Limits(max_keepalive_connections=0))
        client = AsyncOpenAI(base_url="http://127.0.0.1", api_key="unknown yet", http_client=http, max_retries=0)
        super().__init__(MODEL, provider=_Provider(openai_client=client), profile=_PROFILE, settings=_SETTINGS)
        self._user = object()
        self._entered = 0
        weakref.finalize(self, leave, self._user)

    async def __aenter__(self) -> Self:
        self._entered += 1
        return await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, traceback)
        self._entered -= 1
        if not self._entered:
            await asyncio.to_thread(leave, self._user)

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Ask, and wait for the whole answer."""
        await self._connect(model_request_parameters)
        return await super().request(messages, model_settings, model_request_parameters)

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncIterator[StreamedResponse]:
        """Ask, and have the answer as it is made."""
        await self._connect(model_request_parameters)
        async with super().request_stream(messages, model_settings, model_request_parameters, run_context) as response:
            yield response

    async def _connect(self, asked: ModelRequestParameters) -> None:
        """Have the server run, and the client know where."""
        if asked.function_tools:  # the server would leave them out without a word
            names = ", ".join(tool.name for tool in asked.function_tools)
            raise LocalModelError(
                "the local model takes no tools", reason=names, remedy="leave them out, or ask another model"
            )
        server = await asyncio.to_thread(take, self._user)
        self.client.base_url = f"{server.address}/v1"
        self.client.api_key = server.key
