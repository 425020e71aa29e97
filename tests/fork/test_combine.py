"""Forks resolved with a combination of attempts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forkwise import BranchError, BranchNotFoundError, ConflictError, ForkResolvedError, LedgerError, Tests
from forkwise.explore.resume import find_tests, resume
from forkwise.fork.combine import Combined, combine_attempts
from forkwise.fork.control import abort_fork, clean_up
from forkwise.fork.resolve import pick
from forkwise.ledger.sqlite import open_ledger
from tests.fork.kill_at_point import Scene

LINES = "printf '%s\\n' "
FIRST = f"{LINES} UNO two three four five > a.txt; echo 1 > one.txt"
LAST = f"{LINES} one two three four FIVE > a.txt; echo 2 > two.txt"
CLASHES = f"{LINES} eins two three four five > a.txt; echo 3 > three.txt"


@pytest.fixture
def fork(scene: Scene) -> str:
    """A fork that waits for a pick; its first two attempts can be merged."""
    (scene.workspace.path / "a.txt").write_text("one\ntwo\nthree\nfour\nfive\n")
    return scene.hold(FIRST, LAST, CLASHES)


def combined(scene: Scene, *numbers: int, **options: Any) -> Combined:
    """Combine attempts of the fork by their numbers."""
    names = [f"{scene.fork.id}.{number}" for number in numbers]
    return asyncio.run(combine_attempts(scene.workspace, names, **{"tests": None, **options}))


def test_what_goes_together_is_committed(scene: Scene, fork: str) -> None:
    done = combined(scene, 1, 2)
    assert scene.text("a.txt") == "UNO\ntwo\nthree\nfour\nFIVE\n"
    assert (scene.text("one.txt"), scene.text("two.txt"), scene.text("three.txt")) == ("1\n", "2\n", None)
    assert (done.fork, done.attempts, done.merged) == (fork, (f"{fork}.1", f"{fork}.2"), ("a.txt",))
    assert done.taken == {"one.txt": f"{fork}.1", "two.txt": f"{fork}.2"}
    assert done.commit is not None
    assert (scene.fork.state, scene.fork.winner, scene.fork.commit) == ("resolved", None, done.commit.id)
    report = {"how": "combination", "attempts": [f"{fork}.1", f"{fork}.2"], "branch": f"{fork}-combination"}
    assert scene.fork.resolution == {**report, "keep": False, "tests": None}
    assert scene.branches == []


def test_a_conflict_is_reported_and_nothing_is_changed(scene: Scene, fork: str) -> None:
    done = combined(scene, 1, 2, 3)
    assert done.commit is None
    [clash] = done.conflicts
    assert (clash.path, clash.kind, clash.branches) == ("a.txt", "content", (f"{fork}.1", f"{fork}.2", f"{fork}.3"))
    assert clash.detail.startswith(f"{fork}.1, {fork}.2, {fork}.3 changed the same lines")
    assert scene.text("one.txt") is None
    assert (scene.fork.state, scene.branches) == ("open", ["1", "2", "3"])
    abort_fork(scene.workspace, fork)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"prefer": {"a.txt": 3}}, "eins\ntwo\nthree\nfour\nfive\n"),
        ({"favour": [3]}, "eins\ntwo\nthree\nfour\nfive\n"),
        ({"favour": [2, 3]}, "one\ntwo\nthree\nfour\nFIVE\n"),
        ({"force": True}, "UNO\ntwo\nthree\nfour\nfive\n"),
    ],
    ids=str,
)
def test_a_clash_is_decided(scene: Scene, fork: str, options: dict[str, Any], text: str) -> None:
    if "prefer" in options:
        options = {"prefer": {path: f"{fork}.{number}" for path, number in options["prefer"].items()}}
    if "favour" in options:
        options = {"favour": [f"{fork}.{number}" for number in options["favour"]]}
    done = combined(scene, 1, 2, 3, **options)
    assert done.commit is not None
    assert scene.text("a.txt") == text
    assert all(scene.text(f"{name}.txt") for name in ("one", "two", "three"))


def test_a_favourite_decides_only_what_it_is_part_of(scene: Scene) -> None:
    """An attempt that did not change a file has no version of it to prefer."""
    fork = scene.hold("echo 1 > b.txt", "echo 2 > b.txt", "echo 3 > c.txt")
    done = combined(scene, 1, 2, 3, favour=[f"{fork}.3"])
    assert [c.path for c in done.conflicts] == ["b.txt"]
    abort_fork(scene.workspace, fork)


def test_tests_have_the_last_word(scene: Scene, fork: str) -> None:
    """Each attempt alone would pass."""
    tests = Tests("! { test -e one.txt && test -e two.txt; }")
    done = combined(scene, 1, 2, tests=tests)
    assert done.tests is not None
    assert (done.tests.is_pass, done.commit, done.conflicts) == (False, None, ())
    assert (scene.fork.state, scene.branches) == ("open", ["1", "2", "3"])
    done = combined(scene, 1, 2, tests=tests, force=True)
    assert done.commit is not None
    assert scene.fork.resolution is not None
    assert scene.fork.resolution["tests"]["exit_code"] == 1


def test_the_tests_are_the_forks_own(scene: Scene) -> None:
    fork = scene.hold("echo 1 > one.txt", "echo 2 > two.txt", tests="test -e one.txt -o -e two.txt")
    tests = find_tests(scene.workspace, scene.fork)
    assert tests is not None
    done = combined(scene, 1, 2, tests=tests)
    assert done.tests is not None
    assert done.tests.is_pass
    other = find_tests(scene.workspace, scene.fork, "make check")
    assert other is not None
    assert (other.command, other.confinement) == ("make check", tests.confinement)
    with open_ledger(scene.workspace) as ledger:
        made = ledger.begin_fork("by a program", workspace=str(scene.workspace.path), spec={})
        with pytest.raises(LedgerError, match=r"\(--test\), or do without tests \(--no-test\)"):
            find_tests(scene.workspace, made)
        assert find_tests(scene.workspace, made, "make check") is not None
        ledger.abort_fork(made.id, "enough")
    assert scene.fork.id == made.id != fork


def test_attempts_that_cannot_be_combined(scene: Scene, fork: str) -> None:
    with pytest.raises(LedgerError, match=f"cannot combine {fork}.1: name at least two"):
        combined(scene, 1, 1)
    other = scene.hold("echo 1 > one.txt")
    with pytest.raises(LedgerError, match="attempts of one fork"):
        asyncio.run(combine_attempts(scene.workspace, [f"{fork}.1", f"{other}.1"], tests=None))
    abort_fork(scene.workspace, other)
    scene.workspace.open(f"{fork}-2").abort()
    with pytest.raises(BranchNotFoundError, match=f"{fork}.2 no longer has a branch"):
        asyncio.run(combine_attempts(scene.workspace, [f"{fork}.1", f"{fork}.2"], tests=None))
    pick(scene.workspace, f"{fork}.1")
    with pytest.raises(ForkResolvedError):
        asyncio.run(combine_attempts(scene.workspace, [f"{fork}.1", f"{fork}.3"], tests=None))


def test_an_interrupted_fork_has_what_had_ended(scene: Scene) -> None:
    recipe = scene.recipe("echo 1 > one.txt", "echo 2 > two.txt")
    scene.drive(recipe, "ended")
    assert combined(scene, 1, 2).commit is not None
    assert scene.text("one.txt") == "1\n"
    fork = scene.drive(scene.recipe("echo 1 > one.txt", "sleep 1000"), "running")
    with pytest.raises(LedgerError, match=f"{fork}.2 did not finish"):
        combined(scene, 1, 2)
    abort_fork(scene.workspace, fork)


def test_a_refused_combination_can_be_repeated(scene: Scene, fork: str) -> None:
    """The user changed a file while the tests ran."""
    path = scene.workspace.path / "one.txt"

    class Meanwhile(Tests):
        async def test(self, branch: Any) -> Any:
            path.write_text("the user's\n")
            return await super().test(branch)

    with pytest.raises(ConflictError):
        combined(scene, 1, 2, tests=Meanwhile("true"))
    assert (scene.fork.state, scene.fork.commit) == ("resolved", None)
    assert [f.id for f in clean_up(scene.workspace).unfinished] == []
    outcome = asyncio.run(resume(scene.workspace, fork, on_conflict="ours"))
    assert (outcome.winner, outcome.committed) == (None, True)
    assert path.read_text() == "1\n"
    assert scene.branches == []


def test_one_at_a_time_and_a_killed_one_does_not_block_the_next(scene: Scene, fork: str) -> None:
    name = f"{fork}-combination"
    branch = scene.workspace.branch(name, None, None)
    with pytest.raises(BranchError, match="already exists"):
        combined(scene, 1, 2)
    branch.abort()
    scene.leave(name)
    assert name in [b.name for b in scene.workspace.branches()]
    assert combined(scene, 1, 2).commit is not None
