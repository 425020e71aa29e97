"""Forks resolved with a choice of paths and hunks from several attempts."""

from __future__ import annotations

import asyncio

import pytest

from forkwise import BranchError, ConflictError, ForkResolvedError, LedgerError, Tests
from forkwise.explore.resume import resume
from forkwise.files.selection import Choice
from forkwise.fork.combine import Prepared, commit_choice, line_up_attempts, prepare_choice
from forkwise.fork.control import abort_fork
from forkwise.fork.resolve import pick
from forkwise.fork.stored_fork import undo
from forkwise.text.merge3 import Alignment
from tests.fork.kill_at_point import Scene

LINES = "printf '%s\\n' "
FIRST = f"{LINES} UNO two three four CINQUE > a.txt; echo 1 > one.txt"
SECOND = f"{LINES} EINS two three four FÜNF > a.txt; echo 2 > two.txt; exit 3"


@pytest.fixture
def fork(scene: Scene) -> str:
    """A fork that waits for a pick; its second attempt failed."""
    (scene.workspace.path / "a.txt").write_text("one\ntwo\nthree\nfour\nfive\n")
    return scene.hold(FIRST, SECOND)


def mixed(scene: Scene, fork: str) -> dict[str, Choice]:
    """The first line of the first attempt, the last of the second, and the second's new file."""
    alignment = aligned(scene, fork)
    top, bottom = alignment.regions
    return {"a.txt": frozenset(top.of(f"{fork}.1") + bottom.of(f"{fork}.2")), "two.txt": f"{fork}.2"}


def aligned(scene: Scene, fork: str, *attempts: str) -> Alignment:
    found = {lineup.path: lineup for lineup in line_up_attempts(scene.workspace, fork, attempts or None)}
    alignment = found["a.txt"].alignment
    assert alignment is not None
    return alignment


def prepared(scene: Scene, fork: str, choice: dict[str, Choice], tests: str | None = None) -> Prepared:
    return asyncio.run(prepare_choice(scene.workspace, fork, choice, tests=Tests(tests) if tests else None))


def test_a_choice_is_looked_at_then_committed_then_undone(scene: Scene, fork: str) -> None:
    made = prepared(scene, fork, mixed(scene, fork), "grep -q UNO a.txt && test ! -e one.txt")
    assert made.attempts == (f"{fork}.1", f"{fork}.2")
    assert made.tests is not None
    assert made.is_good
    assert [line for line in made.diff.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")] == [
        "-one",
        "+UNO",
        "-five",
        "+FÜNF",
        "+2",
    ]
    assert (scene.fork.state, scene.text("two.txt")) == ("open", None)
    commit = commit_choice(made)
    assert scene.text("a.txt") == "UNO\ntwo\nthree\nfour\nFÜNF\n"
    assert (scene.text("one.txt"), scene.text("two.txt")) == (None, "2\n")
    assert (scene.fork.state, scene.fork.winner, scene.fork.commit) == ("resolved", None, commit.id)
    assert scene.fork.resolution == {
        "how": "choice",
        "attempts": [f"{fork}.1", f"{fork}.2"],
        "branch": f"{fork}-choice",
        "keep": False,
        "tests": made.tests.as_json(),
    }
    assert scene.branches == []
    undo(scene.workspace)
    assert scene.text("a.txt") == "one\ntwo\nthree\nfour\nfive\n"


def test_failing_tests_are_reported_and_the_choice_is_dropped(scene: Scene, fork: str) -> None:
    made = prepared(scene, fork, mixed(scene, fork), "false")
    assert not made.is_good
    made.branch.abort()
    assert scene.fork.state == "open"
    assert scene.text("a.txt") == "one\ntwo\nthree\nfour\nfive\n"
    pick(scene.workspace, f"{fork}.1")
    assert scene.text("a.txt") == "UNO\ntwo\nthree\nfour\nCINQUE\n"


def test_hunks_are_matched_by_what_they_change(scene: Scene, fork: str) -> None:
    alone = aligned(scene, fork, f"{fork}.2")
    made = prepared(scene, fork, {"a.txt": frozenset(alone.hunks[:1])})
    commit_choice(made)
    assert scene.text("a.txt") == "EINS\ntwo\nthree\nfour\nfive\n"


def test_what_overlaps_leaves_nothing(scene: Scene, fork: str) -> None:
    with pytest.raises(BranchError, match="overlap"):
        prepared(scene, fork, {"a.txt": frozenset(aligned(scene, fork).hunks)})
    with pytest.raises(LedgerError, match="the choice is empty"):
        prepared(scene, fork, {"a.txt": frozenset()})
    assert sorted(scene.branches) == ["1", "2"]
    abort_fork(scene.workspace, fork)


def test_a_fork_is_decided_only_once(scene: Scene, fork: str) -> None:
    choice = mixed(scene, fork)
    made = prepared(scene, fork, choice)
    pick(scene.workspace, f"{fork}.1", keep=True)
    with pytest.raises(ForkResolvedError):
        commit_choice(made)
    with pytest.raises(ForkResolvedError):
        line_up_attempts(scene.workspace, fork)
    with pytest.raises(ForkResolvedError):
        prepared(scene, fork, choice)
    for branch in scene.workspace.branches():
        branch.abort()


def test_attempts_that_are_not_there(scene: Scene, fork: str) -> None:
    scene.workspace.open(scene.attempts[0].branch).abort()
    with pytest.raises(LedgerError, match="its branch was dropped"):
        line_up_attempts(scene.workspace, fork, [f"{fork}.1"])
    scene.workspace.open(scene.attempts[1].branch).abort()
    with pytest.raises(LedgerError, match="no finished attempt"):
        line_up_attempts(scene.workspace, fork)
    abort_fork(scene.workspace, fork)


def test_a_conflict_leaves_it_to_be_resumed(scene: Scene, fork: str) -> None:
    made = prepared(scene, fork, mixed(scene, fork))
    (scene.workspace.path / "a.txt").write_text("mine\n")
    with pytest.raises(ConflictError):
        commit_choice(made)
    assert scene.text("a.txt") == "mine\n"
    asyncio.run(resume(scene.workspace, fork, on_conflict="ours"))
    assert scene.text("a.txt") == "UNO\ntwo\nthree\nfour\nFÜNF\n"


def test_a_conflict_is_decided_by_asking_again(scene: Scene, fork: str) -> None:
    made = prepared(scene, fork, mixed(scene, fork))
    (scene.workspace.path / "a.txt").write_text("mine\n")
    with pytest.raises(ConflictError):
        commit_choice(made)
    commit_choice(made, on_conflict="theirs")
    assert (scene.text("a.txt"), scene.text("two.txt")) == ("mine\n", "2\n")
    with pytest.raises(ForkResolvedError):
        commit_choice(made)


def test_what_a_killed_process_prepared_is_made_anew(scene: Scene, fork: str) -> None:
    scene.leave(f"{fork}-choice")
    commit_choice(prepared(scene, fork, mixed(scene, fork)))
    assert scene.text("left.txt") is None
    assert scene.branches == []
