"""What a conversation has cost, summed over all that models said in it, on every path."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal

from pydantic_ai.messages import ModelResponse

from forkwise.app.chat.events import CostChanged
from forkwise.conversation.conversation import Conversation

__all__ = ["cost_of"]


def cost_of(conversation: Conversation) -> CostChanged:
    """What it has taken so far. Dollars are those that are known; None where none are."""
    requests = given = got = 0
    usd: Decimal | None = None
    for node in conversation:
        if isinstance(node.message, ModelResponse):
            requests += 1
            given += node.message.usage.input_tokens
            got += node.message.usage.output_tokens
            price = _price(node.message)
            usd = price if usd is None else usd + (price or 0)
    return CostChanged(requests, given, got, None if usd is None else float(usd))


def _price(message: ModelResponse) -> Decimal | None:
    if message.model_name is None:
        return None
    with suppress(LookupError, AssertionError, ValueError):
        return message.cost().total_price
    return None
