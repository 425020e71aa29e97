"""Pattern: the base class of all patterns, with their options, their search and their outcome.

A pattern is a policy over a fork: it decides which candidates run next and which attempt wins. It holds no state of a
run, so it can be called any number of times.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypedDict

from forkwise.concurrency import run_in_thread, run_sync, try_call
from forkwise.errors import BranchError, BranchingError, ForkwiseWarning, RetestError
from forkwise.explore.stop_rule import StopRule, StopWhen, build_stop_rules
from forkwise.files.branch import Branch
from forkwise.files.workspace import Workspace
from forkwise.fork.candidate import Candidate, Subject, describe_error
from forkwise.fork.evaluation import DEFAULT_CRITERION, Evaluate, Evaluator, evaluator
from forkwise.fork.fork import Fork, ForkSettings, parent_of
from forkwise.fork.runner import InProcessRunner, Runner, SandboxRunner
from forkwise.git.ignore_rules import check_ignore
from forkwise.telemetry import operation_span

if TYPE_CHECKING:
    from forkwise.files.store.changes import Commit, OnConflict
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.limits.provider_limit import ProviderRules
    from forkwise.fork.limits.spend_budget import SpendLimits
    from forkwise.git.ignore_rules import Ignore
    from forkwise.testing.report import TestReport

__all__ = [
    "Observer",
    "Options",
    "Pattern",
    "Search",
    "SpeculationOutcome",
    "SpeculationResult",
    "Subjects",
    "WorkspaceLike",
    "build_candidates",
    "build_copies",
    "expand_attempt",
    "is_single",
    "preserve_cwd",
]


@contextmanager
def preserve_cwd(state: str) -> Iterator[None]:
    """Restore the working directory if the block left it inside a branch of ``state`` or in a deleted directory."""
    cwd_fd = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield
    finally:
        if _is_lost(state):
            with suppress(OSError):  # the original directory was removed, too
                os.fchdir(cwd_fd)
        os.close(cwd_fd)


def _is_lost(state: str) -> bool:
    try:
        cwd = os.getcwd()
        return f"{cwd}/".startswith(f"{state}/branches/") or not os.path.isdir(cwd)
    except FileNotFoundError:
        return True


@dataclass(frozen=True, slots=True)
class SpeculationResult:
    """The result of one candidate.

    ``branch_path`` was its working directory, which no longer exists once the pattern is over. ``reason`` says why it
    failed; ``exception`` is the exception that it raised. ``attempt`` is its id in the ledger, which has its output.
    With a ``fault``, such as ``sandbox`` or ``disk``, the machine failed and the candidate was not judged.
    ``no_change`` says that it changed no file, apart from ignored ones.
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
    fault: str | None = None
    no_change: bool = False

    @classmethod
    def of(cls, attempt: Attempt) -> SpeculationResult:
        """Build the result of an attempt."""
        return cls(
            attempt.index,
            attempt.success,
            attempt.score,
            attempt.value,
            attempt.error,
            attempt.directory,
            attempt.reason,
            attempt.tests,
            attempt.wall,
            attempt.id,
            attempt.fault,
            bool(attempt.no_change),
        )


@dataclass(frozen=True, slots=True)
class SpeculationOutcome:
    """The outcome of a pattern: the winner and whether it was committed. ``fork`` is the fork's id in the ledger.

    ``note`` says what the workspace's own filesystem (BranchFS, DaxFS) does not support; it is empty otherwise.
    ``warnings`` are reasons not to rely on the outcome, such as a judge that failed. If a failed judge left equal
    attempts, the outcome is ``undecided``: nothing is committed, and the fork waits for a pick.
    """

    winner: SpeculationResult | None = None
    all_results: list[SpeculationResult] = field(default_factory=list)
    committed: bool = False
    commit: Commit | None = None
    fork: str | None = None
    note: str = ""
    warnings: tuple[str, ...] = ()
    undecided: bool = False

    @classmethod
    def of(
        cls,
        winner: Attempt | None,
        attempts: Iterable[Attempt],
        commit: Commit | None,
        fork: str,
        note: str = "",
        warnings: tuple[str, ...] = (),
        undecided: bool = False,
    ) -> SpeculationOutcome:
        """Build the outcome of ``attempts``, in the order in which they were added."""
        results = {a.id: SpeculationResult.of(a) for a in attempts}
        won = None if winner is None else results.get(winner.id) or SpeculationResult.of(winner)
        return cls(won, list(results.values()), commit is not None, commit, fork, note, warnings, undecided)


class Observer(Protocol):
    """Callbacks for the progress of a pattern."""

    def fork_started(self, fork: str) -> None:
        """Handle the start of the outermost fork; called once, on the event loop, with its id."""

    def winner_found(self, branch: Branch) -> None:
        """Handle the winner's branch before it is committed or kept for a pick; called in a thread."""


class Search:
    """The forks of one run of a pattern, as an async context manager.

    ``how`` and ``detail`` are recorded in the ledger and say how the winner was found. ``holds`` says that the user
    picks the winner later. ``stopped`` is the reason why one of ``stop_rules`` ended the search. ``undecided`` says
    that the decision depended on a judge that failed, so that the user has to pick.
    """

    def __init__(
        self,
        fork: Fork,
        observer: Observer | None = None,
        *,
        holds: bool = False,
        stop_rules: Sequence[StopRule] = (),
    ) -> None:
        self.fork = fork
        self.stopped: str | None = None
        self._observer = observer
        self._holds = holds
        self._stop_rules = stop_rules
        self._ended: list[Attempt] = []
        self.how = DEFAULT_CRITERION
        self.detail: dict[str, Any] = {}
        self.undecided = False
        self.warnings: list[str] = []
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
        """All attempts, those of the outermost fork first."""
        return [a for fork in (self.fork, *self._inner) for a in fork.attempts]

    async def finished(self, attempts: Iterable[Attempt]) -> AsyncIterator[Attempt]:
        """Yield attempts in the order in which they end, fork by fork, until a rule stops the search."""
        waiting = list(attempts)
        for fork in dict.fromkeys(attempt.fork for attempt in waiting):
            async for attempt in fork.finished([a for a in waiting if a.fork is fork]):
                self._note_end(attempt)
                yield attempt
                if self.stopped is not None:
                    for one in dict.fromkeys(a.fork for a in waiting):
                        await one.cancel([a for a in waiting if a.fork is one], f"the search stopped: {self.stopped}")
                    return
        self._note_budget()

    async def run(self, attempts: Iterable[Attempt]) -> list[Attempt]:
        """Wait for all ``attempts``, or until a rule stops the search, and return them."""
        attempts = list(attempts)
        async for _ in self.finished(attempts):
            pass
        await self._compare(attempts)
        return attempts

    async def _compare(self, attempts: Sequence[Attempt]) -> None:
        """Replace the scores that depend on all attempts of a group, once all of them have ended."""
        evaluator = self.fork.settings.evaluator
        if evaluator is None or len(attempts) < 2:
            return
        try:
            found = await evaluator.compare(attempts)
        except (BranchingError, OSError) as error:
            warnings.warn(f"attempts could not be compared: {describe_error(error)}", ForkwiseWarning, stacklevel=2)
            return
        for attempt, scores in found.items():
            attempt.scores = scores
            attempt.fork.ledger.record_score(attempt.id, attempt.score, scores)

    def _note_end(self, attempt: Attempt) -> None:
        if attempt.state not in ("succeeded", "failed") or attempt in self._ended:
            return
        self._ended.append(attempt)
        running = [a for a in self.attempts if a.state in ("pending", "running")]
        for rule in self._stop_rules:
            reason = rule.find_reason(self._ended, running)
            if reason is not None and self.stopped is None:
                self.stopped = self.detail["stopped"] = reason

    def _note_budget(self) -> None:
        """Stop the search if its time or money is used up. Attempts that ended before were already judged."""
        reason = self.fork.time_budget.reason or self.fork.spend_budget.reason
        if reason is not None and self.stopped is None:
            self.stopped = self.detail["stopped"] = reason
            ended = sum(attempt.reason == reason for attempt in self.attempts)
            self.warn(f"{reason}: {ended} of {len(self.attempts)} attempts were stopped or not started")

    def warn(self, message: str) -> None:
        """Issue a warning that the user should read before relying on the outcome, and add it to the outcome."""
        if message not in self.warnings:
            self.warnings.append(message)
            warnings.warn(message, ForkwiseWarning, stacklevel=3)

    def warn_of_doubts(self) -> None:
        """Warn if a stop rule could not be applied."""
        for rule in self._stop_rules:
            doubt = rule.find_doubt(self._ended)
            if doubt is not None:
                warnings.warn(doubt, ForkwiseWarning, stacklevel=2)

    def select_best(self, attempts: Sequence[Attempt]) -> Attempt | None:
        """Return the successful attempt with the highest scores, the first of equals; None if none succeeded.

        Sets ``how`` to what decided: a criterion of the evaluator, the order of equal attempts, or the lack of others.
        """
        successes = [attempt for attempt in attempts if attempt.success]
        best = max(successes, key=lambda a: a.rank, default=None)
        if best is not None:
            others = [attempt for attempt in successes if attempt is not best]
            self.how = _find_reason(best, others, self.fork.settings.evaluator)
        return best

    def select_deepest(self) -> Attempt | None:
        """Return the best of the successful attempts that are nested most deeply; None without a success."""
        for depth in sorted({_find_depth(attempt) for attempt in self.attempts}, reverse=True):
            best = self.select_best([attempt for attempt in self.attempts if _find_depth(attempt) == depth])
            if best is not None:
                return best
        return None

    async def inside(self, attempt: Attempt) -> Fork:
        """Return the fork inside ``attempt``; start it on the first call.

        Raises BranchError on DaxFS if the user picks the winner, because the inner winner is committed before that.
        """
        if self._holds and attempt.own_branch.view_kind.ends_chain:
            raise BranchError(
                f"{attempt.own_branch.view} commits a branch with those around it, so attempts inside attempts cannot "
                "wait for a pick: commit the winner, or use one level"
            )
        for fork in self._inner:
            if fork.inside is attempt:
                return fork
        known = [record.id for record in self.fork.ledger.children(attempt.id) if record.state == "interrupted"]
        fork = Fork(
            attempt.own_branch,
            self.fork.kind,
            self.fork.settings,
            resume=known[-1] if known else None,
            inside=attempt,
        )
        await self._forks.enter_async_context(fork)
        self._inner.append(fork)
        return fork

    async def accept(self, winner: Attempt) -> bool:
        """Return whether an attempt of the outermost fork still passes its tests on the workspace's current files.

        An attempt that does not is a failure from then on, and the pattern continues without it.
        """
        try:
            await self.fork.prepare(winner)
        except RetestError as error:
            await self.reject(winner, error)
            return False
        return True

    async def reject(self, winner: Attempt, error: RetestError) -> None:
        """Record that a winner failed its retest, and with it everything inside its attempt of the outermost fork."""
        outermost = self._find_outermost(winner)
        for attempt in self.attempts:
            if attempt is winner or self._find_outermost(attempt) is outermost:
                await attempt.fork.reject(attempt, error)

    async def commit(self, winner: Attempt) -> Commit:
        """Commit a winner up to the outermost fork's parent, and drop all other attempts.

        Raises RetestError, with the outermost fork undecided, if the winner fails on top of the workspace's current
        files.
        """
        outermost = await self._commit_inside(winner)
        await self.fork.prepare(outermost)
        await self._notify(outermost)
        commit = await self.fork.resolve(outermost, self.how, self.detail)
        await self._abort_inner()
        return commit

    async def hold(self, favourite: Attempt | None) -> None:
        """Leave the choice between the attempts of the outermost fork to the user."""
        outermost = None if favourite is None else await self._commit_inside(favourite)
        if outermost is not None:
            await self._abort_inner()
            await self._notify(outermost)
        await self.fork.await_pick(outermost, self.how)

    async def abort(self, reason: str) -> None:
        """Abort all forks, the innermost first."""
        for fork in reversed(self._inner):
            await fork.abort(reason)
        await self.fork.abort(reason)

    async def _notify(self, winner: Attempt) -> None:
        if self._observer is not None:
            await run_in_thread(self._observer.winner_found, winner.own_branch)

    async def _commit_inside(self, winner: Attempt) -> Attempt:
        """Commit a winner into the attempt of the outermost fork that contains it; return that attempt."""
        chain = {winner.fork.id: winner}
        outermost = winner
        while outermost.fork is not self.fork:
            assert outermost.fork.inside is not None
            outermost = outermost.fork.inside
            chain[outermost.fork.id] = outermost
        for fork in reversed(self._inner):
            assert fork.inside is not None
            if fork.is_over or self._find_outermost(fork.inside) is not outermost:
                continue  # the others are still needed if this one fails its retest
            if fork.id in chain:
                await fork.resolve(chain[fork.id], self.how)
            else:
                await fork.abort("another attempt won")
        return outermost

    def _find_outermost(self, attempt: Attempt) -> Attempt:
        """Return the attempt of the outermost fork that contains ``attempt``."""
        while attempt.fork is not self.fork and attempt.fork.inside is not None:
            attempt = attempt.fork.inside
        return attempt

    async def _abort_inner(self) -> None:
        for fork in reversed(self._inner):
            if not fork.is_over:
                await fork.abort("another attempt won")


def _find_depth(attempt: Attempt) -> int:
    return 0 if attempt.fork.inside is None else 1 + _find_depth(attempt.fork.inside)


async def expand_attempt(expand: Callable[[Path, int], Any], attempt: Attempt, depth: int) -> list[Candidate] | None:
    """Return the candidates of the next level. If ``expand`` fails, warn and return None."""
    try:
        path = await run_in_thread(lambda: attempt.own_branch.path)
        return [Candidate.of(one) for one in (await try_call(expand, path, depth)).get() or ()]
    except Exception as error:  # noqa: BLE001 - earlier results stay valid
        warnings.warn(f"{attempt.id} could not be expanded: {describe_error(error)}", ForkwiseWarning, stacklevel=2)
        return None


#: The argument that a pattern is called with.
WorkspaceLike = Workspace | Branch | str | os.PathLike[str]

#: One candidate to run several times, or several candidates.
Subjects = Subject | Sequence[Subject]


class Options(TypedDict, total=False):
    """The options of every pattern; see Pattern."""

    timeout: float | None
    max_parallel: int | None
    isolate_processes: bool
    runner: Runner | None
    commit: bool
    keep: bool
    on_conflict: OnConflict
    retest: bool
    ignore: Ignore | None
    allow_empty: bool
    has_prompt: bool
    stop_when: StopWhen | None
    time_budget: float | None
    spend_limits: SpendLimits | None
    provider_rules: ProviderRules | None
    holds_on_interrupt: bool
    spec: dict[str, Any] | None
    kind: str | None


class Pattern(ABC):
    """A way to explore: constructed with candidates, called with a workspace.

    ``pattern(workspace)`` blocks; ``await pattern.run(workspace)`` does not.

    Options of all patterns: ``timeout`` in seconds for each candidate; ``max_parallel``; ``runner``, or
    ``isolate_processes`` to run functions in sandboxes; ``evaluate`` (a function of the directory, ``Tests(...)``, or a
    list of them); ``commit=False`` to get only the results; ``keep`` to keep all branches; ``on_conflict`` as in
    ``Branch.commit``; ``retest=False`` to commit a winner without testing it again if the workspace was changed since
    the fork.

    With ``commit=False`` and ``keep`` the fork stays open until the user picks a winner.

    ``stop_when`` is ``"all-green"``, ``"no-gain:3"`` or ``"cost:2.50"`` (US dollars), or several in a list: then no
    further attempts are made. ``time_budget`` is the running time in seconds of all candidates together, without their
    tests: when it is used up, running candidates are stopped. ``spend_limits`` does the same for what agents cost.
    ``provider_rules`` say how many agents may use a provider at once, and how often a refused one is retried.

    ``ignore`` leaves changed paths out of scores, conflicts and the commit, as ``Branch.set_ignore`` does; by default
    nothing is left out. An attempt without any other change ranks below the others; with ``has_prompt``, it fails,
    because it was asked to do something. ``allow_empty`` turns both off.

    ``spec`` is stored for resuming the fork after a kill; ``kind`` overrides the pattern's name in the ledger.
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
        retest: bool = True,
        ignore: Ignore | None = None,
        allow_empty: bool = False,
        has_prompt: bool = False,
        stop_when: StopWhen | None = None,
        time_budget: float | None = None,
        spend_limits: SpendLimits | None = None,
        provider_rules: ProviderRules | None = None,
        holds_on_interrupt: bool = False,
        spec: dict[str, Any] | None = None,
        kind: str | None = None,
    ) -> None:
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, not {timeout}")
        if max_parallel is not None and max_parallel < 1:
            raise ValueError(f"max_parallel must be at least 1, not {max_parallel}")
        if time_budget is not None and not time_budget > 0:
            raise ValueError(f"time_budget must be above 0 seconds, not {time_budget}")
        check_ignore(ignore)
        judge = None if evaluate is None else evaluator(evaluate)
        self.settings = ForkSettings(
            runner or (SandboxRunner() if isolate_processes else InProcessRunner()),
            judge,
            timeout,
            max_parallel,
            keep,
            on_conflict,
            retest=judge if retest and commit else None,
            holds_on_interrupt=holds_on_interrupt,
            ignore=ignore,
            allow_empty=allow_empty,
            has_prompt=has_prompt,
            time_budget=time_budget,
            spend_limits=spend_limits,
            provider_rules=provider_rules,
        )
        self._stop_rules = build_stop_rules(stop_when)
        self._commits = commit
        self._spec = spec
        self._kind = kind or self.kind

    def __call__(self, workspace: WorkspaceLike, *, resume: str | None = None) -> SpeculationOutcome:
        """Run the pattern and block until it is over."""
        return run_sync(self.run(workspace, resume=resume), alone=True)

    async def run(
        self, workspace: WorkspaceLike, *, resume: str | None = None, observer: Observer | None = None
    ) -> SpeculationOutcome:
        """Run the pattern. ``resume`` is the id of an interrupted fork to continue; ``observer`` gets callbacks."""
        parent = await run_in_thread(parent_of, workspace)
        with (
            operation_span("invoke_workflow", self._kind, {"workflow.name": self._kind}),
            preserve_cwd(parent.state_dir.state),
        ):
            fork = Fork(parent, self._kind, self.settings, spec=self._spec, resume=resume)
            holds = self.settings.keep and not self._commits
            async with Search(fork, observer, holds=holds, stop_rules=self._stop_rules) as search:
                if observer is not None:
                    observer.fork_started(fork.id)
                if self.settings.evaluator is not None:
                    await self.settings.evaluator.prepare(fork)
                winner = await self.explore(search)
                search.warn_of_doubts()
                if search.undecided:
                    winner = None
                while True:
                    try:
                        commit = await self._conclude(search, winner)
                        break
                    except RetestError as error:
                        assert winner is not None
                        await search.reject(winner, error)
                        winner = self.select_next(search)
                note = ""
                with suppress(FileNotFoundError):  # the workspace was removed meanwhile
                    note = parent.child_view().limits
                return SpeculationOutcome.of(
                    winner, search.attempts, commit, search.fork.id, note, tuple(search.warnings), search.undecided
                )

    @abstractmethod
    async def explore(self, search: Search) -> Attempt | None:
        """Run candidates in ``search`` and return the winner, or None."""

    def select_next(self, search: Search) -> Attempt | None:
        """Return the best of the remaining attempts, after the winner failed its retest; None if there is none."""
        return search.select_best(search.attempts)

    async def _conclude(self, search: Search, winner: Attempt | None) -> Commit | None:
        if search.undecided:
            await search.hold(None)
            return None
        if winner is not None and self._commits:
            return await search.commit(winner)
        if self.settings.keep and not self._commits:
            await search.hold(winner)
        else:
            await search.abort("no attempt won" if winner is None else "the pattern was called with commit=False")
        return None


def _find_reason(winner: Attempt, others: Sequence[Attempt], evaluator: Evaluator | None) -> str:
    """Return what decided between the winner and the best of the other successful attempts."""
    if not others:
        return "only success"
    best_rank = max(other.rank for other in others)
    if best_rank == winner.rank:
        return "first of equals"
    if best_rank[0] < winner.rank[0]:
        return "only change"
    runner_up = best_rank[1:]
    criteria = () if evaluator is None else evaluator.criteria
    # An attempt's own score follows the evaluator's. Any other number of scores cannot be matched with the criteria.
    if len(winner.scores) - len(criteria) not in (0, 1):
        return DEFAULT_CRITERION
    pairs = zip(winner.scores, runner_up, strict=False)
    decisive = next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), len(criteria))
    return criteria[decisive] if decisive < len(criteria) else DEFAULT_CRITERION


def build_copies(subjects: Subjects, n: int) -> list[Candidate]:
    """Build one candidate for each of several subjects, or ``n`` for a single one; a function gets its number.

    >>> [c.label for c in build_copies(["./solve.sh"], 2)]
    ['./solve.sh', './solve.sh']
    """
    if not is_single(subjects):
        return build_candidates(subjects)  # type: ignore[arg-type]
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    single: Any = subjects
    return [Candidate.of(single, index) for index in range(n)]


def is_single(subjects: Subjects) -> bool:
    """Return whether this is one subject, to be run several times: a function, a command or a candidate."""
    if callable(subjects) or isinstance(subjects, Candidate):
        return True
    return bool(subjects) and all(isinstance(one, str) for one in subjects)


def build_candidates(subjects: Sequence[Any]) -> list[Candidate]:
    """Build one candidate for each subject. Raises ValueError if there is none."""
    if not subjects:
        raise ValueError("there are no candidates: give at least one")
    return [Candidate.of(one) for one in subjects]
