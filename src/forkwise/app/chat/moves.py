"""Moves: going on from another place of the conversation, comparing places, and going back to checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from forkwise.agents.live.checkpoint import Checkpoint, CheckpointStore
from forkwise.agents.live.rewinding import rewind
from forkwise.app.chat.desk import Desk
from forkwise.app.chat.events import Moved, Notice
from forkwise.app.chat.failing import told
from forkwise.app.chat.keeping import LOADING
from forkwise.conversation.flows import leaves
from forkwise.conversation.node import Node
from forkwise.conversation.recombination import WAYS, Answer, Recombination, recombine
from forkwise.conversation.talk import text_of
from forkwise.conversation.walking import combined, difference
from forkwise.errors import BranchingError, ConversationError
from forkwise.sandbox.threads import to_its_end

__all__ = ["Moves"]


class Moves:
    """Ways about in the conversation of a chat."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def go(self, name: str) -> Node:
        """Be at another place, by the number of a message or a label; files stay as they are."""
        kept = self._desk.kept
        here = kept.settle(kept.find(name))
        kept.save()
        self._desk.feed.tell(Moved(here.id, "go"))
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
        return difference(kept.find(first), kept.find(second))

    async def combine(self, names: Sequence[str] = (), how: Recombination = "concatenate") -> Node:
        """Make one answer of several, those of all branches where none are named, and be there."""
        if how not in WAYS or how == "none":
            raise ConversationError(f"answers are combined by {', '.join(WAYS[1:])}, not by {how!r}")
        kept = self._desk.kept
        nodes = [kept.find(name) for name in names] or leaves(kept.conversation.root)
        if len(nodes) < 2:
            raise ConversationError("two answers at least are combined")
        answers = [Answer(f"message {node.id}", text_of(node)) for node in nodes]
        made = await recombine(how, answers, None if how == "concatenate" else self._desk.model)
        kept.conversation.here = combined(kept.conversation, nodes, made.text)
        kept.save()
        self._desk.feed.tell(Moved(kept.here.id, "combine"))
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
        await to_its_end(asyncio.ensure_future(self._carry_out(found)))
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
        self._desk.feed.tell(Moved(here.id, f"load {checkpoint.label}"))

    async def finish_load(self, name: str) -> None:
        """Bring to its end what a kill cut short."""
        with suppress(ValueError):
            found = await self._store.get(name)
            if found is not None:
                try:
                    await self._carry_out(found)
                except BranchingError as error:
                    text = f"going back to checkpoint {found.label} was interrupted and is not done: {told(error)}"
                    self._desk.feed.tell(Notice(text))
                    return
                self._desk.feed.tell(Notice(f"went back to checkpoint {found.label}, which had been interrupted"))
                return
        self._desk.kept.unmark(LOADING, name)
        self._desk.kept.save()
