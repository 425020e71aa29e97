"""Storage of conversations, in the ledger's database or in a JSON file.

Both hold the whole tree, its labels and the current node. A loaded tree is checked against the rules again.
"""

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
from forkwise.text.redaction import process_redactor

__all__ = ["StoredConversation", "export_conversation", "import_conversation"]

_FORMAT = 1
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)


class StoredConversation:
    """A conversation and its copy in a ledger. ``save`` writes only what changed since the last ``save``.

    >>> import tempfile
    >>> from forkwise.ledger.sqlite import SqliteLedger
    >>> with SqliteLedger(tempfile.mkdtemp()) as ledger:
    ...     stored = StoredConversation(Conversation(), ledger.conversations, title="sums")
    ...     _ = stored.conversation.say("What is 6 x 7?")
    ...     stored.save()
    ...     len(StoredConversation.load(ledger.conversations, stored.id).conversation)
    1
    """

    def __init__(
        self, conversation: Conversation, conversations: Conversations, *, id_: str | None = None, title: str = ""
    ) -> None:
        self.conversation = conversation
        self.id = id_ or secrets.token_hex(4)
        self.title = title
        self._conversations = conversations
        self._written = 0
        self._result_counts: dict[int, int] = {}

    def save(self) -> None:
        """Write the messages, results, labels and current node that the ledger does not have yet."""
        talk = self.conversation
        new = list(talk)[self._written :]
        rows = [_row(node, text) for node, text in zip(new, _texts(n.message for n in new), strict=True)]
        changed = [n for n in self._changed_nodes() if n.id <= self._written]
        rows += [_row(node, text) for node, text in zip(changed, _texts(n.message for n in changed), strict=True)]
        labels = {name: node.id for name, node in talk.labels.items()}
        self._conversations.save(ConversationRecord(self.id, talk.here.id, labels, self.title), rows)
        self._written = len(talk)
        self._result_counts = {n.id: len(n.results) for n in talk if n.results}

    @classmethod
    def load(cls, conversations: Conversations, id_: str) -> StoredConversation:
        """Load a conversation from the ledger."""
        record, rows = conversations.load(id_)
        try:
            messages = _parse("[" + ",".join(row.message for row in rows) + "]")
            talk = _build(
                [row.parent for row in rows],
                messages,
                {row.node: row.awaits for row in rows if row.awaits},
                {row.node: json.loads(row.results) for row in rows if row.results},
            )
            _set_position(talk, record.here, record.labels)
        except _DAMAGE as error:
            raise ConversationError(f"the conversation {id_} in the ledger is damaged: {str(error)[:500]}") from error
        stored = cls(talk, conversations, id_=record.id, title=record.title)
        stored._written = len(talk)
        stored._result_counts = {n.id: len(n.results) for n in talk if n.results}
        return stored

    def _changed_nodes(self) -> list[Node]:
        """Return the nodes that have results which were not written yet."""
        return [n for n in self.conversation if n.calls and len(n.results) != self._result_counts.get(n.id, 0)]


def export_conversation(conversation: Conversation, path: str | os.PathLike[str]) -> None:
    """Write a conversation to a JSON file, atomically, without the secrets that this process knows."""
    document = {
        "format": _FORMAT,
        "here": conversation.here.id,
        "labels": {name: node.id for name, node in conversation.labels.items()},
        "parents": [_parent(node) for node in conversation],
        "awaits": {str(n.id): sorted(n.awaits) for n in conversation if n.awaits},
        "results": {str(n.id): _results(n) for n in conversation if n.results},
        "messages": ModelMessagesTypeAdapter.dump_python([_message(n) for n in conversation], mode="json"),
    }
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        temporary.write_text(json.dumps(process_redactor().redact_data(document)), encoding="utf-8")
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def import_conversation(path: str | os.PathLike[str]) -> Conversation:
    """Read a conversation that ``export_conversation`` wrote.

    Raises `ConversationError` if the file holds no conversation, or one that breaks a provider's rule.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        if type(document["format"]) is not int or document["format"] != _FORMAT:
            raise ConversationError(
                f"{path} has format {str(document['format'])[:20]}; this forkwise reads format {_FORMAT}: if a newer "
                "forkwise has written it, install that"
            )
        messages = ModelMessagesTypeAdapter.validate_python(document["messages"])
        awaits = {int(node): calls for node, calls in document["awaits"].items()}
        results = {int(node): parts for node, parts in document["results"].items()}
        talk = _build(document["parents"], messages, awaits, results)
        _set_position(talk, document["here"], document["labels"])
    except _DAMAGE as error:
        raise ConversationError(f"{path} holds no conversation: {str(error)[:500]}") from error
    return talk


def _build(
    parents: Sequence[int],
    messages: Sequence[ModelMessage],
    awaits: Mapping[int, Iterable[str]],
    results: Mapping[int, Sequence[Mapping[str, Any]]],
) -> Conversation:
    talk = Conversation()
    for number, (parent, message) in enumerate(zip(parents, messages, strict=True), start=1):
        node = talk.add(message, talk.node(parent), awaits=awaits.get(number, ()))
        if number in results:
            [request] = ModelMessagesTypeAdapter.validate_python([{"kind": "request", "parts": results[number]}])
            node.results.update((p.tool_call_id, p) for p in request.parts if isinstance(p, ToolReturnPart))
    return talk


def _set_position(talk: Conversation, here: int, labels: Mapping[str, int]) -> None:
    talk.here = talk.node(here)
    talk.labels = {name: talk.node(number) for name, number in labels.items()}


def _row(node: Node, text: str) -> MessageRow:
    results = json.dumps(_results(node)) if node.results else None
    return MessageRow(node.id, _parent(node), sorted(node.awaits), text, results)


def _texts(messages: Iterable[ModelMessage | None]) -> list[str]:
    found = [m for m in messages if m is not None]
    return [json.dumps(m) for m in ModelMessagesTypeAdapter.dump_python(found, mode="json")]


def _results(node: Node) -> list[Any]:
    [request] = ModelMessagesTypeAdapter.dump_python([ModelRequest(parts=[*node.results.values()])], mode="json")
    parts: list[Any] = request["parts"]
    return parts


def _parent(node: Node) -> int:
    assert node.parent is not None
    return node.parent.id


def _message(node: Node) -> ModelMessage:
    assert node.message is not None
    return node.message


def _parse(text: str) -> list[ModelMessage]:
    try:
        return ModelMessagesTypeAdapter.validate_json(text)
    except ValidationError as error:
        raise ConversationError(f"the messages in the ledger cannot be read: {error}") from error
