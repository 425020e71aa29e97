"""Attempts judged by the tests that the other attempts added."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from forkwise import BestOfN, CrossTests, SpeculationOutcome, Tests, Workspace, open_ledger
from forkwise.explore.recipe import Recipe

COMMAND = f"{sys.executable} -m unittest"
RIGHT = "def size(text):\n    return len(text.split())\n"
WRONG = "def size(text):\n    return 2\n"  # passes the project's own test


def check(*cases: tuple[str, int]) -> str:
    """Build a test file with one test for each text and its size."""
    lines = []
    for number, (text, size) in enumerate(cases):
        lines += [f"    def test_{number}(self):", f"        self.assertEqual(size({text!r}), {size})", ""]
    return "import unittest\n\nfrom words import size\n\n\nclass Sizes(unittest.TestCase):\n" + "\n".join(lines)


@pytest.fixture
def project(workspace: Workspace) -> Workspace:
    """A project with a function to implement, and one weak test of it."""
    (workspace.path / "words.py").write_text("def size(text):\n    return 0\n")
    (workspace.path / "test_words.py").write_text(check(("a b", 2)))
    return workspace


def attempt(solution: str, **files: str) -> Any:
    """Build a candidate that writes a solution, and test files by their names."""

    def act(path: Path) -> bool:
        (path / "words.py").write_text(solution)
        for name, content in files.items():
            (path / f"{name}.py").write_text(content)
        return True

    return act


def run(workspace: Workspace, *candidates: Any, **options: Any) -> SpeculationOutcome:
    tests = Tests(COMMAND, require="progress")
    return BestOfN(list(candidates), evaluate=[tests, CrossTests(tests, **options)])(workspace)


def shares(workspace: Workspace, outcome: SpeculationOutcome) -> list[float]:
    """Return the scores by the tests of others, of the attempts that have any."""
    assert outcome.fork is not None
    with open_ledger(workspace) as ledger:
        records = [ledger.attempt(result.attempt or "") for result in outcome.all_results]
    return [record.scores[3] for record in records if record.scores is not None]


def test_the_tests_of_others_tell_a_solution_from_a_shortcut(project: Workspace) -> None:
    good = check(("", 0), ("a b c", 3))
    outcome = run(project, attempt(WRONG), attempt(RIGHT, test_more=good), attempt(RIGHT, test_more=good))
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 1
    assert shares(project, outcome) == [0.0, 1.0, 1.0]
    assert (project.path / "words.py").read_text() == RIGHT
    assert outcome.fork is not None
    with open_ledger(project) as ledger:
        resolution = ledger.fork(outcome.fork).resolution
        assert resolution is not None
        assert resolution["how"] in ("tests of other attempts", "first of equals")


def test_tests_that_only_their_author_passes_do_not_count(project: Workspace) -> None:
    """An attempt cannot win by tests that look for its own marks."""
    poison = check(("a b", 2)).replace("size('a b')", "__import__('words').MARK")
    marked = attempt(WRONG + "MARK = 2\n", test_mark=poison)
    outcome = run(project, marked, attempt(RIGHT, test_a=check(("a", 1))), attempt(RIGHT))
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 1
    assert shares(project, outcome) == [0.0, 1.0, 1.0]


def test_what_passes_nowhere_counts_for_nothing(project: Workspace) -> None:
    outcome = run(project, attempt(RIGHT, test_b="import nowhere\n"), attempt(RIGHT), attempt(WRONG))
    assert shares(project, outcome) == [0.0, 0.0, 0.0], "nobody has a valid test"


def test_the_work_is_bounded(project: Workspace) -> None:
    many = {f"test_{n}": check(("", 0)) for n in range(5)}
    outcome = run(project, attempt(RIGHT, **many), attempt(RIGHT), attempt(WRONG), max_files=1, total_timeout=1e-6)
    assert shares(project, outcome) == [0.0, 0.0, 0.0], "no time was left for any test"
    with pytest.raises(ValueError, match="at least 1"):
        CrossTests(max_files=0)


def test_the_command_line_has_it(project: Workspace) -> None:
    recipe = Recipe(kind="best-of", commands=(("true",),), n=2, tests=COMMAND, cross_tests=True)
    evaluator = recipe.pattern(project).settings.evaluator
    assert evaluator is not None
    assert "tests of other attempts" in evaluator.criteria
    assert Recipe.from_json(recipe.as_json()) == recipe
