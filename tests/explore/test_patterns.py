"""Every pattern, with candidates of every kind, called in every way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forkwise import (
    BeamSearch,
    BestOfN,
    Cascaded,
    Pattern,
    RecursiveTournament,
    Refine,
    Reflexion,
    Speculate,
    SpeculationOutcome,
    Tournament,
    TreeOfThoughts,
    TreeSearch,
    Workspace,
)
from forkwise.fork.fork import open_ledger
from tests.explore.candidate_kinds import WAYS, Deed, Way, by_way


@dataclass(frozen=True)
class Case:
    """A pattern, the content of ``trail`` after it, how many attempts it takes, and which of them wins."""

    name: str
    make: Callable[[Way], Pattern]
    trail: str
    tried: int
    winner: int


def _last(first: Path, second: Path) -> int:
    """Prefer the directory whose ``trail`` is later in the alphabet."""
    return int((second / "trail").read_text() > (first / "trail").read_text())


A, B, C = Deed("a", score=0.2), Deed("b", score=0.9), Deed("c", score=0.5)
NO = Deed("no", ok=False)

CASES = [
    Case("speculate", lambda way: Speculate(way.several([NO, Deed("b")]), **way.options), "b", 2, 1),
    Case("speculate-all", lambda way: Speculate(way.several([A, B, C]), first_wins=False, **way.options), "b", 3, 1),
    Case("best-of", lambda way: BestOfN(way.numbered([A, B, C]), 3, **way.options), "b", 3, 1),
    Case("best-of-several", lambda way: BestOfN(way.several([A, NO, C]), **way.options), "c", 3, 2),
    Case("reflexion", lambda way: Reflexion(way.numbered([NO, NO, Deed("d")]), 4, **way.options), "d", 3, 2),
    Case(
        "tree",
        lambda way: TreeOfThoughts(
            way.several([A, B]),
            expand=lambda path, depth: way.several([Deed(f"x{depth}", score=1), Deed(f"y{depth}", score=2)]),
            max_depth=3,
            **way.options,
        ),
        "b y1 y2",
        6,
        1,
    ),
    Case("tournament", lambda way: Tournament(way.numbered([A, C, B]), 3, judge=_last, **way.options), "c", 3, 1),
    Case(
        "tournament-of-several",
        lambda way: Tournament(way.several([A, NO, C, B, A]), judge=_last, **way.options),
        "c",
        5,
        2,
    ),
    Case(
        "beam",
        lambda way: BeamSearch(
            way.several([A, B, C]),
            expand=lambda path, depth: way.several(
                [Deed("z", score=1.0 if (path / "trail").read_text() == "c\n" else 0.1)]
            ),
            beam_width=2,
            **way.options,
        ),
        "c z",
        5,
        1,
    ),
    Case("cascade", lambda way: Cascaded(way.taught(NO, Deed("e")), fan_out=(1, 1), **way.options), "e", 2, 1),
    Case(
        "refine",
        lambda way: Refine(way.numbered([A, B, NO, C, Deed("d", score=1), NO]), 3, rounds=2, **way.options),
        "b d",
        6,
        4,
    ),
    Case(
        "playoff",
        lambda way: RecursiveTournament(
            way.numbered([A, C, NO, B, Deed("d", score=1), NO]), 4, group=2, judge=_last, **way.options
        ),
        "d",
        6,
        4,
    ),
    Case("tree-search", lambda way: TreeSearch(way.several([A, NO]), budget=4, **way.options), "a", 4, 0),
]
by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def called(pattern: Pattern, workspace: Workspace) -> SpeculationOutcome:
    return pattern(workspace)


def awaited(pattern: Pattern, workspace: Workspace) -> SpeculationOutcome:
    return asyncio.run(pattern.run(workspace))


def called_in_a_loop(pattern: Pattern, workspace: Workspace) -> SpeculationOutcome:
    async def main() -> SpeculationOutcome:
        return pattern(workspace)

    return asyncio.run(main())


def called_in_a_thread(pattern: Pattern, workspace: Workspace) -> SpeculationOutcome:
    outcomes: list[SpeculationOutcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(pattern(workspace)))
    thread.start()
    thread.join()
    return outcomes[0]


CALLS = [called, awaited, called_in_a_loop, called_in_a_thread]


def check(case: Case, outcome: SpeculationOutcome, workspace: Workspace) -> None:
    """Check that the workspace, the outcome and the ledger agree."""
    assert (workspace.path / "trail").read_text().split() == case.trail.split()
    assert outcome.committed
    assert outcome.winner is not None
    assert outcome.winner.success
    assert outcome.winner.branch_index == case.winner
    assert outcome.winner.exception is None
    assert outcome.winner in outcome.all_results
    assert len(outcome.all_results) == case.tried
    assert outcome.commit is not None
    assert outcome.commit.added == ("trail",)
    assert [c.id for c in workspace.history()] == [outcome.commit.id]
    assert outcome.fork is not None
    with open_ledger(workspace) as ledger:
        record = ledger.fork(outcome.fork)
        assert (record.state, record.commit) == ("resolved", outcome.commit.id)
        assert record.workspace == str(workspace.path)
        for result in outcome.all_results:
            assert result.attempt is not None
            attempt = ledger.attempt(result.attempt)
            assert (attempt.state == "succeeded") == result.success
            assert attempt.index == result.branch_index
            assert attempt.reason == result.reason
            assert (attempt.score or 0.0) == result.score
            assert (attempt.error is not None) == (result.exception is not None)


@by_case
@pytest.mark.parametrize("way", WAYS, ids=by_way)
def test_every_pattern_with_every_kind_of_candidate(case: Case, way: Way, workspace: Workspace) -> None:
    check(case, case.make(way)(workspace), workspace)


@by_case
@pytest.mark.parametrize("call", CALLS[1:])
def test_every_pattern_called_in_every_way(case: Case, call: Any, workspace: Workspace) -> None:
    check(case, call(case.make(WAYS[0]), workspace), workspace)


@pytest.mark.parametrize("way", WAYS[1:], ids=by_way)
@pytest.mark.parametrize("call", CALLS[1:])
def test_every_kind_of_candidate_called_in_every_way(way: Way, call: Any, workspace: Workspace) -> None:
    check(CASES[0], call(CASES[0].make(way), workspace), workspace)


@by_case
def test_a_pattern_can_be_called_again(case: Case, workspace: Workspace) -> None:
    pattern = case.make(WAYS[0])
    check(case, pattern(workspace), workspace)
    (workspace.path / "trail").unlink()
    assert pattern(workspace).committed
    assert (workspace.path / "trail").read_text().split() == case.trail.split()


@by_case
def test_without_a_commit_there_are_only_results(case: Case, workspace: Workspace) -> None:
    pattern = case.make(Way("nothing committed", {"commit": False}))
    outcome = pattern(workspace)
    assert not outcome.committed
    assert outcome.commit is None
    assert outcome.winner is not None
    assert outcome.winner.branch_index == case.winner
    assert [p.name for p in workspace.path.iterdir()] == ["a.txt"]
    assert workspace.history() == []


@pytest.mark.parametrize("way", WAYS, ids=by_way)
def test_when_all_fail_nothing_is_changed(way: Way, workspace: Workspace) -> None:
    outcome = Speculate(way.several([NO, NO]), **way.options)(workspace)
    assert not outcome.committed
    assert outcome.winner is None
    assert [r.success for r in outcome.all_results] == [False, False]
    assert {r.reason for r in outcome.all_results} == {"exit code 1" if way.is_command else "it returned False"}
    assert [p.name for p in workspace.path.iterdir()] == ["a.txt"]
    with open_ledger(workspace) as ledger:
        [fork] = ledger.forks()
        assert fork.state == "aborted"
        assert fork.resolution == {"how": "abort", "reason": "no attempt won"}
