"""Pattern: what all ways of exploring have in common. Each is a policy over a fork: it says who runs next and who wins.

A pattern holds no state of a run, so one can be called any number of times.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypedDict

from forkwise.explore.blocking import block
from forkwise.explore.outcome import SpeculationOutcome
from forkwise.explore.search import Search, Witness
from forkwise.explore.standing import standing
from forkwise.files.branch import Branch
from forkwise.files.commit import Commit
from forkwise.files.conflict import OnConflict
from forkwise.files.workspace import Workspace
from forkwise.fork.attempt import Attempt
from forkwise.fork.candidate import Candidate, Command, Task
from forkwise.fork.evaluation import Evaluate, evaluator
from forkwise.fork.fork import Fork, Settings, parent_of
from forkwise.fork.tracing import span
from forkwise.runners.in_process import InProcessRunner
from forkwise.runners.protocol import Runner
from forkwise.runners.sandboxed import SandboxRunner
from forkwise.sandbox.threads import in_thread

__all__ = ["Options", "Pattern", "Place", "Subjects", "best", "copies", "several"]

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
        self.settings = Settings(
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
        return block(lambda: self.run(workspace, resume=resume))

    async def run(
        self, workspace: Place, *, resume: str | None = None, witness: Witness | None = None
    ) -> SpeculationOutcome:
        """Explore. ``resume`` names a fork to go on with, whose process was killed; ``witness`` is told of it."""
        parent = await in_thread(parent_of, workspace)
        with span("fork", kind=self._kind), standing(parent.place.state):
            fork = Fork(parent, self._kind, self.settings, spec=self._spec, resume=resume)
            async with Search(fork, witness) as search:
                if witness is not None:
                    witness.begun(fork.id)
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
