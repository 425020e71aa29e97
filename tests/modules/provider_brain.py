"""`ProviderBrain`: a `Brain` behind the real clients; the provider rejects requests that break a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic_ai.messages import TextPart, ToolCallPart
from pydantic_ai.models import Model

from tests.provider import Failure, ProviderServer, Request
from tests.provider import call as provider_call
from tests.provider.fixtures import StartProvider

__all__ = ["AskedProvider", "ProviderBrain"]


@dataclass(frozen=True)
class AskedProvider:
    """One request, as a provider sees it, with the interface of ``Asked``."""

    request: Request

    @property
    def system(self) -> str:
        return self.request.system

    @property
    def tools(self) -> list[str]:
        return self.request.tool_names

    @property
    def prompts(self) -> list[str]:
        return [message.text for message in self.request.messages if message.role == "user" and message.text]

    @property
    def results(self) -> list[str]:
        return [result.text for message in self.request.messages for result in message.results]

    @property
    def turn(self) -> int:
        return self.request.turn

    @property
    def temperature(self) -> float | None:
        return self.request.body.get("temperature")


class ProviderBrain:
    """A provider whose answers a function decides."""

    def __init__(
        self, start: StartProvider, model_of: Callable[[ProviderServer], Model], decide: Callable[[Any], Any]
    ) -> None:
        self.asked: list[AskedProvider] = []

        def respond(request: Request) -> Any:
            asked = AskedProvider(request)
            self.asked.append(asked)
            try:
                said = decide(asked)
            except RuntimeError as error:
                return Failure(500, str(error))
            return [_piece(piece) for piece in (said if isinstance(said, list) else [said])]

        self.server = start(respond)
        self.model = model_of(self.server)


def _piece(piece: Any) -> Any:
    if isinstance(piece, ToolCallPart):
        return provider_call(piece.tool_name, **piece.args_as_dict())
    return piece.content if isinstance(piece, TextPart) else piece
