"""The panels in a real pseudo-terminal: how soon they are there, and how soon a key is answered while ten attempts
print."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.figure import Figure
from bench.ground import Ground
from bench.line import Goal, Line
from bench.panels import MAIN, PATIENCE, Panels
from forkwise import Workspace, open_ledger
from forkwise.fork.control import abort_fork

__all__ = ["measure_terminal"]

_ATTEMPTS = 10
_PRINTS = """
import os, time
for step in range(100_000):
    print(f"step {step} of {os.environ['FORKWISE_ATTEMPT']}, and what it is about", flush=True)
    time.sleep(0.02)
"""
_WATCH = (["watch"], b"q")


def measure_terminal(ground: Ground) -> list[Line]:
    """Started several times over; then one of them is walked through."""
    directory = ground.directory("watched")
    with _printing(directory) as fork:
        ground.say("the panels' first frame")
        frames = []
        for _ in range(ground.rounds(9, 3)):
            panels = Panels(directory, *_WATCH)
            frames.append(panels.drawn(fork) - panels.begun)
            panels.drawn(f"{fork}.1")
            panels.close()
        ground.say("keys while ten attempts print")
        panels = Panels(directory, *_WATCH)
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
    with subprocess.Popen([*MAIN, *words, *program], cwd=directory, stdout=quiet, stderr=quiet) as process:
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
    deadline = time.monotonic() + PATIENCE
    with open_ledger(Workspace(directory)) as ledger:
        while time.monotonic() < deadline:
            for summary in ledger.summaries(1):
                if summary.attempts.get("running") == _ATTEMPTS:
                    return summary.fork.id
            time.sleep(0.05)
    raise TimeoutError("the attempts did not begin")
