"""TreeSearch: Monte Carlo tree search over what strategies make of each other's results."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import ClassVar, Unpack

from forkwise.explore.mcts import Mcts, Node
from forkwise.explore.pattern import Options, Pattern, best, several
from forkwise.explore.search import Search
from forkwise.fork.attempt import Attempt
from forkwise.fork.candidate import Command, Task
from forkwise.fork.evaluation import Evaluate
from forkwise.fork.fork import default_parallel

__all__ = ["TreeSearch"]


class TreeSearch(Pattern):
    """Try ``budget`` times to apply one of the strategies, to the workspace or on top of an earlier success, wherever
    that promises most; the best of all wins. Strategies are those of TreeOfThoughts, and any of them may follow any.

    ``exploration`` is how much is given to what was rarely tried, ``max_depth`` how many strategies follow each other.
    """

    kind: ClassVar[str] = "tree-search"

    def __init__(
        self,
        strategies: Sequence[Task | Command],
        *,
        budget: int = 16,
        evaluate: Evaluate | None = None,
        exploration: float = math.sqrt(2),
        max_depth: int = 4,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        if budget < 1 or max_depth < 1:
            raise ValueError(f"a search tries at least once and one deep, not {budget} times and {max_depth} deep")
        self._strategies = several(strategies)
        self._budget = budget
        self._exploration = exploration
        self._max_depth = max_depth

    async def explore(self, search: Search) -> Attempt | None:
        tree = Mcts(len(self._strategies), exploration=self._exploration, max_depth=self._max_depth)
        made: dict[Node, Attempt] = {}
        out: dict[asyncio.Task[list[Attempt]], Node] = {}
        at_once = self.settings.max_parallel or default_parallel()
        while True:
            while len(made) < self._budget and len(out) < at_once and (node := tree.ask()) is not None:
                fork = await search.inside(made[node.parent]) if node.parent in made else search.fork
                made[node] = fork.add(self._strategies[node.action], node.action)
                out[asyncio.create_task(fork.run([made[node]]))] = node
            if not out:
                return best(list(made.values()))
            done, _ = await asyncio.wait(out, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
                node = out.pop(task)
                tree.tell(node, made[node].score if made[node].success else None)
