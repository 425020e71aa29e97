"""`Talk`, an agent in a conversation, and the recombination of several answers into one.

A `Turn` records one run of the agent in the tree. ``recombine`` concatenates answers, or lets a model merge or judge
them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    SystemPromptPart,
    TextPart,
    ToolReturnPart,
    UserContent,
)
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRun
from pydantic_core import to_json

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

    ``options`` go to every run of the agent (``deps``, ``model``, ``usage_limits``, ``toolsets`` …). The agent's system
    prompts are sent like its instructions, unless the conversation begins with a system prompt. With ``saved`` the
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
        self._outputs: dict[int, str] = {}

    @property
    def saved_id(self) -> str | None:
        """The id of the conversation in the ledger, if it is saved there."""
        return None if self._saved is None else self._saved.id

    def answer(self, node: Node) -> str:
        """Return the answer at a node: the output of the run that ended there, or else the text of the message."""
        return self._outputs.get(node.id) or text_of(node)

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
            merged = await self._add_system_prompts(history, {**self.options, **options})
            async with self.agent.iter(message_history=history, **merged) as run:
                turn.run, turn.loop = run, asyncio.get_running_loop()
                try:
                    requests = 0
                    async for step in run:
                        requests += Agent.is_model_request_node(step)
                        if single and requests > 1 and Agent.is_model_request_node(step):
                            turn.record([*run.all_messages(), step.request])
                            break
                finally:
                    messages = run.all_messages()
                    turn.record(messages)
                    _record_instructions(at, messages[len(history) - 1 :])
            if run.result is not None:
                self._outputs[turn.node.id] = _format_output(run.result.output)
        finally:
            _turn.reset(token)
            if self._saved is not None:
                self._saved.save()
        return turn.node

    async def _add_system_prompts(self, history: Sequence[ModelMessage], options: dict[str, Any]) -> dict[str, Any]:
        """Return ``options`` with the agent's system prompts as instructions.

        pydantic-ai adds system prompts only to an empty history, and the history of a turn has its prompt already.
        """
        if any(isinstance(part, SystemPromptPart) for message in history for part in message.parts):
            return options
        known = {name: options[name] for name in ("deps", "model") if name in options}
        prompts = [part.content for part in await self.agent.system_prompt_parts(message_history=history, **known)]
        given = options.get("instructions")
        instructions = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
        return {**options, "instructions": [*prompts, *instructions]} if prompts else options


def _record_instructions(node: Node, messages: Sequence[ModelMessage]) -> None:
    """Record at a run's first message the instructions sent with it, for later prompts without the agent."""
    sent = messages[0] if messages else None
    if isinstance(sent, ModelRequest) and isinstance(node.message, ModelRequest) and not node.message.instructions:
        node.message = replace(node.message, instructions=sent.instructions)


class Turn:
    """One run of an agent in a conversation, recorded in the tree.

    ``start`` is the node that the run starts from. ``seen`` is the number of the run's messages that are in the tree
    already, by default those up to ``start``. ``node`` is the last node recorded. If a `Talk` started the run, ``run``
    is that run and ``loop`` its event loop.
    """

    def __init__(self, talk: Talk, start: Node, depth: int = 0, *, seen: int | None = None) -> None:
        path = list(start.upwards())
        self.talk = talk
        self.depth = depth
        self.node = start
        self.run: AgentRun[Any, Any] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._seen = len(path) if seen is None else seen
        self._last: ModelMessage | None = talk.conversation.path(start)[-1] if path and seen is None else None
        self._adoption = Adoption(start.message, {call.tool_call_id for node in path for call in node.calls})

    def record(self, messages: Sequence[ModelMessage]) -> Node:
        """Add a run's new messages to the tree and return the last node.

        Tool results that no response follows yet are stored with their calls, where the next message finds them.
        """
        messages = drop_empty_response(messages)
        self._seen = self._count_seen(messages)
        new = messages[self._seen :]
        for number, message in enumerate(new, start=1):
            if isinstance(message, ModelRequest) and number == len(new) and all(map(is_answer, message.parts)):
                self._settle(message)
                break
            self._seen += 1
            self._last = message
            adopted_message = self._adoption.adopt(message)
            if isinstance(adopted_message, ModelRequest):
                self._settle(adopted_message)
            self.node = self.talk.conversation.add(adopted_message, self.node)
        return self.node

    def _count_seen(self, messages: Sequence[ModelMessage]) -> int:
        """Return how many of ``messages`` are in the tree. A history processor may have removed some of them."""
        last = self._last
        if last is None or (len(messages) >= self._seen and _is_same(messages[self._seen - 1], last)):
            return self._seen
        for number in range(len(messages), 0, -1):
            if messages[number - 1] is last or messages[number - 1] == last:
                return number
        for number in range(len(messages), 0, -1):
            if _is_same(messages[number - 1], last):
                return number
        return min(self._seen, len(messages))

    def call_id(self, call: str) -> str:
        """Return the id that a call of the run has in the tree."""
        return self._adoption.call_ids.get(call, call)

    def _settle(self, message: ModelRequest) -> None:
        """Record the results in a message, so that all branches see them."""
        for part in message.parts:
            if isinstance(part, ToolReturnPart | RetryPromptPart) and is_answer(part):
                id_ = self.call_id(part.tool_call_id)
                content = part.content if isinstance(part, ToolReturnPart) else part.model_response()
                if any(id_ == call.tool_call_id for call in self.node.calls):
                    self.talk.conversation.settle(self.node, id_, content)


def _is_same(message: ModelMessage, recorded: ModelMessage) -> bool:
    """Return whether a run's message is the recorded one, to which the run may have added instructions and ids.

    Results are compared by their calls, because those of open calls are created for each request.
    """
    return message is recorded or [_identify(p) for p in message.parts] == [_identify(p) for p in recorded.parts]


def _identify(part: object) -> object:
    return ("result", part.tool_call_id) if isinstance(part, ToolReturnPart) else part


def current_turn(run_id: str | None = None) -> Turn | None:
    """Return the turn that the running tool belongs to.

    With ``run_id``, return it only if that run belongs to the turn: a tool may run another agent.
    """
    turn = _turn.get()
    if turn is None or run_id is None:
        return turn
    return turn if turn.run is not None and turn.run.run_id == run_id else None


def text_of(node: Node) -> str:
    """Return the text of a model message, or the arguments of the call with which the model returned its output."""
    if not isinstance(node.message, ModelResponse):
        return ""
    text = "\n".join(part.content for part in node.message.parts if isinstance(part, TextPart))
    if text:
        return text
    outputs = [call for call in node.calls if _is_output(node.results.get(call.tool_call_id))]
    return "\n".join(call.args_as_json_str() for call in outputs)


_OUTPUT_RESULT = "Final result processed."  # pydantic-ai's answer to the call of an output tool


def _is_output(result: ToolReturnPart | None) -> bool:
    return result is not None and result.content == _OUTPUT_RESULT


def _format_output(output: object) -> str:
    return output if isinstance(output, str) else to_json(output, fallback=str).decode(errors="backslashreplace")


Recombination = Literal["none", "concatenate", "llm_merge", "llm_vote", "llm_judge"]

RECOMBINATIONS: tuple[str, ...] = get_args(Recombination)
_VOTES = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """One of several answers, and its prompt (``asked``).

    ``number`` is the number that the judge knows the answer by; the default is its position, counted from 1.
    """

    asked: str
    text: str
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Recombined:
    """Several answers combined into one. ``winner`` is the index of the chosen answer, if one was chosen.

    ``error`` is the reason why the model gave no verdict; ``text`` then has the answers one after another.
    """

    text: str
    winner: int | None = None
    error: str | None = None


class _Choice(BaseModel):
    """The choice of the best answer."""

    option: int = Field(description="the number of the best option")
    reason: str = Field(default="", description="why, in one sentence")


async def recombine(
    method: Recombination, answers: Sequence[Answer], model: Model | str | None, **options: Any
) -> Recombined:
    """Combine several answers into one. ``model`` is asked in a separate conversation, without the answers' history.

    ``options`` go to the model's runs (``usage``, ``usage_limits`` …). If the model fails or gives no usable verdict,
    the answers are concatenated, and ``error`` has the reason.
    """
    if method not in RECOMBINATIONS:
        raise ValueError(f"cannot recombine answers by {method!r}; choose one of {', '.join(RECOMBINATIONS)}")
    if method == "none" or not answers:
        return Recombined("")
    numbered = {answer.number or position: answer for position, answer in enumerate(answers, start=1)}
    if method == "concatenate" or model is None:
        return Recombined(_concatenate(numbered))
    if len(answers) == 1:
        return Recombined(answers[0].text, 0)
    try:
        if method == "llm_merge":
            return Recombined(await _merge(numbered, model, options))
        option, text = await _vote(numbered, model, _VOTES if method == "llm_vote" else 1, options)
    except Exception as error:  # noqa: BLE001 - any failure of the model costs its verdict, never the answers
        reason = f"{type(error).__name__}: {error}"
        text = f"There is no verdict, because {method} failed: {reason}\nAll answers follow."
        return Recombined(f"{text}\n\n{_concatenate(numbered)}", error=reason)
    return Recombined(text, list(numbered).index(option))


async def _merge(answers: Mapping[int, Answer], model: Model | str, options: Mapping[str, Any]) -> str:
    prompt = "Merge these answers into one that keeps what is right and useful in each, without repeating.\n\n"
    text = str((await Agent(model).run(prompt + _format_options(answers), **options)).output)
    if not text.strip():
        raise ValueError("the model's answer is empty")
    return text


async def _vote(
    answers: Mapping[int, Answer], model: Model | str, count: int, options: Mapping[str, Any]
) -> tuple[int, str]:
    """Let the model choose ``count`` times. Return the number of the winner and the text of the result."""
    outcomes = await asyncio.gather(*(_choose(answers, model, options) for _ in range(count)), return_exceptions=True)
    votes = [outcome for outcome in outcomes if isinstance(outcome, _Choice)]
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    if not votes:
        raise errors[0]
    counted = Counter(vote.option for vote in votes)
    option = min(counted, key=lambda number: (-counted[number], number))
    reason = next(vote.reason for vote in votes if vote.option == option)
    tally = f" with {counted[option]} of {len(votes)} votes" if count > 1 else ""
    lines = [f"Option {option} was chosen{tally}{f': {reason}' if reason else ''}"]
    lines += [f"{len(errors)} of {count} votes failed: {type(errors[0]).__name__}: {errors[0]}"] if errors else []
    return option, "\n".join(lines) + f"\n\n{answers[option].text}"


async def _choose(answers: Mapping[int, Answer], model: Model | str, options: Mapping[str, Any]) -> _Choice:
    judge = Agent(model, output_type=_Choice)

    @judge.output_validator
    def check_range(choice: _Choice) -> _Choice:
        if choice.option not in answers:
            raise ModelRetry(f"there are the options {', '.join(map(str, answers))}")
        return choice

    result = await judge.run(f"Choose the best of these answers.\n\n{_format_options(answers)}", **options)
    choice: _Choice = result.output
    return choice


def _concatenate(answers: Mapping[int, Answer]) -> str:
    return "\n\n".join(f"Response {number}:\n{answer.text}" for number, answer in answers.items())


def _format_options(answers: Mapping[int, Answer]) -> str:
    return "\n\n".join(f"Option {n} (asked: {a.asked})\n{a.text}" for n, a in answers.items())
