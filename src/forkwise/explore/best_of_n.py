"""BestOfN: run one task several times, or several candidates once; the best success wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Unpack

from forkwise.explore.pattern import Options, Pattern, Search, Subjects, build_copies

if TYPE_CHECKING:
    from forkwise.explore.judges.contest import JudgeLike
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.evaluation import Evaluate

__all__ = ["BestOfN"]


class BestOfN(Pattern):
    """Run a task ``n`` times, or a list of candidates once each; the success with the highest score is committed.

    A task is called with its directory and its number, a candidate of a list with its directory. Both return
    ``(success, score)``, or a value that is true if they succeeded. The score comes from ``evaluate`` if given, else
    from the return value, else from ``scores``, which has one for each candidate; the default is 1. With a ``judge``,
    the tests come first; the judge then compares each pair of attempts with equal test results.
    """

    kind: ClassVar[str] = "best-of"

    def __init__(
        self,
        task: Subjects,
        n: int = 3,
        *,
        scores: Sequence[float] | None = None,
        judge: JudgeLike | None = None,
        evaluate: Evaluate | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        self._candidates = build_copies(task, n)
        self._judge = judge
        if scores is not None:
            if len(scores) != len(self._candidates):
                raise ValueError(f"scores has {len(scores)} entries for {len(self._candidates)} candidates")
            self._candidates = [replace(c, prior=float(s)) for c, s in zip(self._candidates, scores, strict=True)]

    async def explore(self, search: Search) -> Attempt | None:
        attempts = await search.run(search.fork.add(c, i) for i, c in enumerate(self._candidates))
        if self._judge is None:
            return search.select_best(attempts)
        from forkwise.explore.judges.contest import Contest  # noqa: PLC0415 - most have no judge

        return await Contest(self._judge).choose_accepted(search, attempts)
