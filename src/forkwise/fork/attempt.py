"""Attempt: one candidate in a branch, with its state, its result and its feedback for a later attempt.

Also here because every attempt needs them: the patterns that run inside an attempt, and the directory through which a
command exchanges files with forkwise.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkwise.concurrency import post
from forkwise.errors import ForkResolvedError
from forkwise.fork.candidate import Candidate, OutputReader, error_as_data

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.fork.evaluation import Evaluator
    from forkwise.fork.fork import Fork
    from forkwise.ledger.records import AttemptRecord, AttemptState
    from forkwise.testing.report import TestReport

__all__ = [
    "Attempt",
    "NestedRuns",
    "current_attempt",
    "feedback_of",
    "make_exchange_directory",
    "read_regular_file",
]


_PATIENCE = 5.0  # seconds for nested runs to end; mostly they kill processes


class NestedRuns:
    """The patterns that run inside one attempt; any thread may start one until ``end`` is called."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Future[None], Callable[[], object]] = {}
        self._is_over = False

    @contextmanager
    def track(self) -> Iterator[None]:
        """Let ``end`` cancel the current task while the block runs. Raises ForkResolvedError after ``end``."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        done: Future[None] = Future()
        with self._lock:
            if self._is_over:
                raise ForkResolvedError("cannot start a fork inside this attempt: the attempt is over")
            self._running[done] = lambda: post(loop, task.cancel, "the attempt around it is over")
        try:
            yield
        finally:
            with self._lock:
                del self._running[done]
            done.set_result(None)

    async def end(self) -> None:
        """Cancel all nested runs, wait for them, and refuse new ones."""
        with self._lock:
            self._is_over = True
            running = dict(self._running)
        for cancel in running.values():
            with suppress(RuntimeError):  # its event loop is closed
                cancel()
        if running:
            await asyncio.wait([asyncio.wrap_future(done) for done in running], timeout=_PATIENCE)


def make_exchange_directory(branch: Branch) -> str:
    """Create the directory through which a command exchanges files with forkwise, if it is missing; return its path."""
    path = f"{branch.home}/exchange"
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def read_regular_file(path: str, max_bytes: int) -> bytes | None:
    """Read a file that a sandboxed command wrote; None unless it is a regular file of at most ``max_bytes``."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        with open(fd, "rb", closefd=False) as file:
            content = file.read(max_bytes + 1)
    finally:
        os.close(fd)
    return content if len(content) <= max_bytes else None


_current: ContextVar[Attempt | None] = ContextVar("forkwise_attempt", default=None)


class Attempt:
    """A candidate in a branch. The ledger records everything about it.

    ``index`` is the candidate's position among its siblings, from 0, and ``number`` the attempt's, from 1, as in its id
    and in the name of its branch; ``feedback`` describes the failures of earlier attempts, and
    ``directory`` is the attempt's working directory. When the attempt is over, ``success``, ``scores`` (compared in
    order), ``reason``, ``tests``, ``value`` and ``error`` are its result; with a ``fault`` it was not judged.
    ``no_change`` is whether it changed no file, apart from ignored ones; None if that is not known.
    ``branch`` exists until the fork is resolved. ``reader`` is what reads its output, if anything does.
    """

    def __init__(
        self,
        fork: Fork,
        record: AttemptRecord,
        candidate: Candidate,
        feedback: str | None = None,
        *,
        number: int | None = None,
    ) -> None:
        self.fork = fork
        self.id = record.id
        self.key = record.key
        self.index = record.index
        self.number = record.number if number is None else number
        self.candidate = candidate
        self.feedback = feedback
        self.branch: Branch | None = None
        self.directory: Path | None = None
        self.state: AttemptState = "pending"
        self.scores: tuple[float, ...] = ()
        self.reason: str | None = None
        self.message: str | None = None
        self.tests: TestReport | None = None
        self.reports: dict[Evaluator, TestReport] = {}  # of tests that ran where the attempt ran
        self.value: Any = None
        self.error: BaseException | None = None
        self.fault: str | None = None
        self.no_change: bool | None = None
        self.wall: float | None = None
        self.facts: dict[str, Any] = {}  # further fields for the ledger's record of its end
        self.reader: OutputReader | None = None
        self.nested_runs = NestedRuns()
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"<Attempt {self.id} {self.candidate.label!r}: {self.state}>"

    @property
    def success(self) -> bool:
        """Whether the attempt succeeded."""
        return self.state == "succeeded"

    @property
    def score(self) -> float:
        """The first of ``scores``; 0 if there is none."""
        return self.scores[0] if self.scores else 0.0

    @property
    def rank(self) -> tuple[float, ...]:
        """What attempts are compared by: whether anything was changed at all, then the scores."""
        is_empty = bool(self.no_change) and not self.fork.settings.allow_empty
        return (float(not is_empty), *self.scores)

    @property
    def own_branch(self) -> Branch:
        """The attempt's branch. Raises RuntimeError if the attempt never ran."""
        if self.branch is None:
            raise RuntimeError(f"attempt {self.id} has no branch: it never ran")
        return self.branch

    def restore(self, record: AttemptRecord, branch: Branch | None) -> None:
        """Restore the result that another process recorded in the ledger, and the branch if it still exists."""
        from forkwise.testing.report import TestReport  # noqa: PLC0415 - only the end of an attempt needs it

        self.branch = branch
        self.state = record.state
        self.scores = tuple(record.scores or (() if record.score is None else (record.score,)))
        self.reason = record.reason
        self.fault = record.fault
        self.no_change = record.no_change
        self.tests = None if record.tests is None else TestReport.from_json(record.tests)
        self.value = record.value
        self.wall = record.wall

    def make_current(self) -> None:
        """Set ``current_attempt`` to this attempt in the current context."""
        _current.set(self)

    def record_end(self) -> None:
        """Record the attempt's end in the ledger. An attempt that has not ended is recorded as cancelled.

        If the fork was detached, an unfinished attempt is left as it is, so that another process can resume it.
        """
        if self.fork.is_detached and self.state in ("pending", "running", "cancelled"):
            return
        if self.state == "pending" or self.state == "running":
            self.state, self.reason = "cancelled", self.reason or "it did not run to completion"
        error = None if self.error is None else error_as_data(self.error)
        fault = self.fault if self.state == "faulted" else None
        self.fork.ledger.end_attempt(self.id, self.state, reason=self.reason, error=error, fault=fault, **self.facts)


def current_attempt() -> Attempt | None:
    """Return the attempt that the caller runs in; None outside of one, and in a forked child process."""
    attempt = _current.get()
    return attempt if attempt is not None and attempt._process == os.getpid() else None


_TAIL = 3000  # characters of the end of its output


def feedback_of(attempt: Attempt) -> str:
    """Describe why an attempt failed: its own message, then its failing tests or the end of its output."""
    parts = [attempt.message or attempt.reason or "it failed"]
    if attempt.tests is not None:
        parts.append(attempt.tests.feedback())
    else:
        tail = attempt.fork.ledger.attempt(attempt.id).tail
        if tail:
            parts.append(f"Its output ends with:\n{tail[-_TAIL:]}")
    return "\n\n".join(parts)
