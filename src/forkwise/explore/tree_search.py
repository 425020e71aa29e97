"""TreeSearch: a search over sequences of strategies that goes deeper or wider depending on what worked so far."""

from __future__ import annotations

import asyncio
import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Unpack, get_args

from forkwise.explore.pattern import Options, Pattern, Search, build_candidates
from forkwise.fork.fork import default_parallel

if TYPE_CHECKING:
    from forkwise.fork.attempt import Attempt
    from forkwise.fork.candidate import Subject
    from forkwise.fork.evaluation import Evaluate

__all__ = [
    "AdaptiveTree",
    "Mcts",
    "Policy",
    "SearchNode",
    "TreeSearch",
]


@dataclass(slots=True, eq=False)
class SearchNode:
    """The state after one action on the parent's state, for the ``sample``-th time. The root is the initial state."""

    action: int
    parent: SearchNode | None = None
    depth: int = 0
    visits: int = 0
    total_score: float = 0.0
    score: float | None = None
    is_open: bool = False
    children: dict[int, SearchNode] = field(default_factory=dict)
    sample: int = 0


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


_Merit = tuple[bool, tuple[float, ...]]


class AdaptiveTree:
    """A search that decides in each state whether to widen it, by one more attempt there, or to go deeper.

    Thompson sampling decides: each option (one strategy once more in this state, or something on top of the attempts
    made here) has a normal distribution of unknown mean and variance, estimated from how the attempts of that option
    ranked among all attempts. One value is drawn from each, and the highest wins; when going deeper, the attempt to
    build on is chosen in the same way. Ranks make it independent of the scale of scores, which may be tuples, and a
    failure ranks below every success. Each strategy is tried once before any other choice. ``samples`` limits how often
    a strategy is tried in the same state (None: no limit). The same ``seed`` and the same results in the same order
    give the same search.

    >>> search = AdaptiveTree(2, samples=1)
    >>> first, second = search.ask(), search.ask()
    >>> search.tell(first, None)
    >>> search.tell(second, (0.9,))
    >>> search.ask().parent is second
    True
    """

    def __init__(self, actions: int, *, samples: int | None = 1, max_depth: int = 4, seed: int = 0) -> None:
        self.root = SearchNode(-1, is_open=True)
        self._actions = actions
        self._samples = samples
        self._max_depth = max_depth
        self._random = random.Random(seed)
        self._merits: dict[SearchNode, _Merit] = {}
        self._values: dict[SearchNode, float] = {}

    def ask(self) -> SearchNode | None:
        """Return the next node to try; None if none is left, or none until ``tell`` is called."""
        node = self.root
        while True:
            new = self._list_actions(node)
            first = next((a for a in new if node is self.root and not self._list_children(node, a)), None)
            if first is not None:
                return self._make(node, first)
            ways = [(self._draw_new(node, action), action) for action in new]
            below = [child for child in node.children.values() if self._has_untried(child)]
            if below:
                ways.append((self._draw_deeper(node, below), -1))
            if not ways:
                return None
            _, action = max(ways)
            if action >= 0:
                return self._make(node, action)
            node = max(below, key=lambda child: self._draw(self._list_values(child), self._mean(self._values.values())))

    def tell(self, node: SearchNode, scores: tuple[float, ...] | None) -> None:
        """Record the scores of a node; None if the node failed and cannot be expanded."""
        self._merits[node] = (scores is not None, scores or ())
        if scores is not None:
            node.score = scores[0] if scores else 0.0
            node.is_open = True
        ranked = sorted(self._merits.values())
        most = max(len(ranked) - 1, 1)
        for known, merit in self._merits.items():
            middle = (bisect_left(ranked, merit) + bisect_right(ranked, merit) - 1) / 2
            self._values[known] = middle / most if len(ranked) > 1 else 0.5

    def _make(self, node: SearchNode, action: int) -> SearchNode:
        sample = len(self._list_children(node, action))
        made = SearchNode(action, node, node.depth + 1, sample=sample)
        node.children[action + self._actions * sample] = made
        above: SearchNode | None = made
        while above is not None:
            above.visits += 1
            above = above.parent
        return made

    def _list_children(self, node: SearchNode, action: int) -> list[SearchNode]:
        return [child for child in node.children.values() if child.action == action]

    def _list_actions(self, node: SearchNode) -> list[int]:
        """List the actions that can be tried in a state."""
        if not node.is_open or node.depth >= self._max_depth:
            return []
        return [
            action
            for action in range(self._actions)
            if self._samples is None or len(self._list_children(node, action)) < self._samples
        ]

    def _list_values(self, node: SearchNode) -> list[float]:
        """List the values of a node and its descendants."""
        found, pending = [], [node]
        while pending:
            one = pending.pop()
            found += [self._values[one]] if one in self._values else []
            pending += one.children.values()
        return found

    def _draw_new(self, node: SearchNode, action: int) -> float:
        of_action = [value for known, value in self._values.items() if known.action == action]
        own = [self._values[child] for child in self._list_children(node, action) if child in self._values]
        return self._draw(own, self._mean(of_action or self._values.values()))

    def _draw_deeper(self, node: SearchNode, below: Sequence[SearchNode]) -> float:
        """Draw a value for building on a state's attempts, from what was built on them; at first, from the best one."""
        deeper = [
            v for child in node.children.values() for one in child.children.values() for v in self._list_values(one)
        ]
        return self._draw(deeper, max(self._values.get(child, 0.5) for child in below))

    def _draw(self, values: Sequence[float], prior_mean: float) -> float:
        """Draw a mean from the posterior; the prior, a normal-inverse-gamma distribution, counts as one value."""
        count = len(values)
        mean = self._mean(values) if values else prior_mean
        spread = sum((value - mean) ** 2 for value in values)
        shape = _PRIOR_SHAPE + count / 2
        scale = _PRIOR_SCALE + spread / 2 + count * (mean - prior_mean) ** 2 / (2 * (1 + count))
        variance = 1 / self._random.gammavariate(shape, 1 / scale)
        return self._random.gauss((prior_mean + sum(values)) / (1 + count), math.sqrt(variance / (1 + count)))

    def _mean(self, values: Iterable[float]) -> float:
        known = list(values)
        return sum(known) / len(known) if known else 0.5

    def _has_untried(self, node: SearchNode) -> bool:
        pending = [node]
        while pending:
            one = pending.pop()
            if self._list_actions(one):
                return True
            pending += one.children.values()
        return False


_PRIOR_SHAPE = 1.0
_PRIOR_SCALE = 0.05  # a standard deviation of about 0.2 of the ranks, which lie between 0 and 1

#: How TreeSearch selects the next attempt.
Policy = Literal["thompson", "uct"]


class TreeSearch(Pattern):
    """Run ``budget`` attempts, each one strategy on the workspace or on an earlier success; the best attempt wins.

    Any strategy may follow any other, up to ``max_depth`` of them. By default, Thompson sampling decides whether to try
    a strategy once more in the same state or to build on an attempt, depending on what worked so far (see
    AdaptiveTree). ``samples`` is how often a strategy may be tried in one state: above 1, or None for any number, makes
    sense for agents, whose attempts differ. ``seed`` makes its choices reproducible. ``policy="uct"`` selects by upper
    confidence bounds instead; ``exploration`` weights rarely tried combinations.
    """

    kind: ClassVar[str] = "tree-search"

    def __init__(
        self,
        strategies: Sequence[Subject],
        *,
        budget: int = 16,
        evaluate: Evaluate | None = None,
        policy: Policy = "thompson",
        samples: int | None = 1,
        seed: int = 0,
        exploration: float = math.sqrt(2),
        max_depth: int = 4,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(evaluate=evaluate, **options)
        if budget < 1 or max_depth < 1 or (samples is not None and samples < 1):
            raise ValueError(f"budget, max_depth and samples must be at least 1, not {budget}, {max_depth}, {samples}")
        if policy not in get_args(Policy):
            raise ValueError(f"policy must be one of {', '.join(get_args(Policy))}, not {policy!r}")
        if policy == "uct" and samples != 1:
            raise ValueError("the policy uct tries each strategy once in a state: samples must be 1")
        self._strategies = build_candidates(strategies)
        self._budget = budget
        self._policy = policy
        self._samples = samples
        self._seed = seed
        self._exploration = exploration
        self._max_depth = max_depth

    def _build_tree(self) -> AdaptiveTree | Mcts:
        actions = len(self._strategies)
        if self._policy == "uct":
            return Mcts(actions, exploration=self._exploration, max_depth=self._max_depth)
        return AdaptiveTree(actions, samples=self._samples, max_depth=self._max_depth, seed=self._seed)

    async def explore(self, search: Search) -> Attempt | None:
        tree = self._build_tree()
        attempts: dict[SearchNode, Attempt] = {}
        pending_runs: dict[asyncio.Task[list[Attempt]], SearchNode] = {}
        at_once = self.settings.max_parallel or default_parallel()
        while True:
            while self._has_room(search, len(attempts), at_once - len(pending_runs)):
                node = tree.ask()
                if node is None:
                    break
                fork = await search.inside(attempts[node.parent]) if node.parent in attempts else search.fork
                key = f"{node.action}-{node.sample}" if node.sample else None
                attempts[node] = fork.add(self._strategies[node.action], node.action, key)
                pending_runs[asyncio.create_task(search.run([attempts[node]]))] = node
            if not pending_runs:
                return search.select_best(list(attempts.values()))
            done, _ = await asyncio.wait(pending_runs, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
                _tell(tree, pending_runs[task], attempts[pending_runs.pop(task)])
            if search.stopped is not None:
                for node in pending_runs.values():
                    await attempts[node].fork.cancel([attempts[node]], f"the search stopped: {search.stopped}")

    def _has_room(self, search: Search, made: int, slots: int) -> bool:
        return search.stopped is None and made < self._budget and slots > 0


def _tell(tree: AdaptiveTree | Mcts, node: SearchNode, attempt: Attempt) -> None:
    if attempt.state not in ("succeeded", "failed"):
        return  # faulted or cancelled: this says nothing about the strategy, and the attempt cannot be built on
    if isinstance(tree, Mcts):
        tree.tell(node, attempt.score if attempt.success else None)
    else:
        tree.tell(node, attempt.scores if attempt.success else None)
