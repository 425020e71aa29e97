"""Fixtures: a provider for a test, which fails the test on an unexpected 400.

A directory's ``conftest.py`` imports them: ``from tests.provider.fixtures import model_of, provider, provider_name``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest
from pydantic_ai.models import Model

from tests.provider.script import Responder
from tests.provider.server import ProviderServer

__all__ = ["ModelOf", "StartProvider", "check_requests", "model_of", "provider", "provider_name"]

ModelOf = Callable[[ProviderServer], Model]


def _anthropic(server: ProviderServer) -> Model:
    from tests.provider.models import anthropic_model  # the clients take seconds to import

    return anthropic_model(server)


def _openai(server: ProviderServer) -> Model:
    from tests.provider.models import openai_model

    return openai_model(server)


MAKERS: dict[str, ModelOf] = {"anthropic": _anthropic, "openai": _openai}


class StartProvider(Protocol):
    """Starts a provider that runs until the test ends; with ``expects_fault`` the test expects a 400."""

    def __call__(self, script: Responder, *, expects_fault: bool = False, **options: Any) -> ProviderServer: ...


@pytest.fixture
def provider() -> Iterator[StartProvider]:
    """Start providers, and check their requests at the end."""
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
    """Fail if the script failed, on an unexpected 400, or without an expected one."""
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
    """Provide a function that builds each provider's model for a server."""
    return MAKERS[provider_name]
