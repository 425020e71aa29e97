"""Tree search as a value: the nodes that ``ask`` returns, their order, and the end; and the pattern."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkwise import TreeSearch, Workspace
from forkwise.explore.tree_search import AdaptiveTree, Mcts, SearchNode


def place(node: SearchNode) -> tuple[int, ...]:
    """Return the actions that lead to a node."""
    return () if node.parent is None else (*place(node.parent), node.action)


def test_every_action_is_tried_once_before_any_is_built_upon() -> None:
    tree = Mcts(3)
    asked = [tree.ask() for _ in range(3)]
    assert [place(n) for n in asked if n] == [(0,), (1,), (2,)]
    assert tree.ask() is None, "no node has a score yet"


def test_what_failed_is_not_built_upon() -> None:
    tree = Mcts(2, max_depth=3)
    first, second = tree.ask(), tree.ask()
    assert first is not None
    assert second is not None
    tree.tell(first, None)
    tree.tell(second, 1.0)
    following = [tree.ask(), tree.ask()]
    assert [place(n) for n in following if n] == [(1, 0), (1, 1)]
    for node in following:
        assert node is not None
        tree.tell(node, None)
    assert tree.ask() is None


def test_the_better_arm_gets_most() -> None:
    """If only one action scores well, it gets most of the attempts."""
    tree = Mcts(3, max_depth=6)
    noise = random.Random(7)
    tried: Counter[int] = Counter()
    for _ in range(200):
        node = tree.ask()
        assert node is not None
        tried[place(node)[0]] += 1
        tree.tell(node, (0.8 if place(node)[0] == 1 else 0.2) + noise.uniform(-0.1, 0.1))
    assert tried[1] > 120
    assert min(tried.values()) > 1, "the others are not forgotten"


def test_without_a_wish_to_explore_only_the_best_is_followed() -> None:
    tree = Mcts(2, exploration=0.0, max_depth=5)
    for _ in range(10):
        node = tree.ask()
        assert node is not None
        tree.tell(node, float(place(node).count(1)))
    deepest = max((n for n in _all(tree.root)), key=lambda n: n.depth)
    assert place(deepest)[:-1] == (1,) * (deepest.depth - 1)
    assert deepest.depth == 5


def _all(node: SearchNode) -> list[SearchNode]:
    return [node, *(below for child in node.children.values() for below in _all(child))]


@given(
    actions=st.integers(1, 4),
    max_depth=st.integers(1, 3),
    exploration=st.floats(0, 10),
    at_once=st.integers(1, 6),
    seed=st.randoms(use_true_random=False),
)
def test_any_search(actions: int, max_depth: int, exploration: float, at_once: int, seed: random.Random) -> None:
    """``ask`` and ``tell`` may be called in any order and with any scores.

    No node is returned twice, none is too deep, none has a parent that failed or has no score yet, and the search ends
    when every node was tried.
    """
    tree = Mcts(actions, exploration=exploration, max_depth=max_depth)
    out: list[SearchNode] = []
    report: dict[tuple[int, ...], float | None] = {(): 0.0}
    asked: set[tuple[int, ...]] = set()
    while True:
        while len(out) < at_once and (node := tree.ask()) is not None:
            where = place(node)
            assert where not in asked
            assert len(where) == node.depth <= max_depth
            assert report.get(where[:-1]) is not None
            asked.add(where)
            out.append(node)
        if not out:
            break
        node = out.pop(seed.randrange(len(out)))
        score = seed.choice([None, 0.0, -5.0, 1e6, seed.random()])
        report[place(node)] = score
        tree.tell(node, score)
    open_ones = [where for where, score in report.items() if score is not None and len(where) < max_depth]
    assert asked == {(*where, action) for where in open_ones for action in range(actions)}
    assert tree.root.visits == len(asked)
    assert tree.root.total_score == pytest.approx(sum(score for score in report.values() if score is not None))


# Widening and deepening


def search(
    tree: AdaptiveTree, budget: int, score: Callable[[tuple[int, ...], random.Random], float | None]
) -> list[Any]:
    """Run a search of which ``score`` is the landscape; return the nodes in their order."""
    noise = random.Random(3)
    asked = []
    for _ in range(budget):
        node = tree.ask()
        assert node is not None
        asked.append(node)
        value = score(place(node), noise)
        tree.tell(node, None if value is None else (value,))
    return asked


def test_it_deepens_where_depth_pays() -> None:
    """If each step adds to the score, most attempts build on others."""
    nodes = search(AdaptiveTree(1, samples=None, max_depth=9), 24, lambda where, noise: len(where) + noise.random())
    assert sum(node.depth > 2 for node in nodes) > 12


def test_it_widens_where_depth_does_not_pay() -> None:
    """If building on an attempt makes it worse, most attempts start from the workspace."""
    nodes = search(AdaptiveTree(1, samples=None, max_depth=9), 24, lambda where, noise: noise.random() - len(where))
    assert sum(node.depth == 1 for node in nodes) > 12


def test_the_strategy_that_pays_gets_most() -> None:
    tree = AdaptiveTree(3, samples=None, max_depth=1)
    nodes = search(tree, 30, lambda where, noise: (0.9 if where[0] == 1 else 0.1) + noise.uniform(-0.3, 0.3))
    tried = Counter(node.action for node in nodes)
    assert tried[1] > 15
    assert min(tried.values()) >= 1


def test_the_scale_of_scores_does_not_matter() -> None:
    def landscape(factor: float) -> Any:
        return lambda where, noise: factor * (len(where) + noise.random())

    paths = [
        [place(node) for node in search(AdaptiveTree(2, samples=2, seed=5), 15, landscape(factor))]
        for factor in (1, 1e6)
    ]
    assert paths[0] == paths[1]
    assert paths[0] != [place(node) for node in search(AdaptiveTree(2, samples=2, seed=6), 15, landscape(1))]


def test_later_scores_of_a_tuple_count() -> None:
    tree = AdaptiveTree(2, samples=1, max_depth=6)
    for _ in range(40):
        node = tree.ask()
        if node is None:
            break
        tree.tell(node, (0.0, float(place(node).count(1))))
    visits = {child.action: child.visits for child in tree.root.children.values()}
    assert visits[1] > visits[0]


@given(
    actions=st.integers(1, 3),
    max_depth=st.integers(1, 3),
    samples=st.integers(1, 2),
    at_once=st.integers(1, 4),
    seed=st.randoms(use_true_random=False),
)
def test_any_adaptive_search(actions: int, max_depth: int, samples: int, at_once: int, seed: random.Random) -> None:
    """As for ``Mcts``: no node twice, none too deep, none on top of a failure, and the search ends."""
    tree = AdaptiveTree(actions, samples=samples, max_depth=max_depth, seed=seed.randrange(1000))
    out: list[SearchNode] = []
    succeeded = {tree.root}
    asked: list[SearchNode] = []
    while len(asked) < 60:
        while len(out) < at_once and (node := tree.ask()) is not None:
            assert node.parent in succeeded
            assert node not in asked
            assert node.depth <= max_depth
            assert node.sample < samples
            asked.append(node)
            out.append(node)
        if not out:
            break
        node = out.pop(seed.randrange(len(out)))
        scores = seed.choice([None, (0.0,), (-5.0, 2.0), (1e6,)])
        tree.tell(node, scores)
        succeeded |= set() if scores is None else {node}
    if len(asked) < 60:
        ways = {(node.parent, node.action, node.sample) for node in asked}
        open_ones = [node for node in succeeded if node.depth < max_depth]
        assert ways == {(node, a, s) for node in open_ones for a in range(actions) for s in range(samples)}


def test_strategies_are_tried_again_and_built_upon(workspace: Workspace) -> None:
    def add(path: Path) -> tuple[bool, float]:
        with (path / "a.txt").open("a") as file:
            file.write("+\n")
        return True, float((path / "a.txt").read_text().count("+"))

    outcome = TreeSearch([add], budget=12, samples=None, max_depth=3, max_parallel=1)(workspace)
    assert len(outcome.all_results) == 12
    assert (workspace.path / "a.txt").read_text() == "one\n+\n+\n+\n"


def test_a_rule_stops_a_tree_search(workspace: Workspace) -> None:
    pattern = TreeSearch([lambda path: (True, 1.0)] * 9, budget=20, max_parallel=1, stop_when="no-gain:3", commit=False)
    assert len(pattern(workspace).all_results) == 4


@pytest.mark.parametrize("options", [{"samples": 0}, {"policy": "best"}, {"policy": "uct", "samples": 2}])
def test_invalid_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        TreeSearch([["true"]], **options)
