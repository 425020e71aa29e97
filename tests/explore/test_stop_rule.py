"""Stop rules: when a search makes no further attempts, and what they do to every pattern."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forkwise import (
    AllGreen,
    BeamSearch,
    BestOfN,
    Cascaded,
    CostLimit,
    ForkwiseWarning,
    NoGain,
    Pattern,
    Refine,
    Reflexion,
    Speculate,
    Tests,
    Tournament,
    TreeOfThoughts,
    Workspace,
    open_ledger,
)
from forkwise.explore.stop_rule import parse_stop_rule
from forkwise.fork.attempt import current_attempt


def score(*scores: float | None) -> Any:
    """Build a task that has these scores one after the other; None is a failure."""

    def task(path: Path, index: int, *_: Any) -> Any:
        (path / "n").write_text(str(index))
        return False if scores[index] is None else (True, scores[index])

    return task


def run(pattern: Pattern, workspace: Workspace) -> tuple[int | None, int]:
    """Return the winner's number, and how many attempts were not cancelled."""
    outcome = pattern(workspace)
    assert outcome.fork is not None
    with open_ledger(workspace) as ledger:
        states = [attempt.state for attempt in ledger.attempts(outcome.fork)]
    return outcome.winner and outcome.winner.branch_index, len(states) - states.count("cancelled")


@pytest.mark.parametrize(
    ("scores", "rule", "winner", "made"),
    [
        ((1, 2, 1, 1, 9), "no-gain:2", 1, 4),
        ((1, 2, 3, 4, 5), "no-gain:1", 4, 5),
        ((1, None, 2, 2, 2, 9), ["no-gain:2"], 2, 5),
        ((None, None, None, 9), NoGain(2), None, 2),
    ],
)
def test_no_gain(scores: Any, rule: Any, winner: int | None, made: int, workspace: Workspace) -> None:
    assert run(BestOfN(score(*scores), len(scores), max_parallel=1, stop_when=rule), workspace) == (winner, made)


def test_the_first_attempt_with_green_tests_is_the_last(workspace: Workspace) -> None:
    check = Tests("test -s n && echo ok 1 && echo 1..1")
    task = score(None, 1, 2, 3)
    outcome = BestOfN(task, 4, max_parallel=1, evaluate=check, stop_when="all-green")(workspace)
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 1
    assert [r.reason for r in outcome.all_results[2:]] == [
        f"the search stopped: all tests of {outcome.winner.attempt} passed"
    ] * 2
    with open_ledger(workspace) as ledger:
        resolution = ledger.forks()[0].resolution
        assert resolution is not None
        assert resolution["stopped"] == f"all tests of {outcome.winner.attempt} passed"


def test_green_means_tests(workspace: Workspace) -> None:
    with pytest.warns(ForkwiseWarning, match="all-green did not apply: no tests were run"):
        assert run(BestOfN(score(1, 2), 2, stop_when=AllGreen()), workspace) == (1, 2)


def test_the_costs_that_the_ledger_knows(workspace: Workspace) -> None:
    def pay(path: Path, index: int) -> Any:
        attempt = current_attempt()
        assert attempt is not None
        attempt.fork.ledger.record_cost(attempt.id, {"usd": 0.4})
        (path / "n").write_text("paid")
        return True, index

    assert run(BestOfN(pay, 6, max_parallel=1, stop_when="cost:1"), workspace) == (2, 3)


def test_costs_that_nobody_knows_are_reported(workspace: Workspace) -> None:
    with pytest.warns(ForkwiseWarning, match="the cost of 2 of 2 attempts is not known"):
        assert run(BestOfN(score(1, 2), 2, stop_when=CostLimit(1.0)), workspace) == (1, 2)


PATTERNS: dict[str, Any] = {
    "speculate": lambda **o: Speculate([lambda path: False] * 5, **o),
    "speculate-all": lambda **o: Speculate([lambda path: False] * 5, first_wins=False, **o),
    "reflexion": lambda **o: Reflexion(score(*[None] * 5), 5, **o),
    "cascade": lambda **o: Cascaded(lambda path, feedback: False, fan_out=(1, 1, 4), **o),
    "tournament": lambda **o: Tournament(score(*[None] * 5), 5, judge=lambda a, b: 0, **o),
    "refine": lambda **o: Refine(score(*[None] * 6), 1, rounds=6, **o),
    "tree": lambda **o: TreeOfThoughts([lambda path: False] * 5, **o),
    "beam": lambda **o: BeamSearch([lambda path: False] * 5, expand=lambda path, depth: [], **o),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_stops(name: str, workspace: Workspace) -> None:
    assert run(PATTERNS[name](max_parallel=1, stop_when="no-gain:2"), workspace) == (None, 2)


def test_levels_stop(workspace: Workspace) -> None:
    def expand(path: Path, depth: int) -> Any:
        return [lambda path: (True, 1.0)] * 2

    for pattern in (TreeOfThoughts, BeamSearch):
        outcome = pattern(
            [lambda path: (True, 1.0)], expand=expand, max_depth=9, max_parallel=1, stop_when="no-gain:2", commit=False
        )(workspace)
        assert len(outcome.all_results) == 3


@pytest.mark.parametrize(
    "text", ["", "green", "all-green:1", "no-gain", "no-gain:0", "no-gain:x", "cost:-1", "cost:nan"]
)
def test_invalid_rules(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a stop rule|at least 1|above 0"):
        parse_stop_rule(text)
    with pytest.raises(ValueError, match=r"not a stop rule|at least 1|above 0"):
        BestOfN(score(1), 1, stop_when=text)
