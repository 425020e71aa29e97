"""RecursiveTournament: its groups, its refined attempts, its judge, and resuming."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from forkwise import ForkwiseWarning, RecursiveTournament, SpeculationOutcome, Workspace, open_ledger
from forkwise.explore.resume import resume
from forkwise.fork.control import abort_fork
from tests.fork.conftest import scene
from tests.fork.kill_at_point import Scene

__all__ = ["scene"]


def write(path: Path, index: int, feedback: str | None) -> tuple[bool, float]:
    (path / "n").write_text(f"{index}\n")
    (path / "feedback").write_text(feedback or "")
    return True, float(index % 8)


def larger(first: Path, second: Path) -> int:
    return int(int((second / "n").read_text()) > int((first / "n").read_text()))


def winner_of(outcome: SpeculationOutcome) -> int:
    assert outcome.winner is not None
    return outcome.winner.branch_index


def test_winners_of_groups_seed_refined_attempts(workspace: Workspace) -> None:
    outcome = RecursiveTournament(write, 8, group=4)(workspace)
    assert len(outcome.all_results) == 10
    assert winner_of(outcome) == 7, "the refined attempts 8 and 9 have lower scores"
    outcome = RecursiveTournament(write, 8, group=4, judge=larger)(workspace)
    assert winner_of(outcome) == 9
    taught = (workspace.path / "feedback").read_text()
    assert taught.startswith("The best attempt of your group: succeeded\nChanged 2 files: feedback (")
    assert "\n\nAttempt 4: succeeded\n" in taught
    with open_ledger(workspace) as ledger:
        assert outcome.fork is not None
        verdict = ledger.fork(outcome.fork).verdict
        assert verdict is not None
        assert verdict["winner"] == outcome.winner.attempt if outcome.winner else False
        assert len(verdict["matches"]) == 3 + 3 + 2 + 1


@pytest.mark.parametrize(
    ("n", "group", "budget", "made"), [(4, 4, None, 4), (4, 2, None, 6), (8, 2, None, 14), (8, 2, 9, 9), (5, 4, 5, 5)]
)
def test_the_number_of_attempts_is_bounded(
    n: int, group: int, budget: int | None, made: int, workspace: Workspace
) -> None:
    outcome = RecursiveTournament(write, n, group=group, judge=larger, budget=budget)(workspace)
    assert len(outcome.all_results) == made
    assert winner_of(outcome) == made - 1


def test_a_rule_ends_the_refinement(workspace: Workspace) -> None:
    task = lambda path, index, feedback: True  # noqa: E731
    outcome = RecursiveTournament(task, 4, group=2, max_parallel=1, stop_when="no-gain:3", commit=False)(workspace)
    assert len(outcome.all_results) == 4


def test_candidates_of_a_list_follow_themselves(workspace: Workspace) -> None:
    def candidate(name: str, score: float) -> Any:
        def act(path: Path, index: int, feedback: str | None) -> tuple[bool, float]:
            (path / "who").write_text(f"{name} {index}")
            return name != "bad", score + bool(feedback)

        return act

    several = [candidate("a", 3), candidate("bad", 9), candidate("b", 1), candidate("c", 2)]
    outcome = RecursiveTournament(several, group=2)(workspace)
    assert (workspace.path / "who").read_text() == "a 4"
    assert len(outcome.all_results) == 6


def test_a_failing_judge_leaves_it_to_the_scores(workspace: Workspace) -> None:
    def judge(first: Path, second: Path) -> int:
        raise OSError("no judge today")

    with pytest.warns(ForkwiseWarning, match="did not decide between .*no judge today"):
        assert winner_of(RecursiveTournament(write, 3, judge=judge)(workspace)) == 2


def test_what_nothing_decided_is_not_committed(workspace: Workspace) -> None:
    task = lambda path, index, feedback: (path / "n").write_text("1") > 0  # noqa: E731
    with pytest.warns(ForkwiseWarning) as caught:
        outcome = RecursiveTournament(task, 2, judge=lambda first, second: "both")(workspace)
    assert (outcome.winner, outcome.committed, outcome.undecided) == (None, False, True)
    abort_fork(workspace, outcome.fork or "")
    assert "is not committed: the judge failed" in str(caught[-1].message)
    assert RecursiveTournament(task, 2)(workspace).committed, "without a judge, the first of equals wins"


def test_without_a_success_nothing_wins(workspace: Workspace) -> None:
    assert RecursiveTournament(["false"], 3)(workspace).winner is None


@pytest.mark.parametrize(
    "options", [{"n": 0}, {"group": 1}, {"n": 4, "budget": 3}, {"task": []}], ids=["n", "group", "budget", "task"]
)
def test_invalid_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least"):
        RecursiveTournament(**{"task": ["true"], **options})


def test_a_killed_tournament_continues(scene: Scene) -> None:
    body = 'cp "$FORKWISE_FEEDBACK" taught; echo $FORKWISE_ATTEMPT > n; echo $FORKWISE_ATTEMPT > "$FORKWISE_SCORE"'
    recipe = scene.recipe(body, kind="playoff", n=4, group=2)
    scene.drive(recipe, "ended")
    assert scene.fork.state == "interrupted"
    assert winner_of(asyncio.run(resume(scene.workspace, scene.fork.id))) == 5
    assert (scene.text("n"), len(scene.ran)) == ("6\n", 6)
    assert "The best attempt of your group" in (scene.text("taught") or "")
