"""Conversations as a ledger keeps them: rows of messages whose text it does not look into."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from forkwise.errors import LedgerError
from forkwise.ledger.database import Database

__all__ = ["ConversationRecord", "Conversations", "MessageRow", "SqliteConversations"]


class MessageRow(NamedTuple):
    """A message: its number, that of the one it follows, the calls it awaits, and its text. ``results`` is what is
    known of its own calls, and may be told again later."""

    node: int
    parent: int
    awaits: Sequence[str]
    message: str
    results: str | None = None


@dataclass(frozen=True, slots=True)
class ConversationRecord:
    """What is known of a conversation beside its messages."""

    id: str
    here: int = 0
    labels: Mapping[str, int] = field(default_factory=dict)
    title: str = ""
    updated: float = 0.0


class Conversations(ABC):
    """Where conversations are kept."""

    @abstractmethod
    def save(self, record: ConversationRecord, rows: Sequence[MessageRow]) -> None:
        """Write down a conversation, with those of its messages that are new or were changed; all of it or nothing."""

    @abstractmethod
    def load(self, conversation: str) -> tuple[ConversationRecord, list[MessageRow]]:
        """A conversation with all its messages, in their order; LedgerError where there is none of that name."""

    @abstractmethod
    def all(self) -> list[ConversationRecord]:
        """All of them, the last used first."""

    @abstractmethod
    def forget(self, conversation: str) -> None:
        """Delete one."""


class SqliteConversations(Conversations):
    """Conversations in the tables of a ledger's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, record: ConversationRecord, rows: Sequence[MessageRow]) -> None:
        told = {"here": record.here, "labels": dict(record.labels), "title": record.title}
        with self._database.transaction():
            self._database.rows(
                "REPLACE INTO conversations VALUES (?, ?, ?)", (record.id, time.time(), json.dumps(told))
            )
            for row in rows:
                self._database.rows(
                    "REPLACE INTO messages VALUES (?, ?, ?, ?, ?, ?)",
                    (record.id, row.node, row.parent, json.dumps(list(row.awaits)), row.message, row.results),
                )

    def load(self, conversation: str) -> tuple[ConversationRecord, list[MessageRow]]:
        found = self._database.rows("SELECT id, updated, data FROM conversations WHERE id = ?", (conversation,))
        if not found:
            known = [record.id for record in self.all()]
            raise LedgerError(
                f"there is no conversation {conversation!r} in the ledger", subject=conversation, near=known[:5]
            )
        rows = self._database.rows(
            "SELECT node, parent, awaits, message, results FROM messages WHERE conversation = ? ORDER BY node",
            (conversation,),
        )
        return _record(found[0]), [MessageRow(n, p, json.loads(a), m, r) for n, p, a, m, r in rows]

    def all(self) -> list[ConversationRecord]:
        rows = self._database.rows("SELECT id, updated, data FROM conversations ORDER BY updated DESC")
        return [_record(row) for row in rows]

    def forget(self, conversation: str) -> None:
        with self._database.transaction():
            self._database.rows("DELETE FROM conversations WHERE id = ?", (conversation,))
            self._database.rows("DELETE FROM messages WHERE conversation = ?", (conversation,))


def _record(row: tuple[Any, ...]) -> ConversationRecord:
    id_, updated, data = row
    return ConversationRecord(id_, updated=updated, **json.loads(data))
