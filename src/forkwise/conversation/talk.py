"""Recombination: several answers made one, by writing them one after the other or by asking a model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, ToolReturnPart, UserContent
from pydantic_ai.models import Model

from forkwise.conversation.adopt import Adoption, spoken
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.node import Node, is_answer
from forkwise.conversation.store import StoredConversation
from forkwise.errors import ConversationError

__all__ = [
    "WAYS",
    "Answer",
    "Recombination",
    "Recombined",
    "Talk",
    "Turn",
    "current_turn",
    "recombine",
    "text_of",
]


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
        saved: StoredConversation | None = None,
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


Recombination = Literal["none", "concatenate", "llm_merge", "llm_vote", "llm_judge"]

WAYS: tuple[str, ...] = get_args(Recombination)
_JUDGES = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """One of several answers, and what was asked for it."""

    asked: str
    text: str


@dataclass(frozen=True, slots=True)
class Recombined:
    """What several answers became; ``winner`` is the number of the one that was chosen, where one was."""

    text: str
    winner: int | None = None


class _Choice(BaseModel):
    """Which answer is the best."""

    option: int = Field(description="the number of the best option, counted from 1")
    reason: str = Field(default="", description="why, in one sentence")


async def recombine(how: Recombination, answers: Sequence[Answer], model: Model | str | None) -> Recombined:
    """Make one of several answers. The model is asked in a conversation of its own, which has nothing to do with the
    one the answers come from."""
    if how not in WAYS:
        raise ValueError(f"answers are not recombined by {how!r}; there are {', '.join(WAYS)}")
    if how == "none" or not answers:
        return Recombined("")
    if how == "concatenate" or model is None:
        return Recombined("\n\n".join(f"Response {n}:\n{a.text}" for n, a in enumerate(answers, start=1)))
    if len(answers) == 1:
        return Recombined(answers[0].text, 0)
    if how == "llm_merge":
        asked = "Merge these answers into one that keeps what is right and useful in each, without repeating.\n\n"
        return Recombined(str((await Agent(model).run(asked + _listed(answers))).output))
    votes = await asyncio.gather(*(_choose(answers, model) for _ in range(_JUDGES if how == "llm_vote" else 1)))
    counted = Counter(vote.option for vote in votes)
    option = min(counted, key=lambda number: (-counted[number], number))
    reason = next(vote.reason for vote in votes if vote.option == option)
    tally = f" with {counted[option]} of {len(votes)} votes" if how == "llm_vote" else ""
    told = f"Option {option} was chosen{tally}{f': {reason}' if reason else ''}"
    return Recombined(f"{told}\n\n{answers[option - 1].text}", option - 1)


async def _choose(answers: Sequence[Answer], model: Model | str) -> _Choice:
    judge = Agent(model, output_type=_Choice)

    @judge.output_validator
    def in_range(choice: _Choice) -> _Choice:
        if not 1 <= choice.option <= len(answers):
            raise ModelRetry(f"there are options 1 to {len(answers)}")
        return choice

    return (await judge.run(f"Choose the best of these answers.\n\n{_listed(answers)}")).output


def _listed(answers: Sequence[Answer]) -> str:
    return "\n\n".join(f"Option {n} (asked: {a.asked})\n{a.text}" for n, a in enumerate(answers, start=1))
