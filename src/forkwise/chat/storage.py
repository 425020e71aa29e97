"""Kept: the conversation of a chat in the ledger, held by one process at a time.

What happened to forks is told by labels in it, which are saved with the messages, all at once: so after a kill it is
plain what was done and what was not.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic_ai.messages import ModelMessage, ModelResponse

from forkwise.conversation.conversation import Conversation
from forkwise.conversation.node import Node
from forkwise.conversation.store import StoredConversation
from forkwise.errors import ConversationError
from forkwise.files.workspace import Workspace
from forkwise.ledger.ledger import Ledger
from forkwise.ledger.sqlite import open_ledger

__all__ = ["FORK", "LOADING", "MERGED", "OVER", "UNDOING", "StoredChat"]

_PREFIX = "chat-"

#: How labels begin: where a fork was made; what it was merged into; that it is over otherwise; that its merge is being
#: undone, and to where; that a checkpoint is being gone back to, and from where.
FORK, MERGED, OVER, UNDOING, LOADING = "fork:", "merged:", "over:", "undoing:", "loading:"


class StoredChat:
    """A conversation that is saved, and a lock on it. ``is_new`` says whether it begins now, ``was_held`` that it does
    because another process has the last one."""

    def __init__(
        self, ledger: Ledger, saved: StoredConversation, lock: _Lock, *, is_new: bool, was_held: bool = False
    ) -> None:
        self.ledger = ledger
        self.saved = saved
        self.is_new = is_new
        self.was_held = was_held
        self._lock = lock

    @classmethod
    def open(cls, workspace: Workspace, name: str | None = None, *, is_new: bool = False) -> StoredChat:
        """The conversation of that name, or the one that was used last, or a new one where there is none, where that is
        asked for, or where another process has it. ConversationError for one that was named and is held elsewhere."""
        ledger = open_ledger(workspace)
        try:
            return cls._open(ledger, workspace.state / "chats", name, is_new=is_new)
        except BaseException:
            ledger.close()
            raise

    @classmethod
    def _open(cls, ledger: Ledger, room: Path, name: str | None, *, is_new: bool) -> StoredChat:
        room.mkdir(mode=0o700, parents=True, exist_ok=True)
        if name is not None:
            full = name if name.startswith(_PREFIX) else f"{_PREFIX}{name}"
            ledger.conversations.load(full)  # says so where there is none
            lock = _held(room, full)
            if lock is None:
                raise ConversationError(
                    f"conversation {full} is held by another chat: end that one, or begin a new one"
                )
            return cls(ledger, StoredConversation.load(ledger.conversations, full), lock, is_new=False)
        known = [record.id for record in ledger.conversations.all() if record.id.startswith(_PREFIX)]
        if known and not is_new and (lock := _held(room, known[0])) is not None:
            return cls(ledger, StoredConversation.load(ledger.conversations, known[0]), lock, is_new=False)
        made = f"{_PREFIX}{secrets.token_hex(4)}"
        lock = _held(room, made)
        assert lock is not None
        saved = StoredConversation(Conversation(), ledger.conversations, id_=made, title="chat")
        return cls(ledger, saved, lock, is_new=True, was_held=bool(known) and not is_new)

    @property
    def id(self) -> str:
        """Its name in the ledger."""
        return self.saved.id

    @property
    def conversation(self) -> Conversation:
        """The tree."""
        return self.saved.conversation

    @property
    def here(self) -> Node:
        """Where one is."""
        return self.conversation.here

    def save(self) -> None:
        """Write down what is new. A conversation in which nothing happened is none."""
        if not self._is_blank:
            self.saved.save()

    @property
    def _is_blank(self) -> bool:
        return not len(self.conversation) and not self.conversation.labels

    def close(self) -> None:
        """Let others have it."""
        self.ledger.close()
        if self.is_new and self._is_blank:
            self._lock.path.unlink(missing_ok=True)
        os.close(self._lock.fd)

    # Where one is

    def settle(self, node: Node) -> Node:
        """Be at a node, or at the nearest answer above it: only from there something can be said."""
        while node.message is not None and not node.is_response:
            assert node.parent is not None
            node = node.parent
        self.conversation.here = node
        return node

    def find(self, name: str) -> Node:
        """A node by its number or its label."""
        labelled = self.conversation.labels.get(name)
        if labelled is not None:
            return labelled
        if not name.isdecimal():
            raise ConversationError(f"{name!r} is neither a label nor the number of a message; /tree shows them")
        return self.conversation.node(int(name))

    def graft(self, messages: Sequence[ModelMessage], at: Node) -> Node:
        """Put messages behind a node, as far as they are not there yet; gives the last."""
        node = at
        for number, message in enumerate(messages):
            found = next((reply for reply in node.replies if _is_same(reply, message)), None)
            if found is None:
                return self.conversation.extend(messages[number:], node)
            node = found
        return node

    @property
    def last_answer(self) -> str:
        """What the model said last on the way here, in words."""
        for node in self.here.upwards():
            if isinstance(node.message, ModelResponse) and node.message.text:
                return node.message.text
        return ""

    # What became of forks

    def forks(self) -> Iterator[str]:
        """The forks that were made here, the oldest first."""
        return (label.removeprefix(FORK) for label in self.conversation.labels if label.startswith(FORK))

    def mark(self, kind: str, name: str, node: Node) -> None:
        """Note what became of something; it is saved with all else."""
        self.conversation.label(f"{kind}{name}", node)

    def marked(self, kind: str, name: str) -> Node | None:
        """Where something was noted to have become of something."""
        return self.conversation.labels.get(f"{kind}{name}")

    def unmark(self, kind: str, name: str) -> None:
        """It is so no more."""
        self.conversation.labels.pop(f"{kind}{name}", None)


def _is_same(node: Node, message: ModelMessage) -> bool:
    """Whether a message is the one of a node. Its parts say so: a run adds what it was told beside them."""
    own = node.message
    if own is message:
        return True
    return own is not None and not node.awaits and own.kind == message.kind and own.parts == message.parts


class _Lock(NamedTuple):
    path: Path
    fd: int


def _held(room: Path, name: str) -> _Lock | None:
    """The lock on a conversation, which goes with the process that has it; None where another has it."""
    path = room / f"{name}.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return _Lock(path, fd)
