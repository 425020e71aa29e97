"""The start of the command: its version beside the import of click, and the completion of a word."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from bench.line import Goal, Line
from bench.rounds import play, timed
from bench.scratch import Scratch
from forkwise import Workspace, open_ledger

__all__ = ["measure_start"]

_MAIN = "from forkwise.cli import main; main()"
_FORKS = 1_000


def measure_start(scratch: Scratch) -> list[Line]:
    """Measure processes from their start to their end."""
    return [_measure_version(scratch), _measure_completion(scratch)]


def _measure_version(scratch: Scratch) -> Line:
    scratch.report("forkwise --version")
    runs = {
        "ours": _time_process(["-c", _MAIN, "--version"]),
        "floor": _time_process(["-c", "import click"]),
    }
    figures = play(runs, scratch.rounds(40, 5), warm=2)
    line = Line("forkwise --version (floor: import click)", figures["ours"], figures["floor"])
    line.below_floor(1.2)
    return line


def _measure_completion(scratch: Scratch) -> Line:
    directory = scratch.make_directory("completed")
    scratch.report(f"completion with {_FORKS:,} forks")
    with open_ledger(Workspace(directory)) as ledger:
        for _ in range(_FORKS):
            fork = ledger.begin_fork("best-of", workspace="/project", spec={"tests": "pytest -q"}).id
            ledger.add_attempt(fork, "0", index=0, label="true")
    complete = _time_process(["-c", _MAIN, "_complete", "zsh", "forkwise", "show", ""], directory)
    figures = play({"ours": complete}, scratch.rounds(40, 5), warm=2)
    line = Line(f"completion of an id among {_FORKS:,} forks", figures["ours"])
    line.goals.append(Goal("< 100 ms", figures["ours"].median * 1000, 100))
    return line


def _time_process(words: list[str], directory: str = "/") -> Callable[[], float]:
    def run() -> None:
        subprocess.run(
            [sys.executable, *words], check=True, stdout=subprocess.DEVNULL, cwd=directory, env=dict(os.environ)
        )

    return lambda: timed(run)
