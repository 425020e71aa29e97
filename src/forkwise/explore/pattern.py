"""Pattern: what all ways of exploring have in common. Each is a policy over a fork: it says who runs next and who wins.

A pattern holds no state of a run, so one can be called any number of times.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Protocol, TypedDict

from forkwise.concurrency import run_in_thread, run_sync, try_call
from forkwise.errors import ForkwiseWarning
from forkwise.files.branch import Branch
from forkwise.files.store.changes import Commit, OnConflict
from forkwise.files.workspace import Workspace
from forkwise.fork.attempt import Attempt, span
from forkwise.fork.candidate import Candidate, Command, Task, describe_error
from forkwise.fork.evaluation import Evaluate, evaluator
from forkwise.fork.fork import Fork, ForkSettings, parent_of
from forkwise.fork.runner import InProcessRunner, Runner, SandboxRunner
from forkwise.testing.report import TestReport

__all__ = [
    "Observer",
    "Options",
    "Pattern",
    "Place",
    "Search",
    "SpeculationOutcome",
    "SpeculationResult",
    "Subjects",
    "best",
    "copies",
    "expanded",
    "preserve_cwd",
    "several",
]


@contextmanager
def preserve_cwd(state: str) -> Iterator[None]:
    """Have the program stand where it stood, if it would else stand in a branch beneath ``state`` or nowhere."""
    here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield
    finally:
        if _is_lost(state):
            with suppress(OSError):  # where it stood is gone, too
                os.fchdir(here)
        os.close(here)


def _is_lost(state: str) -> bool:
    try:
        return f"{os.getcwd()}/".startswith(f"{state}/branches/")
    except FileNotFoundError:
        return True


@dataclass(frozen=True, slots=True)
class SpeculationResult:
    """One candidate's outcome.

    ``branch_path`` is the directory it worked in, which is gone once the pattern is over. ``reason`` says why it
    failed, ``exception`` what it raised. ``attempt`` is its name in the ledger, where its output is.
    """

    branch_index: int
    success: bool
    score: float = 0.0
    return_value: Any = None
    exception: BaseException | None = None
    branch_path: Path | None = None
    reason: str | None = None
    tests: TestReport | None = None
    wall: float | None = None
    attempt: str | None = None

    @classmethod
    def of(cls, attempt: Attempt) -> SpeculationResult:
        """The result of an attempt."""
        return cls(
            attempt.index,
            attempt.success,
            attempt.score,
            attempt.value,
            attempt.error,
            attempt.seen_at,
            attempt.reason,
            attempt.tests,
            attempt.wall,
            attempt.id,
        )


@dataclass(frozen=True, slots=True)
class SpeculationOutcome:
    """What came of a pattern: who won and whether that was committed. ``fork`` is its name in the ledger."""

    winner: SpeculationResult | None = None
    all_results: list[SpeculationResult] = field(default_factory=list)
    committed: bool = False
    commit: Commit | None = None
    fork: str | None = None

    @classmethod
    def of(
        cls, winner: Attempt | None, attempts: Iterable[Attempt], commit: Commit | None, fork: str
    ) -> SpeculationOutcome:
        """The outcome of attempts, in the order in which they were made."""
        results = {a.id: SpeculationResult.of(a) for a in attempts}
        won = None if winner is None else results.get(winner.id) or SpeculationResult.of(winner)
        return cls(won, list(results.values()), commit is not None, commit, fork)


class Observer(Protocol):
    """Somebody who looks on at an exploration, and decides nothing."""

    def fork_started(self, fork: str) -> None:
        """Called once, on the event loop, with the name of the first fork."""

    def winner_found(self, branch: Branch) -> None:
        """Called in a thread with the winner's branch, as it is about to be committed or to be held for a pick."""


class Search:
    """The forks of one exploration, as an async context manager. ``how`` and ``detail`` say, for the ledger, how the
    winner was found."""

    def __init__(self, fork: Fork, witness: Observer | None = None) -> None:
        self.fork = fork
        self._witness = witness
        self.how = "best score"
        self.detail: dict[str, Any] = {}
        self._inner: list[Fork] = []
        self._forks = AsyncExitStack()

    async def __aenter__(self) -> Search:
        await self._forks.enter_async_context(self.fork)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._forks.__aexit__(kind, error, at)

    @property
    def attempts(self) -> list[Attempt]:
        """All that was tried, the outer before the inner."""
        return [a for fork in (self.fork, *self._inner) for a in fork.attempts]

    async def inside(self, attempt: Attempt) -> Fork:
        """The fork of what an attempt made."""
        for fork in self._inner:
            if fork.inside is attempt:
                return fork
        known = [record.id for record in self.fork.ledger.children(attempt.id) if record.state == "interrupted"]
        fork = Fork(
            attempt.place,
            self.fork.kind,
            self.fork.settings,
            resume=known[-1] if known else None,
            inside=attempt,
        )
        await self._forks.enter_async_context(fork)
        self._inner.append(fork)
        return fork

    async def commit(self, winner: Attempt) -> Commit:
        """Commit a winner all the way to the workspace; whatever else was tried goes."""
        outermost = await self._fold(winner)
        await self._show(outermost)
        return await self.fork.resolve(outermost, self.how, self.detail)

    async def hold(self, favourite: Attempt | None) -> None:
        """Leave the choice between the attempts of the first fork to a person."""
        outermost = None if favourite is None else await self._fold(favourite)
        if outermost is not None:
            await self._show(outermost)
        await self.fork.await_pick(outermost, self.how)

    async def abort(self, reason: str) -> None:
        """Drop all of it."""
        for fork in reversed(self._inner):
            await fork.abort(reason)
        await self.fork.abort(reason)

    async def _show(self, winner: Attempt) -> None:
        if self._witness is not None:
            await run_in_thread(self._witness.winner_found, winner.place)

    async def _fold(self, winner: Attempt) -> Attempt:
        """Commit a winner up to the attempt of the first fork in which it was made; gives that."""
        chain = {winner.fork.id: winner}
        outermost = winner
        while outermost.fork is not self.fork:
            assert outermost.fork.inside is not None
            outermost = outermost.fork.inside
            chain[outermost.fork.id] = outermost
        for fork in reversed(self._inner):
            if fork.id in chain:
                await fork.resolve(chain[fork.id], self.how)
            else:
                await fork.abort("another attempt won")
        return outermost


async def expanded(expand: Callable[[Path, int], Any], attempt: Attempt, depth: int) -> list[Candidate]:
    """The candidates of the next level. What raises, or gives something else, is warned of and ends the line there."""
    try:
        path = await run_in_thread(lambda: attempt.place.path)
        return [Candidate.of(one) for one in (await try_call(expand, path, depth)).get() or ()]
    except Exception as error:  # noqa: BLE001 - what was found before stands
        warnings.warn(f"{attempt.id} could not be expanded: {describe_error(error)}", ForkwiseWarning, stacklevel=2)
        return []


#: What a pattern can be called with.
Place = Workspace | Branch | str | os.PathLike[str]

#: Something to try several times, or several things to try.
Subjects = Task | Command | Sequence[Task | Command]


class Options(TypedDict, total=False):
    """What every pattern takes beside its own; see Pattern."""

    timeout: float | None
    max_parallel: int | None
    isolate_processes: bool
    runner: Runner | None
    commit: bool
    keep: bool
    on_conflict: OnConflict
    spec: dict[str, Any] | None
    kind: str | None


class Pattern(ABC):
    """A way of exploring: made with what to try, called with a workspace.

    ``pattern(workspace)`` blocks; ``await pattern.run(workspace)`` does not. What all of them take: ``timeout`` in
    seconds for each candidate; ``max_parallel``; where they run (``runner``, or ``isolate_processes`` for sandboxes);
    ``evaluate`` (a function of the directory, ``Tests(...)``, or several of them); ``commit=False`` to have the results
    only; ``keep`` to keep the branches of all; ``on_conflict`` as in ``Branch.commit``. With ``commit=False`` and
    ``keep`` the fork stays open for a person to pick. ``spec`` is what somebody needs to go on with it after a kill,
    ``kind`` what it is called in the ledger.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        *,
        timeout: float | None = None,
        max_parallel: int | None = None,
        isolate_processes: bool = False,
        runner: Runner | None = None,
        evaluate: Evaluate | None = None,
        commit: bool = True,
        keep: bool = False,
        on_conflict: OnConflict = "refuse",
        spec: dict[str, Any] | None = None,
        kind: str | None = None,
    ) -> None:
        if timeout is not None and not timeout > 0:
            raise ValueError(f"a timeout is a number of seconds above 0, not {timeout}")
        if max_parallel is not None and max_parallel < 1:
            raise ValueError(f"at least one attempt has to run at a time, not {max_parallel}")
        self.settings = ForkSettings(
            runner or (SandboxRunner() if isolate_processes else InProcessRunner()),
            None if evaluate is None else evaluator(evaluate),
            timeout,
            max_parallel,
            keep,
            on_conflict,
        )
        self._commits = commit
        self._spec = spec
        self._kind = kind or self.kind

    def __call__(self, workspace: Place, *, resume: str | None = None) -> SpeculationOutcome:
        """Explore, and wait until that is over."""
        return run_sync(lambda: self.run(workspace, resume=resume))

    async def run(
        self, workspace: Place, *, resume: str | None = None, witness: Observer | None = None
    ) -> SpeculationOutcome:
        """Explore. ``resume`` names a fork to go on with, whose process was killed; ``witness`` is told of it."""
        parent = await run_in_thread(parent_of, workspace)
        with span("fork", kind=self._kind), preserve_cwd(parent.place.state):
            fork = Fork(parent, self._kind, self.settings, spec=self._spec, resume=resume)
            async with Search(fork, witness) as search:
                if witness is not None:
                    witness.fork_started(fork.id)
                winner = await self.explore(search)
                commit = await self._conclude(search, winner)
                return SpeculationOutcome.of(winner, search.attempts, commit, search.fork.id)

    @abstractmethod
    async def explore(self, search: Search) -> Attempt | None:
        """Try things; gives the winner, if there is one."""

    async def _conclude(self, search: Search, winner: Attempt | None) -> Commit | None:
        if winner is not None and self._commits:
            return await search.commit(winner)
        if self.settings.keep and not self._commits:
            await search.hold(winner)
        else:
            await search.abort("nobody won" if winner is None else "nothing was to be committed")
        return None


def best(attempts: Sequence[Attempt]) -> Attempt | None:
    """The successful attempt with the highest score, the first of several."""
    return max((a for a in attempts if a.success), key=lambda a: a.scores, default=None)


def copies(subjects: Subjects, n: int, *, numbered: bool = True) -> list[Candidate]:
    """What to try: several things, each once, or one thing ``n`` times, told which time it is if it is a function.

    >>> [c.label for c in copies(["./solve.sh"], 2)]
    ['./solve.sh', './solve.sh']
    """
    if not callable(subjects) and not all(isinstance(one, str) for one in subjects):
        return several(subjects)
    if n < 1:
        raise ValueError(f"something is tried at least once, not {n} times")
    given: Any = subjects
    return [Candidate.of(given, index) if numbered else Candidate.of(given) for index in range(n)]


def several(subjects: Sequence[Any]) -> list[Candidate]:
    """Several things to try, of which there has to be one at least."""
    if not subjects:
        raise ValueError("there is nothing to try: give at least one candidate")
    return [Candidate.of(one) for one in subjects]
