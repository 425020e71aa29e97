"""The panels of ``watch`` in a real pseudo-terminal: the time to the first frame, and from a key to its effect."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.figure import Figure
from bench.line import Goal, Line
from bench.scratch import Scratch
from bench.terminal_program import MAIN, PATIENCE, TerminalProgram
from forkwise import Workspace, open_ledger
from forkwise.fork.control import abort_fork

__all__ = ["measure_terminal"]

_ATTEMPTS = 10
_PRINTS = """
import os, time
for step in range(100_000):
    print(f"step {step} of {os.environ['FORKWISE_ATTEMPT']}, with some more text", flush=True)
    time.sleep(0.02)
"""
_WATCH = (["watch"], b"q")


def measure_terminal(scratch: Scratch) -> list[Line]:
    """Measure the first frame several times, then keys while ten attempts print."""
    directory = scratch.make_directory("watched")
    with _run_printing_fork(directory) as fork:
        scratch.report("the first frame of watch")
        frames = []
        for _ in range(scratch.rounds(9, 3)):
            panels = TerminalProgram(directory, *_WATCH)
            frames.append(panels.wait_for(fork) - panels.started)
            panels.wait_for(f"{fork}.1")
            panels.close()
        scratch.report("keys while ten attempts print")
        panels = TerminalProgram(directory, *_WATCH)
        panels.wait_for(f"{fork}.1")
        keys = []
        for turn in range(scratch.rounds(60, 20)):
            down, position = turn // (_ATTEMPTS - 1) % 2 == 0, turn % (_ATTEMPTS - 1)
            pressed = panels.press(b"\x1b[B" if down else b"\x1b[A")
            keys.append(panels.wait_for(f"{fork}.{position + 2 if down else _ATTEMPTS - 1 - position} ") - pressed)
            time.sleep(0.05)  # a user presses keys no faster; output is drawn in between
        panels.close()
    first = Line("forkwise watch: the first frame, from the start of the process", Figure(tuple(frames)))
    first.goals.append(Goal("< 1 s", first.ours.median, 1.0))
    key = Line("forkwise watch: another attempt selected while ten print", Figure(tuple(keys)))
    key.goals.append(Goal("< 50 ms", key.ours.median * 1000, 50))
    return [first, key]


@contextmanager
def _run_printing_fork(directory: str) -> Iterator[str]:
    """Run a fork of ten attempts that print all the time in another process; yield its id."""
    words = ["best-of", str(_ATTEMPTS), "--max-parallel", str(_ATTEMPTS), "--quiet", "--"]
    quiet = subprocess.DEVNULL
    program = [sys.executable, "-c", _PRINTS]
    with subprocess.Popen([*MAIN, *words, *program], cwd=directory, stdout=quiet, stderr=quiet) as process:
        fork = ""
        try:
            fork = _wait_for_attempts(directory)
            yield fork
        finally:
            if fork:
                abort_fork(directory, fork)
            else:
                process.terminate()


def _wait_for_attempts(directory: str) -> str:
    deadline = time.monotonic() + PATIENCE
    with open_ledger(Workspace(directory)) as ledger:
        while time.monotonic() < deadline:
            for summary in ledger.summaries(1):
                if summary.attempts.get("running") == _ATTEMPTS:
                    return summary.fork.id
            time.sleep(0.05)
    raise TimeoutError(f"not all attempts were running after {PATIENCE:g} s")
