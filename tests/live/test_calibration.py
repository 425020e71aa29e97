"""Calibration of judges: from the picks in real forks, through the ledger, into the merge confidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic_ai.usage import RunUsage

from forkwise import BranchOutcome, BranchSpec, ForkCoordinator, JudgeVerdict, MergeStrategy, Workspace, open_ledger
from forkwise.fork.stored_fork import undo
from forkwise.live.judging.confidence import (
    MERGE_SIGNALS,
    Calibration,
    Evidence,
    JudgedFork,
    judged_forks,
    merge_confidence,
    track_record,
)
from forkwise.live.judging.panel import PairwiseJudge, TournamentJudge, vote
from tests.live.fork_scene import outcome, report_of
from tests.live.worker import BEFORE, worker

pytestmark = pytest.mark.anyio

AUTO = MergeStrategy(kind="auto", confidence_threshold=0.0)
ASK = MergeStrategy(confidence_threshold=0.0)


class Named:
    """A judge with a name that always picks the branch with one label."""

    def __init__(self, name: str, label: str, confidence: float = 0.9) -> None:
        self.name = name
        self.label = label
        self.confidence = confidence

    async def evaluate(self, _: str, report: Any, outcomes: Sequence[BranchOutcome]) -> tuple[JudgeVerdict, RunUsage]:
        winner = next(o.branch_id for o in outcomes if o.branch_label == self.label)
        return JudgeVerdict(winner_branch_id=winner, confidence=self.confidence, reasoning="so"), RunUsage(requests=1)


async def forked(workspace: Workspace, judge: Any, strategy: MergeStrategy, number: int) -> ForkCoordinator:
    """Run and judge a fork of two branches; its files are named after its number."""
    coordinator = ForkCoordinator(worker(), workspace=workspace, judge=judge)
    specs = [BranchSpec(label, f"write {label}{number}.txt x") for label in ("one", "two")]
    await coordinator.fork(specs, parent_history=BEFORE, strategy=strategy)
    await coordinator.resolve()
    return coordinator


def records(workspace: Workspace) -> list[JudgedFork]:
    with open_ledger(workspace) as ledger:
        return judged_forks(ledger)


async def test_what_became_of_picks(workspace: Workspace) -> None:
    kept = await forked(workspace, Named("wise", "one"), AUTO, 0)
    assert kept.merge_result is not None
    undone = await forked(workspace, Named("wise", "two", 0.5), AUTO, 1)
    assert undone.merge_result is not None
    undo(workspace)
    picked = await forked(workspace, Named("wise", "one", 0.7), ASK, 2)
    await picked.merge_or_select(f"pick:{next(n for n, b in picked.branches.items() if b.spec.label == 'two')}")
    agreed = await forked(workspace, Named("other", "one", 1.0), ASK, 3)
    await agreed.merge_or_select(f"pick:{next(iter(agreed.branches))}")
    combined = await forked(workspace, Named("other", "two", 1.0), ASK, 4)
    await combined.merge_or_select(f"combine:{','.join(combined.branches)}")
    dropped = await forked(workspace, Named("other", "two", 1.0), ASK, 5)
    await dropped.abort_fork()  # aborted: neither right nor wrong
    assert records(workspace) == [
        JudgedFork("other", 1.0),
        JudgedFork("other", 1.0),
        JudgedFork("wise", 0.7, was_overridden=True),
        JudgedFork("wise", 0.5, was_undone=True),
        JudgedFork("wise", 0.9),
    ]
    with open_ledger(workspace) as ledger:
        found = Calibration.from_ledger(ledger)
    assert (found["wise"].picks, found["wise"].undone, found["wise"].overridden) == (3, 1, 1)
    assert found["wise"].hold_rate == pytest.approx(1 / 3)
    assert found["other"].hold_rate == 1.0
    undo(workspace, 2 + 1)  # the undo of the undo: the pick is active again
    assert records(workspace)[3] == JudgedFork("wise", 0.5)


async def test_a_judge_that_was_wrong_before_is_believed_less(workspace: Workspace) -> None:
    first = await forked(workspace, Named("hasty", "one", 1.0), AUTO, 0)
    outcome = next(iter(first._verdicts._outcomes.values()))
    assert outcome.measured["track_record"] is None
    undo(workspace)
    second = await forked(workspace, Named("hasty", "one", 1.0), ASK, 1)
    again = next(iter(second._verdicts._outcomes.values()))
    assert again.measured["track_record"] == pytest.approx(5 / 6)
    assert again.merge_confidence is not None
    await second.abort_fork()


def test_the_signal() -> None:
    report = report_of({"x": b"1"}, a={"x": b"2"}, b={"x": b"3"})
    outcomes = [outcome("a", test_pass_ratio=1.0), outcome("b", test_pass_ratio=0.0)]
    verdict = JudgeVerdict(winner_branch_id="a", confidence=1.0, reasoning="")
    evidence = Evidence(report, outcomes, verdict)
    wrong = {"j": Calibration("j", 20, 20, 0, 1.0, {9: (20, 0)})}
    right = {"j": Calibration("j", 20, 0, 0, 0.0, {9: (20, 20)})}

    def sure(calibrations: dict[str, Calibration], *judges: str) -> float:
        return merge_confidence(evidence, [*MERGE_SIGNALS, track_record(calibrations, *judges)]).value

    assert sure(wrong, "j") < sure(right, "j") == sure({}, "j") == 1.0
    assert sure(wrong, "j") < 0.9
    assert sure(wrong, "j") < sure({**wrong, "k": right["j"]}, "j", "k") < 1.0


async def test_voters_that_were_outvoted_do_not_count() -> None:
    report = report_of({}, a={}, b={})
    voters = [Named("x", "the a"), Named("y", "the a"), Named("z", "the b")]
    done = await vote(voters, "goal", report, [outcome("a"), outcome("b")])
    assert done.judges == ("x", "y", "z")
    assert done.verdict.winner_branch_id == "a"


async def test_a_panel_in_the_ledger(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    voters = {"x": Named("x", "one"), "y": Named("y", "one"), "z": Named("z", "two")}
    strategy = MergeStrategy(kind="vote", judge_models=list(voters))
    monkeypatch.setattr("forkwise.live.decision.JudgeAgent", lambda model, **_: voters[model])
    await forked(workspace, None, strategy, 0)
    assert {pick.judge for pick in records(workspace)} == {"x", "y"}
    undo(workspace)
    assert all(pick.was_undone for pick in records(workspace))


async def test_a_user_overrides_the_judges(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    voters = {"x": Named("x", "one"), "y": Named("y", "one"), "z": Named("z", "two")}
    monkeypatch.setattr("forkwise.live.decision.JudgeAgent", lambda model, **_: voters[model])
    voted = await forked(workspace, None, MergeStrategy(kind="vote", judge_models=list(voters)), 0)
    await voted.override("two")
    assert records(workspace) == [
        JudgedFork("x", 0.9, was_overridden=True),
        JudgedFork("y", 0.9, was_overridden=True),
        JudgedFork("z", 0.9),  # was outvoted, and was right
    ]
    decided = await forked(workspace, Named("wise", "one"), AUTO, 1)
    await decided.override("two")
    assert records(workspace)[0] == JudgedFork("wise", 0.9, was_overridden=True)
    await voted.aclose()
    await decided.aclose()


def test_judges_of_pairs_have_records_of_their_own() -> None:
    assert PairwiseJudge(Named("haiku", "")).name == "haiku, pairwise"
    assert TournamentJudge(Named("haiku", "")).name == "haiku, tournament"
