"""Several processes and threads at one workspace: every race has one winner, and the others get an error."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from forkwise import Workspace
from forkwise.errors import BranchError, BranchNotFoundError, BranchStaleError
from forkwise.files.store import trash
from forkwise.files.store.state import locked
from forkwise.linux.mountinfo import mounts
from tests.counts import rounds
from tests.files.crash_scenes import Scene, empty
from tests.files.fork_helper import stop_helper
from tests.files.images import mounted_tmpfs
from tests.files.sample import picture
from tests.files.steps import Steps, fork, in_child

pytestmark = pytest.mark.integration

RACES = rounds(150, 1000)


@pytest.fixture(scope="module", autouse=True)
def nothing_stays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    beneath = f"{tmp_path_factory.getbasetemp()}/"  # with the slash: another run may have pytest-12 beside pytest-1
    before = [m for m in mounts() if m.point.startswith(beneath)]
    yield
    stop_helper()
    assert [m for m in mounts() if m.point.startswith(beneath)] == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A filesystem on which syncs are free, with the state on it."""
    where = tmp_path / "memory"
    where.mkdir()
    with mounted_tmpfs(where):
        monkeypatch.setenv("XDG_STATE_HOME", str(where / "state"))
        yield where
        empty(where)


@pytest.fixture
def project(memory: Path) -> Path:
    root = memory / "project"
    root.mkdir()
    (root / "shared").write_text("nobody\n")
    for number in range(8):
        (root / f"{number}").write_text("old\n")
    return root


class Racer:
    """A process that waits for a signal and then runs its job at once, repeatedly."""

    def __init__(self, job: Callable[[str], str]) -> None:
        self.line, theirs = multiprocessing.Pipe()
        self.pid = fork()
        if self.pid == 0:
            self.line.close()
            self._serve(job, theirs)
        theirs.close()

    def _serve(self, job: Callable[[str], str], line: Connection) -> None:
        try:
            while (word := line.recv()) is not None:
                try:
                    line.send(job(word))
                except Exception as error:  # noqa: BLE001 - the test judges it
                    line.send(type(error).__name__)
        finally:
            os._exit(0)

    def start(self, word: str) -> None:
        self.line.send(word)

    def result(self) -> str:
        report = self.line.recv()
        assert isinstance(report, str)
        return report

    def stop(self) -> None:
        self.line.send(None)
        os.waitpid(self.pid, 0)
        self.line.close()


@pytest.fixture
def race() -> Iterator[Callable[..., list[str]]]:
    """Run jobs in separate processes at the same time, and return the outcome of each."""
    racers: list[Racer] = []

    def run(jobs: list[Callable[[str], str]], *words: str) -> list[str]:
        while len(racers) < len(jobs):
            racers.append(Racer(jobs[len(racers)]))
        for racer, word in zip(racers, words, strict=True):
            racer.start(word)
        return [racer.result() for racer in racers]

    yield run
    for racer in racers:
        racer.stop()


def commit(root: Path, name: str) -> str:
    Workspace(root, durable=False).open(name).commit()
    return "committed"


@pytest.mark.crash
def test_siblings_committed_at_once(project: Path, race: Callable[..., list[str]]) -> None:
    """One wins, the other is stale, and the files are the winner's; repeated many times."""
    workspace = Workspace(project, durable=False)
    won: Counter[str] = Counter()
    for number in range(RACES):
        names = [f"a{number}", f"b{number}"]
        for name in names:
            branch = workspace.branch(name)
            (branch.path / "shared").write_text(f"{name}\n")
            (branch.path / f"{number % 8}").write_text(f"{name}\n")
            (branch.path / f"only-{name[0]}").write_text(f"{name}\n")
        outcomes = race([partial(commit, project)] * 2, *names)
        assert sorted(outcomes) == ["BranchStaleError", "committed"]
        winner, loser = names if outcomes[0] == "committed" else reversed(names)
        assert {(project / f).read_text() for f in ("shared", f"{number % 8}", f"only-{winner[0]}")} == {f"{winner}\n"}
        only = project / f"only-{loser[0]}"
        assert not only.exists() or only.read_text() != f"{loser}\n"
        assert [b.name for b in workspace.branches()] == [loser]
        workspace.open(loser).abort()
        won[winner[0]] += 1
    print(f"won: {dict(won)}")
    assert won.total() == RACES
    assert len(workspace.history()) >= 100


def test_one_branch_committed_by_two(project: Path, race: Callable[..., list[str]]) -> None:
    workspace = Workspace(project, durable=False)
    for number in range(100):
        branch = workspace.branch("b")
        (branch.path / "shared").write_text(f"{number}\n")
        assert sorted(race([partial(commit, project)] * 2, "b", "b")) == ["BranchNotFoundError", "committed"]
        assert (project / "shared").read_text() == f"{number}\n"
        assert workspace.branches() == []


def test_one_branch_committed_by_one_and_aborted_by_another(project: Path, race: Callable[..., list[str]]) -> None:
    workspace = Workspace(project, durable=False)

    def abort(name: str) -> str:
        Workspace(project).open(name).abort()
        return "aborted"

    content = (project / "shared").read_text()
    for number in range(100):
        branch = workspace.branch("b")
        (branch.path / "shared").write_text(f"{number}\n")
        outcomes = race([partial(commit, project), abort], "b", "b")
        assert outcomes in (["committed", "BranchNotFoundError"], ["BranchNotFoundError", "aborted"])
        content = f"{number}\n" if outcomes[0] == "committed" else content
        assert (project / "shared").read_text() == content
        assert workspace.branches() == []


def test_one_name_taken_by_two(project: Path, race: Callable[..., list[str]]) -> None:
    def make(name: str) -> str:
        Workspace(project).branch(name, on_success=None, on_error=None)
        return "made"

    workspace = Workspace(project, durable=False)
    for _ in range(50):
        assert sorted(race([make, make, make], "b", "b", "b")) == ["BranchError", "BranchError", "made"]
        workspace.open("b").abort()


def test_undo_and_commit_at_once(project: Path, race: Callable[..., list[str]]) -> None:
    """Both change the same file: the second commit is refused."""
    workspace = Workspace(project, durable=False)

    def undo(_: str) -> str:
        Workspace(project, durable=False).undo()
        return "undone"

    for number in range(50):
        with workspace.branch("first") as first:
            (first.path / "shared").write_text("first\n")
        before = "first\n"
        branch = workspace.branch("b")
        (branch.path / "shared").write_text(f"{number}\n")
        outcomes = race([partial(commit, project), undo], "b", "")
        assert outcomes in (["committed", "undone"], ["BranchStaleError", "undone"])
        found = (project / "shared").read_text()
        if outcomes[0] == "committed":
            assert found == before  # it was the new commit that was undone
        else:
            assert found != f"{number}\n"
            workspace.open("b").abort()


def test_many_threads(project: Path) -> None:
    """Each process creates, reads and writes branches of its own, then commits or aborts them."""
    errors: Counter[str] = Counter()
    committed: dict[str, str] = {}
    lock = threading.Lock()

    def work(thread: int) -> None:
        workspace = Workspace(project, durable=False)
        for number in range(12):
            name = f"t{thread}-{number}"
            branch = workspace.branch(name)
            assert (branch.path / "shared").exists()
            (branch.path / f"by-{thread}").write_text(name)
            assert [c.path for c in branch.delta().changes] == [f"by-{thread}"]
            if number % 3 == 2:
                branch.abort()
                continue
            try:
                branch.commit()
            except BranchStaleError:
                with lock:
                    errors["stale"] += 1
                branch.abort()
            else:
                with lock:
                    committed[f"by-{thread}"] = name

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, thread) for thread in range(8)]:
            done.result()
    assert committed
    assert {p.name: p.read_text() for p in project.glob("by-*")} == committed
    assert Workspace(project).branches() == []


def test_one_handle_in_many_threads(project: Path) -> None:
    """All threads read ``path`` of one branch, and fork it, at the same time."""
    workspace = Workspace(project, durable=False)
    branch = workspace.branch("b")
    with ThreadPoolExecutor(8) as pool:
        paths = {done.result() for done in [pool.submit(lambda: branch.path) for _ in range(32)]}
    assert len(paths) == 1
    assert len([m for m in mounts() if m.point.startswith(str(workspace.state))]) <= 1
    with ThreadPoolExecutor(8) as pool:
        made = [done.result() for done in [pool.submit(branch.branch, f"c{n}") for n in range(16)]]
    assert sorted(b.name for b in branch.children()) == sorted(b.name for b in made)
    branch.abort()
    assert workspace.branches() == []


def test_many_processes(project: Path, race: Callable[..., list[str]]) -> None:
    """The same from processes, with a forked branch and a killed one among them."""

    def work(word: str) -> str:
        workspace = Workspace(project, durable=False)
        ends = Counter[str]()
        for number in range(10):
            branch = workspace.branch(f"{word}-{number}")
            child = branch.branch("inner")
            (child.path / f"by-{word}").write_text(f"{number}")
            child.commit()
            assert (branch.path / f"by-{word}").read_text() == f"{number}"
            try:
                branch.commit()
                ends["committed"] += 1
            except BranchStaleError:
                branch.abort()
                ends["stale"] += 1
        trash.wait_until_empty()
        return " ".join(f"{end}={count}" for end, count in sorted(ends.items()))

    outcomes = race([work] * 4, "a", "b", "c", "d")
    assert all(o.startswith(("committed=", "stale=")) for o in outcomes), outcomes
    assert Workspace(project).branches() == []
    total = sum(int(part.split("=")[1]) for o in outcomes for part in o.split() if part.startswith("committed"))
    assert len(Workspace(project).history()) == total > 0


def test_two_open_after_a_crash(memory: Path, race: Callable[..., list[str]]) -> None:
    """Two processes find an interrupted commit, one rolls it back, and neither sees a state in between."""
    scene = Scene(memory)

    def look(_: str) -> str:
        return "before" if picture(Workspace(scene.root).path) == scene.before else "between"

    total = len(scene_calls(memory / "other"))
    os.environ["XDG_STATE_HOME"] = str(scene.state)
    for step in range(20, total - 2, 7):
        assert in_child(scene.act, Steps(step)).killed
        assert race([look, look, look], "", "", "") == ["before"] * 3
    scene.finish()
    scene.drop()


def scene_calls(base: Path) -> list[str]:
    scene = Scene(base)
    outcome = in_child(scene.act, Steps())
    assert outcome.raised is None
    scene.drop()
    return outcome.calls


def test_killed_with_the_lock_in_hand(project: Path) -> None:
    """A lock is released with its process, even if that process had forked another."""
    workspace = Workspace(project, durable=False)
    branch = workspace.branch("b")
    (branch.path / "shared").write_text("b\n")
    report, telling = os.pipe()
    pid = fork()
    if pid == 0:
        with locked(str(workspace.state)):
            os.write(telling, b".")
            signal.pause()
        os._exit(0)
    assert os.read(report, 1) == b"."
    waiting = threading.Thread(target=branch.commit)
    waiting.start()
    assert (project / "shared").read_text() == "nobody\n"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    waiting.join()
    os.close(report)
    os.close(telling)
    assert (project / "shared").read_text() == "b\n"


def test_a_child_forked_under_the_lock_does_not_hold_it(project: Path) -> None:
    workspace = Workspace(project, durable=False)
    with locked(str(workspace.state)):
        pid = fork()
        if pid == 0:
            signal.pause()
            os._exit(0)
    try:
        with workspace.branch("b") as branch:
            (branch.path / "shared").write_text("b\n")
        assert (project / "shared").read_text() == "b\n"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_handle_of_a_branch_that_another_ended(project: Path) -> None:
    workspace = Workspace(project, durable=False)
    branch = workspace.branch("b")
    (branch.path / "shared").write_text("b\n")
    assert in_child(partial(commit, project, "b")).value == "committed"
    calls: list[Callable[[], Any]] = [
        branch.commit,
        branch.abort,
        branch.delta,
        branch.diff,
        branch.rebase,
        branch.freeze,
    ]
    for call in [*calls, lambda: branch.path, lambda: branch.branch("inner")]:
        with pytest.raises(BranchNotFoundError):
            call()
    assert (project / "shared").read_text() == "b\n"


def test_a_half_committed_branch_seen_by_a_process_that_lives_on(memory: Path) -> None:
    """Handles from before a crash still work, without opening the workspace again."""
    scene = Scene(memory)
    workspace = Workspace(scene.root)
    branch = workspace.open("b")
    uses: list[Callable[[], Any]] = [
        lambda: branch.path,
        branch.delta,
        branch.diff,
        lambda: branch.branch("inner").abort(),
        lambda: workspace.open("b"),
        workspace.branches,
        lambda: workspace.branch("other").abort(),
        workspace.gc,
    ]
    for use in uses:
        for path in ("+", "/branches/b"):
            assert in_child(scene.act, Steps(path=path)).killed
            use()
            assert picture(scene.root) == scene.before
            assert scene.judge() == "before"
    scene.finish()
    scene.drop()


def test_a_parent_is_not_committed_with_half_of_its_child(project: Path) -> None:
    """A process is killed while it commits a branch into its parent; the parent must not be committed in that state."""
    workspace = Workspace(project, durable=False)
    for path in ("+", "/branches/child"):
        parent = workspace.branch("parent")
        (parent.path / "0").write_text("parent\n")
        child = parent.branch("child")
        for number in range(8):
            (child.path / f"{number}").write_text("child\n")
        assert in_child(child.commit, Steps(path=path)).killed
        before = picture(project)
        with pytest.raises(BranchError, match="child"):
            parent.commit()
        assert picture(project) == before
        child = workspace.open("parent/child")
        assert {(child.path / f"{n}").read_text() for n in range(8)} == {"child\n"}
        parent.abort()
