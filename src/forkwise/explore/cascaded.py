"""Cascaded: waves of attempts that widen only when all of a wave fail, each told what the waves before learned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Unpack

from forkwise.explore.pattern import Options, Pattern, Search
from forkwise.fork.attempt import Attempt, feedback_of
from forkwise.fork.candidate import Candidate, Command, Task
from forkwise.fork.evaluation import Evaluate

__all__ = ["Cascaded"]


class Cascaded(Pattern):
    """Try with one attempt, then with more, as ``fan_out`` says; in each wave the first success wins.

    A task is called with its directory and the list of what earlier attempts taught (empty in the first wave), and
    returns ``(success, what was learned)``, or True or False. A command finds all of it in ``$FORKWISE_FEEDBACK``.
    """

    kind: ClassVar[str] = "cascade"

    def __init__(
        self,
        task: Task | Command,
        *,
        fan_out: Sequence[int] = (1, 2, 4),
        evaluate: Evaluate | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        if not fan_out or min(fan_out) < 1:
            raise ValueError(f"every wave has at least one attempt, unlike those of {tuple(fan_out)}")
        Candidate.of(task)
        self._task = task
        self._fan_out = tuple(fan_out)

    async def explore(self, search: Search) -> Attempt | None:
        search.how = "first success"
        learned: list[str] = []
        index = 0
        for width in self._fan_out:
            wave = []
            for _ in range(width):
                wave.append(self._add(search, index, learned))
                index += 1
            async for attempt in search.fork.finished(wave):
                if attempt.success:
                    return attempt
            learned += [feedback_of(attempt) for attempt in wave]
        return None

    def _add(self, search: Search, index: int, learned: list[str]) -> Attempt:
        if callable(self._task):
            return search.fork.add(Candidate.of(self._task, list(learned)), index)
        told = "\n\n".join(f"Attempt {number}: {text}" for number, text in enumerate(learned))
        return search.fork.add(Candidate.of(self._task), index, feedback=told)
