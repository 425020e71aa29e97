"""Fixtures: a provider for a test, which fails the test that draws a 400 nobody announced.

A folder's ``conftest.py`` takes them: ``from tests.provider.fixtures import model_of, provider, provider_name``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest
from pydantic_ai.models import Model

from tests.provider.models import anthropic_model, openai_model
from tests.provider.script import Responder
from tests.provider.server import ProviderServer

__all__ = ["ModelOf", "StartProvider", "check_requests", "model_of", "provider", "provider_name"]

ModelOf = Callable[[ProviderServer], Model]
MAKERS: dict[str, ModelOf] = {"anthropic": anthropic_model, "openai": openai_model}


class StartProvider(Protocol):
    """Starts a provider that runs until the test is over; ``expects_fault`` says that a 400 is what it is about."""

    def __call__(self, script: Responder, *, expects_fault: bool = False, **options: Any) -> ProviderServer: ...


@pytest.fixture
def provider() -> Iterator[StartProvider]:
    """Starts providers, and looks at the end at what they were asked."""
    started: list[tuple[ProviderServer, bool]] = []
    with ExitStack() as running:

        def start(script: Responder, *, expects_fault: bool = False, **options: Any) -> ProviderServer:
            server = running.enter_context(ProviderServer(script, **options))
            started.append((server, expects_fault))
            return server

        yield start
    for server, expects_fault in started:
        check_requests(server, expects_fault=expects_fault)


def check_requests(server: ProviderServer, *, expects_fault: bool = False) -> None:
    """Fail where the script did, where a request drew a 400, or where none did though it was expected."""
    if server.failures:
        raise server.failures[0]
    drawn = [f"{fault.rule}: {fault.message}" for fault in server.faults]
    if expects_fault:
        assert drawn, "the test expects a 400, and every request kept the rules"
    else:
        assert not drawn, f"{len(drawn)} of {len(server.requests)} requests broke the provider's rules: {drawn[0]}"


@pytest.fixture(params=MAKERS)
def provider_name(request: pytest.FixtureRequest) -> str:
    """Each provider in turn."""
    return str(request.param)


@pytest.fixture
def model_of(provider_name: str) -> ModelOf:
    """Makes the model of each provider in turn, on a server."""
    return MAKERS[provider_name]
