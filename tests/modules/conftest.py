"""Fixtures for tests of agents."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.leftovers import workspace
from tests.modules.brain import Brain
from tests.modules.provider_brain import ProviderBrain
from tests.provider.fixtures import MAKERS, StartProvider, model_of, provider, provider_name

__all__ = ["Thinking", "any_brain", "model_of", "provider", "provider_name", "workspace"]

os.environ["PYDANTIC_AI_NO_BANNER"] = "1"

#: Builds a brain from a deciding function.
Thinking = Callable[[Callable[[Any], Any]], Any]


@pytest.fixture(params=["function", *MAKERS])
def any_brain(request: pytest.FixtureRequest, provider: StartProvider) -> Thinking:
    """Provide a brain as a function in this process, and behind each provider's real client."""

    def think(decide: Callable[[Any], Any]) -> Any:
        if request.param == "function":
            return Brain(decide=decide)
        return ProviderBrain(provider, MAKERS[request.param], decide)

    return think
