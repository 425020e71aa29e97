"""Forks whose process is killed, and that another process resumes."""

from __future__ import annotations

import asyncio

import pytest

from forkwise import BranchNotFoundError, ForkResolvedError, LedgerError, Speculate, SpeculationOutcome, Workspace
from forkwise.explore.resume import resume
from forkwise.fork.control import abort_fork, clean_up
from forkwise.ledger.sqlite import open_ledger
from tests.fork.conftest import scene
from tests.fork.kill_at_point import Scene

__all__ = ["scene"]

pytestmark = pytest.mark.crash

BEST = 'echo best > a.txt; echo 2 > "$FORKWISE_SCORE"'
GOOD = 'echo good > a.txt; echo 1 > "$FORKWISE_SCORE"'


def resumed(scene: Scene) -> SpeculationOutcome:
    """Resume the fork."""
    return asyncio.run(resume(scene.workspace, scene.fork.id))


def test_unfinished_attempts_start_afresh_and_finished_ones_do_not_run_again(scene: Scene) -> None:
    waits = f"if test -e {scene.outside}/go; then {BEST}; else echo half > half.txt; sleep 1000; fi"
    scene.drive(scene.recipe(GOOD, waits), "running")
    assert scene.fork.state == "interrupted"
    assert [a.state for a in scene.attempts] == ["succeeded", "running"]
    assert scene.text("a.txt") == "one\n"

    (scene.outside / "go").touch()
    outcome = resumed(scene)
    assert scene.ran == [0, 1, 1]
    assert outcome.winner is not None
    assert (outcome.winner.branch_index, outcome.committed) == (1, True)
    assert [r.success for r in outcome.all_results] == [True, True]
    assert (scene.text("a.txt"), scene.text("half.txt")) == ("best\n", None)
    assert (scene.fork.state, scene.fork.commit) == ("resolved", 1)


def test_killed_when_all_had_ended(scene: Scene) -> None:
    scene.drive(scene.recipe(GOOD, BEST, "exit 3"), "ended")
    assert scene.fork.state == "interrupted"
    outcome = resumed(scene)
    assert scene.ran == [0, 1, 2]
    assert [r.reason for r in outcome.all_results] == [None, None, "exit code 3"]
    assert scene.text("a.txt") == "best\n"


@pytest.mark.parametrize(("point", "before"), [("resolved", "one\n"), ("committed", "best\n")])
def test_killed_around_the_commit(scene: Scene, point: str, before: str) -> None:
    """A decided fork is not decided again, whether or not its commit happened."""
    scene.drive(scene.recipe(GOOD, BEST), point)
    assert (scene.fork.state, scene.fork.commit, scene.text("a.txt")) == ("resolved", None, before)
    outcome = resumed(scene)
    assert scene.text("a.txt") == "best\n"
    assert scene.ran == [0, 1]
    assert outcome.winner is not None
    assert (outcome.winner.attempt, outcome.winner.score) == (f"{scene.fork.id}.2", 2.0)
    assert outcome.commit is not None
    assert (outcome.commit.id, scene.fork.commit) == (1, 1)
    assert len(scene.workspace.history()) == 1
    with pytest.raises(ForkResolvedError, match="committed as 1 already"):
        resumed(scene)


def test_killed_after_all_was_written(scene: Scene) -> None:
    scene.drive(scene.recipe(GOOD, BEST), "recorded")
    with pytest.raises(ForkResolvedError, match="committed as 1 already"):
        resumed(scene)
    assert scene.branches == []


def test_killed_while_it_was_left_for_a_pick(scene: Scene) -> None:
    """The others were cancelled already, and count as not run."""
    recipe = scene.recipe(GOOD, "sleep 1000", first_wins=True, commit=False, keep=True)
    scene.drive(recipe, "held")
    assert [a.state for a in scene.attempts] == ["succeeded", "cancelled"]
    assert resumed(scene).winner is not None
    assert scene.fork.state == "open"
    assert [a.state for a in scene.attempts] == ["succeeded", "cancelled", "cancelled"]
    abort_fork(scene.workspace, scene.fork.id)


def test_a_finished_attempt_whose_branch_is_gone_is_run_again(scene: Scene) -> None:
    fork = scene.drive(scene.recipe(GOOD, BEST), "ended")
    scene.workspace.open(f"{fork}-2").abort()
    assert resumed(scene).committed
    assert scene.ran == [0, 1, 1]
    assert [(a.key, a.round) for a in scene.attempts] == [("0", 0), ("1", 0), ("1", 1)]


def test_a_search_continues_inside_earlier_results(scene: Scene) -> None:
    recipe = scene.recipe("echo base > base.txt", kind="tree", max_depth=2)
    recipe["expand"] = [["sh", "-c", f"echo 9 >> {scene.outside}/ran; cat base.txt > top.txt"]]
    fork = scene.drive(recipe, "ended")
    with open_ledger(scene.workspace) as ledger:
        [inner] = ledger.children(f"{fork}.1")
        assert (ledger.fork(fork).state, inner.state) == ("interrupted", "interrupted")
        with pytest.raises(LedgerError, match=f"name fork {fork} instead"):
            asyncio.run(resume(scene.workspace, inner.id))
    assert resumed(scene).committed
    assert scene.text("top.txt") == "base\n"
    assert scene.ran == [0, 9]


def test_a_search_killed_when_the_inside_was_decided(scene: Scene) -> None:
    """An inner fork that was decided but not committed does not block the resumed one."""
    recipe = scene.recipe("echo base > base.txt", kind="tree", max_depth=2)
    recipe["expand"] = [["sh", "-c", "cat base.txt > top.txt"]]
    scene.drive(recipe, "resolved")
    assert scene.fork.state == "interrupted"
    assert resumed(scene).committed
    assert scene.text("top.txt") == "base\n"


def test_the_workspace_of_a_decision_may_be_deleted(scene: Scene) -> None:
    fork = scene.drive(scene.recipe(BEST), "resolved")
    scene.workspace.open(f"{fork}-1").abort()
    with pytest.raises(BranchNotFoundError, match="no longer exists"):
        resumed(scene)
    assert clean_up(scene.workspace).unfinished == ()
    assert scene.fork.state == "aborted"


def test_what_cannot_be_resumed(scene: Scene, workspace: Workspace) -> None:
    with pytest.raises(LedgerError, match="no fork 'zzz'"):
        asyncio.run(resume(workspace, "zzz"))
    outcome = Speculate([["false"]])(workspace)
    assert outcome.fork is not None
    with pytest.raises(ForkResolvedError, match="it is aborted"):
        asyncio.run(resume(workspace, outcome.fork))


def test_a_fork_that_a_program_made_is_for_that_program(scene: Scene) -> None:
    recipe = scene.recipe(BEST)
    fork = scene.drive(recipe, "ended")
    pattern = Speculate(list(recipe["commands"]), first_wins=False)
    with open_ledger(scene.workspace) as ledger:
        # As if a program had started it.
        ledger._database.rows("UPDATE forks SET data = json_set(data, '$.spec', json_object()) WHERE id = ?", [fork])
    with pytest.raises(LedgerError, match="started by a program"):
        resumed(scene)
    assert pattern(scene.workspace, resume=fork).committed
    assert scene.ran == [0]
