"""Well-known examples of the patterns, unchanged except for the import, with the functions that they assume."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from forkwise import (
    BestOfN,
    BranchContext,
    ProcessBranchError,
    Reflexion,
    Speculate,
    Tournament,
    TreeOfThoughts,
    Workspace,
)

PATCH = """--- a/a.txt
+++ b/a.txt
@@ -1 +1 @@
-one
+{word}
"""


@pytest.fixture
def ws(workspace: Workspace) -> Workspace:
    """A workspace with two patches; the second makes its tests pass."""
    (workspace.path / "a.patch").write_text(PATCH.format(word="wrong"))
    (workspace.path / "b.patch").write_text(PATCH.format(word="right"))
    return workspace


def apply_patch(patch: Path) -> None:
    subprocess.run(["patch", "-p1", "-s", "-i", str(patch)], cwd=patch.parent, check=True)


def run_tests(path: Path) -> bool:
    return subprocess.run(["grep", "-q", "right", "a.txt"], cwd=path).returncode == 0


@dataclass(frozen=True)
class AgentResult:
    passed: bool
    quality_score: float
    confident: bool = True


def run_agent(workdir: Path, seed: int = 0) -> AgentResult:
    (workdir / "answer.txt").write_text(f"seed {seed}")
    return AgentResult(passed=seed != 3, quality_score=seed / 10)


def test_quick_start(ws: Workspace) -> None:
    with ws.branch("attempt") as b:
        subprocess.run(["touch", str(b.path / "made")], check=True)
    assert (ws.path / "made").exists()


@pytest.mark.parametrize("isolate_processes", [False, True])
def test_parallel_speculation(ws: Workspace, isolate_processes: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def try_fix_a(path: Path) -> bool:
        apply_patch(path / "a.patch")
        return run_tests(path)

    def try_fix_b(path: Path) -> bool:
        apply_patch(path / "b.patch")
        return run_tests(path)

    if isolate_processes:
        candidates = [try_fix_a, try_fix_b]
        outcome = Speculate(candidates, isolate_processes=True, timeout=60)(ws)
    else:
        outcome = Speculate([try_fix_a, try_fix_b], first_wins=True, timeout=60)(ws)

    if outcome.committed:
        assert outcome.winner is not None
        print(f"Fix {outcome.winner.branch_index} succeeded!")

    assert capsys.readouterr().out == "Fix 1 succeeded!\n"
    assert (ws.path / "a.txt").read_text() == "right\n"
    assert outcome.winner is not None
    assert outcome.winner.return_value is True
    assert outcome.winner.branch_path is not None
    assert not outcome.winner.branch_path.exists()


def test_best_of_n(ws: Workspace) -> None:
    def scored_task(path: Path, attempt: int) -> tuple[bool, float]:
        result = run_agent(workdir=path, seed=attempt)
        return result.passed, result.quality_score

    outcome = BestOfN(scored_task, n=5)(ws)

    assert outcome.winner is not None
    assert (outcome.winner.branch_index, outcome.winner.score) == (4, 0.4)
    assert [r.success for r in outcome.all_results] == [True, True, True, False, True]
    assert (ws.path / "answer.txt").read_text() == "seed 4"


def test_reflexion(ws: Workspace) -> None:
    def run_and_test(path: Path) -> bool:
        (path / "test_output.log").write_text("a.txt says one")
        return (path / "critique.txt").exists() and "should be right" in (path / "critique.txt").read_text()

    def analyze_failure(log: Path) -> str:
        return f"{log.read_text()}, and should be right"

    def task(path: Path, attempt: int, feedback: str | None) -> bool:
        if feedback:
            (path / "critique.txt").write_text(feedback)
        return run_and_test(path)

    def critique(path: Path) -> str:
        return analyze_failure(path / "test_output.log")

    outcome = Reflexion(task, max_retries=3, critique=critique)(ws)

    assert outcome.committed
    assert [r.success for r in outcome.all_results] == [False, True]
    assert (ws.path / "critique.txt").read_text() == "a.txt says one, and should be right"


def test_tree_of_thoughts(ws: Workspace) -> None:
    def apply_approach_a(path: Path) -> None:
        (path / "approach").write_text("a")
        apply_patch(path / "b.patch")

    def apply_approach_b(path: Path) -> None:
        (path / "approach").write_text("bb")
        apply_patch(path / "b.patch")

    def evaluate_quality(path: Path) -> float:
        return float(len((path / "approach").read_text()))

    def generate_refinements(path: Path) -> list[object]:
        def refine(path: Path) -> tuple[bool, float]:
            (path / "approach").write_text((path / "approach").read_text() + " refined")
            return run_tests(path), evaluate_quality(path)

        def spoil(path: Path) -> tuple[bool, float]:
            (path / "a.txt").write_text("wrong")
            return run_tests(path), 99.0

        return [refine, spoil]

    def strategy_a(path: Path) -> tuple[bool, float]:
        apply_approach_a(path)
        return run_tests(path), evaluate_quality(path)

    def strategy_b(path: Path) -> tuple[bool, float]:
        apply_approach_b(path)
        return run_tests(path), evaluate_quality(path)

    outcome = TreeOfThoughts(
        [strategy_a, strategy_b],
        max_depth=2,
        expand=lambda path, depth: generate_refinements(path),
    )(ws)

    assert outcome.committed
    assert (ws.path / "approach").read_text() == "bb refined"
    assert len(outcome.all_results) == 4


def test_tournament(ws: Workspace) -> None:
    def generate_patch(path: Path, index: int) -> bool:
        (path / "diff.patch").write_text(str(index * 5 % 8))
        return run_agent(workdir=path, seed=index).passed

    def llm_compare(first: Path, second: Path) -> int:
        return int(second.read_text() > first.read_text())

    def judge(path_a: Path, path_b: Path) -> int:
        # 0 = a wins, 1 = b wins
        return llm_compare(path_a / "diff.patch", path_b / "diff.patch")

    outcome = Tournament(generate_patch, n=8, judge=judge)(ws)

    assert outcome.winner is not None
    assert (ws.path / "diff.patch").read_text() == "6"  # the candidate with 7 is number 3, which fails
    assert outcome.winner.branch_index == 6


def test_branching_with_manual_control(ws: Workspace) -> None:
    with ws.branch("attempt", on_success=None, on_error=None) as b:
        result = run_agent(workdir=b.path)
        if result.confident:
            b.commit()
        else:
            b.abort()
    assert (ws.path / "answer.txt").exists()


def test_nested_branches(ws: Workspace) -> None:
    with ws.branch("strategy_a") as a:
        (a.path / "strategy").write_text("a")

        with a.branch("variant_1") as v1:
            (v1.path / "variant").write_text("1")
            # v1 auto-commits into a on success

        assert not (ws.path / "variant").exists()
        # a auto-commits into main on success
    assert (ws.path / "variant").read_text() == "1"


def test_process_isolation(ws: Workspace) -> None:
    def run_untrusted(path: Path) -> None:
        (path / "made").write_text("by an untrusted candidate")

    with ws.branch("sandboxed", on_success=None, on_error=None) as fb:  # noqa: SIM117
        with BranchContext(run_untrusted, workspace=fb.path) as ctx:
            try:
                ctx.wait(timeout=30)
                fb.commit()
            except ProcessBranchError:
                fb.abort()
    assert (ws.path / "made").exists()


def test_several_in_parallel(ws: Workspace) -> None:
    def task(path: Path) -> None:
        (path / "made").write_text("made")

    ws_a, ws_b, ws_c = (ws.branch(name, None, None) for name in "abc")
    with BranchContext.create(
        targets=[task, task, task],
        workspaces=[ws_a.path, ws_b.path, ws_c.path],
    ) as contexts:
        for ctx in contexts:
            ctx.wait(timeout=60)
    for branch in (ws_a, ws_b, ws_c):
        assert (branch.path / "made").exists()
        branch.abort()
