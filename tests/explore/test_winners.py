"""Which attempts may win: not those without a change, and not by a judge that failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forkwise import BestOfN, ForkwiseWarning, Speculate, Tests, Tournament, Workspace
from forkwise.fork.resolve import pick


def idle(_path: Path) -> tuple[bool, float]:
    return True, 9.0


def write(name: str, score: float = 1.0) -> Callable[[Path], tuple[bool, float]]:
    def task(path: Path) -> tuple[bool, float]:
        (path / name).write_text(f"{name}\n")
        return True, score

    return task


def test_an_attempt_without_a_change_ranks_below_the_others(workspace: Workspace) -> None:
    outcome = BestOfN([idle, write("a"), write("b", 2.0)])(workspace)
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 2
    assert [r.no_change for r in outcome.all_results] == [True, False, False]
    assert [r.success for r in outcome.all_results] == [True, True, True]


def test_it_may_win_alone_or_if_allowed(workspace: Workspace) -> None:
    assert Speculate([lambda _path: True])(workspace).committed
    outcome = BestOfN([write("a"), idle], allow_empty=True)(workspace)
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 1


def test_it_fails_if_something_was_to_be_done(workspace: Workspace) -> None:
    outcome = Speculate([idle, lambda _path: True], has_prompt=True)(workspace)
    assert outcome.winner is None
    assert [r.reason for r in outcome.all_results] == ["no change", "no change"]
    assert Speculate([idle], has_prompt=True, allow_empty=True)(workspace).committed


def test_ignored_files_are_no_change_and_are_not_committed(workspace: Workspace) -> None:
    def compile_only(path: Path) -> bool:
        (path / "__pycache__").mkdir()
        return (path / "__pycache__/a.pyc").write_text("x") > 0

    assert Speculate([compile_only], ignore="git", has_prompt=True)(workspace).winner is None
    assert Speculate([compile_only], ignore="git")(workspace).committed
    assert not (workspace.path / "__pycache__").exists()
    assert Speculate([compile_only])(workspace).committed
    assert (workspace.path / "__pycache__/a.pyc").exists()


def test_an_attempt_that_needs_its_ignored_files(workspace: Workspace) -> None:
    def fix(path: Path) -> bool:
        (path / "cache.log").write_text("x")
        return (path / "fix").write_text("x") > 0

    tests = Tests("test -e fix && test -e cache.log")
    [result] = Speculate([fix], ignore=["*.log"], evaluate=tests)(workspace).all_results
    assert not result.success
    assert "only with files that are ignored and not committed (cache.log)" in (result.reason or "")
    assert Speculate([fix], evaluate=tests)(workspace).committed


def test_a_tournament_leaves_attempts_without_a_change_out(workspace: Workspace) -> None:
    outcome = Tournament([idle, write("a"), idle], judge=lambda _a, _b: 0)(workspace)
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 1


@pytest.mark.parametrize("answer", [2, None, "first", RuntimeError("no credit")])
def test_a_judge_that_fails_between_equals(workspace: Workspace, answer: Any) -> None:
    def judge(_first: Path, _second: Path) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.warns(ForkwiseWarning, match="the judge failed in 1 of 1 match"):
        outcome = Tournament([write("a"), write("b")], judge=judge)(workspace)
    assert (outcome.undecided, outcome.committed, outcome.winner) == (True, False, None)
    assert len(outcome.warnings) == 1
    pick(workspace, f"{outcome.fork}.2")
    assert (workspace.path / "b").exists()
    assert not (workspace.path / "a").exists()


def test_a_judge_that_fails_between_different_scores(workspace: Workspace) -> None:
    with pytest.warns(ForkwiseWarning, match="scores decided instead"):
        outcome = Tournament([write("a"), write("b", 2.0)], judge=lambda _a, _b: 7)(workspace)
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 1
    assert not outcome.undecided


def test_an_attempt_without_a_change_does_not_repair_failing_tests(workspace: Workspace, tmp_path: Path) -> None:
    """The second run of the tests passes by itself, as a test does that depends on something outside."""
    command = f"test -e {tmp_path}/once || {{ touch {tmp_path}/once; false; }}"
    tests = Tests(command, confinement="open", baseline=True)
    outcome = Speculate([lambda _path: True], evaluate=tests)(workspace)
    assert outcome.winner is None
    assert outcome.all_results[0].reason == "no change"
