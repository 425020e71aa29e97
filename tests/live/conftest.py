"""Async tests of live forking run on asyncio."""

from __future__ import annotations

import pytest

from tests.leftovers import workspace
from tests.modules.conftest import any_brain
from tests.provider.fixtures import model_of, provider, provider_name

__all__ = ["any_brain", "anyio_backend", "model_of", "provider", "provider_name", "workspace"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
