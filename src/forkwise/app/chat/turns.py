"""Turns: what is said to the agent and what it answers, put into the conversation as it is said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pydantic_ai.messages import ModelMessage, ModelResponse

from forkwise.app.chat.desk import Desk
from forkwise.app.chat.events import TurnBegan, TurnEnded
from forkwise.app.chat.failing import told
from forkwise.app.chat.keeping import MERGED
from forkwise.conversation.node import Node
from forkwise.conversation.talk import Talk, Turn, text_of

__all__ = ["Turns"]


class Turns:
    """The turns of a chat, one at a time."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._task: asyncio.Task[TurnEnded] | None = None
        self._turn: Turn | None = None
        self._merged: list[str] = []

    @property
    def is_under_way(self) -> bool:
        """Whether the agent is at it."""
        return self._task is not None

    @property
    def node(self) -> Node:
        """How far the turn under way has come; else where the conversation is."""
        return self._desk.kept.here if self._turn is None else self._turn.node

    def interrupt(self) -> bool:
        """End the turn under way; whether there was one. What was said until then stays."""
        return self._task is not None and self._task.cancel()

    def merged(self, fork: str) -> None:
        """The agent has merged a fork: noted as soon as what follows from it is in the conversation."""
        self._merged.append(fork)

    async def prompt(self, text: str) -> TurnEnded:
        """Say something, and wait for the end of the answer. Who is cancelled while waiting ends the turn."""
        if self._task is not None:
            raise RuntimeError("a turn is under way")
        self._desk.feed.tell(TurnBegan(text))
        self._task = asyncio.create_task(self._run(text))
        try:
            while not self._task.done():
                try:
                    await asyncio.wait([self._task])
                except asyncio.CancelledError:
                    self._task.cancel()
                    await asyncio.wait([self._task])
                    raise
            if self._task.cancelled():  # before it had begun
                ended = TurnEnded("interrupted", "", self._desk.kept.here.id)
            else:
                ended = self._task.result()
        finally:
            self._task = None
        self._desk.feed.tell(ended)
        self._desk.feed.tell(self._desk.costs.now())
        return ended

    async def _run(self, text: str) -> TurnEnded:
        kept = self._desk.kept
        start = kept.here
        asked = kept.conversation.say(text, start)
        self._turn = turn = Turn(Talk(self._desk.agent, kept.conversation), asked)
        state, error = "done", None
        try:
            await self._follow(turn)
        except asyncio.CancelledError:
            state = "interrupted"
        except Exception as failure:  # noqa: BLE001 - whatever a provider raises ends the turn, and not the chat
            state, error = "failed", told(failure)
        finally:
            self._turn = None
            here = kept.settle(turn.node)
            self._note(here)
            kept.save()
        said = text_of(here) if here is not start else ""
        return TurnEnded(state, said, here.id, error)  # type: ignore[arg-type]

    async def _follow(self, turn: Turn) -> None:
        desk = self._desk
        history = desk.kept.conversation.path(turn.node)
        async with desk.agent.iter(message_history=history, deps=desk.deps, usage_limits=desk.limits) as run:
            try:
                async for _ in run:
                    self._take(turn, run.all_messages())
            finally:
                self._take(turn, run.all_messages())

    def _take(self, turn: Turn, messages: Sequence[ModelMessage]) -> None:
        before = turn.node
        turn.take(_said(messages))
        if turn.node is not before:
            self._note(self._desk.kept.settle(turn.node))
            self._desk.kept.save()

    def _note(self, node: Node) -> None:
        while self._merged:
            self._desk.kept.mark(MERGED, self._merged.pop(), node)


def _said(messages: Sequence[ModelMessage]) -> Sequence[ModelMessage]:
    """Messages without a last one in which nothing was said, because the provider failed."""
    last = messages[-1] if messages else None
    return messages[:-1] if isinstance(last, ModelResponse) and not last.parts else messages
