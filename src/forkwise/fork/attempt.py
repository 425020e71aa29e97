"""Feedback: what the next attempt should know of one that failed."""

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

from opentelemetry import trace
from opentelemetry.trace import Span, Status, StatusCode

from forkwise.errors import ForkResolvedError
from forkwise.files.branch import Branch
from forkwise.fork.candidate import Candidate, error_as_data
from forkwise.ledger.records import AttemptRecord, AttemptState
from forkwise.testing.report import TestReport

if TYPE_CHECKING:
    from forkwise.fork.fork import Fork

__all__ = [
    "Attempt",
    "NestedRuns",
    "current_attempt",
    "exchange",
    "failed",
    "feedback_of",
    "read_left",
    "span",
]


_tracer = trace.get_tracer("forkwise")


@contextmanager
def span(name: str, **attributes: str | int | float) -> Iterator[Span]:
    """A span around a block; its attributes are named ``forkwise.*``."""
    with _tracer.start_as_current_span(
        f"forkwise.{name}", attributes={f"forkwise.{key}": value for key, value in attributes.items()}
    ) as made:
        yield made


def failed(made: Span, reason: str | None) -> None:
    """Mark a span as one of something that did not succeed."""
    made.set_status(Status(StatusCode.ERROR, reason))


_PATIENCE = 5.0  # seconds for them to end in; most of what they have to do is to kill


class NestedRuns:
    """The explorations inside one attempt; any thread may begin one, until they are ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._going: dict[Future[None], Callable[[], object]] = {}
        self._is_over = False

    @contextmanager
    def track(self) -> Iterator[None]:
        """Around an exploration, in the task that does it, which may be cancelled from now on."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        done: Future[None] = Future()
        with self._lock:
            if self._is_over:
                raise ForkResolvedError("the attempt that this was to be a part of is over")
            self._going[done] = lambda: loop.call_soon_threadsafe(task.cancel, "the attempt it was part of is over")
        try:
            yield
        finally:
            with self._lock:
                del self._going[done]
            done.set_result(None)

    async def end(self) -> None:
        """Cancel what goes on, wait until that has ended, and let nothing else begin."""
        with self._lock:
            self._is_over = True
            going = dict(self._going)
        for cancel in going.values():
            with suppress(RuntimeError):  # its event loop is closed
                cancel()
        if going:
            await asyncio.wait([asyncio.wrap_future(done) for done in going], timeout=_PATIENCE)


def exchange(branch: Branch) -> str:
    """The directory, made if it is not there."""
    path = f"{branch.home}/exchange"
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def read_left(path: str, most: int) -> bytes | None:
    """What a command left in a file; None where that is no plain file, or larger than ``most`` bytes."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        with open(fd, "rb", closefd=False) as file:
            content = file.read(most + 1)
    finally:
        os.close(fd)
    return content if len(content) <= most else None


_current: ContextVar[Attempt | None] = ContextVar("forkwise_attempt", default=None)


class Attempt:
    """A candidate in a branch. All that is known of it is in the ledger too.

    ``index`` is the candidate's number among its siblings, ``feedback`` what earlier ones taught, ``seen_at`` the
    directory it works in. When it is over,
    ``success``, ``scores`` (compared one after the other), ``reason``, ``tests``, ``value`` and ``error`` say what came
    of it; ``branch`` is there until the fork is resolved.
    """

    def __init__(self, fork: Fork, record: AttemptRecord, candidate: Candidate, feedback: str | None = None) -> None:
        self.fork = fork
        self.id = record.id
        self.key = record.key
        self.index = record.index
        self.candidate = candidate
        self.feedback = feedback
        self.branch: Branch | None = None
        self.seen_at: Path | None = None
        self.state: AttemptState = "pending"
        self.scores: tuple[float, ...] = ()
        self.reason: str | None = None
        self.said: str | None = None
        self.tests: TestReport | None = None
        self.value: Any = None
        self.error: BaseException | None = None
        self.wall: float | None = None
        self.facts: dict[str, Any] = {}  # what else the ledger is told of its end
        self.within = NestedRuns()
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"<Attempt {self.id} {self.candidate.label!r}: {self.state}>"

    @property
    def success(self) -> bool:
        """Whether it ended well."""
        return self.state == "succeeded"

    @property
    def score(self) -> float:
        """How good it is, at first sight; 0 where it failed."""
        return self.scores[0] if self.scores else 0.0

    @property
    def place(self) -> Branch:
        """Its branch, which it has as soon as it runs."""
        if self.branch is None:
            raise RuntimeError(f"attempt {self.id} has no branch: it never came to run")
        return self.branch

    def recall(self, record: AttemptRecord, branch: Branch | None) -> None:
        """Take over what the ledger knows of it, from the process that ran it; its branch, where that is left."""
        self.branch = branch
        self.state = record.state
        self.scores = tuple(record.scores or (() if record.score is None else (record.score,)))
        self.reason = record.reason
        self.tests = None if record.tests is None else TestReport.from_json(record.tests)
        self.value = record.value
        self.wall = record.wall

    def begin(self) -> None:
        """Make it the attempt that whatever runs from here is part of."""
        _current.set(self)

    def record_end(self) -> None:
        """Write down what came of it; what never came to run was cancelled. Of what is left to somebody else to go on
        with nothing is written."""
        if self.fork.is_left and self.state in ("pending", "running", "cancelled"):
            return
        if self.state == "pending" or self.state == "running":
            self.state, self.reason = "cancelled", self.reason or "it was not run to its end"
        error = None if self.error is None else error_as_data(self.error)
        self.fork.ledger.end_attempt(self.id, self.state, reason=self.reason, error=error, **self.facts)


def current_attempt() -> Attempt | None:
    """The attempt as a part of which the caller runs, if it does, in the process that runs it."""
    attempt = _current.get()
    return attempt if attempt is not None and attempt._process == os.getpid() else None


_TAIL = 3000  # characters of what it printed last


def feedback_of(attempt: Attempt) -> str:
    """Why an attempt failed: what it said itself, its failing tests with their output, or what it printed last."""
    parts = [attempt.said or attempt.reason or "it failed"]
    if attempt.tests is not None:
        parts.append(attempt.tests.feedback())
    else:
        tail = attempt.fork.ledger.attempt(attempt.id).tail
        if tail:
            parts.append(f"Its output ends with:\n{tail[-_TAIL:]}")
    return "\n\n".join(parts)
