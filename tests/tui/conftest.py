"""A real terminal for the tests that need one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import ask, command, private_mounts, project, run, state
from tests.need import need
from tests.tui.terminal import Terminal

__all__ = ["ask", "command", "private_mounts", "project", "run", "state", "terminal"]


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
