"""Every pattern on the branches of a BranchFS mount, and on those of DaxFS."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkwise import (
    BestOfN,
    BranchContext,
    BranchError,
    BranchStaleError,
    Speculate,
    Tests,
    TreeOfThoughts,
    Workspace,
    pick,
)
from forkwise.files.mounted import BranchfsView, MountedWorkspace
from forkwise.fork.control import abort_fork
from forkwise.fork.evaluation import SmallerDiff
from forkwise.fork.fork import open_ledger
from forkwise.live.backends.local import LocalBackend
from forkwise.live.deps import DeepAgentDeps
from forkwise.live.live_fork import find_source
from tests.branchfs import BUILDS
from tests.daxfs import RecordedDaxfs
from tests.explore.candidate_kinds import WAYS, Way, by_way
from tests.explore.test_patterns import CASES, Case
from tests.leftovers import check_ledger

one_build = pytest.mark.parametrize("branchfs_mount", BUILDS[:1], indirect=True)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg-state"))
    monkeypatch.delenv("FORKWISE_STATE", raising=False)


@pytest.fixture
def ws(branchfs: Path) -> Iterator[Workspace]:
    """A workspace on a mount; nothing may be left there, neither a branch nor a file of forkwise."""
    workspace = Workspace(branchfs)
    yield workspace
    assert workspace.branches() == []
    assert not [name for name in os.listdir(branchfs) if name.startswith((".forkwise", "exchange"))]
    check_ledger(workspace)


def run_case(case: Case, way: Way, workspace: Workspace) -> None:
    outcome = case.make(way)(workspace)
    assert outcome.committed
    assert outcome.winner is not None
    assert outcome.winner.branch_index == case.winner
    assert len(outcome.all_results) == case.tried
    assert outcome.commit is not None
    assert [commit.id for commit in workspace.history()] == [outcome.commit.id]
    assert outcome.note == outcome.commit.note == workspace.child_view().limits != ""
    with open_ledger(workspace) as ledger:
        assert ledger.fork(outcome.fork or "").state == "resolved"


@one_build
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_pattern(case: Case, ws: Workspace) -> None:
    """Seed: "All patterns: instantiate with config, call with a `Workspace`", which is "an existing mount"."""
    run_case(case, WAYS[0], ws)
    assert (ws.path / "trail").read_text().split() == case.trail.split()


@pytest.mark.parametrize("branchfs_mount", BUILDS[1:], indirect=True)
def test_other_builds(ws: Workspace) -> None:
    [case] = [case for case in CASES if case.name == "tree"]
    run_case(case, WAYS[0], ws)
    assert (ws.path / "trail").read_text().split() == case.trail.split()


@one_build
@pytest.mark.parametrize("way", WAYS[1:], ids=by_way)
def test_every_kind_of_candidate(way: Way, ws: Workspace) -> None:
    """Seed: "Any agent pattern can also opt into process isolation"."""
    run_case(CASES[5], way, ws)
    assert (ws.path / "trail").read_text().split() == CASES[5].trail.split()


@one_build
def test_tests_run_on_a_branch_of_the_branch(ws: Workspace) -> None:
    outcome = BestOfN(
        lambda path, n: bool((path / "a.txt").write_text(f"{n}\n")), 3, evaluate=Tests("grep -q 1 a.txt; touch report")
    )(ws)
    assert [r.tests is not None and r.tests.is_pass for r in outcome.all_results] == [True] * 3
    assert not (ws.path / "report").exists()
    outcome = BestOfN(
        lambda path, n: bool((path / "a.txt").write_text(f"{n}\n")), 3, evaluate=Tests("grep -q 1 a.txt")
    )(ws)
    assert [r.success for r in outcome.all_results] == [False, True, False]
    assert (ws.path / "a.txt").read_text() == "1\n"


@one_build
def test_a_diff_that_is_requested(ws: Workspace) -> None:
    outcome = BestOfN(lambda path, n: bool((path / "new").write_text("x\n" * (3 - n))), 3, evaluate=SmallerDiff())(ws)
    assert outcome.winner is not None
    assert outcome.winner.branch_index == 2


@one_build
def test_a_pattern_inside_an_attempt(ws: Workspace) -> None:
    def attempt(path: Path) -> bool:
        inner = Speculate([lambda inside: bool((inside / "inner").write_text("done"))])(Workspace(path))
        return inner.committed and (path / "inner").exists() and not (ws.path / "inner").exists()

    assert Speculate([attempt])(ws).committed
    assert (ws.path / "inner").read_text() == "done"


_BRANCHES = """
from forkwise import Workspace
with Workspace(".").branch("inner") as branch:
    (branch.path / "inner").write_text("done")
"""


@one_build
def test_a_sandbox_that_branches_the_workspace_it_sees(ws: Workspace) -> None:
    """It sees an ordinary directory, on a filesystem without extended attributes."""
    outcome = Speculate([[sys.executable, "-c", _BRANCHES]])(ws)
    assert outcome.committed, outcome.all_results
    assert (ws.path / "inner").read_text() == "done"


@one_build
def test_a_candidate_that_leaves_the_process_in_its_branch(ws: Workspace) -> None:
    before = os.getcwd()
    assert Speculate([lambda path: os.chdir(path) or True])(ws).committed
    assert os.getcwd() == before


@one_build
def test_a_winner_that_came_too_late(ws: Workspace) -> None:
    def attempt(path: Path) -> bool:
        with Workspace(ws.path).branch("first") as first:
            (first.path / "a.txt").write_text("first\n")
        return True

    with pytest.raises(BranchStaleError) as caught:
        Speculate([attempt])(ws)
    assert "is kept as the branch" in caught.value.__notes__[0]
    assert (ws.path / "a.txt").read_text() == "first\n"
    for branch in ws.branches():
        branch.abort()


@one_build
def test_a_pick(ws: Workspace) -> None:
    outcome = BestOfN(lambda path, n: bool((path / "a.txt").write_text(f"{n}\n")), 2, commit=False, keep=True)(ws)
    assert (ws.path / "a.txt").read_text() == "one\n"
    commit = pick(ws, f"{outcome.fork}.2")
    assert (ws.path / "a.txt").read_text() == "1\n"
    assert commit.note == BranchfsView.limits


_KILLED = """
import os, signal, sys
from forkwise import Speculate, Workspace
def attempt(path):
    (path / "a.txt").write_text("killed")
    os.kill(os.getpid(), signal.SIGKILL)
Speculate([attempt])(Workspace(sys.argv[1]))
"""


@one_build
def test_a_fork_whose_process_was_killed(ws: Workspace) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED, str(ws.path)])
    assert done.returncode == -signal.SIGKILL
    with open_ledger(ws) as ledger:
        [fork] = ledger.forks()
        assert fork.state == "interrupted"
    assert (ws.path / "a.txt").read_text() == "one\n"
    abort_fork(ws, fork.id)


_ATTACK = """
import fcntl, glob, os, sys
done = []
patterns = [f"{root}/{inside}.branchfs_ctl" for root in sys.argv[1:] for inside in ("", "@*/")]
for path in {path for pattern in patterns for path in (pattern, *glob.glob(pattern))}:
    for flags in (os.O_RDONLY, os.O_WRONLY):
        for command in (0x6201, 0x6202, b"commit", b"abort", b"create:evil"):
            try:
                fd = os.open(path, flags)
                is_null = os.fstat(fd).st_rdev == os.stat("/dev/null").st_rdev
                os.write(fd, command) if isinstance(command, bytes) else fcntl.ioctl(fd, command)
                done += [] if is_null else [(path, command)]
            except OSError:
                pass
assert not done, done
"""


@one_build
@pytest.mark.parametrize("preset", ["standard", "strict"])
def test_a_sandbox_reaches_no_control_file(ws: Workspace, preset: str, tmp_path: Path) -> None:
    """A candidate that could write to a control file, or send an ioctl to it, would decide the fork itself."""
    other = ws.branch("other", None, None)
    branch = ws.branch("own", None, None)
    roots = [str(ws.path), str(branch.path), str(other.path), ".", ".."]
    branch.run([sys.executable, "-c", _ATTACK, *roots], confinement=preset, check=True)
    for directory in (branch.path, branch.path / "sub"):  # by path, as BranchContext was used before

        def attack(_: Path) -> None:
            sys.argv[1:] = roots
            exec(_ATTACK, {})

        with BranchContext(attack, directory, confinement=preset) as context:
            context.wait(30)
    assert (other.status, branch.status) == ("open", "open")
    assert [b.name for b in ws.branches()] == ["other", "own"]
    for one in (other, branch):
        one.abort()


@one_build
def test_a_live_fork_is_refused(ws: Workspace) -> None:
    for workspace, deps in ((ws, None), (None, DeepAgentDeps(backend=LocalBackend(ws.path)))):
        with pytest.raises(BranchError, match="cannot be undone"):
            asyncio.run(find_source(workspace, deps))


class TestDaxfs:
    @pytest.fixture
    def ws(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
        (tmp_path / "main").mkdir()
        (tmp_path / "main/a.txt").write_text("one\n")
        kernel = RecordedDaxfs(tmp_path / "main", monkeypatch)
        workspace = MountedWorkspace(tmp_path / "main")
        yield workspace
        assert kernel.branches == []
        assert workspace.branches() == []
        assert os.listdir(f"{workspace.state}/daxfs") == []
        check_ledger(workspace)

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_every_pattern(self, case: Case, ws: Workspace) -> None:
        run_case(case, WAYS[0], ws)

    def test_tests_run_in_the_branch_itself(self, ws: Workspace) -> None:
        def attempt(path: Path, n: int) -> bool:
            return bool((path / "a.txt").write_text(f"{n}\n"))

        outcome = BestOfN(attempt, 3, evaluate=Tests("grep -q 1 a.txt"))(ws)
        assert [r.success for r in outcome.all_results] == [False, True, False]
        assert "tests run in the branch itself" in outcome.note

    def test_a_pattern_inside_an_attempt_is_refused(self, ws: Workspace) -> None:
        outcome = Speculate([lambda path: Speculate([lambda inside: True])(path).committed])(ws)
        assert not outcome.committed
        assert isinstance(outcome.all_results[0].exception, BranchError)
        assert "before it is evaluated" in str(outcome.all_results[0].exception)

    def test_nested_attempts_cannot_wait_for_a_pick(self, ws: Workspace) -> None:
        tree = TreeOfThoughts(
            [lambda path: True], expand=lambda path, depth: [lambda path: True], max_depth=2, commit=False, keep=True
        )
        with pytest.raises(BranchError, match="wait for a pick"):
            tree(ws)
        for branch in ws.branches():
            branch.abort()
