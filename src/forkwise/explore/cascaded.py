"""Cascaded: waves of attempts; a wider wave follows only if all of a wave fail, and gets their feedback."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Unpack

from forkwise.explore.evidence.summary import Summaries, format_feedback
from forkwise.explore.pattern import Options, Pattern, Search
from forkwise.fork.candidate import Candidate, Subject

if TYPE_CHECKING:
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.evaluation import Evaluate

__all__ = ["Cascaded"]


class Cascaded(Pattern):
    """Run waves of ``fan_out`` attempts until one succeeds; the first success wins.

    A task is called with its directory and the list of feedback from earlier attempts (empty in the first wave), and
    returns ``(success, feedback)``, or a value that is true if it succeeded. A command reads the feedback in the file
    ``$FORKWISE_FEEDBACK``. With ``summaries``, and always for a command, the feedback is a summary of each attempt:
    what it changed, its tests, its errors.
    """

    kind: ClassVar[str] = "cascade"

    def __init__(
        self,
        task: Subject,
        *,
        fan_out: Sequence[int] = (1, 2, 4),
        summaries: Summaries | None = None,
        evaluate: Evaluate | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        if not fan_out or min(fan_out) < 1:
            raise ValueError(f"fan_out must have at least one wave, each of at least 1 attempt, not {tuple(fan_out)}")
        Candidate.of(task)
        self._task = task
        self._fan_out = tuple(fan_out)
        self._summaries = summaries if callable(task) else summaries or Summaries()

    async def explore(self, search: Search) -> Attempt | None:
        search.how = "first success"
        learned: list[str] = []
        index = 0
        for width in self._fan_out:
            wave = []
            for _ in range(width):
                wave.append(self._add(search, index, learned))
                index += 1
            async for attempt in search.finished(wave):
                if attempt.success and await search.accept(attempt):
                    return attempt
            if search.stopped is not None:
                break
            learned += [await format_feedback(attempt, self._summaries) for attempt in wave if attempt.fault is None]
        return None

    def _add(self, search: Search, index: int, learned: list[str]) -> Attempt:
        if callable(self._task):
            candidate = replace(Candidate.of(self._task, list(learned)), has_feedback=True)
            return search.fork.add(candidate, index)
        feedback = "\n\n".join(f"Attempt {number}: {text}" for number, text in enumerate(learned, 1))
        return search.fork.add(Candidate.of(self._task), index, feedback=feedback)
