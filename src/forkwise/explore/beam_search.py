"""BeamSearch: search level by level, and expand the best few attempts of each level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from forkwise.explore.pattern import Options, Pattern, Search, build_candidates, expand_attempt

if TYPE_CHECKING:
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.candidate import Subject
    from forkwise.fork.evaluation import Evaluate

__all__ = ["BeamSearch"]


class BeamSearch(Pattern):
    """Run strategies side by side, and expand the ``beam_width`` best of each level into the next.

    ``expand`` is called with the directory of an attempt in the beam and its depth, and returns the candidates to run
    on top of it. After ``max_depth`` levels, the best attempt of the last level with a success wins.
    """

    kind: ClassVar[str] = "beam"

    def __init__(
        self,
        strategies: Sequence[Subject],
        *,
        expand: Callable[[Path, int], Any],
        evaluate: Evaluate | None = None,
        beam_width: int = 3,
        max_depth: int = 2,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        if beam_width < 1 or max_depth < 1:
            raise ValueError(f"beam_width and max_depth must be at least 1, not {beam_width} and {max_depth}")
        self._strategies = build_candidates(strategies)
        self._expand = expand
        self._beam_width = beam_width
        self._max_depth = max_depth

    async def explore(self, search: Search) -> Attempt | None:
        level = await search.run(search.fork.add(c, i) for i, c in enumerate(self._strategies))
        found = search.select_best(level)
        for depth in range(1, self._max_depth):
            if search.stopped is not None:
                break
            level = await self._run_level(search, self._select_beam(level), depth)
            found = search.select_best(level) or found
        return found

    async def _run_level(self, search: Search, beam: list[Attempt], depth: int) -> list[Attempt]:
        """Expand all attempts of the beam and run the results side by side."""
        attempts = []
        index = 0
        for attempt in beam:
            for candidate in await expand_attempt(self._expand, attempt, depth) or ():
                fork = await search.inside(attempt)
                attempts.append(fork.add(candidate, index))
                index += 1
        return await search.run(attempts)

    def _select_beam(self, attempts: list[Attempt]) -> list[Attempt]:
        good = [a for a in attempts if a.success]
        return sorted(good, key=lambda a: a.rank, reverse=True)[: self._beam_width]

    def select_next(self, search: Search) -> Attempt | None:
        return search.select_deepest()
