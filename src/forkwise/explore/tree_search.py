"""TreeSearch: Monte Carlo tree search over sequences of strategies."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Unpack

from forkwise.explore.pattern import Options, Pattern, Search, build_candidates
from forkwise.fork.fork import default_parallel

if TYPE_CHECKING:
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.candidate import Command, Task
    from forkwise.fork.evaluation import Evaluate

__all__ = [
    "Mcts",
    "SearchNode",
    "TreeSearch",
]


@dataclass(slots=True, eq=False)
class SearchNode:
    """The state after one action on the parent's state. The root is the initial state."""

    action: int
    parent: SearchNode | None = None
    depth: int = 0
    visits: int = 0
    total_score: float = 0.0
    score: float | None = None
    is_open: bool = False
    children: dict[int, SearchNode] = field(default_factory=dict)


class Mcts:
    """A search over ``actions``, each of which can be tried once in every state, down to ``max_depth``.

    UCT selects the next node: by the mean score of a node and its descendants, scaled between the worst and the best
    score so far, plus a bonus for few visits, weighted by ``exploration``.

    >>> search = Mcts(2)
    >>> first, second = search.ask(), search.ask()
    >>> search.tell(first, 0.2)
    >>> search.tell(second, 0.9)
    >>> search.ask().parent is second
    True
    """

    def __init__(self, actions: int, *, exploration: float = math.sqrt(2), max_depth: int = 4) -> None:
        self.root = SearchNode(-1, is_open=True)
        self._actions = actions
        self._exploration = exploration
        self._max_depth = max_depth
        self._lowest = math.inf
        self._highest = -math.inf

    def ask(self) -> SearchNode | None:
        """Return the next node to try; None if none is left, or none until ``tell`` is called."""
        path = [self.root]
        while True:
            node = path[-1]
            untried = next((a for a in range(self._actions) if a not in node.children), None)
            if node.is_open and node.depth < self._max_depth and untried is not None:
                made = SearchNode(untried, node, node.depth + 1)
                node.children[untried] = made
                for above in (*path, made):
                    above.visits += 1
                return made
            candidates = [child for child in node.children.values() if self._has_untried(child)]
            if not candidates:
                return None
            path.append(max(candidates, key=lambda child: self._score_uct(node, child)))

    def tell(self, node: SearchNode, score: float | None) -> None:
        """Record the score of a node; None if the node failed and cannot be expanded."""
        if score is None:
            return
        node.score = score
        node.is_open = True
        self._lowest, self._highest = min(self._lowest, score), max(self._highest, score)
        above: SearchNode | None = node
        while above is not None:
            above.total_score += score
            above = above.parent

    def _has_untried(self, node: SearchNode) -> bool:
        """Return whether ``node`` or a descendant has an untried action."""
        pending = [node]
        while pending:
            one = pending.pop()
            if one.is_open and one.depth < self._max_depth and len(one.children) < self._actions:
                return True
            pending += one.children.values()
        return False

    def _score_uct(self, parent: SearchNode, child: SearchNode) -> float:
        span = self._highest - self._lowest
        mean = child.total_score / child.visits
        value = (mean - self._lowest) / span if span > 0 else 0.5
        return value + self._exploration * math.sqrt(math.log(parent.visits) / child.visits)


class TreeSearch(Pattern):
    """Run ``budget`` attempts, each one strategy on the workspace or on an earlier success; the best attempt wins.

    UCT selects the most promising combination; any strategy may follow any other. ``exploration`` weights rarely tried
    combinations, ``max_depth`` limits how many strategies follow each other.
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
            raise ValueError(f"budget and max_depth must be at least 1, not {budget} and {max_depth}")
        self._strategies = build_candidates(strategies)
        self._budget = budget
        self._exploration = exploration
        self._max_depth = max_depth

    async def explore(self, search: Search) -> Attempt | None:
        tree = Mcts(len(self._strategies), exploration=self._exploration, max_depth=self._max_depth)
        attempts: dict[SearchNode, Attempt] = {}
        pending_runs: dict[asyncio.Task[list[Attempt]], SearchNode] = {}
        at_once = self.settings.max_parallel or default_parallel()
        while True:
            while len(attempts) < self._budget and len(pending_runs) < at_once and (node := tree.ask()) is not None:
                fork = await search.inside(attempts[node.parent]) if node.parent in attempts else search.fork
                attempts[node] = fork.add(self._strategies[node.action], node.action)
                pending_runs[asyncio.create_task(fork.run([attempts[node]]))] = node
            if not pending_runs:
                return search.select_best(list(attempts.values()))
            done, _ = await asyncio.wait(pending_runs, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
                node = pending_runs.pop(task)
                tree.tell(node, attempts[node].score if attempts[node].success else None)
