"""The panels in a real terminal: an exploration runs in one pane, and is watched and resolved in the other."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from forkwise import Workspace
from forkwise.ledger.sqlite import open_ledger
from tests.tui.terminal import COMMAND, Terminal

pytestmark = pytest.mark.integration

WORK = """
i=0
while [ ! -e {go} ]; do i=$((i+1)); echo "$FORKWISE_ATTEMPT counts $i"; sleep 0.1; done
echo $FORKWISE_ATTEMPT > won
""".strip().replace("\n", "; ")


def colours(screen: str) -> set[tuple[str, ...]]:
    """Return the colours of a screen, as red, green and blue."""
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
    terminal.shows("watch", "● running", "1 counts 3", "q quit")
    assert any(len(set(colour)) > 1 for colour in colours(terminal.screen("watch", "-e")))
    terminal.press("watch", "Down")
    terminal.shows("watch", "2 counts 3")
    terminal.press("watch", "Down")
    terminal.shows("watch", "3 counts 3")
    terminal.press("watch", "x")
    terminal.shows("watch", "The others continue.")
    terminal.press("watch", "y")
    terminal.shows("watch", "⊘ cancelled  3", "● running    1", "● running    2")
    terminal.press("watch", "Up")
    terminal.shows("watch", "2 counts ")
    go.touch()
    terminal.shows("watch", "? open", "✓ succeeded  1", "✓ succeeded  2")
    terminal.press("watch", "d")
    terminal.shows("watch", "+2")
    terminal.press("watch", "Escape")
    terminal.shows("watch", "? open")
    terminal.press("watch", "o")
    terminal.shows("watch", "paged: 2")
    terminal.press("watch", "Enter")
    terminal.shows("watch", "? open", "q quit")
    terminal.press("watch", "p")
    terminal.shows("watch", "and drop the others?")
    terminal.press("watch", "y")
    terminal.shows("watch", "★ won", "#2 → commit 1")
    assert (project / "won").read_text() == "2\n"
    terminal.press("watch", "u")
    terminal.shows("watch", "Undo commit 1?")
    terminal.press("watch", "y")
    terminal.shows("watch", "undone by 2")
    assert not (project / "won").exists()
    terminal.press("watch", "q")
    terminal.shows("watch", "commit:     1, undone by 2")
    assert Workspace(project).branches() == []


def test_without_colours_and_as_lines(terminal: Terminal, project: Path) -> None:
    terminal.press("explore", f"{COMMAND} run --no-commit -- sh -c 'echo spoken; echo 1 > one.txt'", "Enter")
    terminal.shows("explore", "Commit one with")
    with open_ledger(Workspace(project)) as ledger:
        fork = ledger.forks()[0].id
    terminal.press("watch", f"NO_COLOR=1 {COMMAND} watch", "Enter")
    terminal.shows("watch", "✓ succeeded  1", "spoken")
    assert all(len(set(colour)) == 1 for colour in colours(terminal.screen("watch", "-e"))), "greys only"
    terminal.press("watch", "a")
    terminal.shows("watch", "Abort the fork")
    terminal.press("watch", "y")
    terminal.shows("watch", "⊘ aborted")
    terminal.press("watch", "q")
    terminal.shows("watch", "decided:")
    terminal.press("watch", "clear", "Enter")
    terminal.press("watch", f"{COMMAND} watch {fork} --plain", "Enter")
    screen = terminal.shows("watch", f"{fork}.1 started: echo spoken", f"{fork} was aborted", "decided:")
    assert "q quit" not in screen
