"""The resolution of a fork: by a judge, by several, by a user, or by combining branches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic_ai.usage import RunUsage

from forkwise import (
    BranchOutcome,
    BranchSpec,
    ConflictError,
    DeepAgentDeps,
    ForkCoordinator,
    JudgeVerdict,
    MergeStrategy,
    RetestError,
    StateBackend,
    Workspace,
    create_deep_agent,
    open_ledger,
)
from forkwise.conversation.conversation import Conversation
from tests.live.worker import BEFORE, Priced, all_over, last_prompts, last_results, worker
from tests.modules.brain import Asked, Brain, call

pytestmark = pytest.mark.anyio


class Judge:
    """A judge that picks a branch by its label, and records its requests."""

    def __init__(self, label: str, confidence: float = 1.0) -> None:
        self.label = label
        self.confidence = confidence
        self.asked: list[tuple[str, Sequence[BranchOutcome]]] = []

    async def evaluate(
        self, goal: str, report: Any, outcomes: Sequence[BranchOutcome]
    ) -> tuple[JudgeVerdict, RunUsage]:
        self.asked.append((goal, outcomes))
        ids = {outcome.branch_label: outcome.branch_id for outcome in outcomes}
        verdict = JudgeVerdict(
            winner_branch_id=ids.get(self.label, self.label), confidence=self.confidence, reasoning="it reads better"
        )
        return verdict, RunUsage(requests=1, input_tokens=10)


TWO = [BranchSpec("good", "write ok.txt yes"), BranchSpec("bad", "write ko.txt no")]


def judged_by(workspace: Workspace, judge: Any, **more: Any) -> ForkCoordinator:
    return ForkCoordinator(worker(), workspace=workspace, judge=judge, **more)


async def test_manual_leaves_it_to_the_caller(workspace: Workspace) -> None:
    judge = Judge("good")
    coordinator = judged_by(workspace, judge)
    await coordinator.fork(TWO, parent_history=BEFORE, strategy=MergeStrategy(kind="manual"))
    outcome = await coordinator.resolve()
    assert (outcome.committed, outcome.auto_eligible, outcome.verdict) == (False, False, None)
    assert judge.asked == []
    await coordinator.aclose()


async def test_auto_merges_with_enough_confidence(workspace: Workspace) -> None:
    coordinator = judged_by(workspace, Judge("good"), test_command="test -e ok.txt")
    await coordinator.fork(TWO, parent_history=BEFORE, strategy=MergeStrategy(kind="auto"))
    outcome = await coordinator.resolve()
    assert outcome.committed
    assert outcome.merge_result is not None
    assert outcome.merge_result.applied_paths == ["ok.txt"]
    assert (outcome.merge_confidence or 0.0) >= 0.8
    assert coordinator.is_resolved
    with open_ledger(workspace) as ledger:
        [fork] = ledger.forks()
        assert (fork.verdict or {})["winner"] == fork.winner
        assert (fork.resolution or {})["how"] == "auto"
        assert [a.tests is not None for a in ledger.attempts(fork.id)] == [True, True]


async def test_nothing_is_merged_below_the_threshold(workspace: Workspace) -> None:
    """Without tests the confidence is too low."""
    coordinator = judged_by(workspace, Judge("good"))
    await coordinator.fork(TWO, parent_history=BEFORE)
    outcome = await coordinator.resolve()
    assert (outcome.committed, outcome.auto_eligible, outcome.merge_result) == (False, False, None)
    assert not coordinator.is_resolved
    with pytest.raises(RuntimeError, match="too low"):
        await coordinator.merge_or_select("auto")
    assert list(workspace.path.glob("*.txt")) == [workspace.path / "a.txt"]
    await coordinator.aclose()


@pytest.mark.parametrize("kind", ["auto", "vote"])
async def test_auto_and_vote_merge_whatever_the_confidence(workspace: Workspace, kind: Any) -> None:
    """The guide: "Judge picks; coordinator commits immediately. User sees only the result + reasoning."

    And: "Majority wins, tie → highest individual confidence. Inside resolve()".
    """
    coordinator = judged_by(workspace, Judge("bad", confidence=0.1))
    await coordinator.fork(TWO, parent_history=BEFORE, strategy=MergeStrategy(kind=kind))
    outcome = await coordinator.resolve()
    assert outcome.committed
    assert outcome.merge_result is not None
    assert outcome.merge_result.applied_paths == ["ko.txt"]
    assert (outcome.merge_confidence or 0.0) < 0.8


MISSING = "mistral:mistral-small-latest"  # its package is not installed


@pytest.mark.parametrize("kind", ["auto", "auto_with_fallback", "vote"])
async def test_without_a_judge_the_fork_falls_back_to_a_manual_pick(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """The guide: "If no keys are detected, the judge_model fallback is used three times." It may be missing as well."""
    for name in list(os.environ):
        if name.endswith("_API_KEY"):
            monkeypatch.delenv(name)
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    await coordinator.fork(TWO, parent_history=BEFORE, strategy=MergeStrategy(kind=kind, judge_model=MISSING))
    outcome = await coordinator.resolve()
    assert (outcome.committed, outcome.auto_eligible, outcome.verdict) == (False, False, None)
    [failure] = outcome.judge_failures
    assert f"the judge {MISSING} gave no verdict: ImportError" in failure
    with pytest.raises(RuntimeError, match="Pick a branch yourself"):
        await coordinator.merge_or_select("auto")
    assert (await coordinator.merge_or_select("pick:good")).applied_paths == ["ok.txt"]


async def test_a_panel_goes_on_without_a_judge_whose_package_or_key_is_missing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guide: "the judge panel is built dynamically from whichever API keys are present in the environment"."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    models = [MISSING, "anthropic:claude-haiku-4-5-20251001", cast(str, Judge("good"))]
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    strategy = replace(MergeStrategy(kind="vote"), judge_models=models)
    await coordinator.fork(TWO, parent_history=BEFORE)
    outcome = await coordinator.resolve(strategy)
    assert outcome.committed
    assert outcome.verdict is not None
    assert len(outcome.verdicts) == 1
    first, second = outcome.judge_failures
    assert MISSING in first
    assert "ANTHROPIC_API_KEY" in second
    assert outcome.verdict.caveats == [first, second]


async def test_no_missing_judge_leaves_the_agents_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide: "The agent drives the fork itself"; ``auto`` is an action that may be answered with a reason."""
    monkeypatch.chdir(tmp_path)  # the mirror of a fork that is still open stays there

    def drive(asked: Asked) -> Any:
        results = last_results(asked)
        if "fork_run" in results:
            return call("merge_or_select", action="auto")
        if "merge_or_select" in results:
            return results["merge_or_select"]
        if asked.prompts[-1] == "fork":
            strategy = {"kind": "auto", "judge_model": MISSING}
            return call("fork_run", specs=[{"label": "a", "steer": "answer"}], strategy=strategy)
        return "an answer"

    agent = create_deep_agent(Brain(decide=drive), forking=True)
    result = await agent.run("fork", deps=DeepAgentDeps(backend=StateBackend()))
    assert result.output.startswith(f"merge_or_select failed: nothing was merged: the judge {MISSING} gave no verdict")


async def test_a_fallback_defers_the_merge_and_keeps_the_verdict(workspace: Workspace) -> None:
    judge = Judge("good")
    coordinator = judged_by(workspace, judge, test_command="test -e ok.txt")
    await coordinator.fork(TWO, parent_history=BEFORE)
    first = await coordinator.resolve()
    assert (first.committed, first.auto_eligible) == (False, True)
    assert first.verdict is not None
    assert await coordinator.resolve() is first
    assert len(judge.asked) == 1  # the verdict is cached
    await (await coordinator.run_on_branch("bad", "write ok.txt yes"))
    assert await coordinator.resolve() is not first
    assert {o.branch_label: o.test_pass_ratio for o in judge.asked[1][1]} == {"good": 1.0, "bad": 1.0}
    goal, outcomes = judge.asked[0]
    assert goal == "Name the library."
    assert {o.branch_label: o.test_pass_ratio for o in outcomes} == {"good": 1.0, "bad": 0.0}
    assert {o.branch_label: o.final_assistant_message for o in outcomes}["bad"] == "done: write ko.txt no"
    await coordinator.merge_or_select(f"pick:{first.verdict.winner_branch_id}")


async def test_a_verdict_for_an_unknown_branch_is_ignored(workspace: Workspace) -> None:
    coordinator = judged_by(workspace, Judge("someone else"), test_command="test -e ok.txt")
    await coordinator.fork(TWO, parent_history=BEFORE, strategy=MergeStrategy(kind="auto"))
    outcome = await coordinator.resolve()
    assert not outcome.committed
    assert outcome.verdict is not None
    assert outcome.verdict.confidence == 0.0
    assert coordinator.branches[outcome.verdict.winner_branch_id].spec.label == "good"  # by its tests
    await coordinator.aclose()


async def test_branches_that_still_run_are_waited_for(workspace: Workspace) -> None:
    judge = Judge("good")
    coordinator = judged_by(workspace, judge, test_command="true")
    await coordinator.fork([BranchSpec("good", "run sleep 0.3; say done"), TWO[1]], parent_history=BEFORE)
    await coordinator.resolve()
    assert {o.state for o in judge.asked[0][1]} == {"done"}
    await coordinator.aclose()


async def test_a_fork_of_which_nothing_is_left_has_no_verdict(workspace: Workspace) -> None:
    coordinator = judged_by(workspace, Judge("bad"))
    await coordinator.fork([BranchSpec("bad", "fail")], parent_history=BEFORE)
    assert (await coordinator.resolve()).verdict is None
    with pytest.raises(RuntimeError, match="no branch can be merged"):
        await coordinator.merge_or_select("auto")
    await coordinator.abort_fork()


async def test_a_vote_is_carried_out(workspace: Workspace) -> None:
    coordinator = judged_by(workspace, Judge("bad", 0.6))
    await coordinator.fork(TWO, parent_history=BEFORE, strategy=MergeStrategy(kind="vote"))
    outcome = await coordinator.resolve()
    assert outcome.committed
    assert (workspace.path / "ko.txt").exists()


async def test_the_cost_of_the_judge_is_reported(workspace: Workspace) -> None:
    def decide(asked: Asked) -> Any:
        winner = next(line for line in asked.prompts[-1].splitlines() if "good" in line)
        name = next(word.strip("`'\":(),[]=") for word in winner.split() if ".1" in word)
        return call("final_result", winner_branch_id=name, confidence=0.9, reasoning="better")

    coordinator = judged_by(workspace, Priced(0.02, decide))
    await coordinator.fork(TWO, parent_history=BEFORE)
    outcome = await coordinator.resolve()
    assert outcome.judge_usage is not None
    assert coordinator.fork_cost().judge_usd == pytest.approx(0.02, abs=0.001)
    assert coordinator.fork_cost().aggregate_usd is None  # the branches themselves have no price
    await coordinator.aclose()


# Combine


async def test_the_work_of_several_branches_together(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    handle = await coordinator.fork([*TWO, BranchSpec("third", "say nothing")], parent_history=BEFORE)
    await all_over(coordinator)
    first, second, third = handle.branches
    result = await coordinator.merge_or_select(f"combine:{first},{second}")
    assert result.combined_branches == [first, second]
    assert (result.discarded_branches, result.applied_paths) == ([third], ["ko.txt", "ok.txt"])
    assert (workspace.path / "ok.txt").read_text() == "yes"
    assert (workspace.path / "ko.txt").read_text() == "no"
    said = str(result.history_after_merge)
    assert "done: write ok.txt yes" in said
    assert "done: write ko.txt no" in said
    Conversation().extend(result.history_after_merge)
    assert coordinator.is_resolved
    assert result.commit_id is not None
    workspace.undo(int(result.commit_id))


async def test_a_clash_is_decided_by_a_person_or_not_at_all(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    specs = [BranchSpec("x", "write a.txt x; write x.txt x"), BranchSpec("y", "write a.txt y; write y.txt y")]
    await coordinator.fork(specs, parent_history=BEFORE)
    await all_over(coordinator)
    with pytest.raises(ConflictError, match=r"a\.txt"):
        await coordinator.merge_or_select("combine:x,y")
    assert not coordinator.is_resolved
    result = await coordinator.merge_or_select("combine:x,y", prefer={"a.txt": "y"})
    assert (workspace.path / "a.txt").read_text() == "y"
    assert result.applied_paths == ["a.txt", "x.txt", "y.txt"]


async def test_a_clash_is_decided_by_the_judge_that_was_asked(workspace: Workspace) -> None:
    coordinator = judged_by(workspace, Judge("y"))
    await coordinator.fork([BranchSpec("x", "write a.txt x"), BranchSpec("y", "write a.txt y")], parent_history=BEFORE)
    await coordinator.resolve()
    await coordinator.merge_or_select("combine:x,y")
    assert (workspace.path / "a.txt").read_text() == "y"


async def test_files_in_memory_are_combined_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def think(asked: Asked) -> Any:
        match last_prompts(asked):
            case ["top"]:
                return call("edit", path="a.txt", old_string="one", new_string="1")
            case ["bottom"]:
                return call("edit", path="a.txt", old_string="three", new_string="3")
        return "done"

    agent = create_deep_agent(Brain(decide=think), forking=True)
    deps = DeepAgentDeps(backend=StateBackend({"a.txt": "one\ntwo\nthree\n"}))
    coordinator = ForkCoordinator(agent, deps)
    with pytest.warns(UserWarning, match="checkpoint"):
        await coordinator.fork([BranchSpec("t", "top"), BranchSpec("b", "bottom")], parent_history=[])
    result = await coordinator.merge_or_select("combine:t,b")
    assert deps.backend.read_bytes("a.txt") == b"1\ntwo\n3\n"
    assert result.applied_paths == ["a.txt"]


async def test_one_branch_is_no_combination(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    await coordinator.fork(TWO, parent_history=BEFORE)
    with pytest.raises(ValueError, match="two branches"):
        await coordinator.merge_or_select("combine:good")
    await coordinator.aclose()


@pytest.mark.parametrize("retest", [True, False])
async def test_a_branch_that_fails_together_with_another_commit_is_not_merged(
    workspace: Workspace, retest: bool
) -> None:
    """The fork stays open, so that another branch can be merged."""

    class Late(Judge):
        async def evaluate(self, *arguments: Any) -> tuple[JudgeVerdict, RunUsage]:
            with Workspace(workspace.path, durable=False).branch("other") as branch:
                (branch.path / "other.txt").write_text("")
            return await super().evaluate(*arguments)

    check = "test ! -e ok.txt -o ! -e other.txt"
    coordinator = judged_by(workspace, Late("good"), test_command=check, retest=retest)
    await coordinator.fork(TWO, parent_history=BEFORE, strategy=MergeStrategy(kind="auto"))
    if not retest:
        assert (await coordinator.resolve()).committed
        return
    with pytest.raises(RetestError, match=r"passed alone, fails together with commit 1 \(/main/other\)"):
        await coordinator.resolve()
    assert not coordinator.is_resolved
    assert not (workspace.path / "ok.txt").exists()
    bad = next(status.id for status in coordinator.inspect_branches() if status.label == "bad")
    result = await coordinator.merge_or_select(f"pick:{bad}")
    assert result.applied_paths == ["ko.txt"]
