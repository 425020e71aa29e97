"""Monte Carlo tree search as a value that is asked what to try next and told what came of it.

It knows nothing of branches or attempts: ``ask`` gives a node to be tried, ``tell`` takes its score. Many may be asked
for before any is told; a node that is out counts as a visit that brought nothing, so that others are looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

__all__ = ["Mcts", "Node"]


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
