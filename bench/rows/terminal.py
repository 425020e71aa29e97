"""The panels in a real pseudo-terminal: how soon they are there, and how soon a key is answered while ten attempts
print."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.figure import Figure
from bench.ground import Ground
from bench.line import Goal, Line
from forkwise import Workspace, open_ledger
from forkwise.fork.clearing import abort_fork

__all__ = ["measure_terminal"]

_MAIN = [sys.executable, "-c", "from forkwise.app.cli import main; main()"]
_ATTEMPTS = 10
_PRINTS = """
import os, time
for step in range(100_000):
    print(f"step {step} of {os.environ['FORKWISE_ATTEMPT']}, and what it is about", flush=True)
    time.sleep(0.02)
"""
_PATIENCE = 60.0


class _Panels:
    """``forkwise watch`` in a terminal of 80x24 of its own, and what it drew."""

    def __init__(self, directory: str) -> None:
        self.begun = time.perf_counter()
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(directory)
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
            os.execv(_MAIN[0], [*_MAIN, "watch"])
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def press(self, key: bytes) -> float:
        """Press a key; gives when."""
        os.write(self._fd, key)
        return time.perf_counter()

    def drawn(self, text: str) -> float:
        """Wait until something is drawn; gives when it was."""
        seen = b""
        while text.encode() not in seen:
            if not select.select([self._fd], [], [], _PATIENCE)[0]:
                raise TimeoutError(f"{text!r} was not drawn")
            seen = seen[-4096:] + os.read(self._fd, 65536)
        return time.perf_counter()

    def close(self) -> None:
        """Leave it, and read what it says in the end."""
        os.write(self._fd, b"q")
        try:
            while os.read(self._fd, 65536):
                pass
        except OSError:  # the other end is closed
            pass
        os.waitpid(self.pid, 0)
        os.close(self._fd)


def measure_terminal(ground: Ground) -> list[Line]:
    """Started several times over; then one of them is walked through."""
    directory = ground.directory("watched")
    with _printing(directory) as fork:
        ground.say("the panels' first frame")
        frames = []
        for _ in range(ground.rounds(9, 3)):
            panels = _Panels(directory)
            frames.append(panels.drawn(fork) - panels.begun)
            panels.drawn(f"{fork}.1")
            panels.close()
        ground.say("keys while ten attempts print")
        panels = _Panels(directory)
        panels.drawn(f"{fork}.1")
        keys = []
        for turn in range(ground.rounds(60, 20)):
            down, at = turn // (_ATTEMPTS - 1) % 2 == 0, turn % (_ATTEMPTS - 1)
            pressed = panels.press(b"\x1b[B" if down else b"\x1b[A")
            keys.append(panels.drawn(f"{fork}.{at + 2 if down else _ATTEMPTS - 1 - at} ") - pressed)
            time.sleep(0.05)  # as fast as a person presses them; it is what comes in between that is to be felt
        panels.close()
    first = Line("forkwise watch: the first frame, from the start of the process", Figure(tuple(frames)))
    first.goals.append(Goal("< 1 s", first.ours.median, 1.0))
    key = Line("forkwise watch: another attempt selected while ten print", Figure(tuple(keys)))
    key.goals.append(Goal("< 50 ms", key.ours.median * 1000, 50))
    return [first, key]


@contextmanager
def _printing(directory: str) -> Iterator[str]:
    """A fork of ten attempts that print all the time, run by another process; gives its id."""
    words = ["best-of", str(_ATTEMPTS), "--max-parallel", str(_ATTEMPTS), "--quiet", "--"]
    quiet = subprocess.DEVNULL
    program = [sys.executable, "-c", _PRINTS]
    with subprocess.Popen([*_MAIN, *words, *program], cwd=directory, stdout=quiet, stderr=quiet) as process:
        fork = ""
        try:
            fork = _begun(directory)
            yield fork
        finally:
            if fork:
                abort_fork(directory, fork)
            else:
                process.terminate()


def _begun(directory: str) -> str:
    deadline = time.monotonic() + _PATIENCE
    with open_ledger(Workspace(directory)) as ledger:
        while time.monotonic() < deadline:
            for summary in ledger.summaries(1):
                if summary.attempts.get("running") == _ATTEMPTS:
                    return summary.fork.id
            time.sleep(0.05)
    raise TimeoutError("the attempts did not begin")
