"""TreeOfThoughts: strategies side by side, the best refined by further ones, level after level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Unpack

from forkwise.explore.pattern import Options, Pattern, Search, best, expanded, several
from forkwise.fork.attempt import Attempt
from forkwise.fork.candidate import Command, Task
from forkwise.fork.evaluation import Evaluate

__all__ = ["TreeOfThoughts"]


class TreeOfThoughts(Pattern):
    """Run strategies side by side; the best is expanded into further ones that build on what it did, and so on.

    ``expand`` is called with the directory of the best so far and its depth (1 for the first expansion), and gives the
    strategies of the next level; none, or a level in which all fail, ends the search with what was best before.
    """

    kind: ClassVar[str] = "tree"

    def __init__(
        self,
        strategies: Sequence[Task | Command],
        *,
        evaluate: Evaluate | None = None,
        expand: Callable[[Path, int], Any] | None = None,
        max_depth: int = 1,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        if max_depth < 1:
            raise ValueError(f"a tree has at least one level, not {max_depth}")
        self._strategies = several(strategies)
        self._expand = expand
        self._max_depth = max_depth

    async def explore(self, search: Search) -> Attempt | None:
        found = best(await search.fork.run(search.fork.add(c, i) for i, c in enumerate(self._strategies)))
        depth = 1
        while found is not None and self._expand is not None and depth < self._max_depth:
            strategies = await expanded(self._expand, found, depth)
            if not strategies:
                break
            fork = await search.inside(found)
            refined = best(await fork.run(fork.add(c, i) for i, c in enumerate(strategies)))
            if refined is None:
                break
            found, depth = refined, depth + 1
        return found
