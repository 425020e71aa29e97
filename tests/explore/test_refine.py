"""Refine: rounds on top of the best attempt, their feedback, and resuming."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from forkwise import Refine, SpeculationOutcome, Tests, Workspace
from forkwise.explore.resume import resume
from tests.fork.conftest import scene
from tests.fork.kill_at_point import Scene

__all__ = ["scene"]

CHECK = """
echo 1..3
for n in 1 2 3; do grep -q "^$n$" found && echo "ok $n" || { echo "not ok $n"; bad=1; }; done
exit $bad
"""


def winner_of(outcome: SpeculationOutcome) -> int:
    assert outcome.winner is not None
    return outcome.winner.branch_index


def test_a_further_round_builds_on_the_best_and_reads_what_was_done(workspace: Workspace) -> None:
    seen: dict[int, tuple[str, str | None]] = {}

    def task(path: Path, index: int, feedback: str | None) -> tuple[bool, float]:
        seen[index] = (path.joinpath("a.txt").read_text(), feedback)
        with path.joinpath("a.txt").open("a") as file:
            file.write(f"{index}\n")
        return True, [1, 3, 2, 0, 5, 4][index]

    outcome = Refine(task, 2, rounds=3)(workspace)
    assert winner_of(outcome) == 4
    assert (workspace.path / "a.txt").read_text() == "one\n1\n4\n"
    assert [seen[index][0] for index in range(6)] == ["one\n"] * 2 + ["one\n1\n"] * 4
    assert seen[1][1] is None
    assert seen[2][1] == (
        "You build on this attempt: succeeded\nChanged 1 file: a.txt (+1 -0)\n\n"
        "Attempt 1: succeeded\nChanged 1 file: a.txt (+1 -0)"
    )


def test_a_failed_attempt_of_which_tests_pass_is_built_on(workspace: Workspace) -> None:
    (workspace.path / "check.sh").write_text(CHECK)
    script = 'case $FORKWISE_ATTEMPT in 1) exit 3;; 2) echo 1;; 3) echo 2;; 4) printf "2\\n3\\n";; esac >> found'
    outcome = Refine(["sh", "-c", script], 2, rounds=2, evaluate=Tests("sh check.sh"))(workspace)
    assert winner_of(outcome) == 3
    assert (workspace.path / "found").read_text() == "1\n2\n3\n"
    assert [result.success for result in outcome.all_results] == [False, False, False, True]


def test_a_round_without_gain_leaves_the_base(workspace: Workspace) -> None:
    (workspace.path / "check.sh").write_text(CHECK)
    script = "cp check.sh copy; seq 3 > found; test $FORKWISE_ATTEMPT = 1 || seq 9 > more"
    outcome = Refine(["sh", "-c", script], 1, rounds=3, evaluate=Tests("sh check.sh"))(workspace)
    assert winner_of(outcome) == 0
    assert not (workspace.path / "more").exists()


def test_without_any_base_the_next_round_starts_from_the_workspace(workspace: Workspace) -> None:
    script = 'test -s "$FORKWISE_FEEDBACK" || { echo half > a.txt; exit 1; }; cp "$FORKWISE_FEEDBACK" told'
    outcome = Refine(["sh", "-c", script], 2, rounds=2)(workspace)
    assert winner_of(outcome) == 2
    assert (workspace.path / "a.txt").read_text() == "one\n"
    assert (workspace.path / "told").read_text().startswith("Attempt 1: failed: exit code 1\nChanged 1 file: a.txt")


@pytest.mark.parametrize("options", [{"n": 0}, {"rounds": 0}])
def test_invalid_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        Refine(["true"], **options)


def test_a_killed_refinement_continues_inside_its_base(scene: Scene) -> None:
    body = 'echo $FORKWISE_ATTEMPT >> trail; echo $FORKWISE_ATTEMPT > "$FORKWISE_SCORE"'
    scene.drive(scene.recipe(body, kind="refine", n=2, rounds=2), "ended")
    assert scene.fork.state == "interrupted"
    outcome = asyncio.run(resume(scene.workspace, scene.fork.id))
    assert winner_of(outcome) == 3
    assert scene.text("trail") == "2\n4\n"
    assert len(scene.ran) == 4, "no attempt that had ended ran again"
