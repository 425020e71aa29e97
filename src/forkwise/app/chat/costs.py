"""What a conversation has cost, summed over all that models said in it, on every path."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from itertools import islice

from pydantic_ai.messages import ModelResponse

from forkwise.app.chat.events import CostChanged
from forkwise.conversation.conversation import Conversation

__all__ = ["Costs"]


class Costs:
    """Adds up as a conversation grows: each message is looked at once."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._seen = 0
        self._sum = CostChanged(0, 0, 0)

    def now(self) -> CostChanged:
        """What it has taken so far. Dollars are those that are known; None where none are."""
        for node in islice(self._conversation, self._seen, None):
            self._seen += 1
            if isinstance(node.message, ModelResponse):
                self._add(node.message)
        return self._sum

    def _add(self, message: ModelResponse) -> None:
        before, usage, price = self._sum, message.usage, _price(message)
        self._sum = CostChanged(
            before.requests + 1,
            before.input_tokens + usage.input_tokens,
            before.output_tokens + usage.output_tokens,
            before.usd if price is None else (before.usd or 0.0) + float(price),
        )


def _price(message: ModelResponse) -> Decimal | None:
    if message.model_name is None:
        return None
    with suppress(LookupError, AssertionError, ValueError):
        return message.cost().total_price
    return None
