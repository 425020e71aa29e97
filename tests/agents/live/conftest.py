"""Async tests of live forking run on asyncio."""

from __future__ import annotations

import pytest

from tests.leftovers import workspace

__all__ = ["anyio_backend", "workspace"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
