"""Ledger: the append-only record of forks, and the rules of what may be written into it after what.

The rules are here, once; where the record is kept is a subclass's. Whatever changes goes through ``_append``, so that
what is so now can be had again from what happened.
"""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Self

from forkwise.errors import ForkNotFoundError, LedgerError
from forkwise.ledger.database import Conversations
from forkwise.ledger.logs import remove_output
from forkwise.ledger.records import AttemptRecord, Event, ForkRecord, ForkState, Summary
from forkwise.linux.process_id import ProcessId

__all__ = [
    "Ledger",
    "LedgerReader",
    "new_id",
]


_LETTERS = "abcdefghjkmnopqrstuvwxyz"  # none that is taken for a digit or for another
_CHARACTERS = _LETTERS + "23456789"


def new_id() -> str:
    """Six characters. The first is a letter, so that an id is never taken for the number of a commit.

    >>> len(new_id()), new_id()[0].isalpha()
    (6, True)
    """
    first, *others = os.urandom(6)
    return _LETTERS[first % len(_LETTERS)] + "".join(_CHARACTERS[byte % len(_CHARACTERS)] for byte in others)


class LedgerReader(ABC):
    """The half of a ledger that answers.

    A fork is named by its id or by as much of its beginning as no other shares, an attempt by its fork and its number
    (``k3f9ab.2``). An id that is not known raises ForkNotFoundError, which names those that may have been meant.
    """

    def fork(self, fork: str) -> ForkRecord:
        """One fork."""
        record = self._fork(fork)
        if record is None:
            ids = self._fork_ids()
            near = sorted(name for name in ids if fork and name.startswith(fork))
            record = self._fork(near[0]) if len(near) == 1 else None
            if record is None:
                near = near or get_close_matches(fork, ids, n=3, cutoff=0.5)
                raise ForkNotFoundError(_unknown("fork", fork, near), subject=fork, near=near)
        return record

    def attempt(self, attempt: str) -> AttemptRecord:
        """One attempt."""
        record = self._attempt(attempt)
        if record is None:
            beginning, _, number = attempt.partition(".")
            fork = self.fork(beginning).id
            record = self._attempt(f"{fork}.{number}")
            if record is None:
                near = [a.id for a in self.attempts(fork)]
                raise ForkNotFoundError(_unknown("attempt", attempt, near), subject=attempt, near=near)
        return record

    @abstractmethod
    def forks(
        self, *, limit: int | None = None, state: ForkState | Literal["interrupted"] | None = None
    ) -> list[ForkRecord]:
        """Forks, the newest first."""

    @abstractmethod
    def attempts(self, fork: str) -> list[AttemptRecord]:
        """The attempts of a fork, in the order in which they were added."""

    @abstractmethod
    def children(self, attempt: str) -> list[ForkRecord]:
        """The forks that were made inside an attempt, the oldest first."""

    @abstractmethod
    def events(self, *, after: int = 0, fork: str | None = None, limit: int | None = None) -> list[Event]:
        """What happened after an event, of all forks or of one, the oldest first. Waits for nobody."""

    @abstractmethod
    def summaries(self, limit: int | None = None, *, outermost: bool = False) -> list[Summary]:
        """The newest forks as a list shows them, the newest first, at the cost of one query; with ``outermost`` none
        that was made inside another's attempt."""

    @abstractmethod
    def _fork(self, fork: str) -> ForkRecord | None:
        """The fork of exactly that id."""

    @abstractmethod
    def _attempt(self, attempt: str) -> AttemptRecord | None:
        """The attempt of exactly that id."""

    @abstractmethod
    def _fork_ids(self) -> list[str]:
        """The ids of all forks."""


def _unknown(noun: str, name: str, near: Sequence[str]) -> str:
    meant = f"; did you mean {', '.join(near[:5])}?" if near else ""
    return f"there is no {noun} {name!r} in the ledger{meant}"


class Ledger(LedgerReader):
    """What happened to every fork and attempt, and what is so now; processes and threads may share one.

    A fork is named by its id or by as much of its beginning as no other shares, an attempt by its fork and its number
    (``k3f9ab.2``). What makes no sense, such as ending an attempt twice, raises LedgerError and changes nothing.
    ``directory`` is where the output of attempts lies.

    >>> import tempfile
    >>> from forkwise.ledger.sqlite import SqliteLedger
    >>> with SqliteLedger(tempfile.mkdtemp()) as ledger:
    ...     fork = ledger.begin_fork("try", workspace="/project", spec={})
    ...     attempt = ledger.add_attempt(fork.id, "0", index=0, label="make test", branch="/main/a")
    ...     ledger.start_attempt(attempt.id)
    ...     ledger.end_attempt(attempt.id, "succeeded", exit_code=0)
    ...     ledger.resolve(fork.id, how="first success", winner=attempt.id)
    ...     ledger.resolve(fork.id, how="pick")
    True
    False
    """

    #: The conversations that are kept beside the forks.
    conversations: Conversations

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Forks

    def begin_fork(
        self,
        kind: str,
        *,
        workspace: str,
        spec: dict[str, Any],
        parent: str | None = None,
        origin: str = "/main",
        generation: int = 0,
        owner: ProcessId | None = None,
    ) -> ForkRecord:
        """Write down a new fork. It is interrupted when its owner, by default the calling process, dies before it."""
        with self._transaction():
            name = new_id()
            while self._fork(name) is not None:
                name = new_id()
            self._append(
                name,
                None,
                "begun",
                id=name,
                kind=kind,
                workspace=workspace,
                spec=spec,
                owner=(owner or ProcessId.current()).dump(),
                started=time.time(),
                state="running",
                parent=None if parent is None else self.attempt(parent).id,
                origin=origin,
                generation=generation,
            )
            return self.fork(name)

    def adopt_fork(self, fork: str, owner: ProcessId | None = None) -> bool:
        """Take over an interrupted fork; False where it is not interrupted, or where another was quicker.

        What was running when its owner died is pending again, because how it would have ended nobody knows.
        """
        with self._transaction():
            record = self.fork(fork)
            if record.state != "interrupted":
                return False
            self._append(record.id, None, "adopted", owner=(owner or ProcessId.current()).dump())
            for attempt in self.attempts(record.id):
                if attempt.state == "running":
                    self._append(record.id, attempt.id, "interrupted", state="pending", started=None)
            return True

    def release_fork(self, fork: str) -> None:
        """Let go of a fork that runs: it is interrupted from now on, for whoever takes it over."""
        with self._transaction():
            if (record := self.fork(fork)).stored == "running":
                self._append(record.id, None, "released", owner=ProcessId.nobody().dump())

    def record_verdict(self, fork: str, verdict: Mapping[str, Any]) -> None:
        """Write down what a judge said; the last verdict is the one that counts."""
        with self._transaction():
            self._append(self.fork(fork).id, None, "judged", verdict=dict(verdict))

    def await_pick(self, fork: str) -> None:
        """Leave a fork open for a person's pick, once all its attempts are over."""
        with self._transaction():
            record = self.fork(fork)
            going = [a.id for a in self.attempts(record.id) if not a.is_over]
            if record.stored != "running" or going:
                why = f"{', '.join(going)} not over" if going else f"it is {record.stored} already"
                raise LedgerError(f"fork {record.id} cannot wait for a pick: {why}", subject=record.id)
            self._append(record.id, None, "opened", state="open")

    def resolve(
        self, fork: str, *, how: str, winner: str | None = None, detail: Mapping[str, Any] | None = None
    ) -> bool:
        """Decide a fork, at most once: True for the one who decided it, False for all who come later.

        To be called before anything is touched; what is carried out afterwards is recorded by ``record_commit``.
        """
        with self._transaction():
            record = self.fork(fork)
            won = None if winner is None else self.attempt(winner)
            if won is not None and won.fork != record.id:
                raise LedgerError(
                    f"{won.id} cannot win fork {record.id}: it is not one of its attempts", subject=won.id
                )
            return self._decide(record, "resolved", {"how": how, **(detail or {})}, won.id if won else None)

    def abort_fork(self, fork: str, reason: str, detail: Mapping[str, Any] | None = None) -> bool:
        """Give a fork up, unless it was resolved or aborted before; whether it was done here, as with ``resolve``."""
        with self._transaction():
            return self._decide(self.fork(fork), "aborted", {"how": "abort", "reason": reason, **(detail or {})}, None)

    def abandon_fork(self, fork: str, reason: str) -> None:
        """Give up what a fork was resolved for, and what was never committed: it counts as aborted then."""
        with self._transaction():
            record = self.fork(fork)
            if record.stored != "resolved" or record.commit is not None:
                why = f"it is {record.stored}" if record.commit is None else f"it was committed as {record.commit}"
                raise LedgerError(f"fork {record.id} cannot be abandoned: {why}", subject=record.id)
            resolution = {**(record.resolution or {}), "abandoned": reason}
            self._append(record.id, None, "abandoned", state="aborted", resolution=resolution)

    def record_commit(self, fork: str, commit: int, paths: Sequence[str] = ()) -> None:
        """Write down that a resolved fork's outcome went into its origin, as which commit, and what it touched. Two may
        tell the same: who made the commit, and who found that it was made."""
        with self._transaction():
            record = self.fork(fork)
            if record.commit == commit:
                return
            if record.stored != "resolved" or record.commit is not None:
                why = f"it is {record.stored}" if record.commit is None else f"it has commit {record.commit} already"
                raise LedgerError(f"fork {record.id} cannot get commit {commit}: {why}", subject=record.id)
            self._append(record.id, None, "committed", commit=commit, paths=list(paths))

    def override(self, fork: str, winner: str) -> None:
        """Decide a fork anew for another attempt, which is to take the place of what was committed: from now on it is
        one that was resolved and not committed, until ``record_commit``. ``reinstate`` takes that back."""
        with self._transaction():
            record, won = self.fork(fork), self.attempt(winner)
            if record.stored != "resolved" or record.commit is None or record.undone is not None:
                raise LedgerError(f"fork {record.id} has no outcome that could be overridden", subject=record.id)
            if won.fork != record.id or won.id == record.winner:
                raise LedgerError(f"{won.id} cannot take the place of {record.winner}", subject=won.id)
            before = {"winner": record.winner, "resolution": record.resolution}
            resolution = {"how": "override", "replaces": record.commit, "before": before}
            self._append(record.id, None, "overridden", winner=won.id, commit=None, resolution=resolution)

    def reinstate(self, fork: str) -> None:
        """Have a fork decided as it was before ``override``, whose commit still stands."""
        with self._transaction():
            record = self.fork(fork)
            told = record.resolution or {}
            if record.commit is not None or "replaces" not in told:
                raise LedgerError(f"fork {record.id} was not overridden, or that was carried out", subject=record.id)
            self._append(record.id, None, "reinstated", commit=told["replaces"], **told["before"])

    def record_undo(self, commit: int, by: int, workspace: str) -> bool:
        """Write down that a commit of a workspace was undone by another; False where no fork had made it.

        The undo of an undo brings a fork's change back: ``by`` is then the commit under which it stands.
        """
        with self._transaction():
            for record in self._forks_about(commit):
                if record.workspace != workspace or record.parent is not None or record.origin != "/main":
                    continue
                if record.undone is None:
                    self._append(record.id, None, "undone", undone=by)
                    return True
                if record.undone == commit:
                    self._append(record.id, None, "redone", commit=by, undone=None)
                    return True
            return False

    # Attempts

    def add_attempt(
        self,
        fork: str,
        key: str,
        *,
        index: int,
        label: str,
        branch: str,
        command: Sequence[str] | None = None,
        round: int = 0,  # noqa: A002 - the word for it
    ) -> AttemptRecord:
        """Write down an attempt that is about to be made in a fork that still runs."""
        with self._transaction():
            record = self.fork(fork)
            if record.stored != "running" or self._has_place(record.id, key, round):
                why = f"it has {key!r} of round {round}" if record.stored == "running" else f"it is {record.stored}"
                raise LedgerError(f"fork {record.id} takes no such attempt: {why} already", subject=record.id)
            name = f"{record.id}.{self._number_of_attempts(record.id) + 1}"
            self._append(
                record.id,
                name,
                "added",
                id=name,
                fork=record.id,
                key=key,
                round=round,
                index=index,
                label=label,
                branch=branch,
                command=None if command is None else list(command),
                state="pending",
            )
            return self.attempt(name)

    def start_attempt(self, attempt: str) -> None:
        """Write down that a pending attempt runs now."""
        with self._transaction():
            record = self.attempt(attempt)
            if record.state != "pending":
                raise LedgerError(f"attempt {record.id} cannot start: it is {record.state}", subject=record.id)
            self._append(record.fork, record.id, "started", state="running", started=time.time())

    def end_attempt(
        self,
        attempt: str,
        state: Literal["succeeded", "failed", "cancelled"],
        *,
        reason: str | None = None,
        ending: str | None = None,
        exit_code: int | None = None,
        wall: float | None = None,
        cpu: float | None = None,
        memory: int | None = None,
        value: Any = None,
        error: Mapping[str, Any] | None = None,
        files: int | None = None,
        last_line: str | None = None,
        output_bytes: int | None = None,
        tail: str | None = None,
    ) -> None:
        """Write down how an attempt ended. What was noted of its progress last stays, where nothing newer is given."""
        told = {
            "reason": reason,
            "ending": ending,
            "exit_code": exit_code,
            "wall": wall,
            "cpu": cpu,
            "memory": memory,
            "value": value,
            "error": None if error is None else dict(error),
            "files": files,
            "last_line": last_line,
            "output_bytes": output_bytes,
            "tail": tail,
        }
        with self._transaction():
            record = self.attempt(attempt)
            if record.is_over or (record.state == "pending" and state == "succeeded"):
                raise LedgerError(f"attempt {record.id} cannot be {state}: it is {record.state}", subject=record.id)
            noted = {"files": record.files, "last_line": record.last_line, "output_bytes": record.output_bytes}
            given = {name: value for name, value in told.items() if value is not None}
            self._append(record.fork, record.id, "ended", state=state, ended=time.time(), **{**noted, **given})

    def ask_to_end(self, attempt: str, reason: str) -> None:
        """Write down that an attempt is no longer wanted. Whoever runs it reads that, and ends it."""
        with self._transaction():
            record = self.attempt(attempt)
            if record.is_over:
                raise LedgerError(f"attempt {record.id} cannot be ended: it is {record.state} already", subject=attempt)
            self._append(record.fork, record.id, "unwanted", unwanted=reason)

    def record_tests(self, attempt: str, report: Mapping[str, Any]) -> None:
        """Write down what the tests said of an attempt; the last report is the one that counts."""
        self._tell(attempt, "tested", tests=dict(report))

    def record_score(self, attempt: str, score: float, scores: Sequence[float] | None = None) -> None:
        """Write down how good an attempt is, higher being better; the last score is the one that counts."""
        if any(map(math.isnan, [score, *(scores or ())])):
            raise LedgerError(f"attempt {attempt} cannot be scored: NaN is neither better nor worse", subject=attempt)
        self._tell(attempt, "scored", score=score, scores=None if scores is None else list(scores))

    def record_cost(self, attempt: str, cost: Mapping[str, Any]) -> None:
        """Write down what an attempt has cost so far, all in all."""
        self._tell(attempt, "charged", cost=dict(cost))

    @abstractmethod
    def note_progress(
        self,
        attempt: str,
        *,
        files: int | None = None,
        last_line: str | None = None,
        output_bytes: int | None = None,
    ) -> None:
        """Say how far a running attempt has come. That is no event: it is gone once the attempt ends, except for what
        is written down then, and for one that does not run it is not kept at all."""

    # Keeping

    def prune(self, *, keep: int, older_than: float = 0.0, dry_run: bool = False) -> list[str]:
        """Forget forks that are over, with their attempts, their events and their output; gives their ids.

        The newest ``keep`` stay, and so do those that ended within the last ``older_than`` seconds. A fork made inside
        another's attempt goes and stays with that other. With ``dry_run`` nothing is forgotten.
        """
        since = time.time() - older_than
        root: dict[str, str] = {}
        staying: set[str] = set()
        for age, fork in reversed(list(enumerate(self.forks()))):
            root[fork.id] = root.get((fork.parent or "").partition(".")[0], fork.id)
            if age < keep or not fork.is_over or (fork.ended or 0.0) > since:
                staying.add(root[fork.id])
        gone = [name for name, first in root.items() if first not in staying]
        if dry_run:
            return gone
        for name in gone:
            for attempt in self.attempts(name):
                remove_output(self.directory, attempt.id)
        self._forget(gone)
        return gone

    @abstractmethod
    def rebuild(self) -> None:
        """Make what is so now anew from what happened. It changes nothing, unless somebody else's hand did before."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open; nothing can be asked or written any more."""

    # What a subclass keeps

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[None]:
        """What is read and appended inside happens as one, or not at all, and nobody else writes meanwhile."""

    @abstractmethod
    def _append(self, fork: str, attempt: str | None, kind: str, /, **data: Any) -> None:
        """Add an event about an attempt, or else about the fork, and set the fields it names."""

    @abstractmethod
    def _forks_about(self, commit: int) -> list[ForkRecord]:
        """The forks, of whatever workspace, that have a commit or an undo of that number, the newest first."""

    @abstractmethod
    def _has_place(self, fork: str, key: str, round: int) -> bool:  # noqa: A002 - the word for it
        """Whether an attempt of a fork has that key and round."""

    @abstractmethod
    def _number_of_attempts(self, fork: str) -> int:
        """How many attempts a fork has."""

    @abstractmethod
    def _forget(self, forks: Sequence[str]) -> None:
        """Delete all that is known of forks."""

    def _decide(self, record: ForkRecord, state: ForkState, resolution: dict[str, Any], winner: str | None) -> bool:
        if record.is_over:
            return False
        self._append(record.id, None, state, state=state, ended=time.time(), resolution=resolution, winner=winner)
        return True

    def _tell(self, attempt: str, kind: str, **data: Any) -> None:
        with self._transaction():
            record = self.attempt(attempt)
            self._append(record.fork, record.id, kind, **data)
