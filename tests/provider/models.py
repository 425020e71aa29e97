"""pydantic-ai models with the real clients, connected to the test server instead of the providers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
from httpx2 import Limits
from openai import AsyncOpenAI
from openai import DefaultAsyncHttpxClient as OpenAIHttpxClient
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from tests.provider.server import ProviderServer

__all__ = ["anthropic_client", "anthropic_model", "openai_client", "openai_model", "provider_models"]

KEY = "no-key-is-needed"


def _settings(keep_alive: bool) -> dict[str, Any]:
    # A keep-alive connection belongs to one event loop, and a test has several, so keep-alive is opt-in.
    return {"trust_env": False, "verify": False, "limits": Limits(max_keepalive_connections=100 if keep_alive else 0)}


def anthropic_client(server: ProviderServer, *, keep_alive: bool = False) -> AsyncAnthropic:
    """Return Anthropic's own client, without retries."""
    http = DefaultAsyncHttpxClient(**_settings(keep_alive))
    return AsyncAnthropic(api_key=KEY, base_url=server.url, max_retries=0, http_client=http)


def openai_client(server: ProviderServer, *, keep_alive: bool = False) -> AsyncOpenAI:
    """Return OpenAI's own client, without retries."""
    http = OpenAIHttpxClient(**_settings(keep_alive))
    return AsyncOpenAI(api_key=KEY, base_url=f"{server.url}/v1", max_retries=0, http_client=http)


def anthropic_model(
    server: ProviderServer, name: str = "claude-sonnet-4-6", *, keep_alive: bool = False
) -> AnthropicModel:
    """A model of Anthropic."""
    client = anthropic_client(server, keep_alive=keep_alive)
    return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))


def openai_model(server: ProviderServer, name: str = "gpt-5.2", *, keep_alive: bool = False) -> OpenAIChatModel:
    """A model of OpenAI, over chat completions."""
    client = openai_client(server, keep_alive=keep_alive)
    return OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client))


def provider_models(server: ProviderServer, *, keep_alive: bool = False) -> Mapping[str, Model]:
    """One model of each provider, by the provider's name."""
    return {
        "anthropic": anthropic_model(server, keep_alive=keep_alive),
        "openai": openai_model(server, keep_alive=keep_alive),
    }
