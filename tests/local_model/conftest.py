"""Fixtures of the local model's tests."""

from tests.leftovers import workspace
from tests.provider.fixtures import model_of, provider, provider_name

__all__ = ["model_of", "provider", "provider_name", "workspace"]
