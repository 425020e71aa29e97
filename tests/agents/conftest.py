"""What every test of agents gets."""

from __future__ import annotations

import os

from tests.provider.fixtures import model_of, provider, provider_name

__all__ = ["model_of", "provider", "provider_name"]

os.environ["PYDANTIC_AI_NO_BANNER"] = "1"
