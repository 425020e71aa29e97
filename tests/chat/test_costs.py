"""What a conversation costs: nothing with models of this machine, unknown only where a price is not known."""

from __future__ import annotations

import pytest
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.usage import RequestUsage

from forkwise.chat.render import format_cost
from forkwise.chat.services import Costs
from forkwise.conversation.conversation import Conversation

USAGE = RequestUsage(input_tokens=1000, output_tokens=1000)


def response(name: str, provider: str, url: str = "") -> ModelResponse:
    return ModelResponse(
        [TextPart("hi")], usage=USAGE, model_name=name, provider_name=provider, provider_url=url or None
    )


LOCAL = response("gemma", "openai", "http://127.0.0.1:4711/v1/")
PRICED = response("gpt-4o", "openai", "https://api.openai.com/v1/")
UNKNOWN = response("made-up", "somewhere", "https://models.example/v1/")


@pytest.mark.parametrize(
    ("responses", "expected"),
    [
        ((), "$0.0000, 0 requests"),
        ((LOCAL, response("llama", "ollama", "http://localhost:11434/v1/")), "free, 2 requests"),
        ((response("script:demo", ""),), "free, 1 request"),
        ((UNKNOWN,), "unknown price, 1 request"),
        ((PRICED,), "$0.0125, 1 request"),
        ((PRICED, LOCAL), "$0.0125, 2 requests"),
        ((PRICED, UNKNOWN), "$0.0125 + unknown price, 2 requests"),
        ((LOCAL, UNKNOWN), "free + unknown price, 2 requests"),
    ],
)
def test_the_cost_of_a_conversation(responses: tuple[ModelResponse, ...], expected: str) -> None:
    conversation = Conversation()
    for message in responses:
        conversation.extend([ModelRequest([UserPromptPart("hello")]), message])
    assert format_cost(Costs(conversation).update(), []) == f"conversation: {expected}"
