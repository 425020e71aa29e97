"""A chat in a real terminal: forked, steered, merged, undone, killed, and continued."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from forkwise import Workspace
from tests.chat.scripted_chat import SCRIPT, write_script
from tests.tui.terminal import COMMAND, Terminal

pytestmark = pytest.mark.integration

RULES: list[dict[str, Any]] = [{"when": "^shorter", "branch": "a", "say": "Made it shorter."}, *SCRIPT]


def test_forked_steered_merged_and_undone(terminal: Terminal, project: Path) -> None:
    room = project.parent / "script"
    room.mkdir()
    chat = f"{COMMAND} chat --model {write_script(room, RULES)}"
    lib = project / "lib.txt"
    terminal.write("watch", f"exec {chat}")  # the chat is the process of the pane, and ends with it
    terminal.shows("watch", "say something")
    terminal.write("watch", "hello")
    terminal.shows("watch", "> hello", "how are you?")

    terminal.write("watch", "/fork a: task until released | b: task")
    terminal.shows("watch", "[● a] [✓ b]", "FORK: 2", "b wrote lib.txt.")
    terminal.press("watch", "Tab")
    terminal.shows("watch", "branch a · ● running", "Waiting.")
    terminal.write("watch", ">>a shorter")
    terminal.shows("watch", "a gets the message")
    (room / "a").touch()
    terminal.shows("watch", "Made it shorter.", "[✓ a] [✓ b]")
    assert not lib.exists(), "branches have files of their own"

    terminal.write("watch", "/tree")
    terminal.shows("watch", "‹fork›", "‹a›", "‹b›")
    terminal.press("watch", "Escape")
    terminal.shows("watch", "branch a · ✓ done")
    terminal.write("watch", "/nway lib.txt")
    terminal.shows("watch", "│b", "[ ]", "+from b")
    terminal.press("watch", "Escape")
    terminal.shows("watch", "branch a · ✓ done")
    terminal.write("watch", "/merge")
    terminal.shows("watch", "Which branch to keep?", "+from b")
    terminal.press("watch", "2")
    terminal.shows("watch", "Merged: kept branch b · 1 file", "b wrote lib.txt.")
    assert lib.read_text() == "from b\n"

    # The terminal is closed, and the chat ends. The next chat has the conversation, and undoes the merge.
    process = Path("/proc", terminal.tmux("display-message", "-p", "-t", "watch", "#{pane_pid}").strip())
    assert process.exists()
    terminal.tmux("new-window", "-n", "again", "-c", str(project), "sh")
    terminal.tmux("kill-window", "-t", "watch")
    terminal.until(lambda: not process.exists())
    terminal.write("again", f"PS1='done$ ' {chat}")
    terminal.shows("again", "> hello", "b wrote lib.txt.")
    terminal.write("again", "/undo")
    terminal.shows("again", "Undone: the merge of fork")
    terminal.hides("again", "b wrote lib.txt.")
    assert not lib.exists()
    terminal.write("again", "/quit")
    terminal.hides("again", "Undone")
    terminal.write("again", "echo ended: $?")
    terminal.shows("again", "ended: 0")
    assert Workspace(project).branches() == []
