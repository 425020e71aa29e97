"""Moves: going on from another place of the conversation, comparing places, and going back to checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from pydantic_ai.messages import ModelMessage, ModelResponse

from forkwise.chat.events import Moved, Notice, TurnBegan, TurnEnded, error_text
from forkwise.chat.services import ChatServices
from forkwise.chat.storage import LOADING, MERGED
from forkwise.concurrency import finish
from forkwise.conversation.flows import leaves
from forkwise.conversation.node import Node
from forkwise.conversation.talk import RECOMBINATIONS, Answer, Recombination, Talk, Turn, recombine, text_of
from forkwise.conversation.walker import add_combination, diff_branches
from forkwise.errors import BranchingError, ConversationError
from forkwise.live.checkpoints import Checkpoint, CheckpointStore, rewind

__all__ = [
    "Navigation",
    "Turns",
]


class Turns:
    """The turns of a chat, one at a time."""

    def __init__(self, desk: ChatServices) -> None:
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
        self._desk.feed.publish(TurnBegan(text))
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
        self._desk.feed.publish(ended)
        self._desk.feed.publish(self._desk.costs.now())
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
            state, error = "failed", error_text(failure)
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
        turn.record(_said(messages))
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


class Navigation:
    """Ways about in the conversation of a chat."""

    def __init__(self, desk: ChatServices) -> None:
        self._desk = desk

    def go(self, name: str) -> Node:
        """Be at another place, by the number of a message or a label; files stay as they are."""
        kept = self._desk.kept
        here = kept.settle(kept.find(name))
        kept.save()
        self._desk.feed.publish(Moved(here.id, "go"))
        return here

    def label(self, name: str, node: Node) -> None:
        """Give a place a name. What forks and numbers are called by, and what no command could be told, is none."""
        if name.isdecimal() or not name or any(sign in ":/" or sign.isspace() for sign in name):
            raise ConversationError(f"{name!r} names no place: a word does, without : and /, that is no number")
        self._desk.kept.conversation.label(name, node)
        self._desk.kept.save()

    def compare(self, first: str, second: str) -> str:
        """How what was said up to two places differs, as unified text."""
        kept = self._desk.kept
        return diff_branches(kept.find(first), kept.find(second))

    async def combine(self, names: Sequence[str] = (), how: Recombination = "concatenate") -> Node:
        """Make one answer of several, those of all branches where none are named, and be there."""
        if how not in RECOMBINATIONS or how == "none":
            raise ConversationError(f"answers are combined by {', '.join(RECOMBINATIONS[1:])}, not by {how!r}")
        kept = self._desk.kept
        nodes = [kept.find(name) for name in names] or leaves(kept.conversation.root)
        if len(nodes) < 2:
            raise ConversationError("two answers at least are combined")
        answers = [Answer(f"message {node.id}", text_of(node)) for node in nodes]
        made = await recombine(how, answers, None if how == "concatenate" else self._desk.model)
        kept.conversation.here = add_combination(kept.conversation, nodes, made.text)
        kept.save()
        self._desk.feed.publish(Moved(kept.here.id, "combine"))
        return kept.here

    # Checkpoints

    @property
    def _store(self) -> CheckpointStore:
        store = self._desk.deps.checkpoint_store
        assert store is not None
        return store

    async def checkpoints(self) -> list[Checkpoint]:
        """What can be gone back to, the oldest first."""
        return await self._store.list_all()

    async def load(self, name: str) -> Checkpoint:
        """Go back to a checkpoint, by its id or its label: its files are there again, and so is the conversation.
        LookupError where there is none; CommitError, with nothing changed, where the files cannot be had back."""
        kept = self._desk.kept
        found = await self._store.get_by_label(name)
        if found is None:
            found = await self._store.get(name) if name.isalnum() else None
        if found is None:
            raise LookupError(f"there is no checkpoint {name!r}; /load lists them")
        kept.mark(LOADING, found.id, kept.here)
        kept.save()
        await finish(asyncio.ensure_future(self._carry_out(found)))
        return found

    async def _carry_out(self, checkpoint: Checkpoint) -> None:
        kept = self._desk.kept
        history = kept.conversation.path()
        try:
            await rewind(self._store, checkpoint.id, self._desk.deps.backend, history)
        except Exception:
            kept.unmark(LOADING, checkpoint.id)
            kept.save()
            raise
        here = kept.settle(kept.graft(checkpoint.messages, kept.conversation.root))
        kept.unmark(LOADING, checkpoint.id)
        kept.save()
        self._desk.feed.publish(Moved(here.id, f"load {checkpoint.label}"))

    async def finish_load(self, name: str) -> None:
        """Bring to its end what a kill cut short."""
        with suppress(ValueError):
            found = await self._store.get(name)
            if found is not None:
                try:
                    await self._carry_out(found)
                except BranchingError as error:
                    text = (
                        f"going back to checkpoint {found.label} was interrupted and is not done: {error_text(error)}"
                    )
                    self._desk.feed.publish(Notice(text))
                    return
                self._desk.feed.publish(Notice(f"went back to checkpoint {found.label}, which had been interrupted"))
                return
        self._desk.kept.unmark(LOADING, name)
        self._desk.kept.save()
