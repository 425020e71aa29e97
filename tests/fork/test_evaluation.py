"""Evaluators: return values of functions, and several evaluators in order."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from forkwise import Attempt, BestOfN, Evaluation, Evaluator, SmallerDiff, Workspace


def judged(workspace: Workspace, evaluate: Any, work: Any = bool) -> tuple[bool, float, str | None]:
    """Evaluate one attempt, and return its result."""
    [result] = BestOfN([work], evaluate=evaluate, commit=False)(workspace).all_results
    return result.success, result.score, result.reason


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, (True, 1.0, None)),
        (False, (False, 0.0, "its evaluation returned False")),
        (0, (True, 0.0, None)),
        (-2.5, (True, -2.5, None)),
        (Fraction(1, 4), (True, 0.25, None)),
        ((True, 7), (True, 7.0, None)),
        ([True, 7.5], (True, 7.5, None)),
        ((False, 7), (False, 7.0, "its evaluation returned False")),
        (Evaluation((3.0, 1.0)), (True, 3.0, None)),
        (Evaluation((3.0,), success=False, reason="no"), (False, 3.0, "no")),
    ],
    ids=repr,
)
def test_what_a_function_may_say(value: Any, expected: Any, workspace: Workspace) -> None:
    assert judged(workspace, lambda _: value) == expected


def test_a_function_may_be_async(workspace: Workspace) -> None:
    async def evaluate(path: Path) -> float:
        return float((path / "a.txt").stat().st_size)

    assert judged(workspace, evaluate) == (True, 4.0, None)


def test_the_evaluators_score_comes_before_the_candidates_own(workspace: Workspace) -> None:
    candidates = [lambda _: (True, 9.0), lambda _: (True, 1.0), lambda _: (True, 5.0)]
    outcome = BestOfN(candidates, evaluate=lambda _: 0.5)(workspace)
    assert outcome.winner is not None
    assert (outcome.winner.branch_index, outcome.winner.score) == (0, 0.5), "if equal, the second score decides"


class _Odd(Evaluator):
    def __init__(self, said: Any) -> None:
        self._said = said

    async def evaluate(self, attempt: Attempt) -> Evaluation:
        if isinstance(self._said, BaseException):
            raise self._said
        return self._said  # type: ignore[no-any-return]


@pytest.mark.parametrize("odd", [SystemExit(1), ValueError("x"), None, 3, Evaluation((math.nan,))], ids=repr)
def test_an_evaluator_that_is_wrong_fails_the_attempt(odd: Any, workspace: Workspace) -> None:
    success, _, reason = judged(workspace, _Odd(odd))
    assert not success
    assert reason


def test_the_smaller_change(workspace: Workspace) -> None:
    def adds(lines: int) -> Any:
        return lambda path: (path / "a.txt").write_text("one\n" + "more\n" * lines) > 0

    outcome = BestOfN([adds(3), adds(1), adds(2)], evaluate=SmallerDiff())(workspace)
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 1
    assert [r.score for r in outcome.all_results] == [-3.0, -1.0, -2.0]


def test_the_size_of_a_change_is_of_its_lines_whatever_they_begin_with(workspace: Workspace) -> None:
    """A removed line of two dashes looks like the header of a file in a diff."""
    (workspace.path / "a.txt").write_text("-- one\n-- two\n")
    assert judged(workspace, SmallerDiff(), lambda path: (path / "a.txt").write_text("") == 0) == (True, -2.0, None)
    odd = "-- one\n-- two\n\n@@ \x0b three\u2028\ndiff \n"
    assert judged(workspace, SmallerDiff(), lambda path: (path / "a.txt").write_text(odd) > 0) == (True, -3.0, None)


def test_the_size_of_binary_changes(workspace: Workspace) -> None:
    def work(path: Path) -> bool:
        (path / "one").write_bytes(bytes(1000))
        (path / "two").write_bytes(bytes(range(256)))
        return True

    assert judged(workspace, SmallerDiff(), work) == (True, -2.0, None)
    assert judged(workspace, SmallerDiff()) == (True, 0.0, None)
