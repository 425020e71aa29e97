"""The board: it shows the same fork on a terminal, in lines and as JSON, in every process."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.display.board import Board, time_text
from forkwise.display.output import Output
from forkwise.fork.fork import open_ledger
from forkwise.ledger.ledger import Ledger
from tests.fork.kill_at_point import becomes_so

LOOK = """
import sys
from forkwise import Workspace
from forkwise.display.board import Board
from forkwise.display.output import Output
from forkwise.fork.fork import open_ledger
with open_ledger(Workspace(".")) as ledger, Board(ledger, sys.argv[1], Output(as_json=True)) as board:
    board.follow()
"""
COMMAND = [sys.executable, "-c", "from forkwise.cli import main; main()"]


@pytest.fixture
def ledger(project: Path) -> Iterator[Ledger]:
    with open_ledger(Workspace(project)) as opened:
        yield opened


def begin(ledger: Ledger, *labels: str, parent: str | None = None) -> tuple[str, list[str]]:
    """Start a fork with running attempts."""
    fork = ledger.begin_fork("best-of", workspace="/project", spec={}, parent=parent)
    ids = []
    for index, label in enumerate(labels):
        attempt = ledger.add_attempt(fork.id, str(index), index=index, label=label, branch=f"b{index}")
        ledger.start_attempt(attempt.id)
        ids.append(attempt.id)
    return fork.id, ids


def test_lines(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    other, _ = begin(ledger, "not shown")
    fork, (first, second) = begin(ledger, "make\x1b[31m it", "x" * 99)
    with Board(ledger, fork, Output(as_json=False)) as board:
        assert board.refresh().state == "running"
        began = capsys.readouterr().out
        assert other not in began
        assert began.splitlines() == [
            f"Fork {fork}: best-of in /project",
            rf"{first} started: make\x1b[31m it",
            f"{second} started: {'x' * 31}…",
        ]
        board.refresh()
        assert capsys.readouterr().out == ""

        inner, (third,) = begin(ledger, "more", parent=first)
        ledger.record_tests(third, {"passed": 3, "failed": 1, "errors": 1})
        ledger.record_cost(third, {"usd": 0.125})
        ledger.record_score(third, 0.6)
        ledger.end_attempt(third, "failed", reason="tests: 3 passed", files=2)
        ledger.end_attempt(first, "succeeded", files=1, git="2 commits")
        ledger.end_attempt(second, "cancelled", reason="another won")
        ledger.resolve(fork, how="best score", winner=first)
        ledger.record_commit(fork, 3)
        assert board.follow().state == "resolved"
    lines = [re.sub(r" in \d+\.\d s", "", line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        f"{first} was forked as {inner}",
        f"{third} started: more",
        f"{third} failed: tests: 3 passed, 2 files, 3/5 tests, score 0.6, $0.12",
        f"{first} succeeded: 1 file, 2 commits",
        f"{second} cancelled: another won",
        f"{first} won: best score",
        f"{fork} was committed as 3",
    ]


def test_summary(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    fork, (first, second) = begin(ledger, "a", "b")
    _, (third,) = begin(ledger, "c", parent=first)
    for attempt, score in ((third, 1), (first, 2), (second, 3)):
        ledger.record_score(attempt, score)
        ledger.end_attempt(attempt, "succeeded", last_line=f"I am {attempt}")
    ledger.resolve(fork, how="pick", winner=first)
    board = Board(ledger, fork, Output(as_json=False))
    board.summary()
    header, *rows = capsys.readouterr().out.strip().splitlines()
    assert header.split() == ["attempt", "label", "state", "time", "score"]
    assert [row.split(None, 5)[:3] for row in rows] == [
        [first, "a", "won"],
        [third, "c", "succeeded"],
        [second, "b", "succeeded"],
    ]
    assert rows[1].startswith("  ")
    assert rows[2].endswith(f"I am {second}")


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """A directory that attempts can write to with ``--writable``."""
    made = tmp_path / "room"
    made.mkdir()
    return made


def test_another_process_shows_the_same(ledger: Ledger, project: Path, room: Path) -> None:
    waiting = f"touch {room}/$FORKWISE_ATTEMPT; until [ -e {room}/go ]; do sleep 0.05; done"
    work = f"{waiting}; echo done; exit $((FORKWISE_ATTEMPT - 1))"
    words = ["best-of", "2", "--json", "--writable", str(room), "--", "sh", "-c", work]
    with subprocess.Popen([*COMMAND, *words], cwd=project, stdout=subprocess.PIPE, text=True) as running:
        assert becomes_so(lambda: len(list(room.iterdir())) == 2 or running.poll() is not None)
        assert running.poll() is None
        fork = ledger.forks()[0].id
        with subprocess.Popen(
            [sys.executable, "-c", LOOK, fork], cwd=project, stdout=subprocess.PIPE, text=True
        ) as onlooker:
            (room / "go").touch()
            shown, _ = running.communicate()
            seen, _ = onlooker.communicate()
    *events, last = shown.splitlines()
    resolved = next(i for i, line in enumerate(events) if json.loads(line)["event"]["kind"] == "resolved")
    assert seen.splitlines()[: resolved + 1] == events[: resolved + 1]
    assert "outcome" in json.loads(last)


def on_terminal(
    project: Path,
    *words: str,
    rows: int = 24,
    once: Callable[[list[str]], object] = lambda frames: False,
    then: Callable[[int], object] = lambda terminal_fd: None,
) -> tuple[int, str]:
    """Run the command line on a new terminal. Return its exit code and all of its output.

    ``then`` is called, with the terminal, when ``once`` is true for the first time of what was drawn so far.
    """
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 90, 0, 0))
    process = subprocess.Popen(
        ["setsid", "--ctty", *COMMAND, *words],
        cwd=project,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(theirs)
    got = b""
    has_seen = False
    try:
        while piece := os.read(mine, 1 << 16):
            got += piece
            if not has_seen and once(frames_of(got.decode(errors="replace"))):
                has_seen = True
                then(mine)
    except OSError:  # EIO: the process has closed its end
        pass
    os.close(mine)
    return process.wait(), got.decode().replace("\r\n", "\n")


def frames_of(shown: str) -> list[str]:
    """Return what was drawn, without the colours."""
    return [re.sub(r"\x1b\[[0-9;]*m", "", frame) for frame in shown.split("\x1b[2K")]


def test_on_a_terminal_rows_move_and_a_summary_stays(project: Path, room: Path) -> None:
    def is_at_work(frames: list[str]) -> bool:
        return any(re.search(r"\.1 .* running +0:\d\d .*at work 1", frame) for frame in frames)

    wait = f"until [ -e {room}/go ]; do sleep 0.05; done"
    work = f'echo "at work $FORKWISE_ATTEMPT"; {wait}; echo x > n; exit $((FORKWISE_ATTEMPT - 1))'
    words = ["best-of", "2", "--writable", str(room), "--", "sh", "-c", work]
    code, shown = on_terminal(project, *words, once=is_at_work, then=lambda _: (room / "go").touch())
    assert code == 0
    *frames, last = frames_of(shown)
    assert is_at_work(frames)
    assert re.search(r"\.1  .* won +0:\d\d +1 +at work 1", last)
    assert re.search(r"\.2  .* failed +0:\d\d +1 +exit code 1", last)
    assert "+x\n" in last
    assert last.index("won") < last.index("+x") < last.index("Committed") < last.index("Undo with")
    assert "\x1b[32m+x\x1b[0m" in shown


def test_a_short_terminal_shows_what_matters(project: Path, room: Path) -> None:
    def find_moving(frames: list[str]) -> list[str]:
        return [frame for frame in frames if "and 6 more" in frame]

    def shows_last_attempt(frames: list[str]) -> bool:
        return any(re.search(r"\.10 .* running", frame) for frame in find_moving(frames))

    work = f"test $FORKWISE_ATTEMPT -lt 10 && exit 1; until [ -e {room}/go ]; do sleep 0.05; done"
    words = ["best-of", "10", "--writable", str(room), "--", "sh", "-c", work]
    code, shown = on_terminal(project, *words, rows=8, once=shows_last_attempt, then=lambda _: (room / "go").touch())
    assert code == 0
    frames = frames_of(shown)
    assert all(frame.count("\n") <= 8 for frame in find_moving(frames))
    assert shows_last_attempt(frames)


def test_a_long_diff_is_paged(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\ncat\necho paged\n")
    pager.chmod(0o755)
    monkeypatch.setenv("PAGER", str(pager))
    code, shown = on_terminal(project, "run", "--", "sh", "-c", "seq 99 > n")
    assert code == 0
    assert shown.index("+99") < shown.index("paged\n") < shown.index("Committed")
    code, shown = on_terminal(project, "run", "--", "sh", "-c", "echo 1 > m")
    assert "paged" not in shown


def test_output_of_attempts_cannot_control_the_terminal(project: Path, room: Path) -> None:
    wait = f"until [ -e {room}/go ]; do sleep 0.05; done"
    work = rf"printf 'title \033]0;evil\007 \033[2Jgone\n'; touch $(printf 'a\033[31m'); {wait}"
    words = ["run", "--writable", str(room), "--", "sh", "-c", work]
    code, shown = on_terminal(
        project, *words, once=lambda frames: "gone" in frames[-1], then=lambda _: (room / "go").touch()
    )
    assert code == 0
    assert "\x1b]0" not in shown
    assert "\x1b[2J" not in shown
    assert "a\x1b[31m" not in shown
    assert "gone" in shown


def test_ctrl_c(project: Path) -> None:
    work = "trap '' INT; echo x > n; echo at work; sleep 600"
    words = ["best-of", "2", "--", "sh", "-c", work]
    code, shown = on_terminal(
        project,
        *words,
        once=lambda frames: any("at work" in frame for frame in frames),
        then=lambda terminal_fd: os.write(terminal_fd, b"\x03"),
    )
    assert code == 130
    assert re.search(r"error: interrupted; fork \w+ was aborted, nothing was changed\n$", shown)
    assert Workspace(project).branches() == []
    assert not (project / "n").exists()


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (-1, "0:00"), (61.9, "1:01"), (3600, "1:00:00")])
def test_time_text(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


@pytest.mark.parametrize(("given", "options"), [(None, "FRX"), ("", "FRX"), ("-i", "-R -i")])
def test_the_pager_shows_colours(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, options: str
) -> None:
    pager = tmp_path / "less"
    pager.write_text('#!/bin/sh\ncat\necho "options: $LESS."\n')
    pager.chmod(0o755)
    monkeypatch.setenv("PAGER", str(pager))
    monkeypatch.delenv("LESS", raising=False)
    if given is not None:
        monkeypatch.setenv("LESS", given)
    code, shown = on_terminal(project, "run", "--", "sh", "-c", "seq 99 > n")
    assert code == 0
    assert f"options: {options}.\n" in shown.replace("\r", "")
    assert "\x1b[32m+99" in shown
