"""Forks that a user decides: those that wait for a pick, were interrupted, or still run."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from forkwise import (
    BranchError,
    BranchNotFoundError,
    ConflictError,
    ForkNotFoundError,
    ForkResolvedError,
    ForkwiseWarning,
    LedgerError,
    Speculate,
)
from forkwise.fork.control import abort_fork, clean_up
from forkwise.fork.resolve import pick
from forkwise.fork.stored_fork import undo
from forkwise.ledger.sqlite import SqliteLedger, open_ledger
from tests.fork.kill_at_point import Scene, becomes_so

ONE = "echo uno > a.txt; echo 1 > one.txt"
TWO = "echo due > a.txt; echo 2 > two.txt; echo 2 > $FORKWISE_SCORE"
STUCK = "sleep 1000"

PICKER = """
import os, signal, sys
from forkwise.fork.resolve import pick
from forkwise.ledger.sqlite import SqliteLedger
real = SqliteLedger.resolve

def deadly(*args, **options):
    real(*args, **options)
    os.kill(os.getpid(), signal.SIGKILL)

SqliteLedger.resolve = deadly
pick(sys.argv[1], sys.argv[2])
"""


def test_a_fork_that_waits_for_a_pick(scene: Scene) -> None:
    fork = scene.hold(ONE, TWO)
    assert scene.branches == ["1", "2"]
    commit = pick(scene.workspace.path, f"{fork[:3]}.1")
    assert set(commit.paths) == {"a.txt", "one.txt"}
    assert scene.text("a.txt") == "uno\n"
    assert scene.branches == []
    assert (scene.fork.state, scene.fork.winner, scene.fork.commit) == ("resolved", f"{fork}.1", commit.id)
    assert scene.fork.resolution == {"how": "pick", "keep": False}


def test_the_fork_alone_means_its_favourite(scene: Scene) -> None:
    pick(scene.workspace, scene.hold(ONE, TWO))
    assert scene.text("a.txt") == "due\n"
    fork = scene.hold("exit 1", "exit 2")
    with pytest.raises(LedgerError, match=f"was judged best: name an attempt .{fork}.1, {fork}.2") as error:
        pick(scene.workspace, fork)
    assert error.value.near == (f"{fork}.1", f"{fork}.2")
    abort_fork(scene.workspace, fork)


def test_the_others_can_be_kept(scene: Scene) -> None:
    fork = scene.hold(ONE, TWO)
    pick(scene.workspace, f"{fork}.1", keep=True)
    assert scene.branches == ["2"]
    scene.workspace.open(f"{fork}-2").abort()


def test_it_is_decided_once(scene: Scene) -> None:
    fork = scene.hold(ONE, TWO)
    pick(scene.workspace, f"{fork}.1")
    for again in (f"{fork}.1", f"{fork}.2", fork):
        with pytest.raises(ForkResolvedError, match="committed as 1"):
            pick(scene.workspace, again)
    other = scene.hold(ONE, TWO)
    abort_fork(scene.workspace, other)
    with pytest.raises(ForkResolvedError, match="was aborted already"):
        pick(scene.workspace, f"{other}.1")


def test_one_that_failed_needs_force(scene: Scene) -> None:
    fork = scene.hold(ONE, f"{TWO}; exit 4")
    with pytest.raises(LedgerError, match=r"failed: exit code 4.*--force"):
        pick(scene.workspace, f"{fork}.2")
    assert scene.fork.state == "open"
    with pytest.raises(ForkNotFoundError, match=f"did you mean {fork}.1, {fork}.2"):
        pick(scene.workspace, f"{fork}.3")
    pick(scene.workspace, f"{fork}.2", force=True)
    assert scene.text("two.txt") == "2\n"
    assert scene.fork.resolution == {"how": "pick", "keep": False, "force": True}


def test_an_interrupted_fork(scene: Scene) -> None:
    """An attempt that ran when its process was killed is cancelled; ``force`` can pick it, too."""
    fork = scene.drive(scene.recipe(ONE, STUCK), "running")
    with pytest.raises(LedgerError, match=f"{fork}.2 did not succeed .running"):
        pick(scene.workspace, f"{fork}.2")
    pick(scene.workspace, f"{fork}.1")
    assert scene.text("a.txt") == "uno\n"
    assert [(a.state, a.reason) for a in scene.attempts] == [
        ("succeeded", None),
        ("cancelled", "its process was killed"),
    ]


def test_an_unfinished_attempt_can_be_picked_by_force(scene: Scene) -> None:
    waits = f"while ! test -e {scene.outside}/on; do sleep 0.02; done; exit 1"
    fork = scene.drive(scene.recipe(waits, f"echo 1 > one.txt; touch {scene.outside}/on; {STUCK}"), "running")
    pick(scene.workspace, f"{fork}.2", force=True)
    assert scene.text("one.txt") == "1\n"


def test_one_that_was_cut_short_while_its_tests_ran(scene: Scene) -> None:
    """The scratch branches of the tests are dropped."""
    recipe = scene.recipe(ONE, tests=f"echo 7 >> {scene.outside}/ran; {STUCK}", baseline=False)
    with scene.start(recipe) as process:
        assert becomes_so(lambda: (scene.outside / "ran").exists() and 7 in scene.ran)
        process.kill()
    assert becomes_so(lambda: not scene.is_busy())
    assert len(scene.branches) == 2
    pick(scene.workspace, f"{scene.fork.id}.1", force=True)
    assert scene.text("a.txt") == "uno\n"


def test_a_fork_that_still_runs(scene: Scene) -> None:
    """Its process sees the decision, ends the other attempts, and leaves the winner alone."""
    with scene.start(scene.recipe(ONE, STUCK)) as process:
        assert becomes_so(lambda: len(list(scene.workspace.state.glob("ledger"))) == 1 and _has_one(scene))
        fork = scene.fork.id
        with pytest.raises(LedgerError, match=f"{fork}.2 is running: wait"):
            pick(scene.workspace, f"{fork}.2", force=True)
        commit = pick(scene.workspace, f"{fork}.1")
        _, said = process.communicate(timeout=30)
    assert "ForkResolvedError" in said
    assert scene.text("a.txt") == "uno\n"
    assert (scene.fork.commit, [a.state for a in scene.attempts]) == (commit.id, ["succeeded", "cancelled"])


def _has_one(scene: Scene) -> bool:
    with open_ledger(scene.workspace) as ledger:
        found = ledger.summaries(1)
        return bool(found) and found[0].attempts == {"succeeded": 1, "running": 1}


def test_a_conflict_is_tried_again(scene: Scene) -> None:
    fork = scene.hold(ONE, TWO)
    (scene.workspace.path / "a.txt").write_text("the user's\n")
    with pytest.raises(ConflictError):
        pick(scene.workspace, f"{fork}.1")
    assert (scene.fork.state, scene.fork.commit) == ("resolved", None)
    with pytest.raises(ForkResolvedError, match=f"was resolved .for {fork}.1. already"):
        pick(scene.workspace, f"{fork}.2", on_conflict="ours")
    assert pick(scene.workspace, f"{fork}.1", on_conflict="ours").conflicts[0].path == "a.txt"
    assert scene.text("a.txt") == "uno\n"


def test_a_decision_without_a_commit_can_be_abandoned(scene: Scene) -> None:
    fork = scene.hold(ONE)
    (scene.workspace.path / "a.txt").write_text("the user's\n")
    with pytest.raises(ConflictError):
        pick(scene.workspace, fork)
    assert abort_fork(scene.workspace, fork) == (f"/main/{fork}-1",)
    assert scene.fork.state == "aborted"
    assert scene.fork.resolution == {"how": "pick", "keep": False, "abandoned": "aborted by hand"}


@pytest.mark.parametrize("undone", [False, True])
def test_a_picker_that_is_killed(scene: Scene, undone: bool) -> None:
    """Killed between the decision and the commit, or between the commit and its record in the ledger."""
    fork = scene.hold(ONE, TWO)
    done = subprocess.run([sys.executable, "-c", PICKER, str(scene.workspace.path), f"{fork}.1"])
    assert done.returncode == -signal.SIGKILL
    assert (scene.fork.state, scene.fork.commit) == ("resolved", None)
    if undone:
        scene.workspace.open(f"{fork}-1").commit()
        scene.workspace.undo()
    assert pick(scene.workspace, f"{fork}.1").id == 1
    assert (scene.fork.commit, scene.fork.undone) == (1, 2 if undone else None)
    assert scene.text("a.txt") == ("one\n" if undone else "uno\n")


def test_an_attempt_inside_another_brings_all_of_it(scene: Scene) -> None:
    recipe = scene.recipe("echo base > base.txt", "exit 1", kind="tree", max_depth=2)
    recipe["expand"] = [["sh", "-c", f"echo {n} > top.txt"] for n in (1, 2)]
    fork = scene.drive(recipe, "ended")
    with open_ledger(scene.workspace) as ledger:
        [inner] = ledger.children(f"{fork}.1")
        assert [a.state for a in ledger.attempts(inner.id)] == ["succeeded", "succeeded"]
    pick(scene.workspace, f"{inner.id}.2")
    assert (scene.text("base.txt"), scene.text("top.txt")) == ("base\n", "2\n")
    with open_ledger(scene.workspace) as ledger:
        assert (ledger.fork(fork).winner, ledger.fork(inner.id).winner) == (f"{fork}.1", f"{inner.id}.2")


def test_what_stands_on_an_attempt_is_not_dragged_along(scene: Scene) -> None:
    """An undecided fork inside the picked attempt is dropped; a branch that the user made there stays."""
    recipe = scene.recipe("echo base > base.txt", kind="tree", max_depth=2)
    recipe["expand"] = [["sh", "-c", "echo top > top.txt"]]
    fork = scene.drive(recipe, "ended")
    mine = scene.workspace.open(f"{fork}-1").branch("mine", None, None).keep()
    with pytest.raises(BranchError, match="mine"):
        pick(scene.workspace, f"{fork}.1")
    mine.abort()
    pick(scene.workspace, f"{fork}.1")
    assert (scene.text("base.txt"), scene.text("top.txt")) == ("base\n", None)
    with open_ledger(scene.workspace) as ledger:
        assert [f.state for f in ledger.children(f"{fork}.1")] == ["aborted"]


def test_an_attempt_whose_branch_is_gone(scene: Scene) -> None:
    fork = scene.hold(ONE, TWO)
    scene.workspace.open(f"{fork}-1").abort()
    with pytest.raises(BranchNotFoundError, match=f"{fork}.1 no longer has a branch"):
        pick(scene.workspace, f"{fork}.1")
    assert scene.fork.state == "open"
    abort_fork(scene.workspace, fork)


def test_an_undo_is_written_down(scene: Scene) -> None:
    pick(scene.workspace, scene.hold(ONE))
    assert undo(scene.workspace).undoes == 1
    assert (scene.fork.commit, scene.fork.undone) == (1, 2)
    scene.workspace.undo(2)  # without a record in the ledger
    undo(scene.workspace, 3)
    assert (scene.fork.commit, scene.fork.undone) == (3, 4)


def test_a_ledger_that_fails_after_the_commit_is_a_warning(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are committed: an exception would say that they are not. The ledger is updated by the next gc."""

    def fail(*_: object) -> None:
        raise LedgerError("the ledger cannot be used: database is locked")

    fork = scene.hold(ONE, TWO)
    with monkeypatch.context() as patch:
        patch.setattr(SqliteLedger, "record_commit", fail)
        with pytest.warns(ForkwiseWarning, match=r"was committed as 1, but the ledger could not be updated.*is locked"):
            commit = pick(scene.workspace, f"{fork}.1")
        with pytest.warns(ForkwiseWarning, match=r"was committed as 2, but the ledger could not be updated"):
            outcome = Speculate([["sh", "-c", "echo 3 > three.txt"], ["false"]])(scene.workspace)
    assert (commit.id, outcome.committed, scene.text("three.txt")) == (1, True, "3\n")
    clean_up(scene.workspace)
    with open_ledger(scene.workspace) as ledger:
        assert sorted(str(one.commit) for one in ledger.forks()) == ["1", "2"]
