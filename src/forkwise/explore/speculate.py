"""Speculate: run several candidates at once; the first success wins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Unpack

from forkwise.explore.pattern import Options, Pattern, Search, build_candidates

if TYPE_CHECKING:
    from forkwise.explore.judges.contest import JudgeLike
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.candidate import Subject
    from forkwise.fork.evaluation import Evaluate

__all__ = ["Speculate"]


class Speculate(Pattern):
    """Run candidates side by side; commit the first success at once and drop the others.

    A candidate is a function that is called with its directory and succeeds if its result is true; it may also return
    ``(success, score)``. Or it is a command, a list of words, that succeeds if it exits with 0. With
    ``first_wins=False``, wait for all and commit the best; a ``judge`` then compares those with equal test results.

    >>> import tempfile
    >>> from forkwise import Workspace
    >>> workspace = Workspace(tempfile.mkdtemp())
    >>> def fix(path):
    ...     return (path / "fixed.txt").write_text("done") == 4
    >>> Speculate([fix, ["false"]], timeout=60)(workspace).winner.branch_index
    0
    """

    kind: ClassVar[str] = "speculate"

    def __init__(
        self,
        candidates: Sequence[Subject],
        *,
        first_wins: bool = True,
        judge: JudgeLike | None = None,
        evaluate: Evaluate | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        self._candidates = build_candidates(candidates)
        if judge is not None and first_wins:
            raise ValueError("a judge compares attempts that are over: it needs first_wins=False")
        self._first_wins = first_wins
        self._judge = judge

    async def explore(self, search: Search) -> Attempt | None:
        attempts = [search.fork.add(c, index) for index, c in enumerate(self._candidates)]
        if self._judge is not None:
            from forkwise.explore.judges.contest import Contest  # noqa: PLC0415 - most have no judge

            return await Contest(self._judge).choose_accepted(search, await search.run(attempts))
        if not self._first_wins:
            return search.select_best(await search.run(attempts))
        search.how = "first success"
        async for attempt in search.finished(attempts):
            if attempt.success and await search.accept(attempt):
                return attempt
        return None
