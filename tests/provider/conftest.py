"""What every test of the provider gets."""

from __future__ import annotations

from tests.provider.fixtures import model_of, provider, provider_name

__all__ = ["model_of", "provider", "provider_name"]
