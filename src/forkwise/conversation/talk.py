"""Talk: an agent of pydantic-ai's in a conversation. It can be prompted at any node of the tree, and what it and its
tools say becomes part of the tree as they say it."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolReturnPart, UserContent

from forkwise.conversation.adoption import Adoption, spoken
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.node import Node
from forkwise.conversation.rules import is_answer
from forkwise.conversation.saving import Saved
from forkwise.errors import ConversationError

__all__ = ["Talk", "Turn", "current_turn", "text_of"]

_turn: ContextVar[Turn | None] = ContextVar("forkwise_turn", default=None)


class Talk:
    """An agent in a conversation.

    ``options`` go to every run of the agent (``deps``, ``model``, ``usage_limits``, ``toolsets`` …). With ``saved`` the
    conversation is written to the ledger whenever the agent has spoken.

    >>> import asyncio
    >>> from pydantic_ai.models.test import TestModel
    >>> talk = Talk(Agent(TestModel(custom_output_text="42")))
    >>> text_of(asyncio.run(talk.prompt("What is 6 x 7?")))
    '42'
    """

    def __init__(
        self,
        agent: Agent[Any, Any],
        conversation: Conversation | None = None,
        *,
        saved: Saved | None = None,
        **options: Any,
    ) -> None:
        self.agent = agent
        self.conversation = conversation or (saved.conversation if saved else Conversation())
        self.options = options
        self._saved = saved

    async def prompt(self, prompt: str | Sequence[UserContent], at: Node | None = None) -> Node:
        """Say something to the agent, at the place where one is or at another node, and wait for what it says in the
        end; gives that node. Without a node of one's own, the place moves there."""
        talk = self.conversation
        start = talk.here if at is None else at
        if start.message is not None and not start.is_response:
            raise ConversationError(
                "a user spoke last there: what is said next follows the model's answer", node=start.id
            )
        node = await self.go_on(talk.say(prompt, start))
        if at is None:
            talk.here = node
        return node

    async def go_on(self, at: Node, *, single: bool = False, depth: int = 0, **options: Any) -> Node:
        """Have the agent answer a user's message that is in the tree; gives the node of its last word.

        ``single`` lets it speak once: the tools it calls are run, and it hears of what came of them only when it is
        prompted again. Whatever it said before it failed stays in the tree.
        """
        turn = Turn(self, at, depth)
        token = _turn.set(turn)
        try:
            history = self.conversation.path(at)
            async with self.agent.iter(message_history=history, **{**self.options, **options}) as run:
                try:
                    asked = 0
                    async for step in run:
                        asked += Agent.is_model_request_node(step)
                        if single and asked > 1 and Agent.is_model_request_node(step):
                            turn.take([*run.all_messages(), step.request])
                            break
                finally:
                    turn.take(run.all_messages())
        finally:
            _turn.reset(token)
            if self._saved is not None:
                self._saved.save()
        return turn.node


class Turn:
    """One run of an agent in a conversation, and how far what it said is in the tree: its first ``seen`` messages are
    what led to the node at which it starts."""

    def __init__(self, talk: Talk, start: Node, depth: int = 0, *, seen: int | None = None) -> None:
        path = list(start.upwards())
        self.talk = talk
        self.depth = depth
        self.node = start
        self._seen = len(path) if seen is None else seen
        self._adoption = Adoption(start.message, {call.tool_call_id for node in path for call in node.calls})

    def take(self, messages: Sequence[ModelMessage]) -> Node:
        """Put what is new of a run's messages into the tree; gives the last node. Results that no word followed yet are
        kept with the calls, where the next word finds them."""
        new = spoken(messages)[self._seen :]
        for number, message in enumerate(new, start=1):
            if isinstance(message, ModelRequest) and number == len(new) and all(map(is_answer, message.parts)):
                self.settle(message)
                break
            self._seen += 1
            taken = self._adoption.take(message)
            if isinstance(taken, ModelRequest):
                self.settle(taken)
            self.node = self.talk.conversation.add(taken, self.node)
        return self.node

    def settle(self, message: ModelRequest) -> None:
        """Let all branches have the results that a message carries."""
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                call = self.called(part.tool_call_id)
                if any(call == asked.tool_call_id for asked in self.node.calls):
                    self.talk.conversation.settle(self.node, call, part.content)

    def called(self, call: str) -> str:
        """The id by which the tree knows a call of the run."""
        return self._adoption.names.get(call, call)


def current_turn() -> Turn | None:
    """The turn as a part of which a tool is called."""
    return _turn.get()


def text_of(node: Node) -> str:
    """What a model said in words."""
    if not isinstance(node.message, ModelResponse):
        return ""
    return "\n".join(part.content for part in node.message.parts if isinstance(part, TextPart))
