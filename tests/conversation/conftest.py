"""Fixtures: async tests run on asyncio, and models talk to a test provider on the loopback."""

from __future__ import annotations

import pytest

from tests.provider.fixtures import model_of, provider, provider_name

__all__ = ["anyio_backend", "model_of", "provider", "provider_name"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
