"""TreeOfThoughts: run strategies side by side and expand the best into further ones, level by level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack, get_args

from forkwise.explore.pattern import Options, Pattern, Search, build_candidates, expand_attempt

if TYPE_CHECKING:
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.candidate import Subject
    from forkwise.fork.evaluation import Evaluate

__all__ = ["OnDeadEnd", "TreeOfThoughts"]

#: What to do if all strategies of a further level fail: keep the best attempt so far, or fail.
OnDeadEnd = Literal["keep", "fail"]


class TreeOfThoughts(Pattern):
    """Run strategies side by side, and expand the best into further ones that build on its changes, and so on.

    ``expand`` is called with the directory of the best attempt so far and its depth (1 for the first expansion), and
    returns the strategies of the next level. The search ends with the best attempt so far if ``expand`` returns none.
    A level on which all strategies fail, or which ``expand`` fails to build, is a dead end: by default the best attempt
    of the levels before it wins; with ``on_dead_end="fail"`` none wins and the workspace stays as it was.
    """

    kind: ClassVar[str] = "tree"

    def __init__(
        self,
        strategies: Sequence[Subject],
        *,
        evaluate: Evaluate | None = None,
        expand: Callable[[Path, int], Any] | None = None,
        max_depth: int = 1,
        on_dead_end: OnDeadEnd = "keep",
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        if max_depth < 1:
            raise ValueError(f"max_depth must be at least 1, not {max_depth}")
        if on_dead_end not in get_args(OnDeadEnd):
            raise ValueError(f"on_dead_end must be one of {', '.join(get_args(OnDeadEnd))}, not {on_dead_end!r}")
        self._strategies = build_candidates(strategies)
        self._expand = expand
        self._max_depth = max_depth
        self._on_dead_end = on_dead_end

    async def explore(self, search: Search) -> Attempt | None:
        found = search.select_best(await search.run(search.fork.add(c, i) for i, c in enumerate(self._strategies)))
        depth = 1
        while found is not None and self._expand is not None and depth < self._max_depth and search.stopped is None:
            strategies = await expand_attempt(self._expand, found, depth)
            if strategies == []:
                return found
            refined = None
            if strategies is not None:
                fork = await search.inside(found)
                refined = search.select_best(await search.run(fork.add(c, i) for i, c in enumerate(strategies)))
            if refined is None:
                return found if self._on_dead_end == "keep" else None
            found, depth = refined, depth + 1
        return found

    def select_next(self, search: Search) -> Attempt | None:
        return search.select_deepest() if self._on_dead_end == "keep" else None
