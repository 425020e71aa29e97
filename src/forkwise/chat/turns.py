"""The agent's turns in the conversation, and navigation: go to, label, compare and combine nodes; load checkpoints."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from forkwise.chat.events import Moved, Notice, TurnBegan, TurnEnded, error_text
from forkwise.chat.storage import LOADING, MERGED
from forkwise.concurrency import finish
from forkwise.conversation.adopt import drop_empty_response
from forkwise.conversation.flows import leaves
from forkwise.conversation.talk import RECOMBINATIONS, Answer, Talk, Turn, recombine, text_of
from forkwise.conversation.walker import add_combination, diff_branches
from forkwise.errors import BranchingError, ConversationError
from forkwise.live.checkpoints import rewind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_ai.messages import ModelMessage

    from forkwise.chat.services import ChatServices
    from forkwise.conversation.node import Node
    from forkwise.conversation.talk import Recombination
    from forkwise.live.checkpoints import Checkpoint, CheckpointStore

__all__ = [
    "Navigation",
    "Turns",
]


class Turns:
    """The agent's turns in a chat, one at a time."""

    def __init__(self, services: ChatServices) -> None:
        self._services = services
        self._task: asyncio.Task[TurnEnded] | None = None
        self._turn: Turn | None = None
        self._merged_forks: list[str] = []

    @property
    def is_running(self) -> bool:
        """Whether a turn is running."""
        return self._task is not None

    @property
    def node(self) -> Node:
        """The last node of the running turn; without one, the current node."""
        return self._services.chat.here if self._turn is None else self._turn.node

    def interrupt(self) -> bool:
        """Cancel the running turn, keeping its messages. Return whether there was one."""
        return self._task is not None and self._task.cancel()

    def record_merge(self, fork: str) -> None:
        """Record that the agent merged a fork. The mark is set when the next message is in the conversation."""
        self._merged_forks.append(fork)

    async def prompt(self, text: str) -> TurnEnded:
        """Prompt the agent and wait for the end of its turn. Cancelling the caller cancels the turn."""
        if self._task is not None:
            raise RuntimeError("a turn is running")
        self._services.feed.publish(TurnBegan(text))
        self._task = asyncio.create_task(self._run(text))
        try:
            while not self._task.done():
                try:
                    await asyncio.wait([self._task])
                except asyncio.CancelledError:
                    self._task.cancel()
                    await asyncio.wait([self._task])
                    raise
            if self._task.cancelled():  # cancelled before it started
                ended = TurnEnded("interrupted", "", self._services.chat.here.id)
            else:
                ended = self._task.result()
        finally:
            self._task = None
        self._services.feed.publish(ended)
        self._services.feed.publish(self._services.costs.update())
        return ended

    async def _run(self, text: str) -> TurnEnded:
        chat = self._services.chat
        start = chat.here
        prompt = chat.conversation.say(text, start)
        self._turn = turn = Turn(Talk(self._services.agent, chat.conversation), prompt)
        state, error = "done", None
        try:
            await self._run_agent(turn)
        except asyncio.CancelledError:
            state = "interrupted"
        except Exception as failure:  # noqa: BLE001 - an error of the provider ends the turn, not the chat
            state, error = "failed", error_text(failure)
        finally:
            self._turn = None
            here = chat.move_to(turn.node)
            self._mark_merges(here)
            chat.save()
        answer = text_of(here) if here is not start else ""
        return TurnEnded(state, answer, here.id, error)  # type: ignore[arg-type]

    async def _run_agent(self, turn: Turn) -> None:
        services = self._services
        history = services.chat.conversation.path(turn.node)
        async with services.agent.iter(
            message_history=history, deps=services.deps, usage_limits=services.usage_limits
        ) as run:
            try:
                async for _ in run:
                    self._record_messages(turn, run.all_messages())
            finally:
                self._record_messages(turn, run.all_messages())

    def _record_messages(self, turn: Turn, messages: Sequence[ModelMessage]) -> None:
        before = turn.node
        turn.record(drop_empty_response(messages))
        if turn.node is not before:
            self._mark_merges(self._services.chat.move_to(turn.node))
            self._services.chat.save()

    def _mark_merges(self, node: Node) -> None:
        while self._merged_forks:
            self._services.chat.mark(MERGED, self._merged_forks.pop(), node)


class Navigation:
    """Moves between the nodes and checkpoints of a conversation."""

    def __init__(self, services: ChatServices) -> None:
        self._services = services

    def go(self, name: str) -> Node:
        """Move to a node by its number or label; files stay as they are."""
        chat = self._services.chat
        here = chat.move_to(chat.find(name))
        chat.save()
        self._services.feed.publish(Moved(here.id, "go"))
        return here

    def label(self, name: str, node: Node) -> None:
        """Label a node. Raises ConversationError if the name could be a number or a fork's mark, or has spaces."""
        if name.isdecimal() or not name or any(char in ":/" or char.isspace() for char in name):
            raise ConversationError(f"{name!r} cannot be a label: use one word without : and / that is not a number")
        self._services.chat.conversation.label(name, node)
        self._services.chat.save()

    def compare(self, first: str, second: str) -> str:
        """Compare the conversation up to two nodes. Return a unified diff."""
        chat = self._services.chat
        return diff_branches(chat.find(first), chat.find(second))

    async def combine(self, names: Sequence[str] = (), method: Recombination = "concatenate") -> Node:
        """Combine answers into one and move there. Without names, combine the last answers of all branches."""
        if method not in RECOMBINATIONS or method == "none":
            raise ConversationError(f"answers cannot be combined by {method!r}: use {', '.join(RECOMBINATIONS[1:])}")
        chat = self._services.chat
        nodes = [chat.find(name) for name in names] or leaves(chat.conversation.root)
        if len(nodes) < 2:
            raise ConversationError("name at least two answers to combine")
        answers = [Answer(f"message {node.id}", text_of(node)) for node in nodes]
        combined = await recombine(method, answers, None if method == "concatenate" else self._services.model)
        if combined.error is not None:
            raise ConversationError(f"{method} gave no verdict: {combined.error}")
        chat.conversation.here = add_combination(chat.conversation, nodes, combined.text)
        chat.save()
        self._services.feed.publish(Moved(chat.here.id, "combine"))
        return chat.here

    # Checkpoints

    @property
    def _store(self) -> CheckpointStore:
        store = self._services.deps.checkpoint_store
        assert store is not None
        return store

    async def list_checkpoints(self) -> list[Checkpoint]:
        """List the checkpoints, the oldest first."""
        return await self._store.list_all()

    async def load(self, name: str) -> Checkpoint:
        """Go back to a checkpoint by its id or label, with its files.

        Raises LookupError if there is none; CommitError, with nothing changed, if its files cannot be restored.
        """
        chat = self._services.chat
        found = await self._store.get_by_label(name)
        if found is None:
            found = await self._store.get(name) if name.isalnum() else None
        if found is None:
            raise LookupError(f"there is no checkpoint {name!r}; /load lists them")
        chat.mark(LOADING, found.id, chat.here)
        chat.save()
        await finish(asyncio.ensure_future(self._rewind(found)))
        return found

    async def _rewind(self, checkpoint: Checkpoint) -> None:
        chat = self._services.chat
        history = chat.conversation.path()
        try:
            await rewind(self._store, checkpoint.id, self._services.deps.backend, history)
        except Exception:
            chat.unmark(LOADING, checkpoint.id)
            chat.save()
            raise
        here = chat.move_to(chat.graft(checkpoint.messages, chat.conversation.root))
        chat.unmark(LOADING, checkpoint.id)
        chat.save()
        self._services.feed.publish(Moved(here.id, f"load {checkpoint.label}"))

    async def finish_load(self, name: str) -> None:
        """Finish loading a checkpoint after a crash interrupted it."""
        with suppress(ValueError):
            found = await self._store.get(name)
            if found is not None:
                try:
                    await self._rewind(found)
                except BranchingError as error:
                    text = (
                        f"loading checkpoint {found.label} was interrupted and cannot be finished: {error_text(error)}"
                    )
                    self._services.feed.publish(Notice(text))
                    return
                self._services.feed.publish(Notice(f"finished loading checkpoint {found.label}, which was interrupted"))
                return
        self._services.chat.unmark(LOADING, name)
        self._services.chat.save()
