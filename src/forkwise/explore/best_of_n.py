"""BestOfN: the same task several times, or several candidates, and the best success wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Unpack

from forkwise.explore.pattern import Options, Pattern, Search, Subjects, best, copies
from forkwise.fork.attempt import Attempt
from forkwise.fork.evaluation import Evaluate

__all__ = ["BestOfN"]


class BestOfN(Pattern):
    """Run a task ``n`` times, or a list of candidates once each; the success with the highest score is committed.

    A task is called with its directory and its number, a candidate of a list with its directory; both return
    ``(success, score)``, or True or False. The score is that of ``evaluate`` where given, else the one that was
    returned, else that of ``scores``, which has one for each, else 1.
    """

    kind: ClassVar[str] = "best-of"

    def __init__(
        self,
        task: Subjects,
        n: int = 3,
        *,
        scores: Sequence[float] | None = None,
        evaluate: Evaluate | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        self._candidates = copies(task, n)
        if scores is not None:
            if len(scores) != len(self._candidates):
                raise ValueError(f"{len(self._candidates)} candidates need as many scores, not {len(scores)}")
            self._candidates = [replace(c, prior=float(s)) for c, s in zip(self._candidates, scores, strict=True)]

    async def explore(self, search: Search) -> Attempt | None:
        return best(await search.fork.run(search.fork.add(c, i) for i, c in enumerate(self._candidates)))
