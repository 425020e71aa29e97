"""TreeSearch: Monte Carlo tree search over what strategies make of each other's results."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Unpack

from forkwise.explore.pattern import Options, Pattern, Search, best, several
from forkwise.fork.attempt import Attempt
from forkwise.fork.candidate import Command, Task
from forkwise.fork.evaluation import Evaluate
from forkwise.fork.fork import default_parallel

__all__ = [
    "Mcts",
    "Node",
    "TreeSearch",
]


@dataclass(slots=True, eq=False)
class Node:
    """What comes of one action upon a parent's state. The root stands for the state before any."""

    action: int
    parent: Node | None = None
    depth: int = 0
    visits: int = 0
    gained: float = 0.0
    score: float | None = None
    is_open: bool = False
    children: dict[int, Node] = field(default_factory=dict)


class Mcts:
    """A search over ``actions`` that can each be tried once upon every state, down to ``max_depth``.

    Which is next is decided by UCT: by what came of a node and everything below it, on a scale from the worst to the
    best score so far, and by how rarely it was tried; ``exploration`` weighs the second.

    >>> search = Mcts(2)
    >>> first, second = search.ask(), search.ask()
    >>> search.tell(first, 0.2)
    >>> search.tell(second, 0.9)
    >>> search.ask().parent is second
    True
    """

    def __init__(self, actions: int, *, exploration: float = math.sqrt(2), max_depth: int = 4) -> None:
        self.root = Node(-1, is_open=True)
        self._actions = actions
        self._exploration = exploration
        self._max_depth = max_depth
        self._lowest = math.inf
        self._highest = -math.inf

    def ask(self) -> Node | None:
        """The next node to try; None where there is none, or none before something is told."""
        path = [self.root]
        while True:
            node = path[-1]
            untried = next((a for a in range(self._actions) if a not in node.children), None)
            if node.is_open and node.depth < self._max_depth and untried is not None:
                made = Node(untried, node, node.depth + 1)
                node.children[untried] = made
                for above in (*path, made):
                    above.visits += 1
                return made
            going = [child for child in node.children.values() if self._leads_on(child)]
            if not going:
                return None
            path.append(max(going, key=lambda child: self._worth(node, child)))

    def tell(self, node: Node, score: float | None) -> None:
        """What came of a node; None where nothing can be built upon it."""
        if score is None:
            return
        node.score = score
        node.is_open = True
        self._lowest, self._highest = min(self._lowest, score), max(self._highest, score)
        above: Node | None = node
        while above is not None:
            above.gained += score
            above = above.parent

    def _leads_on(self, node: Node) -> bool:
        """Whether anything below is left to be tried."""
        pending = [node]
        while pending:
            one = pending.pop()
            if one.is_open and one.depth < self._max_depth and len(one.children) < self._actions:
                return True
            pending += one.children.values()
        return False

    def _worth(self, parent: Node, child: Node) -> float:
        span = self._highest - self._lowest
        mean = child.gained / child.visits
        value = (mean - self._lowest) / span if span > 0 else 0.5
        return value + self._exploration * math.sqrt(math.log(parent.visits) / child.visits)


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
