"""Judging modes: by pairs, in a tournament, for a domain, with test counts; and their costs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from forkwise import BranchSpec, ForkCoordinator, MergeStrategy, Workspace, open_ledger
from forkwise.live.judging.judge import JUDGE_PROMPTS
from tests.live.worker import BEFORE, Priced, all_over, worker
from tests.modules.brain import Asked, call

pytestmark = pytest.mark.anyio

# Reports four tests in TAP; as many pass as there are files with that name.
TAP = """echo 1..4; n=0; bad=0
for f in ok1 ok2 ok3 ok4; do
  n=$((n+1)); if test -e $f; then echo "ok $n"; else echo "not ok $n"; bad=1; fi
done; exit $bad"""
SPECS = [
    BranchSpec("half", "write ok1 x; write ok2 x"),
    BranchSpec("most", "write ok1 x; write ok2 x; write ok3 x"),
    BranchSpec("none", "write other x"),
]


class Judge(Priced):
    """A model that picks the branch with a label, for two cents a request, and records its prompts."""

    def __init__(self, label: str = "most") -> None:
        self.report: list[Asked] = []

        def decide(asked: Asked) -> Any:
            self.report.append(asked)
            named = dict(re.findall(r"^- (\S+) \((\w+)\)$", asked.prompts[-1], re.MULTILINE))
            labels = {one: branch for branch, one in named.items()}
            winner = labels.get(label, next(iter(named)))
            return call("final_result", winner_branch_id=winner, confidence=1.0, reasoning="so")

        super().__init__(0.02, decide)


@pytest.mark.parametrize(
    ("strategy", "requests"),
    [
        (MergeStrategy(), 1),
        (MergeStrategy(judging="pairwise"), 6),
        (MergeStrategy(judging="tournament"), 4),
        (MergeStrategy(kind="vote", domain="prose"), 1),
    ],
    ids=["all", "pairwise", "tournament", "vote"],
)
async def test_ways_of_judging_and_their_cost(workspace: Workspace, strategy: MergeStrategy, requests: int) -> None:
    judge = Judge()
    coordinator = ForkCoordinator(worker(), workspace=workspace, judge=judge, test_command=TAP)
    await coordinator.fork(SPECS, parent_history=BEFORE, strategy=strategy)
    outcome = await coordinator.resolve()
    assert outcome.verdict is not None
    assert coordinator.branches[outcome.verdict.winner_branch_id].spec.label == "most"
    assert judge.calls == requests
    assert outcome.judge_usage is not None
    assert outcome.judge_usage.requests == requests
    assert coordinator.fork_cost().judge_usd == pytest.approx(0.02 * requests, abs=0.001 * requests)
    assert outcome.signals is not None
    assert outcome.signals.test_pass_ratio == 0.75  # three of four, not the exit code of the command
    report = judge.report[0].prompts[-1]
    assert "3 passed, 1 failed" in report or requests > 1  # a pair may consist of the two others
    assert JUDGE_PROMPTS[strategy.domain].strip() in judge.report[0].system
    again = await coordinator.resolve() if not outcome.committed else outcome
    assert again.verdict == outcome.verdict
    assert judge.calls == requests  # the verdict is cached
    await coordinator.aclose()


async def test_the_tests_that_a_project_makes_plain(workspace: Workspace) -> None:
    (workspace.path / "Makefile").write_text("test:\n\t@test -e ok1\n")
    coordinator = ForkCoordinator(worker(), workspace=workspace, judge=Judge("half"), test_command="auto")
    await coordinator.fork(SPECS[::2], parent_history=BEFORE, strategy=MergeStrategy(kind="auto"))
    outcome = await coordinator.resolve()
    assert outcome.committed
    assert outcome.signals is not None
    assert outcome.signals.test_pass_ratio == 1.0
    assert (workspace.path / "ok1").exists()


async def test_where_a_project_makes_none_plain_there_is_no_signal(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace, judge=Judge("half"), test_command="auto")
    await coordinator.fork(SPECS[::2], parent_history=BEFORE, strategy=MergeStrategy())
    await all_over(coordinator)
    outcome = await coordinator.resolve()
    assert not outcome.committed
    assert outcome.signals is not None
    assert outcome.signals.test_pass_ratio is None
    assert (outcome.merge_confidence or 0) <= 0.65
    await coordinator.aclose()


async def test_a_branch_that_changes_the_tests_is_judged_by_those_of_the_workspace(workspace: Workspace) -> None:
    (workspace.path / "check.sh").write_text("test -e ok.txt\n")
    specs = [BranchSpec("honest", "write ok.txt x"), BranchSpec("cheat", "write check.sh true")]
    coordinator = ForkCoordinator(worker(), workspace=workspace, judge=Judge("honest"), test_command="sh check.sh")
    await coordinator.fork(specs, parent_history=BEFORE, strategy=MergeStrategy(kind="vote"))
    outcome = await coordinator.resolve()
    assert outcome.verdict is not None
    with open_ledger(workspace) as ledger:
        tests = {a.label: a.tests for a in ledger.attempts(str(coordinator.fork_id))}
    assert {label: found and found["exit_code"] for label, found in tests.items()} == {"honest": 0, "cheat": 1}
    assert tests["cheat"]["touched"] == ["check.sh"]
    await coordinator.aclose()
