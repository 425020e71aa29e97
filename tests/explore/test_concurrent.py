"""A workspace that changes while a pattern runs: by the user, and by other patterns in threads and processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from forkwise import (
    BestOfN,
    Branch,
    CommitError,
    ConflictError,
    ForkResolvedError,
    Speculate,
    TreeOfThoughts,
    Workspace,
)
from forkwise.fork.fork import open_ledger


def find_remaining_branch(workspace: Workspace) -> Branch:
    """Return the one branch that remains."""
    [branch] = workspace.branches()
    assert branch.kept
    return branch


def build_meddling_candidate(workspace: Workspace, name: str, text: str) -> Any:
    """Build a candidate that changes a file in the workspace while it runs, as a user would."""

    def work(path: Path) -> bool:
        (path / name).write_text("by the candidate\n")
        (workspace.path / name).write_text(text)
        return True

    return work


# Changes by the user


def test_conflict_is_raised_and_the_winning_branch_is_kept(workspace: Workspace) -> None:
    with pytest.raises(ConflictError, match=r"a\.txt.*on_conflict='ours', 'theirs' or 'merge'") as caught:
        Speculate([build_meddling_candidate(workspace, "a.txt", "by the user\n"), lambda _: False])(workspace)
    assert (workspace.path / "a.txt").read_text() == "by the user\n"
    branch = find_remaining_branch(workspace)
    [note] = caught.value.__notes__
    assert note.endswith(f"is kept as the branch {branch.branch_path}")
    assert (branch.path / "a.txt").read_text() == "by the candidate\n"
    with open_ledger(workspace) as ledger:
        [fork] = ledger.forks()
        assert fork.state == "resolved"
        assert fork.winner is not None
        assert fork.winner in note
        assert fork.commit is None
    branch.commit(on_conflict="ours")
    assert (workspace.path / "a.txt").read_text() == "by the candidate\n"


@pytest.mark.parametrize(("how", "text"), [("ours", "by the candidate\n"), ("theirs", "by the user\n")])
def test_on_conflict_option_resolves_the_conflict(how: Any, text: str, workspace: Workspace) -> None:
    outcome = Speculate([build_meddling_candidate(workspace, "a.txt", "by the user\n")], on_conflict=how)(workspace)
    assert outcome.committed
    assert (workspace.path / "a.txt").read_text() == text


def test_changes_to_other_paths_do_not_conflict(workspace: Workspace) -> None:
    def work(path: Path) -> bool:
        (path / "mine").write_text("mine")
        (workspace.path / "theirs").write_text("theirs")
        return True

    assert Speculate([work])(workspace).committed
    assert sorted(p.name for p in workspace.path.iterdir()) == ["a.txt", "mine", "theirs"]


def test_workspace_is_deleted_during_the_run(workspace: Workspace) -> None:
    elsewhere = workspace.path.with_name("elsewhere")

    def work(path: Path) -> bool:
        (path / "made").write_text("made")
        workspace.path.rename(elsewhere)
        return True

    with pytest.raises(CommitError, match=r"was not committed: .*No such file or directory"):
        Speculate([work])(workspace)
    elsewhere.rename(workspace.path)
    assert not (workspace.path / "made").exists()
    branch = find_remaining_branch(workspace)
    assert branch.commit().added == ("made",)


def test_workspace_was_deleted_before_the_run(workspace: Workspace) -> None:
    elsewhere = workspace.path.with_name("elsewhere")
    workspace.path.rename(elsewhere)
    outcome = Speculate([lambda _: True, ["true"]], first_wins=False)(workspace)
    assert not outcome.committed
    assert {r.reason for r in outcome.all_results} == {
        f"FileNotFoundError: [Errno 2] No such file or directory: '{workspace.path}'"
    }
    elsewhere.rename(workspace.path)


# Other patterns


def test_two_patterns_in_threads_commit_different_paths(workspace: Workspace) -> None:
    barrier = threading.Barrier(2)

    def explore(name: str) -> None:
        def work(path: Path) -> bool:
            (path / name).write_text(name)
            barrier.wait(60)
            return True

        outcomes.append(Speculate([work])(workspace))

    outcomes: list[Any] = []
    threads = [threading.Thread(target=explore, args=(name,)) for name in ("first", "second")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [o.committed for o in outcomes] == [True, True]
    assert sorted(p.name for p in workspace.path.iterdir()) == ["a.txt", "first", "second"]
    assert len(workspace.history()) == 2


def test_eight_patterns_on_one_event_loop(workspace: Workspace) -> None:
    serial = count()

    def work(path: Path, number: int) -> tuple[bool, float]:
        (path / f"{number}-{next(serial)}").write_text("")
        return True, number

    async def main() -> list[Any]:
        return await asyncio.gather(*(BestOfN(work, 3).run(workspace) for _ in range(8)))

    outcomes = asyncio.run(main())
    assert all(o.committed and o.winner.branch_index == 2 for o in outcomes)
    assert len(list(workspace.path.iterdir())) == 9
    assert len(workspace.history()) == 8


def build_late_candidate(workspace: Workspace, mine: str, theirs: str) -> Any:
    """Build a candidate that commits another pattern's result to the workspace while it runs."""

    def work(path: Path) -> bool:
        (path / "a.txt").write_text(mine)
        if not (workspace.path / "other").exists():
            other = threading.Thread(target=lambda: Speculate([change])(Workspace(workspace.path, durable=False)))
            other.start()
            other.join()
        return True

    def change(path: Path) -> bool:
        (path / "a.txt").write_text(theirs)
        (path / "other").write_text("")
        return True

    return work


TEXT = "one\ntwo\nthree\nfour\nfive\nsix\nseven\n"


def test_second_commit_of_the_same_lines_conflicts_and_its_branch_is_kept(workspace: Workspace) -> None:
    with pytest.raises(ConflictError, match=r"a\.txt") as caught:
        Speculate([build_late_candidate(workspace, "mine\n", "theirs\n")])(workspace)
    assert caught.value.paths == ("a.txt",)
    assert (workspace.path / "a.txt").read_text() == "theirs\n"
    branch = find_remaining_branch(workspace)
    assert (branch.path / "a.txt").read_text() == "mine\n"
    branch.abort()


def test_second_commit_of_other_lines_conflicts_by_default(workspace: Workspace) -> None:
    (workspace.path / "a.txt").write_text(TEXT)
    mine, theirs = TEXT.replace("one", "mine"), TEXT.replace("seven", "theirs")
    both = mine.replace("seven", "theirs")
    with pytest.raises(ConflictError, match="The branch now holds both changes") as caught:
        Speculate([build_late_candidate(workspace, mine, theirs)])(workspace)
    assert caught.value.paths == ("a.txt",)
    assert (workspace.path / "a.txt").read_text() == theirs
    branch = find_remaining_branch(workspace)
    assert (branch.path / "a.txt").read_text() == both
    branch.commit()
    assert (workspace.path / "a.txt").read_text() == both


@pytest.mark.parametrize(("how", "text"), [("ours", "mine\n"), ("theirs", "theirs\n")])
def test_on_conflict_option_decides_the_second_commit(how: Any, text: str, workspace: Workspace) -> None:
    outcome = Speculate([build_late_candidate(workspace, "mine\n", "theirs\n")], on_conflict=how)(workspace)
    assert outcome.committed
    assert (workspace.path / "a.txt").read_text() == text
    assert (workspace.path / "other").exists()


def test_second_commit_is_merged_on_request(workspace: Workspace) -> None:
    (workspace.path / "a.txt").write_text(TEXT)
    mine, theirs = TEXT.replace("one", "mine"), TEXT.replace("seven", "theirs")
    assert Speculate([build_late_candidate(workspace, mine, theirs)], on_conflict="merge")(workspace).committed
    assert (workspace.path / "a.txt").read_text() == mine.replace("seven", "theirs")


def test_tree_of_thoughts_commits_second(workspace: Workspace) -> None:
    def deeper(path: Path) -> bool:
        (path / "deeper").write_text((path / "a.txt").read_text())
        return True

    work = build_late_candidate(workspace, "mine\n", "theirs\n")
    with pytest.raises(ConflictError):
        TreeOfThoughts([work], expand=lambda *_: [deeper], max_depth=2)(workspace)
    branch = find_remaining_branch(workspace)
    assert (branch.path / "deeper").read_text() == "mine\n"
    branch.abort()


DRIVER = """
import sys
from pathlib import Path
from forkwise import Speculate, Workspace

def work(path):
    (path / sys.argv[2]).write_text("")
    print("ready", flush=True)
    sys.stdin.readline()
    return True

print(Speculate([work])(Workspace(sys.argv[1], durable=False)).committed)
"""


def test_patterns_in_several_processes(workspace: Workspace) -> None:
    names = ["first", "second", "third"]
    drivers = [
        subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(workspace.path), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    for driver in drivers:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "ready\n"
    for driver in drivers:
        assert driver.stdin is not None
        driver.stdin.write("go\n")
        driver.stdin.flush()
    for driver in drivers:
        assert driver.communicate()[0] == "True\n"
        assert driver.returncode == 0
    assert sorted(p.name for p in workspace.path.iterdir()) == ["a.txt", *names]
    assert len(workspace.history()) == 3


def test_fork_aborted_by_another_process_ends(workspace: Workspace) -> None:
    started = threading.Event()
    over = threading.Event()

    def work(_: Path) -> bool:
        started.set()
        return over.wait(60)

    def abort() -> None:
        started.wait(60)
        with open_ledger(workspace) as ledger:
            [fork] = ledger.forks()
            assert ledger.abort_fork(fork.id, "the user said so")

    other = threading.Thread(target=abort)
    other.start()
    with pytest.raises(ForkResolvedError, match="was decided elsewhere"):
        Speculate([work, ["sleep", "1000"]])(workspace)
    over.set()
    other.join()
    with open_ledger(workspace) as ledger:
        [fork] = ledger.forks()
        assert fork.resolution == {"how": "abort", "reason": "the user said so"}
        assert all(str(a.reason).endswith("was decided elsewhere") for a in ledger.attempts(fork.id))


def test_fork_aborted_between_two_attempts_ends(workspace: Workspace) -> None:
    from forkwise import Reflexion

    def work(_path: Path, _number: int, _told: str | None) -> bool:
        return False

    def critique(_: Path) -> str:
        with open_ledger(workspace) as ledger:
            ledger.abort_fork(ledger.forks()[0].id, "the user said so")
        return "wrong"

    with pytest.raises(ForkResolvedError, match="decided"):
        Reflexion(work, critique=critique)(workspace)
