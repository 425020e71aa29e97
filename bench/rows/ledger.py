"""The ledger: the time to write events, and to list a thousand forks."""

from __future__ import annotations

import subprocess
import sys

from bench.line import Goal, Line
from bench.rounds import play, timed
from bench.scratch import Scratch
from forkwise import Workspace
from forkwise.fork.fork import open_ledger
from forkwise.ledger.ledger import Ledger

__all__ = ["measure_ledger"]

_EVENTS = 10_000
_FORKS = 1_000
_EVENTS_PER_ATTEMPT = 4  # added, started, scored, ended


def measure_ledger(scratch: Scratch) -> list[Line]:
    """Measure each in a ledger of its own."""
    return [_measure_writes(scratch), _measure_list(scratch)]


def _measure_writes(scratch: Scratch) -> Line:
    scratch.report(f"writing {_EVENTS:,} events")

    def write() -> float:
        with open_ledger(Workspace(scratch.make_directory("written"))) as ledger:
            return timed(lambda: _fill(ledger, forks=1, attempts=_EVENTS // _EVENTS_PER_ATTEMPT))

    figures = play({"ours": write}, scratch.rounds(3, 1), warm=0)
    line = Line(f"ledger: {_EVENTS:,} events written", figures["ours"])
    line.goals.append(Goal("< 2 s", figures["ours"].median, 2))
    return line


def _measure_list(scratch: Scratch) -> Line:
    workspace = Workspace(scratch.make_directory("listed"))
    scratch.report(f"writing {_FORKS:,} forks")
    with open_ledger(workspace) as ledger:
        _fill(ledger, forks=_FORKS, attempts=8)
    start = "from forkwise.cli import main; main()"
    words = [sys.executable, "-c", start, "ls", "--all", "-C", str(workspace.path)]
    listing = {"ours": lambda: timed(lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL))}
    figures = play(listing, scratch.rounds(20, 5), warm=2)
    line = Line(f"forkwise ls over {_FORKS:,} forks, from start to end", figures["ours"])
    line.goals.append(Goal("≤ 0.25 s", figures["ours"].median, 0.25))
    return line


def _fill(ledger: Ledger, forks: int, attempts: int) -> None:
    for _ in range(forks):
        fork = ledger.begin_fork("best-of", workspace="/project", spec={}).id
        winner = None
        for index in range(attempts):
            winner = ledger.add_attempt(fork, str(index), index=index, label="true", branch=f"b-{index}").id
            ledger.start_attempt(winner)
            ledger.record_score(winner, 1.0)
            ledger.end_attempt(winner, "succeeded", exit_code=0, wall=0.1)
        ledger.resolve(fork, how="best score", winner=winner)
