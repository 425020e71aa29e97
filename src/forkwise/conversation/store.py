"""Saving: a conversation in the ledger's database, or in one JSON file. Both hold the whole tree, its labels, and where
one is; what is read back goes through the rules once more."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, ToolReturnPart

from forkwise.conversation.conversation import Conversation
from forkwise.conversation.node import Node
from forkwise.errors import ConversationError
from forkwise.ledger.ledger import Conversations
from forkwise.ledger.records import ConversationRecord, MessageRow

__all__ = ["StoredConversation", "export_conversation", "import_conversation"]

_FORMAT = 1


class StoredConversation:
    """A conversation and its place in a ledger. ``save`` writes what is new since the last time.

    >>> import tempfile
    >>> from forkwise.ledger.sqlite import SqliteLedger
    >>> with SqliteLedger(tempfile.mkdtemp()) as ledger:
    ...     saved = Saved(Conversation(), ledger.conversations, title="sums")
    ...     _ = saved.conversation.say("What is 6 x 7?")
    ...     saved.save()
    ...     len(Saved.load(ledger.conversations, saved.id).conversation)
    1
    """

    def __init__(
        self, conversation: Conversation, place: Conversations, *, id_: str | None = None, title: str = ""
    ) -> None:
        self.conversation = conversation
        self.id = id_ or secrets.token_hex(4)
        self.title = title
        self._place = place
        self._written = 0
        self._settled: dict[int, int] = {}

    def save(self) -> None:
        """Write down the messages, results, labels and position that the ledger does not have yet."""
        talk = self.conversation
        new = list(talk)[self._written :]
        rows = [_row(node, text) for node, text in zip(new, _texts(n.message for n in new), strict=True)]
        again = [n for n in self._changed() if n.id <= self._written]
        rows += [_row(node, text) for node, text in zip(again, _texts(n.message for n in again), strict=True)]
        labels = {name: node.id for name, node in talk.labels.items()}
        self._place.save(ConversationRecord(self.id, talk.here.id, labels, self.title), rows)
        self._written = len(talk)
        self._settled = {n.id: len(n.results) for n in talk if n.results}

    @classmethod
    def load(cls, place: Conversations, id_: str) -> StoredConversation:
        """A conversation as it was saved last."""
        record, rows = place.load(id_)
        messages = _parsed("[" + ",".join(row.message for row in rows) + "]")
        talk = _built(
            [row.parent for row in rows],
            messages,
            {row.node: row.awaits for row in rows if row.awaits},
            {row.node: json.loads(row.results) for row in rows if row.results},
        )
        _place(talk, record.here, record.labels)
        saved = cls(talk, place, id_=record.id, title=record.title)
        saved._written = len(talk)
        saved._settled = {n.id: len(n.results) for n in talk if n.results}
        return saved

    def _changed(self) -> list[Node]:
        """Nodes of whose calls more is known than was written down."""
        return [n for n in self.conversation if n.calls and len(n.results) != self._settled.get(n.id, 0)]


def export_conversation(conversation: Conversation, path: str | os.PathLike[str]) -> None:
    """Write a conversation to one JSON file, which is there whole or not at all."""
    document = {
        "format": _FORMAT,
        "here": conversation.here.id,
        "labels": {name: node.id for name, node in conversation.labels.items()},
        "parents": [_parent(node) for node in conversation],
        "awaits": {str(n.id): sorted(n.awaits) for n in conversation if n.awaits},
        "results": {str(n.id): _results(n) for n in conversation if n.results},
        "messages": ModelMessagesTypeAdapter.dump_python([_said(n) for n in conversation], mode="json"),
    }
    target = Path(path)
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        beside.write_text(json.dumps(document), encoding="utf-8")
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def import_conversation(path: str | os.PathLike[str]) -> Conversation:
    """Read a conversation that was exported; ConversationError where the file holds none, or one that breaks a rule."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        if document["format"] != _FORMAT:
            raise ConversationError(f"{path} has format {document['format']}, and this forkwise knows {_FORMAT}")
        messages = ModelMessagesTypeAdapter.validate_python(document["messages"])
        awaits = {int(node): calls for node, calls in document["awaits"].items()}
        results = {int(node): told for node, told in document["results"].items()}
        talk = _built(document["parents"], messages, awaits, results)
        _place(talk, document["here"], document["labels"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConversationError(f"{path} holds no conversation: {error}") from error
    return talk


def _built(
    parents: Sequence[int],
    messages: Sequence[ModelMessage],
    awaits: Mapping[int, Iterable[str]],
    results: Mapping[int, Sequence[Mapping[str, Any]]],
) -> Conversation:
    talk = Conversation()
    for number, (parent, message) in enumerate(zip(parents, messages, strict=True), start=1):
        node = talk.add(message, talk.node(parent), awaits=awaits.get(number, ()))
        if number in results:
            told = ModelMessagesTypeAdapter.validate_python([{"kind": "request", "parts": results[number]}])
            node.results.update((p.tool_call_id, p) for p in told[0].parts if isinstance(p, ToolReturnPart))
    return talk


def _place(talk: Conversation, here: int, labels: Mapping[str, int]) -> None:
    talk.here = talk.node(here)
    talk.labels = {name: talk.node(number) for name, number in labels.items()}


def _row(node: Node, text: str) -> MessageRow:
    results = json.dumps(_results(node)) if node.results else None
    return MessageRow(node.id, _parent(node), sorted(node.awaits), text, results)


def _texts(messages: Iterable[ModelMessage | None]) -> list[str]:
    found = [m for m in messages if m is not None]
    return [json.dumps(m) for m in ModelMessagesTypeAdapter.dump_python(found, mode="json")]


def _results(node: Node) -> list[Any]:
    [told] = ModelMessagesTypeAdapter.dump_python([ModelRequest(parts=[*node.results.values()])], mode="json")
    parts: list[Any] = told["parts"]
    return parts


def _parent(node: Node) -> int:
    assert node.parent is not None
    return node.parent.id


def _said(node: Node) -> ModelMessage:
    assert node.message is not None
    return node.message


def _parsed(text: str) -> list[ModelMessage]:
    try:
        return ModelMessagesTypeAdapter.validate_json(text)
    except ValidationError as error:
        raise ConversationError(f"the ledger holds no messages that can be read: {error}") from error
