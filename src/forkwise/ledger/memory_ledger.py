"""The ledger in memory, for forks whose files are in memory too: both end with their process.

It keeps the current state only, not the events, and no conversations.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import Any, Literal, NoReturn

from forkwise.errors import LedgerError
from forkwise.ledger.ledger import Conversations, Ledger
from forkwise.ledger.records import (
    AttemptRecord,
    ConversationRecord,
    Event,
    ForkRecord,
    ForkState,
    MessageRow,
    Summary,
)
from forkwise.linux.process_id import ProcessId

__all__ = ["MemoryLedger"]

_FORK_FIELDS = {field.name for field in fields(ForkRecord)}
_ATTEMPT_FIELDS = {field.name for field in fields(AttemptRecord)}


class MemoryLedger(Ledger):
    """A ledger in memory. Threads of one process may share it.

    >>> ledger = MemoryLedger()
    >>> fork = ledger.begin_fork("try", workspace="", spec={})
    >>> attempt = ledger.add_attempt(fork.id, "0", index=0, label="a", branch="")
    >>> ledger.resolve(fork.id, how="pick", winner=attempt.id), ledger.resolve(fork.id, how="pick")
    (True, False)
    """

    def __init__(self) -> None:
        super().__init__("")
        self.conversations = _NoConversations()
        self._forks: dict[str, ForkRecord] = {}
        self._attempts: dict[str, dict[str, AttemptRecord]] = {}
        self._lock = threading.RLock()

    def forks(
        self, *, limit: int | None = None, state: ForkState | Literal["interrupted"] | None = None
    ) -> list[ForkRecord]:
        found = [fork for fork in reversed([*self._forks.values()]) if state is None or fork.state == state]
        return found[:limit]

    def attempts(self, fork: str) -> list[AttemptRecord]:
        return list(self._attempts[self.fork(fork).id].values())

    def children(self, attempt: str) -> list[ForkRecord]:
        name = self.attempt(attempt).id
        return [fork for fork in [*self._forks.values()] if fork.parent == name]

    def events(self, *, after: int = 0, fork: str | None = None, limit: int | None = None) -> list[Event]:
        return []

    def last_event(self) -> int:
        return 0

    def summaries(self, limit: int | None = None, *, outermost: bool = False) -> list[Summary]:
        forks = [fork for fork in self.forks() if fork.parent is None or not outermost]
        return [_summarize(fork, self.attempts(fork.id)) for fork in forks[:limit]]

    def note_progress(
        self, attempt: str, *, files: int | None = None, last_line: str | None = None, output_bytes: int | None = None
    ) -> None:
        """Do nothing: no other process can read the progress."""

    def rebuild(self) -> None:
        """Do nothing: there are no events, and nothing but this class changes the state."""

    def close(self) -> None:
        """Do nothing: the forks are dropped with this object."""

    def _transaction(self) -> AbstractContextManager[Any]:
        # Every change is one `_append`, which comes last in its block: there is nothing to roll back.
        return self._lock

    def _append(self, fork: str, attempt: str | None, kind: str, /, **data: Any) -> None:
        if "state" in data and attempt is None:
            data["stored"] = data.pop("state")
        if "owner" in data:
            data["owner"] = ProcessId.load(data["owner"])
        known = _FORK_FIELDS if attempt is None else _ATTEMPT_FIELDS
        data = {name: value for name, value in data.items() if name in known}
        if attempt is None:
            before = self._forks.get(fork)
            self._forks[fork] = ForkRecord(**data) if before is None else replace(before, **data)
            self._attempts.setdefault(fork, {})
        else:
            siblings = self._attempts[fork]
            is_new = attempt not in siblings
            siblings[attempt] = AttemptRecord(**data) if is_new else replace(siblings[attempt], **data)

    def _find_fork(self, fork: str) -> ForkRecord | None:
        return self._forks.get(fork)

    def _find_attempt(self, attempt: str) -> AttemptRecord | None:
        return self._attempts.get(attempt.partition(".")[0], {}).get(attempt)

    def _list_fork_ids(self) -> list[str]:
        return list(self._forks)

    def _find_forks_by_commit(self, commit: int) -> list[ForkRecord]:
        return [fork for fork in self.forks() if commit in (fork.commit, fork.undone)]

    def _has_attempt(self, fork: str, key: str, round: int) -> bool:  # noqa: A002 - a public name
        return any(a.key == key and a.round == round for a in self._attempts[fork].values())

    def _count_attempts(self, fork: str) -> int:
        return len(self._attempts[fork])

    def _delete_forks(self, forks: Sequence[str]) -> None:
        for name in forks:
            del self._forks[name], self._attempts[name]


def _summarize(fork: ForkRecord, attempts: Sequence[AttemptRecord]) -> Summary:
    counts = {a.state: sum(other.state == a.state for other in attempts) for a in attempts}
    best = max((a.score for a in attempts if a.state == "succeeded" and a.score is not None), default=None)
    return Summary(fork, counts, best, attempts[0].label if attempts else None)


class _NoConversations(Conversations):
    """Stores no conversations: the threads of forks in memory keep their own."""

    def save(self, record: ConversationRecord, rows: Sequence[MessageRow]) -> None:
        """Do nothing."""

    def load(self, conversation: str) -> NoReturn:
        raise LedgerError(f"there is no conversation {conversation!r}: this ledger is in memory", subject=conversation)

    def all(self) -> list[ConversationRecord]:
        return []

    def forget(self, conversation: str) -> None:
        """Do nothing."""
