"""The conversation of a chat in the ledger, locked by one process at a time.

Labels in the conversation record the outcome of its forks. They are saved in one transaction with the messages, so that
after a crash the next chat can see which steps were completed.
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

__all__ = ["FORK", "LOADING", "MERGED", "OVER", "UNDOING", "StoredChat", "copy_chat", "list_messages"]

_PREFIX = "chat-"

#: Prefixes of labels, by what they mark: the node where a fork was opened; the node that its merge added; the node
#: where it ended without a merge; the target of an unfinished undo; the start of an unfinished load of a checkpoint.
FORK, MERGED, OVER, UNDOING, LOADING = "fork:", "merged:", "over:", "undoing:", "loading:"


class StoredChat:
    """A conversation in the ledger, and the lock on it.

    ``is_new``: this chat created the conversation. ``is_last_locked``: it did so because another process has locked the
    last one.
    """

    def __init__(
        self,
        ledger: Ledger,
        stored: StoredConversation,
        lock: _ConversationLock,
        *,
        is_new: bool,
        is_last_locked: bool = False,
    ) -> None:
        self.ledger = ledger
        self._stored = stored
        self.is_new = is_new
        self.is_last_locked = is_last_locked
        self._lock = lock

    @classmethod
    def open(cls, workspace: Workspace, name: str | None = None, *, is_new: bool = False) -> StoredChat:
        """Open the named conversation, else the last one, else a new one.

        A new one is also created if ``is_new``, and if another process has locked the last one. Raises
        ConversationError if the named one does not exist or is locked.
        """
        ledger = open_ledger(workspace)
        try:
            return cls._open(ledger, workspace.state / "chats", name, is_new=is_new)
        except BaseException:
            ledger.close()
            raise

    @classmethod
    def _open(cls, ledger: Ledger, directory: Path, name: str | None, *, is_new: bool) -> StoredChat:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if name is not None:
            full = name if name.startswith(_PREFIX) else f"{_PREFIX}{name}"
            ledger.conversations.load(full)  # raises if there is none
            lock = _try_lock(directory, full)
            if lock is None:
                raise ConversationError(
                    f"conversation {full} is locked by another chat: end that chat, or start a new conversation"
                )
            return cls(ledger, StoredConversation.load(ledger.conversations, full), lock, is_new=False)
        known = [record.id for record in ledger.conversations.all() if record.id.startswith(_PREFIX)]
        if known and not is_new and (lock := _try_lock(directory, known[0])) is not None:
            return cls(ledger, StoredConversation.load(ledger.conversations, known[0]), lock, is_new=False)
        new_id = f"{_PREFIX}{secrets.token_hex(4)}"
        lock = _try_lock(directory, new_id)
        assert lock is not None
        stored = StoredConversation(Conversation(), ledger.conversations, id_=new_id, title="chat")
        return cls(ledger, stored, lock, is_new=True, is_last_locked=bool(known) and not is_new)

    @property
    def id(self) -> str:
        """The id of the conversation in the ledger."""
        return self._stored.id

    @property
    def conversation(self) -> Conversation:
        """The conversation, a tree of nodes."""
        return self._stored.conversation

    @property
    def here(self) -> Node:
        """The current node."""
        return self.conversation.here

    def save(self) -> None:
        """Save new messages and labels. A blank conversation is not saved."""
        if not self._is_blank:
            self._stored.save()

    @property
    def _is_blank(self) -> bool:
        return not len(self.conversation) and not self.conversation.labels

    def close(self) -> None:
        """Close the ledger and release the lock."""
        self.ledger.close()
        if self.is_new and self._is_blank:
            self._lock.path.unlink(missing_ok=True)
        os.close(self._lock.fd)

    # Nodes

    def move_to(self, node: Node) -> Node:
        """Move to a node, or to the nearest answer above it: a prompt can only follow an answer."""
        while node.message is not None and not node.is_response:
            assert node.parent is not None
            node = node.parent
        self.conversation.here = node
        return node

    def find(self, name: str) -> Node:
        """Find a node by its number or label. Raises ConversationError if there is none."""
        labelled = self.conversation.labels.get(name)
        if labelled is not None:
            return labelled
        if not name.isdecimal():
            raise ConversationError(f"{name!r} is neither a label nor the number of a node; /tree shows them")
        return self.conversation.node(int(name))

    def graft(self, messages: Sequence[ModelMessage], parent: Node) -> Node:
        """Add messages below ``parent``, except those that are there already. Return the last node."""
        node = parent
        for number, message in enumerate(messages):
            found = next((reply for reply in node.replies if _is_same(reply, message)), None)
            if found is None:
                return self.conversation.extend(messages[number:], node)
            node = found
        return node

    @property
    def last_answer(self) -> str:
        """The text of the last answer on the path to the current node."""
        for node in self.here.upwards():
            if isinstance(node.message, ModelResponse) and node.message.text:
                return node.message.text
        return ""

    # Marks: labels that record the outcome of forks

    def fork_ids(self) -> Iterator[str]:
        """Iterate over the forks opened in this conversation, the oldest first."""
        return (label.removeprefix(FORK) for label in self.conversation.labels if label.startswith(FORK))

    def mark(self, kind: str, name: str, node: Node) -> None:
        """Mark a node with a kind and a name; the next `save` saves the mark."""
        self.conversation.label(f"{kind}{name}", node)

    def find_mark(self, kind: str, name: str) -> Node | None:
        """Return the node with a mark; None if there is none."""
        return self.conversation.labels.get(f"{kind}{name}")

    def unmark(self, kind: str, name: str) -> None:
        """Remove a mark."""
        self.conversation.labels.pop(f"{kind}{name}", None)


def _is_same(node: Node, message: ModelMessage) -> bool:
    """Whether a node has this message. Compares the parts: a run changes the fields beside them."""
    own = node.message
    if own is message:
        return True
    return own is not None and not node.awaits and own.kind == message.kind and own.parts == message.parts


def list_messages(conversation: Conversation) -> list[ModelMessage]:
    """Return the messages up to the last complete answer on the path to the current node."""
    for node in conversation.here.upwards():
        if node.is_response and not node.open_calls:
            return conversation.path(node)
    return []


def copy_chat(
    directory: str | os.PathLike[str], name: str, messages: Sequence[ModelMessage] | None = None
) -> str | None:
    """Save a new conversation that begins with the messages of another one, and return its id; None if it has none.

    ``messages`` are those of an open chat; without them, they are read. Raises ConversationError if there is no such
    conversation.
    """
    if not name.startswith(_PREFIX):
        raise ConversationError(f"there is no chat {name!r}")
    with open_ledger(Workspace(directory)) as ledger:
        if messages is None:
            messages = list_messages(StoredConversation.load(ledger.conversations, name).conversation)
        if not messages:
            return None
        copy = Conversation()
        copy.here = copy.extend(messages)
        stored = StoredConversation(copy, ledger.conversations, id_=f"{_PREFIX}{secrets.token_hex(4)}", title="chat")
        stored.save()
        return stored.id


class _ConversationLock(NamedTuple):
    path: Path
    fd: int


def _try_lock(directory: Path, name: str) -> _ConversationLock | None:
    """Lock a conversation; None if another process has. The kernel drops a flock when its process ends."""
    path = directory / f"{name}.lock"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return _ConversationLock(path, fd)
