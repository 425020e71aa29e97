"""The panels in a real terminal: an exploration in one pane, somebody who watches and decides it in the other."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.ledger.opening import open_ledger
from tests.need import need

COMMAND = shlex.join([sys.executable, "-c", "from forkwise.app.cli import main; main()"])
WORK = """
i=0
while [ ! -e {go} ]; do i=$((i+1)); echo "$FORKWISE_ATTEMPT counts $i"; sleep 0.1; done
echo $FORKWISE_ATTEMPT > won
""".strip().replace("\n", "; ")


@dataclass
class Terminal:
    """A tmux server of its own, with two panes of 80x24."""

    socket: Path

    def tmux(self, *words: str) -> str:
        done = subprocess.run(["tmux", "-S", str(self.socket), *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def screen(self, pane: str, *options: str) -> str:
        return self.tmux("capture-pane", "-p", *options, "-t", pane)

    def press(self, pane: str, *keys: str) -> None:
        self.tmux("send-keys", "-t", pane, *keys)

    def shows(self, pane: str, *texts: str) -> str:
        """Wait until all of some texts are on the screen."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            screen = self.screen(pane)
            if all(text in screen for text in texts):
                return screen
            time.sleep(0.05)
        raise AssertionError(f"{texts} not shown in {pane}:\n{self.screen(pane)}")


@pytest.fixture
def terminal(project: Path, tmp_path: Path) -> Iterator[Terminal]:
    need(shutil.which("tmux") is not None, "tmux, which is the terminal here, is not installed")
    made = Terminal(tmp_path / "tmux")
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PS1": "$ "}
    environment.pop("TMUX", None)
    options = ["-f", os.devnull, "new-session", "-d", "-x", "80", "-y", "24", "-c", str(project)]
    subprocess.run(["tmux", "-S", str(made.socket), *options, "-n", "explore", "sh"], env=environment, check=True)
    made.tmux("new-window", "-n", "watch", "-c", str(project), "sh")
    yield made
    made.tmux("kill-server")


def colours(screen: str) -> set[tuple[str, ...]]:
    """The colours that a screen uses, as red, green and blue."""
    return set(re.findall(r"[34]8;2;(\d+);(\d+);(\d+)", screen))


def test_watched_picked_and_undone_from_another_pane(terminal: Terminal, project: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    pager = tmp_path / "less"
    pager.write_text('#!/bin/sh\necho "paged: $(cat "$1")"; read -r _\n')
    pager.chmod(0o755)
    words = ["best-of", "3", "--no-commit", "--writable", str(tmp_path), "--", "sh", "-c", WORK.format(go=go)]
    terminal.press("watch", f"FORKWISE_DIFFTOOL='{pager} {{branches}}' {COMMAND} watch", "Enter")
    terminal.shows("watch", "waiting for a fork")
    terminal.press("explore", f"{COMMAND} {shlex.join(words)}", "Enter")
    terminal.shows("watch", "● running", "0 counts 3", "q quit")
    assert any(len(set(colour)) > 1 for colour in colours(terminal.screen("watch", "-e")))
    terminal.press("watch", "Down")
    terminal.shows("watch", "1 counts 3")
    terminal.press("watch", "Down")
    terminal.shows("watch", "2 counts 3")
    terminal.press("watch", "x")
    terminal.shows("watch", "The others go on.")
    terminal.press("watch", "y")
    terminal.shows("watch", "⊘ cancelled  3", "● running    1", "● running    2")
    terminal.press("watch", "Up")
    terminal.shows("watch", "1 counts ")
    go.touch()
    terminal.shows("watch", "? open", "✓ succeeded  1", "✓ succeeded  2")
    terminal.press("watch", "d")
    terminal.shows("watch", "+1")
    terminal.press("watch", "Escape")
    terminal.shows("watch", "? open")
    terminal.press("watch", "o")
    terminal.shows("watch", "paged: 1")
    terminal.press("watch", "Enter")
    terminal.shows("watch", "? open", "q quit")
    terminal.press("watch", "p")
    terminal.shows("watch", "and drop the others?")
    terminal.press("watch", "y")
    terminal.shows("watch", "★ won", "#2 → commit 1")
    assert (project / "won").read_text() == "1\n"
    terminal.press("watch", "u")
    terminal.shows("watch", "Take back commit 1?")
    terminal.press("watch", "y")
    terminal.shows("watch", "undone by 2")
    assert not (project / "won").exists()
    terminal.press("watch", "q")
    terminal.shows("watch", "commit:     1, undone by 2")
    assert Workspace(project).branches() == []


def test_without_colours_and_as_lines(terminal: Terminal, project: Path) -> None:
    terminal.press("explore", f"{COMMAND} run --no-commit -- sh -c 'echo spoken; echo 1 > one.txt'", "Enter")
    terminal.shows("explore", "To choose")
    with open_ledger(Workspace(project)) as ledger:
        fork = ledger.forks()[0].id
    terminal.press("watch", f"NO_COLOR=1 {COMMAND} watch", "Enter")
    terminal.shows("watch", "✓ succeeded  1", "spoken")
    assert all(len(set(colour)) == 1 for colour in colours(terminal.screen("watch", "-e"))), "greys only"
    terminal.press("watch", "a")
    terminal.shows("watch", "Abort the whole fork")
    terminal.press("watch", "y")
    terminal.shows("watch", "⊘ aborted")
    terminal.press("watch", "q")
    terminal.shows("watch", "decided:")
    terminal.press("watch", "clear", "Enter")
    terminal.press("watch", f"{COMMAND} watch {fork} --plain", "Enter")
    screen = terminal.shows("watch", f"{fork}.1 started: echo spoken", f"{fork} was aborted", "decided:")
    assert "q quit" not in screen
