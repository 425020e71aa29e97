"""BeamSearch: level after level, with the best few of each level, whichever of the last they come from, kept alive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Unpack

from forkwise.explore.pattern import Options, Pattern, Search, best, expanded, several
from forkwise.fork.attempt import Attempt
from forkwise.fork.candidate import Command, Task
from forkwise.fork.evaluation import Evaluate

__all__ = ["BeamSearch"]


class BeamSearch(Pattern):
    """Run strategies side by side, keep the ``beam_width`` best, expand each of them, keep the best of all those, and
    so on for ``max_depth`` levels; the best of the last level that had a success wins.

    ``expand`` is called with the directory of one that was kept and its depth, and gives what to try on top of it.
    """

    kind: ClassVar[str] = "beam"

    def __init__(
        self,
        strategies: Sequence[Task | Command],
        *,
        expand: Callable[[Path, int], Any],
        evaluate: Evaluate | None = None,
        beam_width: int = 3,
        max_depth: int = 2,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        if beam_width < 1 or max_depth < 1:
            raise ValueError(f"a beam is at least one wide and one deep, not {beam_width} and {max_depth}")
        self._strategies = several(strategies)
        self._expand = expand
        self._beam_width = beam_width
        self._max_depth = max_depth

    async def explore(self, search: Search) -> Attempt | None:
        beam = self._kept(await search.fork.run(search.fork.add(c, i) for i, c in enumerate(self._strategies)))
        found = best(beam)
        for depth in range(1, self._max_depth):
            beam = self._kept(await self._next(search, beam, depth))
            found = best(beam) or found
        return found

    async def _next(self, search: Search, beam: list[Attempt], depth: int) -> list[Attempt]:
        """All that grows from a level, tried side by side."""
        tried = []
        index = 0
        for attempt in beam:
            for candidate in await expanded(self._expand, attempt, depth):
                fork = await search.inside(attempt)
                tried.append(fork.add(candidate, index))
                index += 1
        for attempt in tried:
            await attempt.fork.run([attempt])
        return tried

    def _kept(self, attempts: list[Attempt]) -> list[Attempt]:
        good = [a for a in attempts if a.success]
        return sorted(good, key=lambda a: a.scores, reverse=True)[: self._beam_width]
