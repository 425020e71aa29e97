"""`Talk`, an agent in a conversation, and the recombination of several answers into one.

A `Turn` records one run of the agent in the tree. ``recombine`` concatenates answers, or lets a model merge or judge
them.
"""

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

from forkwise.conversation.adopt import Adoption, drop_empty_response
from forkwise.conversation.conversation import Conversation
from forkwise.conversation.node import Node, is_answer
from forkwise.conversation.store import StoredConversation
from forkwise.errors import ConversationError

__all__ = [
    "RECOMBINATIONS",
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
    conversation is written to the ledger after every run.

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
        """Send a prompt to the agent and return the node of its final answer.

        ``at`` is the node to continue from, by default the current node, which then moves to the answer.
        """
        talk = self.conversation
        start = talk.here if at is None else at
        if start.message is not None and not start.is_response:
            raise ConversationError(
                "the last message there is a user message: a prompt can follow only after the model's answer",
                node=start.id,
            )
        node = await self.go_on(talk.say(prompt, start))
        if at is None:
            talk.here = node
        return node

    async def go_on(self, at: Node, *, single: bool = False, depth: int = 0, **options: Any) -> Node:
        """Let the agent answer a user message of the tree, and return the node of its last response.

        With ``single`` the agent responds once: its tool calls run, but it sees their results only with the next
        prompt. If the agent fails, its messages up to then stay in the tree.
        """
        turn = Turn(self, at, depth)
        token = _turn.set(turn)
        try:
            history = self.conversation.path(at)
            async with self.agent.iter(message_history=history, **{**self.options, **options}) as run:
                try:
                    requests = 0
                    async for step in run:
                        requests += Agent.is_model_request_node(step)
                        if single and requests > 1 and Agent.is_model_request_node(step):
                            turn.record([*run.all_messages(), step.request])
                            break
                finally:
                    turn.record(run.all_messages())
        finally:
            _turn.reset(token)
            if self._saved is not None:
                self._saved.save()
        return turn.node


class Turn:
    """One run of an agent in a conversation, recorded in the tree.

    ``start`` is the node that the run starts from. ``seen`` is the number of the run's messages that are in the tree
    already, by default those up to ``start``. ``node`` is the last node recorded.
    """

    def __init__(self, talk: Talk, start: Node, depth: int = 0, *, seen: int | None = None) -> None:
        path = list(start.upwards())
        self.talk = talk
        self.depth = depth
        self.node = start
        self._seen = len(path) if seen is None else seen
        self._adoption = Adoption(start.message, {call.tool_call_id for node in path for call in node.calls})

    def record(self, messages: Sequence[ModelMessage]) -> Node:
        """Add a run's new messages to the tree and return the last node.

        Tool results that no response follows yet are stored with their calls, where the next message finds them.
        """
        new = drop_empty_response(messages)[self._seen :]
        for number, message in enumerate(new, start=1):
            if isinstance(message, ModelRequest) and number == len(new) and all(map(is_answer, message.parts)):
                self._settle(message)
                break
            self._seen += 1
            adopted_message = self._adoption.adopt(message)
            if isinstance(adopted_message, ModelRequest):
                self._settle(adopted_message)
            self.node = self.talk.conversation.add(adopted_message, self.node)
        return self.node

    def call_id(self, call: str) -> str:
        """Return the id that a call of the run has in the tree."""
        return self._adoption.call_ids.get(call, call)

    def _settle(self, message: ModelRequest) -> None:
        """Record the results in a message, so that all branches see them."""
        for part in message.parts:
            if isinstance(part, ToolReturnPart):
                id_ = self.call_id(part.tool_call_id)
                if any(id_ == call.tool_call_id for call in self.node.calls):
                    self.talk.conversation.settle(self.node, id_, part.content)


def current_turn() -> Turn | None:
    """Return the turn that the running tool belongs to."""
    return _turn.get()


def text_of(node: Node) -> str:
    """Return the text of a model message."""
    if not isinstance(node.message, ModelResponse):
        return ""
    return "\n".join(part.content for part in node.message.parts if isinstance(part, TextPart))


Recombination = Literal["none", "concatenate", "llm_merge", "llm_vote", "llm_judge"]

RECOMBINATIONS: tuple[str, ...] = get_args(Recombination)
_VOTES = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """One of several answers, and its prompt (``asked``)."""

    asked: str
    text: str


@dataclass(frozen=True, slots=True)
class Recombined:
    """Several answers made one. ``winner`` is the index of the chosen answer, if one was chosen."""

    text: str
    winner: int | None = None


class _Choice(BaseModel):
    """The choice of the best answer."""

    option: int = Field(description="the number of the best option, counted from 1")
    reason: str = Field(default="", description="why, in one sentence")


async def recombine(method: Recombination, answers: Sequence[Answer], model: Model | str | None) -> Recombined:
    """Make one answer of several. ``model`` is asked in a separate conversation, without the answers' history."""
    if method not in RECOMBINATIONS:
        raise ValueError(f"cannot recombine answers by {method!r}; choose one of {', '.join(RECOMBINATIONS)}")
    if method == "none" or not answers:
        return Recombined("")
    if method == "concatenate" or model is None:
        return Recombined("\n\n".join(f"Response {n}:\n{a.text}" for n, a in enumerate(answers, start=1)))
    if len(answers) == 1:
        return Recombined(answers[0].text, 0)
    if method == "llm_merge":
        prompt = "Merge these answers into one that keeps what is right and useful in each, without repeating.\n\n"
        return Recombined(str((await Agent(model).run(prompt + _format_options(answers))).output))
    votes = await asyncio.gather(*(_choose(answers, model) for _ in range(_VOTES if method == "llm_vote" else 1)))
    counted = Counter(vote.option for vote in votes)
    option = min(counted, key=lambda number: (-counted[number], number))
    reason = next(vote.reason for vote in votes if vote.option == option)
    tally = f" with {counted[option]} of {len(votes)} votes" if method == "llm_vote" else ""
    choice = f"Option {option} was chosen{tally}{f': {reason}' if reason else ''}"
    return Recombined(f"{choice}\n\n{answers[option - 1].text}", option - 1)


async def _choose(answers: Sequence[Answer], model: Model | str) -> _Choice:
    judge = Agent(model, output_type=_Choice)

    @judge.output_validator
    def check_range(choice: _Choice) -> _Choice:
        if not 1 <= choice.option <= len(answers):
            raise ModelRetry(f"there are options 1 to {len(answers)}")
        return choice

    return (await judge.run(f"Choose the best of these answers.\n\n{_format_options(answers)}")).output


def _format_options(answers: Sequence[Answer]) -> str:
    return "\n\n".join(f"Option {n} (asked: {a.asked})\n{a.text}" for n, a in enumerate(answers, start=1))
