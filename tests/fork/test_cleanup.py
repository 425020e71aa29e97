"""Abort forks from another process, and clean up after forks that are over."""

from __future__ import annotations

import asyncio
import os

import pytest

from forkwise import ConflictError, ForkResolvedError, LedgerError, SpeculationOutcome
from forkwise.explore.resume import resume
from forkwise.fork.control import abort_fork, clean_up
from forkwise.fork.resolve import pick
from forkwise.ledger.sqlite import open_ledger
from forkwise.linux.mountinfo import mounts
from tests.fork.kill_at_point import Scene, becomes_so

pytestmark = pytest.mark.integration

ONE = "echo uno > a.txt"
NOTHING = "true"
STUCK = "sleep 1000"


def going_on(scene: Scene) -> bool:
    """Return whether an attempt of the newest fork runs, and another is over."""
    with open_ledger(scene.workspace) as ledger:
        found = ledger.summaries(1)
        return bool(found) and found[0].attempts == {"succeeded": 1, "running": 1}


def test_a_running_fork_is_ended_by_its_owner(scene: Scene) -> None:
    with scene.start(scene.recipe(ONE, STUCK)) as process:
        assert becomes_so(lambda: going_on(scene))
        abort_fork(scene.workspace, scene.fork.id, "enough")
        assert scene.branches == []
        _, said = process.communicate(timeout=30)
    assert "ForkResolvedError" in said
    assert (scene.fork.state, scene.branches) == ("aborted", [])
    assert scene.fork.resolution == {"how": "abort", "reason": "enough", "keep": False}
    assert [a.state for a in scene.attempts] == ["succeeded", "cancelled"]
    assert scene.text("a.txt") == "one\n"


def test_a_search_is_ended_with_what_runs_inside(scene: Scene) -> None:
    recipe = scene.recipe(ONE, kind="tree", max_depth=2)
    recipe["expand"] = [["sh", "-c", f"echo 9 >> {scene.outside}/ran; {STUCK}"]]
    with scene.start(recipe) as process:
        assert becomes_so(lambda: os.path.exists(scene.outside / "ran") and 9 in scene.ran)
        abort_fork(scene.workspace, scene.fork.id)
        process.communicate(timeout=30)
    with open_ledger(scene.workspace) as ledger:
        assert {f.state for f in ledger.forks()} == {"aborted"}
    assert becomes_so(lambda: not scene.is_busy())


@pytest.mark.parametrize("point", ["running", "ended", "resolved"])
def test_an_interrupted_fork_is_cleared(scene: Scene, point: str) -> None:
    fork = scene.drive(scene.recipe(ONE, STUCK if point == "running" else ONE), point)
    assert sorted(abort_fork(scene.workspace, fork)) == [f"/main/{fork}-1", f"/main/{fork}-2"]
    assert scene.fork.state == "aborted"
    assert {a.state for a in scene.attempts} <= {"succeeded", "cancelled"}
    assert scene.text("a.txt") == "one\n"
    assert abort_fork(scene.workspace, fork) == (), "once more does no harm"


def test_a_committed_fork_is_not_aborted(scene: Scene) -> None:
    fork = scene.drive(scene.recipe(ONE), "committed")
    with pytest.raises(ForkResolvedError, match=r"committed as 1.*undo 1"):
        abort_fork(scene.workspace, fork)
    assert (scene.fork.state, scene.fork.commit, scene.text("a.txt")) == ("resolved", 1, "uno\n")


def test_what_waits_for_a_pick_is_given_up_with_its_branches(scene: Scene) -> None:
    fork = scene.hold(ONE, NOTHING)
    assert len(abort_fork(scene.workspace, fork)) == 2


def test_a_part_of_a_search_is_not_given_up_alone(scene: Scene) -> None:
    recipe = scene.recipe(ONE, kind="tree", max_depth=2)
    recipe["expand"] = [["true"]]
    fork = scene.drive(recipe, "ended")
    with open_ledger(scene.workspace) as ledger:
        [inner] = ledger.children(f"{fork}.1")
    with pytest.raises(LedgerError, match=f"inside attempt {fork}.1: name fork {fork}"):
        abort_fork(scene.workspace, inner.id)
    abort_fork(scene.workspace, fork)


# Cleaning up


def test_an_interrupted_fork_stays_resumable(scene: Scene) -> None:
    """With all its branches, also one without changes and one that only the fork knows."""
    fork = scene.drive(scene.recipe(ONE, NOTHING), "ended")
    assert scene.branches == ["1", "2"]
    cleared = clean_up(scene.workspace)
    assert [f.id for f in cleared.unfinished] == [fork]
    assert (cleared.collected.removed, cleared.collected.listed, cleared.aborted) == ((), (), ())
    outcome: SpeculationOutcome = asyncio.run(resume(scene.workspace, fork))
    assert (outcome.committed, scene.ran) == (True, [0, 1])
    assert clean_up(scene.workspace).unfinished == ()


def test_a_resumed_fork_is_left_alone(scene: Scene) -> None:
    """The attempts that the dead process finished are in branches that the resuming process needs."""
    fork = scene.drive(scene.recipe(NOTHING, STUCK), "running")
    before = scene.ran

    async def clear_meanwhile() -> None:
        going = asyncio.ensure_future(resume(scene.workspace, fork))
        while scene.ran != [*before, 1]:
            await asyncio.sleep(0.02)
        assert clean_up(scene.workspace, force=True).collected.removed == ()
        assert scene.branches == ["1", "2"]
        going.cancel()
        await asyncio.wait([going])

    asyncio.run(clear_meanwhile())
    assert scene.fork.state == "open", "the attempt that had succeeded waits for a pick"
    abort_fork(scene.workspace, fork)


def test_force_gives_interrupted_forks_up(scene: Scene) -> None:
    recipe = scene.recipe(ONE, kind="tree", max_depth=2)
    recipe["expand"] = [["sh", "-c", "echo top > top.txt"]]
    fork = scene.drive(recipe, "ended")
    planned = clean_up(scene.workspace, force=True, dry_run=True)
    assert (planned.aborted, scene.fork.state) == ((fork,), "interrupted")
    done = clean_up(scene.workspace, force=True)
    assert done.aborted == (fork,)
    assert [path.count("/") for path in done.collected.removed] == [3, 2]
    assert planned.collected.removed == done.collected.removed
    with open_ledger(scene.workspace) as ledger:
        assert [f.state for f in ledger.forks()] == ["aborted", "aborted"]


def test_a_decided_fork_stays_until_it_is_committed(scene: Scene) -> None:
    """The others are dropped. A commit that is missing in the ledger is recorded."""
    fork = scene.drive(scene.recipe(ONE, "exit 1"), "resolved")
    cleared = clean_up(scene.workspace)
    assert [f.id for f in cleared.unfinished] == [fork]
    assert cleared.collected.removed == (f"/main/{fork}-2",)
    assert scene.branches == ["1"]
    scene.workspace.open(f"{fork}-1").commit()
    assert clean_up(scene.workspace).unfinished == ()
    assert scene.fork.commit == 1


def test_what_tests_and_judges_ran_in_goes(scene: Scene) -> None:
    """Branches with caches and reports of tests are dropped; those of a program that died stay."""
    fork = scene.hold(ONE)
    scene.leave("scratch-0123456789ab")
    scene.leave("scratch-0123456789ab", f"{fork}-1")
    scene.leave("work")
    cleared = clean_up(scene.workspace)
    assert set(cleared.collected.removed) == {"/main/scratch-0123456789ab", f"/main/{fork}-1/scratch-0123456789ab"}
    assert cleared.collected.listed == ("/main/work",)
    abort_fork(scene.workspace, fork)
    assert clean_up(scene.workspace, force=True).collected.removed == ("/main/work",)


def test_what_a_person_keeps_stays(scene: Scene) -> None:
    fork = scene.hold(ONE, NOTHING)
    scene.leave(f"{fork}-combination")
    assert clean_up(scene.workspace, force=True).collected.removed == (f"/main/{fork}-combination",)
    pick(scene.workspace, f"{fork}.1", keep=True)
    assert clean_up(scene.workspace, force=True).collected.removed == ()
    assert scene.branches == ["2"]
    scene.workspace.open(f"{fork}-2").abort()


def test_a_refused_winner_stays(scene: Scene) -> None:
    fork = scene.hold(ONE, NOTHING)
    (scene.workspace.path / "a.txt").write_text("the user's\n")
    with pytest.raises(ConflictError):
        pick(scene.workspace, f"{fork}.1")
    assert clean_up(scene.workspace, force=True).collected.removed == (f"/main/{fork}-2",)
    assert scene.branches == ["1"]
    abort_fork(scene.workspace, fork)


def test_the_ledger_forgets_old_forks(scene: Scene) -> None:
    forks = [scene.hold(NOTHING) for _ in range(3)]
    for fork in forks:
        abort_fork(scene.workspace, fork)
    assert clean_up(scene.workspace, keep_forks=1, dry_run=True).forgotten == tuple(forks[:2])
    assert clean_up(scene.workspace, keep_forks=1).forgotten == tuple(forks[:2])
    assert clean_up(scene.workspace, keep_forks=1).forgotten == ()


def test_nothing_is_left_of_a_killed_process(scene: Scene) -> None:
    """No process, mount or branch of running attempts, or of the tests of others, is left."""
    recipe = scene.recipe(ONE, STUCK, tests=f"echo 7 >> {scene.outside}/ran; {STUCK}", baseline=False)
    with scene.start(recipe) as process:
        assert becomes_so(lambda: os.path.exists(scene.outside / "ran") and {1, 7} <= set(scene.ran))
        process.kill()
    assert becomes_so(lambda: not scene.is_busy())
    assert scene.fork.state == "interrupted"
    clean_up(scene.workspace, force=True)
    assert scene.branches == []
    assert [m.point for m in mounts() if str(scene.workspace.state) in m.point] == []
