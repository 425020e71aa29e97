"""A winner is committed on tests that ran on what the commit leaves: the workspace may change while they run."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forkwise import (
    BeamSearch,
    BestOfN,
    Cascaded,
    CommitError,
    ConflictError,
    ForkResolvedError,
    ForkwiseWarning,
    Reflexion,
    RetestError,
    Speculate,
    Tests,
    Tournament,
    TreeOfThoughts,
    TreeSearch,
    Workspace,
)
from forkwise.explore.recipe import Recipe
from forkwise.explore.resume import find_retest, resume
from forkwise.fork.combine import combine_attempts
from forkwise.fork.fork import open_ledger
from forkwise.fork.resolve import pick
from tests.fork.kill_at_point import POINTS, Scene, becomes_so
from tests.leftovers import processes_about

CHECK = "test ! -e m.py -o ! -e n.py"  # passes with either file, fails with both
OTHER = "commit 1 (/main/other)"


def write(name: str, text: str = "") -> Callable[..., bool]:
    def work(path: Path, *_: object) -> bool:
        (path / name).write_text(text)
        return True

    return work


def commit_other(workspace: Workspace, name: str = "n.py", text: str = "") -> None:
    """Commit another change to the workspace, unless it is there already."""
    if not (workspace.path / name).exists() or (workspace.path / name).read_text() != text:
        with Workspace(workspace.path, durable=False).branch("other") as branch:
            (branch.path / name).write_text(text)


class Overtaken(Tests):
    """Tests after whose ``number``-th pass another commit is made."""

    def __init__(self, workspace: Workspace, number: int = 1) -> None:
        super().__init__(CHECK)
        self._workspace = workspace
        self._left = number

    async def evaluate(self, attempt: Any) -> Any:
        done = await super().evaluate(attempt)
        self._left -= 1
        if self._left == 0:
            commit_other(self._workspace)
        return done


def drop_kept(workspace: Workspace) -> list[str]:
    """Drop the branches that are left; return the names of their files."""
    files = []
    for branch in workspace.branches():
        assert branch.kept
        files += branch.delta().added
        branch.abort()
    return files


def run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_two_explorations_that_only_pass_alone(workspace: Workspace) -> None:
    """The second to come is tested on top of the first, fails, and is not committed."""
    tested = threading.Barrier(2)
    outcomes: dict[str, Any] = {}

    class Together(Tests):
        """Tests that both explorations have passed before either commits."""

        async def evaluate(self, attempt: Any) -> Any:
            done = await super().evaluate(attempt)
            assert done.success
            await asyncio.to_thread(tested.wait, 60)
            return done

    def explore(name: str) -> None:
        outcomes[name] = Speculate([write(name)], evaluate=Together(CHECK))(workspace)

    threads = [threading.Thread(target=explore, args=(name,)) for name in ("m.py", "n.py")]
    with pytest.warns(ForkwiseWarning, match=r"passed alone, fails together with commit 1 .* is kept as the branch"):
        run_all(threads)
    assert sorted(outcome.committed for outcome in outcomes.values()) == [False, True]
    [loser] = [name for name, outcome in outcomes.items() if not outcome.committed]
    [result] = outcomes[loser].all_results
    assert not result.success
    assert result.reason.startswith("passed alone, fails together with commit 1 (/main/")
    assert result.tests is not None
    assert not result.tests.is_pass
    assert isinstance(result.exception, RetestError)
    assert not (workspace.path / loser).exists()
    assert len(workspace.history()) == 1
    assert drop_kept(workspace) == [loser]
    with open_ledger(workspace) as ledger:
        fork = ledger.fork(outcomes[loser].fork)
        [attempt] = ledger.attempts(fork.id)
        assert (fork.state, fork.winner, fork.commit) == ("aborted", None, None)
        assert (attempt.state, attempt.reason) == ("failed", result.reason)


def test_without_a_retest_both_are_committed(workspace: Workspace) -> None:
    assert Speculate([write("m.py")], evaluate=Overtaken(workspace), retest=False)(workspace).committed
    assert (workspace.path / "m.py").exists()
    assert (workspace.path / "n.py").exists()


def test_what_still_passes_is_committed(workspace: Workspace) -> None:
    outcome = Speculate([write("mine")], evaluate=Overtaken(workspace))(workspace)
    assert outcome.committed
    assert [commit.branch for commit in workspace.history()][1:] == ["/main/other"]


def test_tests_run_once_if_nothing_moved_and_twice_if_something_did(workspace: Workspace) -> None:
    seen: list[list[str]] = []

    def check(path: Path) -> bool:
        seen.append(sorted(os.listdir(path)))
        return True

    assert Speculate([write("one")], evaluate=check)(workspace).committed
    assert seen == [["a.txt", "one"]]
    seen.clear()

    def check_then_move(path: Path) -> bool:
        check(path)
        commit_other(workspace)
        return True

    assert Speculate([write("two")], evaluate=check_then_move)(workspace).committed
    assert [files for files in seen if "n.py" in files] == [["a.txt", "n.py", "one", "two"]]
    assert len(seen) == 2


def test_without_tests_nothing_changes(workspace: Workspace) -> None:
    def work(path: Path) -> bool:
        commit_other(workspace)
        return write("m.py")(path)

    assert Speculate([work])(workspace).committed


BAD, GOOD = write("m.py"), write("good")

#: The patterns, each with the number of its attempts before the first decision.
PATTERNS: dict[str, tuple[int, Callable[..., Any]]] = {
    "speculate": (1, lambda **o: Speculate([BAD, GOOD], max_parallel=1, **o)),
    "best of n": (2, lambda **o: BestOfN([BAD, GOOD], **o)),
    "reflexion": (1, lambda **o: Reflexion(lambda p, n, _: (GOOD if n else BAD)(p), **o)),
    "cascade": (1, lambda **o: Cascaded(lambda p, told: (GOOD if told else BAD)(p), **o)),
    "tournament": (2, lambda **o: Tournament([BAD, GOOD], judge=lambda *_: 0, **o)),
    "tree": (2, lambda **o: TreeOfThoughts([BAD, GOOD], **o)),
    "deep tree": (3, lambda **o: TreeOfThoughts([BAD, GOOD], expand=lambda *_: [write("x")], max_depth=2, **o)),
    "beam": (4, lambda **o: BeamSearch([BAD, GOOD], expand=lambda *_: [write("x")], **o)),
    "tree search": (2, lambda **o: TreeSearch([BAD, GOOD], budget=2, max_depth=1, **o)),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_the_next_best_is_considered(name: str, workspace: Workspace) -> None:
    """The best attempt fails together with the other commit; the next one is rebased, passes, and is committed."""
    number, build = PATTERNS[name]
    outcome = build(evaluate=Overtaken(workspace, number))(workspace)
    assert outcome.committed
    assert (workspace.path / "good").exists()
    assert (workspace.path / "x").exists() == (name == "beam")
    assert not (workspace.path / "m.py").exists()
    rejected = [one for one in outcome.all_results if one.reason not in (None, "another attempt won")]
    assert rejected
    assert all(one.reason.startswith(f"passed alone, fails together with {OTHER}: tests: ") for one in rejected)
    assert not any(one.success for one in rejected)
    with open_ledger(workspace) as ledger:
        assert ledger.attempt(rejected[0].attempt).state == "failed"


# Commits and edits while the retest runs


def test_a_commit_during_the_retest_is_tested_too(workspace: Workspace) -> None:
    """Nothing slips in between the retest and the commit: the tests ran on exactly what is there afterwards."""
    seen: list[set[str]] = []

    def check(path: Path) -> bool:
        seen.append(set(os.listdir(path)))
        if len(seen) <= 3:
            commit_other(workspace, f"other-{len(seen)}")
        return True

    assert Speculate([write("mine")], evaluate=check)(workspace).committed
    assert len(seen) == 4
    assert seen[-1] == set(os.listdir(workspace.path)) == {"a.txt", "mine", "other-1", "other-2", "other-3"}


def test_a_workspace_that_never_rests(workspace: Workspace) -> None:
    """After a number of rounds the winner is given up: it is kept, and can be picked later."""
    rounds: list[int] = []

    def check(_: Path) -> bool:
        rounds.append(len(rounds))
        commit_other(workspace, f"other-{len(rounds)}")
        return True

    with pytest.raises(CommitError, match=r"changed each of the 5 times .*--no-retest"):
        Speculate([write("mine")], evaluate=check)(workspace)
    assert not (workspace.path / "mine").exists()
    assert len(rounds) == 6
    [branch] = workspace.branches()
    assert branch.kept
    with open_ledger(workspace) as ledger:
        [fork] = ledger.forks()
    assert pick(workspace, fork.id).added == ("mine",)


def test_a_commit_after_the_decision_withdraws_it(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another commit lands after the fork was decided and before its winner is committed: the next best wins."""
    from forkwise.ledger.sqlite import SqliteLedger

    real = SqliteLedger.resolve

    def resolve(self: Any, fork: str, **options: Any) -> bool:
        decided = real(self, fork, **options)
        commit_other(workspace)
        return decided

    monkeypatch.setattr(SqliteLedger, "resolve", resolve)
    outcome = BestOfN([BAD, GOOD], evaluate=Tests(CHECK))(workspace)
    assert outcome.committed
    assert sorted(os.listdir(workspace.path)) == ["a.txt", "good", "n.py"]
    with open_ledger(workspace) as ledger:
        assert [event.kind for event in ledger.events(fork=outcome.fork) if event.attempt is None] == [
            "begun",
            "measured",
            "resolved",
            "withdrawn",
            "resolved",
            "committed",
        ]
        assert [event.kind for event in ledger.events(fork=outcome.fork)].count("rejected") == 1
        before = ledger.fork(outcome.fork)
        ledger.rebuild()
        assert ledger.fork(outcome.fork) == before


@pytest.mark.parametrize(
    ("on_conflict", "expected"), [("ours", "mine\n"), ("theirs", "theirs\n"), ("merge", "1\nmine\n3\n4\ntheirs\n")]
)
def test_edits_that_the_commit_decides_about_are_tested(on_conflict: Any, expected: str, workspace: Workspace) -> None:
    """The tests see what ``on_conflict`` makes of an edit, before it is committed."""
    text = workspace.path / "text"
    text.write_text("1\n2\n3\n4\n5\n")
    Speculate([write("text", "1\n2\n3\n4\n5\n\n")])(workspace)
    seen: list[str] = []

    def work(path: Path) -> bool:
        old = (path / "text").read_text()
        new = old.replace("2", "mine") if on_conflict == "merge" else "mine\n"
        return bool((path / "text").write_text(new))

    def check(path: Path) -> bool:
        seen.append((path / "text").read_text())
        if len(seen) == 1:
            edited = text.read_text().replace("5\n\n", "theirs\n") if on_conflict == "merge" else "theirs\n"
            if on_conflict == "merge":
                commit_other(workspace, "text", edited)
            else:
                text.write_text(edited)
        return True

    outcome = Speculate([work], evaluate=check, on_conflict=on_conflict)(workspace)
    assert outcome.committed
    assert text.read_text() == expected
    assert seen[-1] == expected
    assert len(seen) == 2


def test_a_refused_conflict_is_refused_without_a_retest(workspace: Workspace) -> None:
    tested: list[int] = []

    def check(_: Path) -> bool:
        tested.append(1)
        (workspace.path / "a.txt").write_text("by the user\n")
        return True

    with pytest.raises(ConflictError, match=r"a\.txt"):
        Speculate([write("a.txt", "mine\n")], evaluate=check)(workspace)
    assert len(tested) == 1
    assert (workspace.path / "a.txt").read_text() == "by the user\n"
    assert [branch.delta().changed for branch in workspace.branches()] == [("a.txt",)]
    workspace.branches()[0].abort()


def test_tests_that_change_files_change_nothing_that_is_committed(workspace: Workspace) -> None:
    class Littering(Overtaken):
        def __init__(self, workspace: Workspace) -> None:
            super().__init__(workspace)
            self.command = "echo litter > litter; echo litter > mine; rm a.txt"

    assert Speculate([write("mine", "mine")], evaluate=Littering(workspace))(workspace).committed
    assert sorted(os.listdir(workspace.path)) == ["a.txt", "mine", "n.py"]
    assert (workspace.path / "mine").read_text() == "mine"


def test_a_cancelled_retest_leaves_nothing(workspace: Workspace) -> None:
    """The sandbox of the tests is killed, and its scratch branch is dropped."""
    started = threading.Event()

    class Slow(Overtaken):
        async def retest(self, branch: Any) -> Any:
            if self._left < 1:
                self.command = "sleep 1000"
                asyncio.get_running_loop().call_later(0, started.set)
            return await super().retest(branch)

    async def main() -> None:
        run = asyncio.create_task(Speculate([write("mine")], evaluate=Slow(workspace)).run(workspace))
        await asyncio.to_thread(started.wait, 60)
        run.cancel("stopped")
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(main())
    assert not (workspace.path / "mine").exists()
    with open_ledger(workspace) as ledger:
        assert ledger.forks()[0].state == "aborted"


# Decisions by hand, and after a kill


def hold(workspace: Workspace, *lines: str, **options: Any) -> str:
    """Run commands and leave their fork waiting for a pick; return the fork."""
    recipe = Recipe(
        kind="speculate",
        commands=tuple(("sh", "-c", line) for line in lines),
        tests=CHECK,
        first_wins=False,
        commit=False,
        keep=True,
        **options,
    )
    fork = recipe.pattern(workspace)(workspace).fork
    assert fork is not None
    return fork


def test_a_pick_is_tested_again(workspace: Workspace) -> None:
    fork = hold(workspace, "touch m.py", "touch good")
    commit_other(workspace)
    tests = find_retest(workspace, fork)
    with pytest.raises(RetestError, match=r"passed alone, fails together with commit 1 .*pick another.*--no-retest"):
        pick(workspace, f"{fork}.1", tests=tests)
    with open_ledger(workspace) as ledger:
        assert ledger.fork(fork).state == "open"
        assert ledger.attempt(f"{fork}.1").state == "succeeded"
    assert pick(workspace, f"{fork}.2", tests=tests).added == ("good",)


def test_a_pick_without_a_retest(workspace: Workspace) -> None:
    fork = hold(workspace, "touch m.py")
    commit_other(workspace)
    with pytest.raises(RetestError):
        pick(workspace, f"{fork}.1", tests=find_retest(workspace, fork))
    assert pick(workspace, f"{fork}.1").added == ("m.py",)
    assert find_retest(workspace, hold_without_retest(workspace)) is None


def hold_without_retest(workspace: Workspace) -> str:
    fork = hold(workspace, "rm m.py", retest=False)
    pick(workspace, f"{fork}.1")
    return fork


def test_a_combination_is_tested_again(workspace: Workspace) -> None:
    """Another commit lands while the combination is tested: the second report counts, and the fork stays undecided."""
    fork = hold(workspace, "touch m.py", "touch good")

    class Slow(Tests):
        async def test(self, branch: Any) -> Any:
            report = await super().test(branch)
            commit_other(workspace)
            return report

    names = [f"{fork}.1", f"{fork}.2"]
    result = asyncio.run(combine_attempts(workspace, names, tests=Slow(CHECK)))
    assert result.commit is None
    assert result.tests is not None
    assert "passed alone, fails together with commit 1" in (result.tests.doubt or "")
    with open_ledger(workspace) as ledger:
        assert ledger.fork(fork).state == "open"
    for branch in workspace.branches():
        branch.rebase()
    assert asyncio.run(combine_attempts(workspace, names, tests=Slow(CHECK), force=True)).commit is not None


@pytest.mark.crash
@pytest.mark.parametrize("point", ["ended", "resolved"])
def test_a_fork_killed_before_its_commit_is_tested_again_when_it_is_resumed(point: str, workspace: Workspace) -> None:
    """Killed with a winner, decided or not; then another commit lands. The resumed fork commits the next best."""
    assert point in POINTS
    scene = Scene(workspace, workspace.path.parent)
    fork = scene.drive(scene.recipe("touch m.py", "touch good", tests=CHECK), point)
    commit_other(workspace)
    outcome = asyncio.run(resume(workspace, fork))
    assert outcome.committed
    assert sorted(os.listdir(workspace.path)) == ["a.txt", "good", "n.py"]
    (scene.outside / "ran").unlink()


KILLED = """
import os, signal, sys
from pathlib import Path
from forkwise import Speculate, Workspace

def work(path):
    (path / "mine").write_text("mine")
    return True

def check(path):
    if (path / "n.py").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    with Workspace(sys.argv[1], durable=False).branch("other") as branch:
        (branch.path / "n.py").write_text("")
    return True

Speculate([work], evaluate=check)(Workspace(sys.argv[1], durable=False))
"""


@pytest.mark.crash
def test_a_kill_during_the_retest_leaves_the_fork_undecided(workspace: Workspace) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(workspace.path)], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr
    with open_ledger(workspace) as ledger:
        [fork] = ledger.forks()
        assert (fork.state, fork.winner, ledger.attempts(fork.id)[0].state) == ("interrupted", None, "succeeded")
    assert not (workspace.path / "mine").exists()
    assert pick(workspace, f"{fork.id}.1").added == ("mine",)


RACER = """
import sys
from forkwise import Speculate, Tests, Workspace

def work(path):
    (path / sys.argv[2]).write_text("")
    print("ready", flush=True)
    sys.stdin.readline()
    return True

print(Speculate([work], evaluate=Tests(sys.argv[3]))(Workspace(sys.argv[1], durable=False)).committed)
"""


@pytest.mark.crash
def test_processes_at_once_never_break_the_tests(workspace: Workspace) -> None:
    """Of several processes whose changes exclude each other, exactly one commits."""
    names = ["first", "second", "third"]
    check = "test $(ls first second third 2>/dev/null | wc -l) -le 1"
    words = [sys.executable, "-W", "ignore", "-c", RACER, str(workspace.path)]
    racers = [
        subprocess.Popen([*words, name, check], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in names
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    said = sorted(racer.communicate()[0] for racer in racers)
    assert said == ["False\n", "False\n", "True\n"]
    assert len(set(os.listdir(workspace.path)) & set(names)) == 1
    drop_kept(workspace)


def test_a_pick_during_the_retest_ends_it(workspace: Workspace) -> None:
    """Somebody commits the attempt while it is tested again: the tests are stopped, and their branch is dropped."""
    line = f"sleep 1000; echo {workspace.path}"
    picked: list[Any] = []

    class Slow(Overtaken):
        async def retest(self, branch: Any) -> Any:
            self.command = CHECK if self._left else line
            return await super().retest(branch)

    def decide() -> None:
        assert becomes_so(lambda: any(line in command for command in processes_about(line)))
        with open_ledger(workspace) as ledger:
            [fork] = ledger.forks()
        picked.append(pick(workspace, f"{fork.id}.1").added)

    other = threading.Thread(target=decide)
    other.start()
    with pytest.raises(ForkResolvedError, match="decided already"):
        Speculate([write("mine")], evaluate=Slow(workspace))(workspace)
    other.join()
    assert picked == [("mine",)]
    assert (workspace.path / "mine").exists()
