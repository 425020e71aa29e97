"""Ctrl-C, a termination and a hang-up at many moments of a command: nothing is left, and it says what it had done.

The moments are calls of forkwise's functions, evenly spaced over the command.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.ledger.detached_run import load_detached_run
from forkwise.ledger.sqlite import open_ledger
from forkwise.linux.mountinfo import mounts
from tests.cli.interrupted_commands import CommandServer, Ended
from tests.counts import rounds
from tests.fork.kill_at_point import becomes_so
from tests.leftovers import processes_about

pytestmark = pytest.mark.crash

WORK = ("sh", "-c", "echo x > new.txt; echo y > a.txt; git add -A; git -c user.name=t -c user.email=t commit -qm x")
HELD = ("best-of", "2", "--no-commit", "--", *WORK)

#: The commands that come before, and the one that is interrupted. LAST is the newest fork.
COMMANDS: dict[str, tuple[list[tuple[str, ...]], tuple[str, ...]]] = {
    "best-of": ([], ("best-of", "2", "--test", "test -e new.txt", "--", *WORK)),
    "commit-to-git": ([], ("run", "--commit-to-git", "--report", "../report", "--", "sh", "-c", "echo y > a.txt")),
    "as-branch": ([], ("best-of", "2", "--as-branch", "result", "--", *WORK)),
    "branch run": ([("branch", "create", "b")], ("branch", "run", "b", "--", *WORK)),
    "branch commit": ([("branch", "create", "b"), ("branch", "run", "b", "--", *WORK)], ("branch", "commit", "b")),
    "undo": ([("run", "--", *WORK)], ("undo",)),
    "pick": ([HELD], ("pick", "LAST.1")),
    "export": ([HELD], ("export", "LAST.1", "--as-branch", "result")),
    "worktree add": ([], ("worktree", "add", "../tree", "--branch", "topic")),
    "worktree remove": ([("worktree", "add", "../tree", "--branch", "topic")], ("worktree", "remove", "../tree")),
    "detach": ([], ("run", "--detach", "--", *WORK)),
    "wait": ([("run", "--detach", "--", *WORK)], ("wait", "LAST")),
}
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FIRST = 8  # calls until the handlers are installed


@dataclass
class Scene:
    """A git repository as workspace, in a directory of its own with state and temporary files."""

    top: Path
    server: CommandServer

    @property
    def project(self) -> Path:
        return self.top / "project"

    def git(self, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=self.project, check=True, capture_output=True, text=True).stdout

    def prepare(self, before: list[tuple[str, ...]], words: tuple[str, ...]) -> list[str]:
        """Make the repository, run the commands before, and return the words of the command to interrupt."""
        for path in (self.project, self.top / "temporary", self.top / "home"):
            path.mkdir(parents=True)
        (self.project / "a.txt").write_text("one\n")
        self.git("init", "-q", "-b", "main")
        self.git("add", "-A")
        self.git("commit", "-qm", "first")
        for earlier in before:
            done = self.server.run(*earlier, cwd=self.project)
            assert done.code == 0, done.stderr
        with open_ledger(Workspace(self.project)) as ledger:
            forks = ledger.forks(limit=1)
        return [word.replace("LAST", forks[0].id if forks else "") for word in words]

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.project.iterdir() if path.is_file()}

    def check_nothing_left(self) -> None:
        """Assert that no process, temporary file, half-made branch, lock or running attempt is left."""
        workspace = Workspace(self.project)
        with open_ledger(workspace) as ledger:
            runs = [load_detached_run(ledger.directory, fork.id) for fork in ledger.forks()]
        for process in [run.process for run in runs if run is not None]:  # they were not interrupted
            assert becomes_so(lambda process=process: not process.alive)  # type: ignore[misc]
        assert processes_about(str(self.top)) == []
        kept = {str(branch.home) for branch in workspace.branches()}
        state = str(workspace.state)
        points = [m.point for m in mounts() if m.point.startswith(f"{state}/branches/")]
        assert {os.path.dirname(point) for point in points} <= kept
        assert os.listdir(self.top / "temporary") == []
        names = [*os.listdir(state), *(os.listdir(f"{state}/branches") if os.path.isdir(f"{state}/branches") else ())]
        assert [name for name in names if name.startswith(".")] == []
        with open_ledger(workspace) as ledger:
            for fork in ledger.forks():
                assert fork.state in ("resolved", "aborted", "open")
                assert all(attempt.is_over for attempt in ledger.attempts(fork.id))
        assert list((self.project / ".git").rglob("*.lock")) == []
        assert "prunable" not in self.git("worktree", "list", "--porcelain")
        self.git("fsck", "--strict")

    def unmount(self) -> None:
        for mount in reversed(mounts()):
            if mount.point.startswith(f"{self.top}/"):
                subprocess.run(["umount", "--lazy", mount.point], check=True)


@pytest.fixture(scope="module")
def server() -> Iterator[CommandServer]:
    started = CommandServer()
    yield started
    started.close()


@pytest.fixture
def scenes(tmp_path: Path, server: CommandServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Iterator[Scene]]:
    """Yield scenes without end."""
    made: list[Scene] = []

    def make() -> Iterator[Scene]:
        while True:
            top = tmp_path / f"{len(made)}"
            monkeypatch.setenv("FORKWISE_STATE", str(top / "state"))
            monkeypatch.setenv("TMPDIR", str(top / "temporary"))
            monkeypatch.setenv("HOME", str(top / "home"))
            made.append(Scene(top, server))
            yield made[-1]

    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "t")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "t@example.org")
    yield make()
    for scene in made:
        scene.unmount()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_signal_at_any_moment_leaves_nothing_behind(name: str, scenes: Iterator[Scene]) -> None:
    scene = next(scenes)
    words = scene.prepare(*COMMANDS[name])
    before = scene.files()
    whole = scene.server.run(*words, cwd=scene.project)
    assert whole.code == 0, whole.stderr
    scene.check_nothing_left()
    after = scene.files()
    count, index = rounds(2, 120), list(COMMANDS).index(name)
    for moment in range(count):
        number = SIGNALS[(moment + index) % 3]
        scene = next(scenes)
        words = scene.prepare(*COMMANDS[name])
        call = FIRST + (whole.calls - FIRST) * (4 * moment + index % 4) // (4 * count)
        second_call = call + 5 if moment % 2 else 0
        ended = scene.server.run(*words, cwd=scene.project, call=call, number=number, second_call=second_call)
        scene.check_nothing_left()
        found = scene.files()
        assert found in (before, after)
        # What runs in the background commits when it likes: before the signal, after it, or meanwhile.
        has_changed = None if name in ("detach", "wait") else found != before
        check_message(ended, number, has_changed=has_changed)


def check_message(ended: Ended, number: signal.Signals, *, has_changed: bool | None) -> None:
    """Assert that a command that was interrupted says so, with its exit code, and what it had committed."""
    assert "Traceback" not in ended.stderr, ended.stderr
    if ended.code == 0:  # the signal came when everything was done, or in a place where Python cannot raise
        return
    assert ended.code == 128 + number, ended.stderr
    *_, last = ended.stderr.splitlines()
    assert re.match("forkwise: error: (interrupted|terminated|hung up)", last)
    assert has_changed is None or ("takes it back" in last) == has_changed, last
