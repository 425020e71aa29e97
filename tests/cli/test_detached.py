"""Explorations in the background: ``--detach``, ``wait``, and the notice of a long one's end."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from forkwise import Workspace
from forkwise.ledger.detached_run import load_detached_run
from forkwise.ledger.sqlite import open_ledger
from forkwise.linux.process_id import ProcessId
from tests.fork.kill_at_point import becomes_so
from tests.preloaded import preloaded_command

pytestmark = pytest.mark.integration

Run = Callable[..., Result]
Ask = Callable[..., Any]


class Background:
    """Commands in processes of their own, and a gate that attempts wait at."""

    def __init__(self, project: Path, outside: Path) -> None:
        self.project = project
        self.outside = outside
        outside.mkdir()
        os.mkfifo(outside / "gate")
        self.pids: list[int] = []

    @property
    def wait_line(self) -> str:
        """A shell command that waits for the gate."""
        return f"cat {self.outside}/gate"

    def command(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [preloaded_command(), *words], cwd=self.project, capture_output=True, text=True, timeout=60, **options
        )

    def detach(self, *words: str) -> str:
        """Start an exploration in the background and return the id of the fork."""
        verb, *others = words
        done = self.command(verb, "--detach", "--json", "--writable", str(self.outside), *others)
        assert done.returncode == 0, (done.stdout, done.stderr)
        started = json.loads(done.stdout)["detached"]
        self.pids.append(started["process"])
        return str(started["fork"])

    def open_gate(self) -> None:
        with open(self.outside / "gate", "w"):  # returns when an attempt has it open
            pass

    def kill(self) -> None:
        pid = self.pids[-1]
        os.kill(pid, signal.SIGKILL)
        process = ProcessId.of(pid)
        assert becomes_so(lambda: not process.alive)


@pytest.fixture
def background(project: Path, tmp_path: Path) -> Background:
    return Background(project, tmp_path / "outside")


def test_an_exploration_runs_in_the_background_until_it_is_waited_for(
    background: Background, run: Run, ask: Ask, project: Path
) -> None:
    fork = background.detach("best-of", "1", "--", "sh", "-c", f"{background.wait_line}; echo 1 > new.txt")
    (pid,) = background.pids
    with open(f"/proc/{pid}/stat") as file:
        session, terminal = file.read().rpartition(")")[2].split()[3:5]
    assert (int(session), int(terminal)) == (pid, 0)  # so that closing the terminal sends it no signal
    assert f"{pid}, in the background" in run("show", fork).stdout
    assert ask("ls")["forks"][0]["state"] == "running"
    assert f"Fork {fork} still runs" in run("wait", fork, "--timeout", "0", code=124).stdout
    assert ask("wait", fork, "--timeout", "0.01s", code=124)["exit_code"] == 124
    background.open_gate()
    report = run("wait", fork).stdout
    assert "+1" in report
    assert f"Committed {fork}.1 as 1" in report
    assert (project / "new.txt").read_text() == "1\n"
    document = ask("wait", fork[:4])
    assert (document["exit_code"], document["outcome"]["winner"], document["error"]) == (0, f"{fork}.1", None)
    assert ask("show", fork)["fork"]["detached"]["exit_code"] == 0


def test_the_exit_code_and_the_error_are_those_of_the_command(
    background: Background, run: Run, ask: Ask, project: Path
) -> None:
    failed = background.detach("run", "-c", "exit 1")
    assert "No attempt succeeded" in run("wait", failed, code=7).stdout
    line = f"cat a.txt; {background.wait_line}; echo mine > a.txt"
    fork = background.detach("run", "-c", line)
    with open(background.outside / "gate", "w"):
        (project / "a.txt").write_text("someone else's\n")
    waited = run("wait", fork, code=3)
    assert "a.txt" in waited.stderr
    assert "hint: the winner was kept" in waited.stderr
    assert ask("wait", fork, code=3)["error"]["type"] == "ConflictError"
    assert "a.txt" in next(line for line in run("show", fork).stdout.splitlines() if line.startswith("error:"))
    run("pick", fork, "--on-conflict", "ours")  # decided since: the error no longer matters
    assert "error:" not in run("show", fork).stdout
    assert ask("wait", fork)["exit_code"] == 0


def test_an_error_before_the_fork_is_reported_at_once(background: Background, project: Path) -> None:
    done = background.command("run", "--detach", "--output-patch", "nowhere/x.diff", "--", "true")
    assert (done.returncode, "there is no directory nowhere" in done.stderr) == (2, True)
    ledger = Workspace(project).state / "ledger"
    ledger.mkdir(exist_ok=True)
    (ledger / "ledger.db").write_bytes(b"no database at all" * 1000)  # found only when the child opens it
    done = background.command("run", "--detach", "--", "true")
    assert (done.returncode, done.stdout) == (1, "")
    assert "ledger" in done.stderr
    assert list((ledger / "detached").iterdir()) == []


def test_a_killed_process_is_told_and_resumed(background: Background, run: Run, ask: Ask, project: Path) -> None:
    fork = background.detach("run", "-c", f"{background.wait_line}; echo 1 > new.txt")
    background.kill()
    assert ask("wait", fork, code=1)["fork"]["state"] == "interrupted"
    assert f"{fork} was interrupted. Resume it: forkwise resume {fork}" in run("ls").stdout
    assert "which ran it in the background, was killed" in run("show", fork).stdout
    done = background.command("resume", fork, "--detach", "--quiet")
    assert (done.returncode, done.stdout) == (0, f"{fork}\n")
    background.open_gate()
    assert f"Committed {fork}.1" in run("wait", fork).stdout
    assert (project / "new.txt").exists()


def test_a_fork_in_the_background_is_aborted_or_picked(background: Background, run: Run, ask: Ask) -> None:
    fork = background.detach("speculate", "--all", "-c", "echo 1 > one.txt", "-c", background.wait_line)
    assert becomes_so(lambda: ask("show", fork)["fork"]["attempts"][0]["state"] == "succeeded")
    run("pick", f"{fork}.1")
    assert ask("wait", fork)["fork"]["winner"] == f"{fork}.1"
    fork = background.detach("run", "-c", background.wait_line)
    run("abort", fork)
    assert ask("wait", fork, code=7)["fork"]["state"] == "aborted"


def test_what_is_kept_is_redacted_and_removed_with_the_fork(
    background: Background, run: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "correct-horse-battery")
    fork = background.detach("run", "-c", "echo correct-horse-battery > new.txt")
    run("wait", fork)
    monkeypatch.delenv("SERVICE_TOKEN")
    assert "+[redacted]" in run("wait", fork).stdout
    with open_ledger(Workspace(project)) as ledger:
        kept = load_detached_run(ledger.directory, fork)
        assert kept is not None
        assert b"correct-horse" not in kept.log.read_bytes()
        ledger.prune(keep=0)
        assert load_detached_run(ledger.directory, fork) is None
        assert not kept.log.exists()


def test_a_damaged_record_is_an_error(background: Background, run: Run, project: Path) -> None:
    fork = background.detach("run", "-c", "echo 1 > new.txt")
    run("wait", fork)
    record = Workspace(project).state / f"ledger/detached/{fork}.json"
    for text in ("", "[]", '{"format": 1, "process": "x"}', '{"format": 9}'):
        record.write_text(text)
        assert "is damaged" in run("wait", fork, code=1).stderr
        assert "is damaged" in run("show", fork).stderr


@pytest.mark.parametrize(("term", "is_shown"), [("xterm-256color", True), ("linux", False)])
def test_a_terminal_gets_a_notice_of_a_long_fork(
    background: Background, run: Run, project: Path, term: str, is_shown: bool, tmp_path: Path
) -> None:
    def run_on_terminal(*words: str) -> bytes:
        ours, theirs = pty.openpty()
        with open(ours, "rb", buffering=0) as screen:
            environment = {**os.environ, "TERM": term}
            done = subprocess.Popen([preloaded_command(), *words], cwd=project, stdout=theirs, env=environment)
            os.close(theirs)
            shown = bytearray()
            try:
                while piece := screen.read(4096):
                    shown += piece
            except OSError:  # the terminal is closed
                pass
            assert done.wait(60) == 0
        return bytes(shown)

    shown = run_on_terminal("run", "--notify", "0", "-c", "printf '\\033]9;evil\\007' | tee new.txt")
    assert (b"\x1b]9;forkwise: fork " in shown, shown.endswith(b"\x07")) == (is_shown, True)
    assert b"\x1b]9;evil" not in shown
    assert b"\x07" not in run_on_terminal("run", "--notify", "1h", "-c", "echo 2 > new.txt")
    config = tmp_path / "config/forkwise/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[notify]\nafter = "0s"\n')
    assert b"\x07" in run_on_terminal("run", "-c", "echo 3 > new.txt")
    config.write_text('[notify]\nafter = "soon"\n')
    assert "\x07" not in run("run", "-c", "echo 4 > new.txt").stdout  # no terminal: not even read
