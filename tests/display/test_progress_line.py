"""Progress of long work: a line on a terminal that is gone at the end, and nothing elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.display.progress_line import ProgressLine, WorkList, format_work
from forkwise.progress import Work, listen, report
from tests.display.test_board import COMMAND

WHAT = "Testing the unchanged workspace"


class Recorder:
    """Records what was reported, with how far it came."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, int, int | None]] = []

    def begin(self, work: Work) -> None:
        pass

    def end(self, work: Work) -> None:
        self.ended.append((work.description, work.done, work.total))


def test_commits_and_copies_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKWISE_STATE", str(tmp_path / "state"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project/old").write_text("old")
    workspace = Workspace(tmp_path / "project", view="copy")
    recorder = Recorder()
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


def test_work_that_fails_ends() -> None:
    recorder = Recorder()
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


def run_until(project: Path, room: Path, *words: str) -> tuple[int, str, str]:
    """Run the command line with stderr on a terminal, and let its tests end once the line is there."""
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
    got = b""
    try:
        while piece := os.read(mine, 1 << 16):
            got += piece
            if WHAT.encode() in got:
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


@pytest.mark.parametrize("option", ["-q", "--json"])
def test_quiet(project: Path, room: Path, option: str) -> None:
    (room / "go").touch()
    code, _, shown = run_until(project, room, option)
    assert (code, shown) == (0, "")
