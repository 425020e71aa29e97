"""`Fault`: a provider's error response to a request that breaks its rules.

Separate from the rules, because the server also sends faults without a rule, e.g. for a body that is not JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Fault", "anthropic_refusal", "openai_refusal"]


@dataclass(frozen=True)
class Fault:
    """A refusal: its HTTP status, the whole body, and the number of the rule that was broken (``A1``, ``O3``)."""

    status: int
    body: Mapping[str, Any]
    rule: str = ""

    @property
    def message(self) -> str:
        """The sentence the provider answers with."""
        return str(self.body["error"]["message"])

    @property
    def param(self) -> str | None:
        """What OpenAI names as the offending parameter."""
        named = self.body["error"].get("param")
        return None if named is None else str(named)

    @property
    def code(self) -> str | None:
        """OpenAI's code of the error."""
        named = self.body["error"].get("code")
        return None if named is None else str(named)


def anthropic_refusal(message: str, rule: str = "") -> Fault:
    """Return a 400 in Anthropic's format; the server adds the id of the request."""
    return Fault(400, {"type": "error", "error": {"type": "invalid_request_error", "message": message}}, rule)


def openai_refusal(message: str, param: str | None, code: str | None = None, rule: str = "") -> Fault:
    """Return a 400 in OpenAI's format."""
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return Fault(400, {"error": error}, rule)
