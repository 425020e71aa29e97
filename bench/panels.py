"""Panels: a face of forkwise in a real pseudo-terminal of its own, with the keys that are pressed and what is drawn."""

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

__all__ = ["MAIN", "PATIENCE", "Panels"]

MAIN = [sys.executable, "-c", "from forkwise.cli import main; main()"]
PATIENCE = 60.0


class Panels:
    """A verb of forkwise in a terminal of 80x24, and what it drew. ``leaving`` is the key that ends it."""

    def __init__(self, directory: str, words: Sequence[str], leaving: bytes) -> None:
        self.begun = time.perf_counter()
        self._leaving = leaving
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(directory)
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            os.execv(MAIN[0], [*MAIN, *words])
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def press(self, key: bytes) -> float:
        """Press a key; gives when."""
        os.write(self._fd, key)
        return time.perf_counter()

    def drawn(self, text: str) -> float:
        """Wait until something is drawn; gives when it was."""
        seen = b""
        while text.encode() not in seen:
            if not select.select([self._fd], [], [], PATIENCE)[0]:
                raise TimeoutError(f"{text!r} was not drawn")
            seen = seen[-4096:] + os.read(self._fd, 65536)
        return time.perf_counter()

    def close(self) -> None:
        """Leave it, and read what it says in the end."""
        os.write(self._fd, self._leaving)
        try:
            while os.read(self._fd, 65536):
                pass
        except OSError:  # the other end is closed
            pass
        os.waitpid(self.pid, 0)
        os.close(self._fd)
