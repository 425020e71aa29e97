"""Progress of long work: a line on a terminal that is gone at the end, and nothing elsewhere."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.display.progress_line import ProgressLine, WorkList, format_work
from forkwise.ledger.sqlite import SqliteLedger
from forkwise.progress import Work, listen, report
from tests.display.test_board import COMMAND
from tests.display.work_recorder import WorkRecorder
from tests.files.images import mounted_tmpfs

WHAT = "Testing the unchanged workspace"


def test_commits_and_copies_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKWISE_STATE", str(tmp_path / "state"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project/old").write_text("old")
    workspace = Workspace(tmp_path / "project", view="copy")
    recorder = WorkRecorder()
    with listen(recorder):
        branch = workspace.branch("try")
        for name in "abc":
            (branch.path / name).write_text(name)
        branch.commit()
        workspace.undo()
    branch = workspace.branch("unheard")
    branch.abort()
    assert recorder.ended[0] == ("Copying files to a branch", 1, None)
    changes = [found for found in recorder.ended if found[0] == "Changing the files of the workspace"]
    assert changes == [("Changing the files of the workspace", 3, 3)] * 2
    assert ("Looking for changes in a copied tree", 4, None) in recorder.ended


def test_copies_between_filesystems_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state.mnt"
    state.mkdir()
    monkeypatch.setenv("FORKWISE_STATE", str(state))
    (tmp_path / "project").mkdir()
    (tmp_path / "project/a").write_text("old")
    recorder = WorkRecorder()
    with mounted_tmpfs(state), listen(recorder):
        state.chmod(0o700)
        workspace = Workspace(tmp_path / "project", view="copy")
        branch = workspace.branch("try")
        for name in "abc":
            (branch.path / name).write_text(name)
        branch.commit()
        workspace.undo()
    assert ("Copying changed files to the workspace's filesystem", 3, 3) in recorder.ended
    assert ("Saving old content, for undo", 1, 1) in recorder.ended
    assert ("Copying old content to the workspace's filesystem", 1, None) in recorder.ended
    assert (tmp_path / "project/a").read_text() == "old"


def test_a_rebuild_of_the_ledger_is_reported(tmp_path: Path) -> None:
    recorder = WorkRecorder()
    with SqliteLedger(tmp_path / "ledger") as ledger, listen(recorder):
        fork = ledger.begin_fork("run", workspace="/project", spec={})
        ledger.rebuild()
        assert ledger.fork(fork.id) == fork
    assert recorder.ended == [("Rebuilding the ledger from its events", 1, None)]


def test_work_that_fails_ends() -> None:
    recorder = WorkRecorder()
    with listen(recorder), suppress(ValueError), report("Something") as work:
        work.done = 2
        raise ValueError("broken")
    assert recorder.ended == [("Something", 2, None)]


def test_only_long_work_is_described() -> None:
    works = WorkList()
    quick, slow = Work("quick"), Work("slow\x1b[2J", total=4)
    slow.started -= 65
    slow.done = 1
    works.begin(slow)
    works.begin(quick)
    assert works.describe() == "slow\\x1b[2J  [=====               ]  1 of 4  1:05"
    works.end(slow)
    assert works.describe() == ""
    assert format_work(Work("many"), Work("").started + 3700) == "many  61:40"


def test_nobody_listens_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with ProgressLine(), report("Something") as work:
        work.started -= 5
    assert capfd.readouterr().err == ""


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """Create a directory that tests can read with ``--writable``."""
    made = tmp_path / "room"
    made.mkdir()
    return made


def run_until(project: Path, room: Path, *words: str, is_interrupted: bool = False) -> tuple[int, str, str]:
    """Run the command line with stderr on a terminal, and end or interrupt its tests once the line is there."""
    mine, theirs = pty.openpty()
    wait = f"until [ -e {room}/go ]; do sleep 0.05; done; echo 1 passed"
    process = subprocess.Popen(
        [*COMMAND, "run", *words, "--writable", str(room), "--test", wait, "--", "touch", "new"],
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(theirs)
    got, is_reached = b"", False
    try:
        while piece := os.read(mine, 1 << 16):
            got += piece
            if WHAT.encode() in got and not is_reached:
                is_reached = True
                if is_interrupted:
                    process.send_signal(signal.SIGINT)
                else:
                    (room / "go").touch()
    except OSError:  # EIO: the process has closed its end
        pass
    os.close(mine)
    printed = process.communicate()[0].decode()
    return process.returncode, printed, got.decode()


def test_a_line_appears_and_is_gone(project: Path, room: Path) -> None:
    code, printed, shown = run_until(project, room)
    assert code == 0, (printed, shown)
    assert WHAT in shown
    assert WHAT not in printed
    assert shown.rstrip("\r\n").endswith("\x1b[2K")  # the last thing is that the line is erased
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")


def test_an_interrupt_erases_the_line(project: Path, room: Path) -> None:
    code, printed, shown = run_until(project, room, is_interrupted=True)
    assert code == 130, (printed, shown)
    after = shown[shown.rindex(WHAT) :]
    assert "\x1b[2K" in after, "the line is erased"
    assert WHAT not in after[after.index("\x1b[2K") :]
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l"), "the cursor is visible"
    assert not shown.endswith("\x1b[2m"), "the style is reset"


@pytest.mark.parametrize("option", ["-q", "--json"])
def test_quiet(project: Path, room: Path, option: str) -> None:
    (room / "go").touch()
    code, _, shown = run_until(project, room, option)
    assert (code, shown) == (0, "")
