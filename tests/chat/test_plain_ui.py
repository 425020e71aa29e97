"""The chat without panels, as its own process: it reads and prints lines, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.chat.events import ForkResolved
from forkwise.chat.render import format_merge
from forkwise.ledger.sqlite import open_ledger
from tests.chat.scripted_chat import call, write_script

MAIN = [sys.executable, "-c", "from forkwise.cli import main; main()", "chat"]
PATIENCE = 120.0


def chat(project: Path, *words: str, lines: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*MAIN, *words, str(project)], input=lines, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


class Chat:
    """A running chat, and its output so far."""

    def __init__(self, process: subprocess.Popen[str], printed: Path) -> None:
        self.process = process
        self._printed = printed

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    @property
    def printed(self) -> str:
        return self._printed.read_text()

    def until(self, condition: Callable[[str], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition(self.printed):
            assert time.monotonic() < deadline, self.printed
            time.sleep(0.02)


@contextmanager
def chatting(project: Path, *words: str) -> Iterator[Chat]:
    printed = project.parent / "printed"
    with (
        printed.open("w") as output,
        subprocess.Popen([*MAIN, *words, str(project)], stdin=subprocess.PIPE, stdout=output, text=True) as process,
    ):
        try:
            yield Chat(process, printed)
        finally:
            process.kill()


@pytest.mark.integration
def test_plain_lines_from_a_pipe_in_their_order(project: Path, model: str) -> None:
    lines = "hello\n/branches\n/fork a: task | b: task\n/nonsense\n/merge b\n!cat lib.txt\n/undo\n/copy\n"
    printed = chat(project, "--plain", "--model", model, lines=lines).stdout.splitlines()
    assert printed[0].startswith("[new conversation chat-")
    assert printed[1:5] == ["Hi there,", "how are you?", "[done, at 2]", "branches:"]
    assert "b: b wrote lib.txt." in printed
    assert "[error: there is no command /nonsense; /help lists all]" in printed
    merged = next(number for number, line in enumerate(printed) if line == "[Merged: kept branch b · 1 file]")
    assert printed[merged + 1 : merged + 4] == ["! cat lib.txt:", "  from b", "  exit code: 0"]
    assert printed[merged + 4].endswith("is undone: commit 1 was undone; at 2]")
    assert printed[-3:] == ["Hi there,", "how are you?", "[ended]"]
    assert not (project / "lib.txt").exists()


@pytest.mark.integration
def test_the_end_of_input_merges_nothing_and_denies_approvals(project: Path) -> None:
    rules = [
        {"when": "^shell", "steps": [{"calls": [call("execute", command="touch ran")]}, {"say": "Then not."}]},
        {"branch": "a", "say": "done"},
        {"branch": "b", "steps": [{"say": "never", "until": "never"}]},
    ]
    model = write_script(project.parent, rules)
    done = chat(project, "--json", "--model", model, "--ask", "execute", lines="shell\n/fork task\n")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["text"] for event in events if event["event"] == "turn_ended"] == ["Then not."]
    assert not (project / "ran").exists()
    [opened] = [event for event in events if event["event"] == "fork_opened"]
    assert events[-2:] == [
        {"event": "fork_left", "fork": opened["fork"], "branches": ["a", "b"]},
        {"event": "ended"},
    ]
    with open_ledger(Workspace(project)) as ledger:
        assert ledger.fork(opened["fork"]).state == "interrupted"
    done = chat(project, "--plain", "--model", model, lines="/merge\n/abort\n")
    assert f"[fork {opened['fork']} is open, left by an earlier chat: a, b; /merge or /abort]" in done.stdout
    assert done.stdout.endswith("[The fork was aborted: none of its changes were kept]\n[ended]\n")


@pytest.mark.integration
def test_ctrl_c_ends_the_turn_and_twice_the_chat(project: Path, model: str) -> None:
    with chatting(project, "--plain", "--model", model, "--ask", "execute") as talk:
        talk.say("shell")
        talk.until(lambda printed: "/approve a1" in printed)
        talk.process.send_signal(signal.SIGINT)
        talk.until(lambda printed: "[interrupted, at 2]" in printed)
        talk.say("hello")
        talk.until(lambda printed: "how are you?" in printed)
        talk.say("/fork a: task until | b: task")
        talk.until(lambda printed: "[b] done" in printed)
        talk.process.send_signal(signal.SIGINT)
        talk.until(lambda printed: "once more to end" in printed)
        talk.process.send_signal(signal.SIGINT)
        assert talk.process.wait(PATIENCE) == 130
        assert "is kept open (a, b)" in talk.printed
    with chatting(project, "--plain", "--model", model) as talk:
        talk.until(lambda printed: "left by an earlier chat" in printed)
        talk.say("/abort")
        talk.until(lambda printed: "fork was aborted: none" in printed)
        talk.process.send_signal(signal.SIGTERM)
        assert talk.process.wait(PATIENCE) == 143


@pytest.mark.integration
def test_a_chat_that_cannot_open_reports_why_and_does_not_block(project: Path, model: str) -> None:
    assert "no model is set; pass --model" in chat(project, "--plain", code=2).stderr
    (project / ".forkwise").mkdir()
    os.mkfifo(project / ".forkwise" / "config.toml")
    failed = json.loads(chat(project, "--json", "--model", model, code=1).stdout)["error"]
    assert failed["type"] == "SettingsError"
    assert "is not a regular file" in failed["message"]


def test_conflicts_of_a_merge_say_which_version_is_in_the_workspace() -> None:
    conflicts = ("replaced", "skipped")
    event = ForkResolved("f1", "pick", ("a",), ("kept", "replaced"), conflicts=conflicts, errors=("full",))
    assert format_merge(event) == [
        "Merged: kept branch a · 2 files",
        "overwritten, although it was changed in the workspace meanwhile: replaced",
        "not merged, because it was changed in the workspace meanwhile: skipped",
        "not written: full",
    ]
