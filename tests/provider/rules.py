"""The providers' rules as pure functions from a request to an error."""

from __future__ import annotations

from tests.provider.anthropic_rules import AnthropicOptions, anthropic_fault
from tests.provider.fault import Fault
from tests.provider.openai_rules import openai_fault

__all__ = ["AnthropicOptions", "Fault", "anthropic_fault", "openai_fault"]
