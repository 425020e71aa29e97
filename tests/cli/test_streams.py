"""Standard streams that are closed, full or no pipe, narrow terminals, keys that interrupt a command, other locales."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.test_explore import sh

Run = Callable[..., Result]
PROGRAM = "from forkwise.cli import main; main()"


def run_shell(line: str, project: Path, *words: str, **variables: str) -> tuple[int, str, str]:
    """Run a line of bash in which ``"$@"`` is a forkwise command; return its exit code and what it printed."""
    command = ["bash", "-c", line, "bash", sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, env={**os.environ, **variables})
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams(project: Path, closed: str) -> None:
    assert run_shell(f'"$@" {closed}', project, "ls", "--json")[0] == 0
    # Files that the command opens, such as the ledger, must not get the numbers of the closed streams.
    write = "echo x > made; ls /proc/self/fd > fds"
    assert run_shell(f'"$@" {closed}', project, "run", "-q", *sh(write))[0] == 0
    assert (project / "made").read_text() == "x\n"
    assert run_shell(f'"$@" {closed}', project, "undo", "99", "--json")[0] == 5


def test_closed_input_has_no_prompt_and_no_key(project: Path) -> None:
    code, _, errors = run_shell('"$@" <&-', project, "run", "--prompt-file", "-", "--", "true")
    assert (code, errors.splitlines()[0]) == (2, "forkwise: error: the prompt from standard input is empty")
    assert run_shell('"$@" <&-', project, "keys", "set", "SOME_KEY")[0] == 1
    assert "no terminal to ask on" in run_shell('"$@" <&-', project, "install", "codex", HOME=str(project.parent))[2]
    assert run_shell('"$@" <&-', project, "mcp") == (0, "", "")


@pytest.mark.parametrize("words", [("--version",), ("ls",), ("ls", "--json")])
def test_a_full_disk_behind_standard_output(project: Path, words: tuple[str, ...]) -> None:
    code, _, errors = run_shell('"$@" > /dev/full', project, *words)
    assert code == 1
    assert errors.startswith("forkwise: error: ")
    assert "No space left on device" in errors
    assert len(errors.splitlines()) == 1


def test_an_error_that_cannot_be_printed_as_json(project: Path) -> None:
    code, _, errors = run_shell('"$@" > /dev/full', project, "undo", "99", "--json")
    assert code == 5
    assert "there is no commit 99" in errors
    code, _, errors = run_shell('"$@" | true; exit ${PIPESTATUS[0]}', project, "undo", "99", "--json")
    assert code == 5


def test_text_that_the_locale_cannot_encode(project: Path) -> None:
    ascii_only = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert run_shell('"$@"', project, "ls", **ascii_only)[1].endswith("speculate \\u2026\n")
    fork = json.loads(run_shell('"$@"', project, "run", "-q", "--json", *sh("echo x > made"))[1])["outcome"]["fork"]
    assert run_shell('"$@"', project, "report", fork, "../report", **ascii_only)[0] == 0
    assert " · forkwise run" in (project.parent / "report/index.html").read_text("utf-8")


def test_acp_needs_an_editor(project: Path) -> None:
    for line in ('"$@" < /dev/null', '"$@" < a.txt', 'true | "$@" > out'):
        code, _, errors = run_shell(line, project, "acp")
        assert code == 2
        assert "is started by an editor" in errors


def test_ids_that_are_not_text(project: Path) -> None:
    for words in (("show",), ("pick",), ("abort",), ("wait",)):
        code, _, errors = run_shell("\"$@\" $'\\xff'", project, *words)
        assert (code, errors.splitlines()[0]) == (5, r"forkwise: error: there is no fork '\udcff' in the ledger")
    assert run_shell("\"$@\" $'abc.\\xff'", project, "show", "--json")[0] == 5
    assert run_shell("\"$@\" $'abc\\xff'", project, "walk")[0] == 5


def test_a_current_directory_that_was_deleted(project: Path) -> None:
    code, _, errors = run_shell('mkdir gone; cd gone; rmdir ../gone; "$@"', project, "ls")
    assert code == 2
    assert "the current directory was deleted: enter another one with cd" in errors


def run_in_terminal(
    project: Path, words: tuple[str, ...], awaited: str, act: Callable[[subprocess.Popen[bytes], int], object]
) -> tuple[int, str]:
    """Run a command in a terminal of its own, and ``act`` once it shows a text; return its exit code and its output."""
    take_terminal = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {PROGRAM}"
    leader, follower = pty.openpty()
    shown = bytearray()
    with subprocess.Popen(
        [sys.executable, "-c", take_terminal, *words],
        cwd=project,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color"},
    ) as process:
        os.close(follower)
        try:
            _read(leader, shown, awaited)
            act(process, leader)
            with suppress(OSError):  # the terminal ends with its last process
                _read(leader, shown, None)
            return process.wait(60), shown.decode(errors="replace")
        finally:
            process.kill()
            os.close(leader)


def _read(descriptor: int, shown: bytearray, awaited: str | None) -> None:
    while awaited is None or awaited.encode() not in shown:
        assert select.select([descriptor], [], [], 60)[0], shown
        shown += os.read(descriptor, 1 << 16)


@pytest.mark.parametrize("options", [(), ("--network", "host"), ("--confinement", "open")], ids=" ".join)
def test_ctrl_c_reaches_a_command_in_a_branch(run: Run, project: Path, options: tuple[str, ...]) -> None:
    run("branch", "create", "b")
    words = ("branch", "run", "b", *options, "--", "sh", "-c", "echo ready; exec sleep 1000")
    code, _ = run_in_terminal(project, words, "ready", lambda _, terminal: os.write(terminal, b"\x03"))
    assert code == 128 + signal.SIGINT


def test_ctrl_c_leaves_a_watched_fork_alone(run: Run, project: Path) -> None:
    code, fork, _ = run_shell('"$@"', project, "run", "--detach", "-q", *sh("sleep 1000"))
    assert code == 0
    fork = fork.strip()
    words = ("watch", "--plain", fork)
    code, shown = run_in_terminal(project, words, "started", lambda watch, _: watch.send_signal(signal.SIGINT))
    assert code == 128 + signal.SIGINT
    assert f"interrupted; fork {fork} is not affected" in shown
    run("abort", fork)


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_chat_in_panels(project: Path, number: signal.Signals) -> None:
    (project / "script.json").write_text('{"otherwise": "hello"}')
    words = ("chat", "--model", "script:script.json")
    code, shown = run_in_terminal(project, words, "say something", lambda chat, _: chat.send_signal(number))
    assert code == 128 + number, shown
    assert "the conversation was saved" in shown
    assert "Traceback" not in shown
