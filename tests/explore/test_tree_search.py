"""Monte Carlo tree search as a value: the nodes that ``ask`` returns, their order, and the end."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkwise.explore.tree_search import Mcts, SearchNode


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
