"""A real terminal: tmux, which receives keys and returns the screen."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["COMMAND", "Terminal"]

PATIENCE = 60.0
COMMAND = shlex.join([sys.executable, "-c", "from forkwise.cli import main; main()"])


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
        """Wait until the screen shows all texts."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            screen = self.screen(pane)
            if all(text in screen for text in texts):
                return screen
            time.sleep(0.05)
        raise AssertionError(f"{texts} not shown in {pane}:\n{self.screen(pane)}")

    def write(self, pane: str, text: str) -> None:
        """Type a line literally."""
        self.tmux("send-keys", "-t", pane, "-l", text)
        self.press(pane, "Enter")

    def hides(self, pane: str, text: str) -> None:
        """Wait until a text has left the screen."""
        self.until(lambda: text not in self.screen(pane), f"{text} is still shown")

    def until(self, is_so: Callable[[], bool], why: str = "") -> None:
        """Wait until a condition is true."""
        deadline = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < deadline, why
            time.sleep(0.05)
