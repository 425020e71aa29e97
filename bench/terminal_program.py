"""TerminalProgram: a command of forkwise in a real pseudo-terminal, with keys to press and text to wait for."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Sequence

__all__ = ["MAIN", "PATIENCE", "TerminalProgram"]

MAIN = [sys.executable, "-c", "from forkwise.cli import main; main()"]
PATIENCE = 60.0


class TerminalProgram:
    """A command of forkwise in a terminal of 80x24. ``exit_key`` ends it."""

    def __init__(self, directory: str, words: Sequence[str], exit_key: bytes) -> None:
        self.started = time.perf_counter()
        self._exit_key = exit_key
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(directory)
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            os.execv(MAIN[0], [*MAIN, *words])
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def press(self, key: bytes) -> float:
        """Press a key, and return the time."""
        os.write(self._fd, key)
        return time.perf_counter()

    def wait_for(self, text: str) -> float:
        """Wait until the program draws ``text``, and return the time."""
        seen = b""
        while text.encode() not in seen:
            if not select.select([self._fd], [], [], PATIENCE)[0]:
                raise TimeoutError(f"the program did not draw {text!r} within {PATIENCE:g} s")
            seen = seen[-4096:] + os.read(self._fd, 65536)
        return time.perf_counter()

    def close(self) -> None:
        """End the program, and read the rest of its output."""
        os.write(self._fd, self._exit_key)
        try:
            while os.read(self._fd, 65536):
                pass
        except OSError:  # the other end is closed
            pass
        os.waitpid(self.pid, 0)
        os.close(self._fd)
