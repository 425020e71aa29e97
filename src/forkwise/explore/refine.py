"""Refine: rounds of attempts, each round on top of the best attempt so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Unpack

from forkwise.explore.evidence.summary import Summaries, format_summaries
from forkwise.explore.pattern import Options, Pattern, Search
from forkwise.fork.candidate import Candidate, Subject

if TYPE_CHECKING:
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.evaluation import Evaluate
    from forkwise.fork.fork import Fork

__all__ = ["Refine"]

_MAX_SUMMARIES = 4  # the base's, and those of others


class Refine(Pattern):
    """Run ``n`` attempts side by side, then ``n`` more on top of the best one, for ``rounds`` rounds; the best wins.

    A task is called with its directory, its number and the feedback (None in the first round): summaries of the attempt
    that it builds on and of others. A command reads them in the file ``$FORKWISE_FEEDBACK``. The attempts of a round
    run in branches of the best attempt's branch, and one of them becomes the next base only if it has higher scores. As
    long as none succeeded, the base is the best failed attempt that passes some tests, or else the workspace.
    """

    kind: ClassVar[str] = "refine"

    def __init__(
        self,
        task: Subject,
        n: int = 3,
        *,
        rounds: int = 2,
        summaries: Summaries | None = None,
        evaluate: Evaluate | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        if n < 1 or rounds < 1:
            raise ValueError(f"n and rounds must be at least 1, not {n} and {rounds}")
        Candidate.of(task)
        self._task = task
        self._n = n
        self._rounds = rounds
        self._summaries = summaries or Summaries()

    async def explore(self, search: Search) -> Attempt | None:
        base: Attempt | None = None
        feedback: str | None = None
        for number in range(self._rounds):
            fork = search.fork if base is None else await search.inside(base)
            first = number * self._n
            attempts = await search.run(self._add(fork, i, feedback) for i in range(first, first + self._n))
            for attempt in attempts:
                if _is_sound(attempt) and (base is None or _merit(attempt) > _merit(base)):
                    base = attempt
            if search.stopped is not None:
                break
            if number + 1 < self._rounds:
                feedback = await self._describe(base, attempts)
        return search.select_best(search.attempts)

    def _add(self, fork: Fork, index: int, feedback: str | None) -> Attempt:
        arguments = (index, feedback) if callable(self._task) else ()
        return fork.add(Candidate.of(self._task, *arguments), index, feedback=feedback)

    async def _describe(self, base: Attempt | None, attempts: list[Attempt]) -> str:
        described = [] if base is None else [("You build on this attempt", await self._summaries.summarise(base))]
        for attempt in attempts:
            if attempt is not base and attempt.fault is None and len(described) < _MAX_SUMMARIES:
                described.append((f"Attempt {attempt.number}", await self._summaries.summarise(attempt)))
        return format_summaries(described)


def _is_sound(attempt: Attempt) -> bool:
    """Return whether an attempt can be built on: a success, or a failure that passes some tests."""
    if attempt.success or attempt.tests is None or attempt.branch is None:
        return attempt.success
    return attempt.fault is None and attempt.tests.doubt is None and attempt.tests.passed > 0


def _merit(attempt: Attempt) -> tuple[bool, tuple[float, ...]]:
    return attempt.success, attempt.scores
