"""Ledger: the append-only record of forks and attempts.

The rules on which event may follow which are all here. A subclass stores the events: every change goes through
``_append``, so that the current state can be rebuilt from the events. Conversations are stored beside the forks.
"""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from forkwise.errors import ForkNotFoundError, LedgerError
from forkwise.ledger.change_watch import ChangeWatch
from forkwise.linux.process_id import ProcessId
from forkwise.text.redaction import process_redactor

if TYPE_CHECKING:
    from forkwise.ledger.records import (
        AttemptRecord,
        ConversationRecord,
        Event,
        ForkRecord,
        ForkState,
        MessageRow,
        Summary,
    )
    from forkwise.ledger.stored_files import StoredFiles

__all__ = ["Conversations", "Ledger", "new_id"]


_MOST_EDITS = 50
_LONGEST_PATH = 500
_LETTERS = "abcdefghjkmnopqrstuvwxyz"  # without i and l, which look like 1
_CHARACTERS = _LETTERS + "23456789"


def new_id() -> str:
    """Return a random id of six characters.

    The first is a letter, so that an id is never mistaken for the number of a commit.

    >>> len(new_id()), new_id()[0].isalpha()
    (6, True)
    """
    first, *others = os.urandom(6)
    return _LETTERS[first % len(_LETTERS)] + "".join(_CHARACTERS[byte % len(_CHARACTERS)] for byte in others)


class Ledger(ABC):
    """Every event of every fork and attempt, and their current state. Processes and threads may share one.

    A fork is named by its id or an unambiguous beginning of it, an attempt by its fork and its number (``k3f9ab.2``).
    An unknown id raises ForkNotFoundError, which lists similar ids. A change that the rules forbid, such as ending an
    attempt twice, raises LedgerError and changes nothing. ``directory`` holds the output of attempts and what they
    changed.

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

    #: The conversations stored beside the forks.
    conversations: Conversations

    #: The files of attempts in a store that other machines reach; None if these are only in ``directory``.
    stored_files: StoredFiles | None = None

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Reading

    def fork(self, fork: str) -> ForkRecord:
        """Return one fork."""
        record = self._find_fork(fork) if fork.isascii() else None  # a database cannot take half a surrogate pair
        if record is None:
            ids = self._list_fork_ids()
            near = sorted(name for name in ids if fork and name.startswith(fork))
            record = self._find_fork(near[0]) if len(near) == 1 else None
            if record is None:
                from difflib import get_close_matches  # noqa: PLC0415 - only an error needs it

                near = near or get_close_matches(fork, ids, n=3, cutoff=0.5)
                raise ForkNotFoundError(_format_unknown("fork", fork, near), subject=fork, near=near)
        return record

    def attempt(self, attempt: str) -> AttemptRecord:
        """Return one attempt."""
        record = self._find_attempt(attempt) if attempt.isascii() else None
        if record is None:
            beginning, _, number = attempt.partition(".")
            fork = self.fork(beginning).id
            record = self._find_attempt(f"{fork}.{number}") if number.isascii() else None
            if record is None:
                near = [a.id for a in self.attempts(fork)]
                raise ForkNotFoundError(_format_unknown("attempt", attempt, near), subject=attempt, near=near)
        return record

    @abstractmethod
    def forks(
        self, *, limit: int | None = None, state: ForkState | Literal["interrupted"] | None = None
    ) -> list[ForkRecord]:
        """Return forks, the newest first."""

    @abstractmethod
    def attempts(self, fork: str) -> list[AttemptRecord]:
        """Return the attempts of a fork, in the order in which they were added."""

    @abstractmethod
    def children(self, attempt: str) -> list[ForkRecord]:
        """Return the forks made inside an attempt, the oldest first."""

    @abstractmethod
    def events(self, *, after: int = 0, fork: str | None = None, limit: int | None = None) -> list[Event]:
        """Return the events after number ``after``, of all forks or of one, the oldest first.

        Reading never waits for a writer.
        """

    @abstractmethod
    def last_event(self) -> int:
        """Return the number of the newest event of all forks; 0 if there is none."""

    def watch_changes(self, fork: str | None = None, kinds: Collection[str] = ()) -> ChangeWatch:
        """Watch for events, of all forks and kinds or only of those given. Watch first, then read, then wait.

        A ledger whose storage announces changes ends a wait with the next one; with others each wait has a fixed time.
        """
        return ChangeWatch()

    @abstractmethod
    def summaries(self, limit: int | None = None, *, outermost: bool = False) -> list[Summary]:
        """Return the newest forks with counts of their attempts, the newest first, in one query.

        With ``outermost``, forks made inside an attempt of another fork are left out.
        """

    # Writing: forks

    def batch(self) -> AbstractContextManager[None]:
        """Make the changes in the block atomic: all of them happen or none, and no other process writes meanwhile.

        This also makes many changes faster, above all in a database on another machine, which need not answer each one.
        """
        return self._transaction()

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
        head: str | None = None,
    ) -> ForkRecord:
        """Record a new fork.

        Its ``owner`` is by default the calling process. If the owner dies before the fork is over, the fork counts as
        interrupted.
        """
        with self._transaction():
            name = new_id()
            while self._find_fork(name) is not None:
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
                **({} if head is None else {"head": head}),
            )
            return self.fork(name)

    def adopt_fork(self, fork: str, owner: ProcessId | None = None) -> bool:
        """Take over an interrupted fork. Return False if it is not interrupted or another process adopted it first.

        Attempts that were running when the owner died become pending again, because their outcome is unknown.
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
        """Give up ownership of a running fork: it is interrupted from now on, and any process may adopt it."""
        with self._transaction():
            if (record := self.fork(fork)).stored == "running":
                self._append(record.id, None, "released", owner=ProcessId.nobody().dump())

    def record_verdict(self, fork: str, verdict: Mapping[str, Any]) -> None:
        """Record a judge's verdict. The last one recorded counts."""
        self._change_fork(fork, "judged", lambda _: {"verdict": _redact(verdict)})

    def record_baseline(self, fork: str, baseline: Mapping[str, Any]) -> None:
        """Record the test results of the base: their ``summary`` and the ids of the ``failing`` tests."""
        self._change_fork(fork, "measured", lambda _: {"baseline": _redact(baseline)})

    def record_edits(self, fork: str, paths: Sequence[str]) -> None:
        """Record paths of the workspace that other programs changed while the fork runs, the first fifty of them."""
        with self._transaction():
            record = self.fork(fork)
            known = record.edits or {"paths": [], "more": False}
            texts = [os.fsencode(path).decode(errors="replace")[:_LONGEST_PATH] for path in paths]
            names = {path.rstrip("/") for path in known["paths"]}  # a directory may be there with and without a slash
            new = [text for text in dict.fromkeys(texts) if text.rstrip("/") not in names]
            kept = [*known["paths"], *new][:_MOST_EDITS]
            edits = {"paths": kept, "more": known["more"] or len(known["paths"]) + len(new) > _MOST_EDITS}
            if edits != known:
                self._append(record.id, None, "edited", edits=_redact(edits))

    def await_pick(self, fork: str) -> None:
        """Leave a fork open for a person's pick. All its attempts must be over."""
        with self._transaction():
            record = self.fork(fork)
            unfinished = [a.id for a in self.attempts(record.id) if not a.is_over]
            if record.stored != "running" or unfinished:
                why = f"not over: {', '.join(unfinished)}" if unfinished else f"it is {record.stored} already"
                raise LedgerError(f"fork {record.id} cannot wait for a pick: {why}", subject=record.id)
            self._append(record.id, None, "opened", state="open")

    def resolve(
        self, fork: str, *, how: str, winner: str | None = None, detail: Mapping[str, Any] | None = None
    ) -> bool:
        """Decide a fork, at most once. Return True to the caller that decided it, False to every later one.

        Call it before touching any file; ``record_commit`` records the commit afterwards.
        """
        with self._transaction():
            record = self.fork(fork)
            attempt = None if winner is None else self.attempt(winner)
            if attempt is not None and attempt.fork != record.id:
                raise LedgerError(
                    f"{attempt.id} cannot win fork {record.id}: it is not one of its attempts", subject=attempt.id
                )
            return self._decide(record, "resolved", {"how": how, **(detail or {})}, attempt.id if attempt else None)

    def abort_fork(self, fork: str, reason: str, detail: Mapping[str, Any] | None = None) -> bool:
        """Abort a fork, unless it was resolved or aborted before.

        Return whether this call decided it, as ``resolve`` does.
        """
        with self._transaction():
            return self._decide(self.fork(fork), "aborted", {"how": "abort", "reason": reason, **(detail or {})}, None)

    def abandon_fork(self, fork: str, reason: str) -> None:
        """Abort a fork that was resolved, but whose outcome was never committed."""
        with self._transaction():
            record = self.fork(fork)
            if record.stored != "resolved" or record.commit is not None:
                why = f"it is {record.stored}" if record.commit is None else f"it was committed as {record.commit}"
                raise LedgerError(f"fork {record.id} cannot be abandoned: {why}", subject=record.id)
            resolution = {**(record.resolution or {}), "abandoned": reason}
            self._append(record.id, None, "abandoned", state="aborted", resolution=resolution)

    def withdraw(self, fork: str, reason: str, state: Literal["running", "open"]) -> None:
        """Withdraw the decision of a fork whose outcome was not committed: it is undecided again, in ``state``."""
        with self._transaction():
            record = self.fork(fork)
            if record.stored != "resolved" or record.commit is not None or "replaces" in (record.resolution or {}):
                raise LedgerError(f"the decision of fork {record.id} cannot be withdrawn", subject=record.id)
            data = {"ended": None, "winner": None, "resolution": None, "withdrawn": reason}
            self._append(record.id, None, "withdrawn", state=state, **data)

    def record_commit(self, fork: str, commit: int, paths: Sequence[str] = ()) -> None:
        """Record that a resolved fork's outcome was committed to its origin, and which paths it touched.

        Recording the same commit twice is allowed: the process that made it and one that found it may both report it.
        """
        with self._transaction():
            record = self.fork(fork)
            if record.commit == commit:
                return
            if record.stored != "resolved" or record.commit is not None:
                why = f"it is {record.stored}" if record.commit is None else f"it has commit {record.commit} already"
                raise LedgerError(f"fork {record.id} cannot get commit {commit}: {why}", subject=record.id)
            self._append(record.id, None, "committed", commit=commit, paths=list(paths))

    def override(self, fork: str, winner: str) -> None:
        """Decide a fork again, for another attempt, to replace what was committed.

        Until ``record_commit`` the fork counts as resolved and not committed. ``reinstate`` reverts the override.
        """
        with self._transaction():
            record, attempt = self.fork(fork), self.attempt(winner)
            if record.stored != "resolved" or record.commit is None or record.undone is not None:
                raise LedgerError(f"fork {record.id} has no committed outcome to override", subject=record.id)
            if attempt.fork != record.id or attempt.id == record.winner:
                why = (
                    "it is the winner already"
                    if attempt.fork == record.id
                    else f"it is not one of {record.id}'s attempts"
                )
                raise LedgerError(f"{attempt.id} cannot replace {record.winner}: {why}", subject=attempt.id)
            before = {"winner": record.winner, "resolution": record.resolution}
            resolution = {"how": "override", "replaces": record.commit, "before": before}
            self._append(record.id, None, "overridden", winner=attempt.id, commit=None, resolution=resolution)

    def reinstate(self, fork: str) -> None:
        """Restore the decision before ``override``, whose commit is still in effect."""
        with self._transaction():
            record = self.fork(fork)
            resolution = record.resolution or {}
            if record.commit is not None or "replaces" not in resolution:
                why = "it was not overridden" if "replaces" not in resolution else "the override was committed"
                raise LedgerError(f"fork {record.id} cannot be reinstated: {why}", subject=record.id)
            self._append(record.id, None, "reinstated", commit=resolution["replaces"], **resolution["before"])

    def record_undo(self, commit: int, by: int, workspace: str) -> bool:
        """Record that commit ``by`` undid ``commit`` in a workspace. Return False if no fork made that commit.

        The undo of an undo restores a fork's change: ``by`` is then the number of the commit that restored it.
        """
        with self._transaction():
            for record in self._find_forks_by_commit(commit):
                if record.workspace != workspace or record.parent is not None or record.origin != "/main":
                    continue
                if record.undone is None:
                    self._append(record.id, None, "undone", undone=by)
                    return True
                if record.undone == commit:
                    self._append(record.id, None, "redone", commit=by, undone=None)
                    return True
            return False

    # Writing: attempts

    def add_attempt(
        self,
        fork: str,
        key: str,
        *,
        index: int,
        label: str,
        branch: str | None = None,
        command: Sequence[str] | None = None,
        round: int = 0,  # noqa: A002 - a public name
        agent: str | None = None,
        variation: Mapping[str, str] | None = None,
        variant: int | None = None,
    ) -> AttemptRecord:
        """Record a pending attempt of a running fork.

        Attempts are numbered from 1: the number is ``index + 1``, unless another attempt of the fork has that. The id
        ends with the number, and so does the name of the branch, unless ``branch`` is given.
        """
        with self._transaction():
            record = self.fork(fork)
            if record.stored != "running" or self._has_attempt(record.id, key, round):
                why = f"it has {key!r} of round {round}" if record.stored == "running" else f"it is {record.stored}"
                raise LedgerError(f"cannot add an attempt to fork {record.id}: {why} already", subject=record.id)
            number = index + 1
            if round or self._find_attempt(f"{record.id}.{number}") is not None:
                numbers = [attempt.number for attempt in self.attempts(record.id)]
                number = max([self._count_attempts(record.id), *numbers]) + 1
            name = f"{record.id}.{number}"
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
                branch=f"{record.id}-{number}" if branch is None else branch,
                command=None if command is None else list(command),
                state="pending",
                **({} if agent is None else {"agent": agent}),
                **({} if not variation else {"variation": dict(variation)}),
                **({} if variant is None else {"variant": variant}),
            )
            return self.attempt(name)

    def start_attempt(self, attempt: str) -> None:
        """Record that a pending attempt started."""

        def start(record: AttemptRecord) -> dict[str, Any]:
            if record.state != "pending":
                raise LedgerError(f"attempt {record.id} cannot start: it is {record.state}", subject=record.id)
            return {"state": "running", "started": time.time()}

        self._change_attempt(attempt, "started", start)

    def end_attempt(
        self,
        attempt: str,
        state: Literal["succeeded", "failed", "faulted", "cancelled"],
        *,
        reason: str | None = None,
        fault: str | None = None,
        ending: str | None = None,
        exit_code: int | None = None,
        wall: float | None = None,
        cpu: float | None = None,
        memory: int | None = None,
        value: Any = None,
        error: Mapping[str, Any] | None = None,
        files: int | None = None,
        no_change: bool | None = None,
        git: str | None = None,
        needs_ignored: list[str] | None = None,
        last_line: str | None = None,
        output_bytes: int | None = None,
        tail: str | None = None,
        session: str | None = None,
        answer: str | None = None,
    ) -> None:
        """Record how an attempt ended. Progress that was noted before stays, unless a newer value is given."""
        fields = {
            "reason": reason,
            "fault": fault,
            "ending": ending,
            "exit_code": exit_code,
            "wall": wall,
            "cpu": cpu,
            "memory": memory,
            "value": value,
            "error": None if error is None else dict(error),
            "files": files,
            "no_change": no_change,
            "git": git,
            "needs_ignored": needs_ignored,
            "last_line": last_line,
            "output_bytes": output_bytes,
            "tail": tail,
            "session": session,
            "answer": answer,
        }

        def end(record: AttemptRecord) -> dict[str, Any]:
            if record.is_over or (record.state == "pending" and state == "succeeded"):
                raise LedgerError(f"attempt {record.id} cannot be {state}: it is {record.state}", subject=record.id)
            noted = {"files": record.files, "last_line": record.last_line, "output_bytes": record.output_bytes}
            given = _redact({name: value for name, value in fields.items() if value is not None})
            return {"state": state, "ended": time.time(), **noted, **given}

        self._change_attempt(attempt, "ended", end)

    def reject_attempt(self, attempt: str, reason: str, tests: Mapping[str, Any] | None = None) -> None:
        """Record that a successful attempt failed, for ``reason``, when it was about to be committed."""

        def reject(record: AttemptRecord) -> dict[str, Any]:
            if record.state != "succeeded":
                raise LedgerError(f"attempt {record.id} cannot be rejected: it is {record.state}", subject=record.id)
            report = {"reason": reason} if tests is None else {"reason": reason, "tests": dict(tests)}
            return {"state": "failed", **_redact(report)}

        self._change_attempt(attempt, "rejected", reject)

    def ask_to_end(self, attempt: str, reason: str) -> None:
        """Request that an attempt be ended. The process that runs it polls for the request and ends it."""

        def ask(record: AttemptRecord) -> dict[str, Any]:
            if record.is_over:
                raise LedgerError(f"attempt {record.id} cannot be ended: it is {record.state} already", subject=attempt)
            return {"unwanted": reason}

        self._change_attempt(attempt, "unwanted", ask)

    def record_tests(self, attempt: str, report: Mapping[str, Any]) -> None:
        """Record the test report of an attempt. The last one recorded counts."""
        self._change_attempt(attempt, "tested", lambda _: {"tests": _redact(report)})

    def record_score(self, attempt: str, score: float, scores: Sequence[float] | None = None) -> None:
        """Record the score of an attempt, higher being better. The last one recorded counts."""
        if any(map(math.isnan, [score, *(scores or ())])):
            raise LedgerError(f"attempt {attempt} cannot be scored: NaN cannot be compared", subject=attempt)
        data = {"score": score, "scores": None if scores is None else list(scores)}
        self._change_attempt(attempt, "scored", lambda _: data)

    def record_cost(self, attempt: str, cost: Mapping[str, Any]) -> None:
        """Record the total cost of an attempt so far."""
        self._change_attempt(attempt, "charged", lambda _: {"cost": dict(cost)})

    def record_steps(self, attempt: str, steps: Sequence[Mapping[str, Any]]) -> None:
        """Record what the agent of an attempt did, as the event ``acted``; ``find_steps`` returns all of it."""
        self._change_attempt(attempt, "acted", lambda _: _redact({"steps": [dict(step) for step in steps]}))

    def find_steps(self, attempt: str) -> list[dict[str, Any]]:
        """Return what was recorded with ``record_steps`` for an attempt, the oldest first."""
        record = self.attempt(attempt)
        return self.find_all_steps(record.fork).get(record.id, [])

    def find_all_steps(self, fork: str) -> dict[str, list[dict[str, Any]]]:
        """Return what was recorded with ``record_steps`` for the attempts of a fork, by attempt, the oldest first."""
        found: dict[str, list[dict[str, Any]]] = {}
        for event in self.events(fork=fork):
            if event.attempt is not None and (steps := event.steps):
                found.setdefault(event.attempt, []).extend(steps)
        return found

    def record_summary(self, attempt: str, summary: Mapping[str, Any]) -> None:
        """Record what an attempt did and learned, as the event ``summarised``; ``find_summary`` returns the last."""
        self._change_attempt(attempt, "summarised", lambda _: {"summary": _redact(summary)})

    def find_summary(self, attempt: str) -> dict[str, Any] | None:
        """Return what was recorded with ``record_summary`` for an attempt; None if nothing was."""
        record = self.attempt(attempt)
        found = [e for e in self.events(fork=record.fork) if e.attempt == record.id and e.kind == "summarised"]
        summary = found[-1].data.get("summary") if found else None
        return summary if isinstance(summary, dict) else None

    def record_comment(self, fork: str, comment: Mapping[str, Any]) -> str:
        """Record what a person says about a fork, as the event ``commented``; return the comment's id.

        ``comment`` has its ``text`` and, if it is about a place, an ``attempt``, a ``path`` and a ``line``.
        """
        name = new_id()
        self._change_fork(fork, "commented", lambda _: {"comment": _redact({**comment, "id": name})})
        return name

    def record_note(self, fork: str, kind: Literal["sent", "unblinded"], data: Mapping[str, Any]) -> None:
        """Record that comments were ``sent`` to a new attempt, or which attempt a person chose blindly."""
        self._change_fork(fork, kind, lambda _: {"note": _redact(data)})

    def find_comments(self, fork: str) -> list[dict[str, Any]]:
        """Return what was recorded with ``record_comment`` for a fork, each with its time ``at``, the oldest first."""
        found = ((event, event.data.get("comment")) for event in self.events(fork=fork) if event.kind == "commented")
        return [{**comment, "at": event.at} for event, comment in found if isinstance(comment, dict)]

    @abstractmethod
    def note_progress(
        self,
        attempt: str,
        *,
        files: int | None = None,
        last_line: str | None = None,
        output_bytes: int | None = None,
    ) -> None:
        """Note the progress of a running attempt.

        Progress is not an event: it is deleted when the attempt ends, except for what ``end_attempt`` records, and
        ignored for an attempt that is not running.
        """

    # Maintenance

    def prune(self, *, keep: int, older_than: float = 0.0, dry_run: bool = False) -> list[str]:
        """Delete forks that are over, with their attempts, events and output. Return their ids.

        The newest ``keep`` forks stay, and so do those that ended within the last ``older_than`` seconds. A fork made
        inside an attempt is deleted only together with that attempt's fork. With ``dry_run`` nothing is deleted.
        """
        since = time.time() - older_than
        root: dict[str, str] = {}
        kept: set[str] = set()
        for age, fork in reversed(list(enumerate(self.forks()))):
            root[fork.id] = root.get((fork.parent or "").partition(".")[0], fork.id)
            if age < keep or not fork.is_over or (fork.ended or 0.0) > since:
                kept.add(root[fork.id])
        pruned = [fork_id for fork_id, outermost in root.items() if outermost not in kept]
        if dry_run:
            return pruned
        from forkwise.ledger.connections import remove_connections  # noqa: PLC0415
        from forkwise.ledger.detached_run import remove_detached_run  # noqa: PLC0415 - a list of forks needs none of these
        from forkwise.ledger.logs import remove_log  # noqa: PLC0415
        from forkwise.ledger.stored_changes import remove_changes  # noqa: PLC0415
        from forkwise.ledger.stored_outcomes import remove_outcomes  # noqa: PLC0415

        for name in pruned:
            remove_detached_run(self.directory, name)
            for attempt in self.attempts(name):
                remove_log(self.directory, attempt.id)
                remove_changes(self.directory, attempt.id)
                remove_outcomes(self.directory, attempt.id)
                remove_connections(self.directory, attempt.id)
        self._delete_forks(pruned)
        if self.stored_files is not None:
            self.stored_files.collect(self._has_record)
        return pruned

    def _has_record(self, attempt: str) -> bool:
        try:
            return self._find_attempt(attempt) is not None
        except LedgerError:  # it is damaged
            return True

    def store_files(self, attempt: str) -> None:
        """Copy what an attempt printed and changed to the store, for other machines, if the ledger has one."""
        if self.stored_files is not None:
            self.stored_files.save(attempt)

    def fetch_files(self, attempt: str) -> Path:
        """Return ``directory``, with what an attempt printed and changed, fetched from the store if needed."""
        if self.stored_files is not None:
            self.stored_files.fetch(attempt)
        return self.directory

    @abstractmethod
    def rebuild(self) -> None:
        """Rebuild the current state from the events.

        The result is the same, unless the tables were edited by hand.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the ledger. It can be neither read nor written afterwards."""

    # Storage: what a subclass implements, beside the abstract methods above

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[None]:
        """Make the block atomic: all of it happens or nothing, and no other thread or process writes meanwhile."""

    @abstractmethod
    def _append(self, fork: str, attempt: str | None, kind: str, /, **data: Any) -> None:
        """Add an event of an attempt, or of the fork if ``attempt`` is None, and set the fields in ``data``."""

    @abstractmethod
    def _find_fork(self, fork: str) -> ForkRecord | None:
        """Return the fork with exactly this id."""

    @abstractmethod
    def _find_attempt(self, attempt: str) -> AttemptRecord | None:
        """Return the attempt with exactly this id."""

    @abstractmethod
    def _list_fork_ids(self) -> list[str]:
        """Return the ids of all forks."""

    @abstractmethod
    def _find_forks_by_commit(self, commit: int) -> list[ForkRecord]:
        """Return the forks, of any workspace, with a commit or an undo of this number, the newest first."""

    @abstractmethod
    def _has_attempt(self, fork: str, key: str, round: int) -> bool:  # noqa: A002 - a public name
        """Return whether an attempt of the fork has this key and round."""

    @abstractmethod
    def _count_attempts(self, fork: str) -> int:
        """Return the number of attempts of a fork."""

    @abstractmethod
    def _delete_forks(self, forks: Sequence[str]) -> None:
        """Delete forks with their attempts and events."""

    def _decide(self, record: ForkRecord, state: ForkState, resolution: dict[str, Any], winner: str | None) -> bool:
        if record.is_over:
            return False
        self._append(record.id, None, state, state=state, ended=time.time(), resolution=resolution, winner=winner)
        return True

    def _change_fork(self, fork: str, kind: str, change: Callable[[ForkRecord], dict[str, Any]]) -> None:
        """Add an event of a fork. ``change`` returns its data, or raises LedgerError if the rules forbid it.

        What ``change`` returns may depend on the record that it gets, and on nothing else in the ledger.
        """
        with self._transaction():
            record = self.fork(fork)
            self._append(record.id, None, kind, **change(record))

    def _change_attempt(self, attempt: str, kind: str, change: Callable[[AttemptRecord], dict[str, Any]]) -> None:
        """Add an event of an attempt, as ``_change_fork`` does for a fork."""
        with self._transaction():
            record = self.attempt(attempt)
            self._append(record.fork, record.id, kind, **change(record))


def _redact(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an event without known secrets. What a resumed fork runs again is not redacted."""
    redacted: dict[str, Any] = process_redactor().redact_data(data)
    return redacted


def _format_unknown(noun: str, name: str, near: Sequence[str]) -> str:
    hint = f"; did you mean {', '.join(near[:5])}?" if near else ""
    return f"there is no {noun} {name!r} in the ledger{hint}"


class Conversations(ABC):
    """The store of conversations: rows of messages whose text it does not parse."""

    @abstractmethod
    def save(self, record: ConversationRecord, rows: Sequence[MessageRow]) -> None:
        """Save a conversation and its new or changed messages, atomically."""

    @abstractmethod
    def load(self, conversation: str) -> tuple[ConversationRecord, list[MessageRow]]:
        """Return a conversation and all its messages in order. Raise LedgerError if there is none of that id."""

    @abstractmethod
    def all(self) -> list[ConversationRecord]:
        """Return all conversations, the last used first."""

    @abstractmethod
    def forget(self, conversation: str) -> None:
        """Delete a conversation."""
