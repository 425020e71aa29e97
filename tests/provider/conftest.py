"""Fixtures for tests of the provider."""

from __future__ import annotations

from tests.provider.fixtures import model_of, provider, provider_name

__all__ = ["model_of", "provider", "provider_name"]
