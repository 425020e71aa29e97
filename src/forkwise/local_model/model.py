"""The local model as a pydantic-ai model. It streams and fills a JSON schema exactly, but accepts no tools.

Structured output is sent as a schema in ``response_format``; the server samples only tokens that fit it.
"""

from __future__ import annotations

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

from forkwise.concurrency import run_in_thread
from forkwise.errors import LocalModelError
from forkwise.local_model import NAME
from forkwise.local_model.server import CONTEXT, MODEL, acquire, release

__all__ = ["LocalModel"]

_PROFILE = OpenAIModelProfile(
    supports_tools=False,
    supports_json_schema_output=True,
    supports_json_object_output=True,
    default_structured_output_mode="native",
    json_schema_transformer=None,  # the server enforces lengths and bounds, which OpenAI rejects
    supports_image_input=False,
    supports_document_input=False,
    supports_audio_file_input=False,
    supports_video_input=False,
    context_window=CONTEXT,
)

# A model this small does not always know when to stop.
_SETTINGS = ModelSettings(max_tokens=CONTEXT // 8)


class _Provider(OpenAIProvider):
    """A provider with its own name, so that OpenAI's prices and caching do not apply."""

    @property
    def name(self) -> str:
        return NAME


class LocalModel(OpenAIChatModel):
    """A user of the shared server, from its first request until it is collected or its ``async with`` block ends."""

    def __init__(self) -> None:
        # No proxy for the loopback, and no connection kept alive, so that any event loop can use the client.
        http = httpx2.AsyncClient(trust_env=False, limits=httpx2.Limits(max_keepalive_connections=0))
        client = AsyncOpenAI(base_url="http://127.0.0.1", api_key="not known yet", http_client=http, max_retries=0)
        super().__init__(MODEL, provider=_Provider(openai_client=client), profile=_PROFILE, settings=_SETTINGS)
        self._user = object()
        self._entered = 0
        weakref.finalize(self, release, self._user)

    async def __aenter__(self) -> Self:
        self._entered += 1
        return await super().__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, traceback)
        self._entered -= 1
        if not self._entered:
            await run_in_thread(release, self._user)

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Send a request and return the complete response."""
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
        """Send a request and stream the response."""
        await self._connect(model_request_parameters)
        async with super().request_stream(messages, model_settings, model_request_parameters, run_context) as response:
            yield response

    async def _connect(self, parameters: ModelRequestParameters) -> None:
        """Start the server if necessary, and point the client to it."""
        if parameters.function_tools:  # the server would ignore them silently
            names = ", ".join(tool.name for tool in parameters.function_tools)
            raise LocalModelError(
                "the local model takes no tools", reason=names, remedy="remove them, or use another model"
            )
        server = await run_in_thread(acquire, self._user)
        self.client.base_url = f"{server.address}/v1"
        self.client.api_key = server.key
