"""The examples of BranchContext's README, with the agents, patches and tests that they assume."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkwise import ProcessBranchError, Workspace
from tests.seeds.page import WORKSPACE, Example, Page

__all__ = ["page"]

page = Page("branchcontext", package="branching")

_PATCH = """--- a/a.txt
+++ b/a.txt
@@ -1 +1 @@
-one
+{word}
"""


def _open_workspace() -> Workspace:
    """Create a project with two patches, the second of which makes its test pass. Return the examples' ``ws``."""
    (WORKSPACE / "a.txt").write_text("one\n")
    (WORKSPACE / "a.patch").write_text(_PATCH.format(word="wrong"))
    (WORKSPACE / "b.patch").write_text(_PATCH.format(word="right"))
    return Workspace("/mnt/workspace")


def _apply_patch(patch: Path) -> None:
    subprocess.run(["patch", "-p1", "-s", "-i", str(patch)], cwd=patch.parent, check=True)


def _run_tests(path: Path) -> bool:
    return subprocess.run(["grep", "-q", "right", "a.txt"], cwd=path).returncode == 0


@dataclass(frozen=True)
class _AgentResult:
    """The result of an agent's run, which is true if it passed."""

    passed: bool
    quality_score: float
    confident: bool = True

    def __bool__(self) -> bool:
        return self.passed


def _run_agent(workdir: Path, seed: int = 0) -> _AgentResult:
    (workdir / "answer.txt").write_text(f"seed {seed}")
    (workdir / "diff.patch").write_text(str(seed * 5 % 8))
    return _AgentResult(passed=seed != 3, quality_score=seed / 10)


def _check_no_branch_left(ws: Workspace) -> None:
    assert [branch.name for branch in ws.branches()] == []


@page.example("Quick start")
def quick_start(example: Example) -> None:
    (WORKSPACE / "a.txt").write_text("one\n")
    example.add_program("agent", '#!/bin/sh\ntest "$1" = --workdir && echo done > "$2/made"\n')
    names = example.run(subprocess=subprocess)
    assert (WORKSPACE / "made").read_text() == "done\n"
    _check_no_branch_left(names["ws"])


def _speculate(example: Example, **assumed: Any) -> Any:
    names = example.run(ws=_open_workspace(), Path=Path, apply_patch=_apply_patch, run_tests=_run_tests, **assumed)
    assert names["outcome"].committed
    assert names["outcome"].winner.branch_index == 1
    assert names["outcome"].winner.return_value is True
    assert [result.success for result in names["outcome"].all_results] == [False, True]
    assert (WORKSPACE / "a.txt").read_text() == "right\n"
    _check_no_branch_left(names["ws"])
    return names


@page.example("Parallel speculation (first wins)")
def parallel_speculation(example: Example) -> None:
    _speculate(example)
    assert example.printed == "Fix 1 succeeded!\n"


@page.example("Best-of-N with scoring")
def best_of_n(example: Example) -> None:
    names = example.run(ws=_open_workspace(), Path=Path, run_agent=_run_agent)
    outcome = names["outcome"]
    assert (outcome.winner.branch_index, outcome.winner.score) == (4, 0.4)
    assert [result.success for result in outcome.all_results] == [True, True, True, False, True]
    assert (WORKSPACE / "answer.txt").read_text() == "seed 4"
    _check_no_branch_left(names["ws"])


@page.example("Reflexion (retry with feedback)")
def reflexion(example: Example) -> None:
    def run_and_test(path: Path) -> bool:
        (path / "test_output.log").write_text("a.txt says one")
        return (path / "critique.txt").exists() and "should be right" in (path / "critique.txt").read_text()

    def analyze_failure(log: Path) -> str:
        return f"{log.read_text()}, and should be right"

    names = example.run(ws=_open_workspace(), Path=Path, run_and_test=run_and_test, analyze_failure=analyze_failure)
    assert names["outcome"].committed
    assert [result.success for result in names["outcome"].all_results] == [False, True]
    assert (WORKSPACE / "critique.txt").read_text() == "a.txt says one, and should be right"
    _check_no_branch_left(names["ws"])


@page.example("Tree of Thoughts")
def tree_of_thoughts(example: Example) -> None:
    def apply_approach(word: str, path: Path) -> None:
        (path / "approach").write_text(word)
        _apply_patch(path / "b.patch")

    def evaluate_quality(path: Path) -> float:
        return float(len((path / "approach").read_text()))

    def generate_refinements(path: Path) -> list[object]:
        assert (path / "approach").read_text() == "bb", "the best strategy is expanded"

        def refine(path: Path) -> tuple[bool, float]:
            (path / "approach").write_text((path / "approach").read_text() + " refined")
            return _run_tests(path), evaluate_quality(path)

        def spoil(path: Path) -> tuple[bool, float]:
            (path / "a.txt").write_text("wrong")
            return _run_tests(path), 99.0

        return [refine, spoil]

    names = example.run(
        ws=_open_workspace(),
        Path=Path,
        apply_approach_a=lambda path: apply_approach("a", path),
        apply_approach_b=lambda path: apply_approach("bb", path),
        run_tests=_run_tests,
        evaluate_quality=evaluate_quality,
        generate_refinements=generate_refinements,
    )
    assert names["outcome"].committed
    assert (WORKSPACE / "approach").read_text() == "bb refined"
    assert len(names["outcome"].all_results) == 4
    _check_no_branch_left(names["ws"])


@page.example("Tournament (pairwise elimination)")
def tournament(example: Example) -> None:
    def llm_compare(first: Path, second: Path) -> int:
        return int(second.read_text() > first.read_text())

    names = example.run(ws=_open_workspace(), Path=Path, run_agent=_run_agent, llm_compare=llm_compare)
    outcome = names["outcome"]
    assert [result.success for result in outcome.all_results] == [index != 3 for index in range(8)]
    assert (WORKSPACE / "diff.patch").read_text() == "6"  # the candidate with 7 is number 3, which fails
    assert outcome.winner.branch_index == 6
    assert outcome.winner.return_value == _AgentResult(passed=True, quality_score=0.6)
    _check_no_branch_left(names["ws"])


@page.example("Branching with manual control")
def manual_control(example: Example) -> None:
    names = example.run(ws=_open_workspace(), run_agent=_run_agent)
    assert (WORKSPACE / "answer.txt").read_text() == "seed 0"
    _check_no_branch_left(names["ws"])


@page.example("Nested branches")
def nested_branches(example: Example) -> None:
    def apply_strategy(path: Path) -> None:
        (path / "strategy").write_text("a")

    def tweak(path: Path) -> None:
        assert (path / "strategy").read_text() == "a"
        assert not (WORKSPACE / "strategy").exists()
        (path / "variant").write_text("1")

    names = example.run(ws=_open_workspace(), apply_strategy=apply_strategy, tweak=tweak)
    assert (WORKSPACE / "strategy").read_text() == "a"
    assert (WORKSPACE / "variant").read_text() == "1"
    _check_no_branch_left(names["ws"])


@page.example("Process isolation")
def process_isolation(example: Example) -> None:
    def run_untrusted(path: Path) -> None:
        (path / "made").write_text("by an untrusted candidate")

    names = example.run(ws=_open_workspace(), run_untrusted=run_untrusted, ProcessBranchError=ProcessBranchError)
    assert (WORKSPACE / "made").read_text() == "by an untrusted candidate"
    _check_no_branch_left(names["ws"])


@page.example("Process isolation 2")
def several_processes(example: Example) -> None:
    def build_task(word: str) -> Any:
        return lambda path: (path / "made").write_text(word) and None

    ws = _open_workspace()
    branches = [ws.branch(name, on_success=None, on_error=None) for name in ("a", "b", "c")]
    tasks = {f"task_{branch.name}": build_task(branch.name) for branch in branches}
    example.run(**tasks, **{f"ws_{branch.name}": branch for branch in branches})
    for branch in branches:
        assert (branch.path / "made").read_text() == branch.name
        branch.abort()
    assert not (WORKSPACE / "made").exists()


@page.example("Process isolation 3")
def isolated_candidates(example: Example) -> None:
    def try_fix_a(path: Path) -> bool:
        _apply_patch(path / "a.patch")
        return _run_tests(path)

    def try_fix_b(path: Path) -> bool:
        _apply_patch(path / "b.patch")
        return _run_tests(path)

    _speculate(example, candidates=[try_fix_a, try_fix_b])


@page.example("API reference")
def layers(example: Example) -> None:
    names = example.run()
    assert {"Workspace", "BranchContext", "Speculate"} <= set(names)
