"""A thousand branches of one workspace, alive at once."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

from bench.figure import Figure
from bench.ground import Ground
from bench.line import Goal, Line
from bench.rounds import timed
from forkwise import Branch, Workspace
from forkwise.files.store import trash

__all__ = ["measure_live"]

_BRANCHES = 1_000

# In a process of its own, where no memory lies free that others have used before. What tracemalloc sees are the
# objects; what the kernel sees has the allocator's own needs in it.
_MEMORY = """
import gc, json, os, sys, tracemalloc
from forkwise import Workspace

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

workspace = Workspace(sys.argv[1], view="overlay", durable=False)
first = workspace.branch("first")
first.path
if sys.argv[3] == "objects":
    tracemalloc.start()
gc.collect()
before = resident()
live = [workspace.branch(f"memory-{number}") for number in range(int(sys.argv[2]))]
for branch in live:
    branch.path
gc.collect()
print(json.dumps(tracemalloc.get_traced_memory()[0] if sys.argv[3] == "objects" else resident() - before))
for branch in [first, *live]:
    branch.abort()
"""


def measure_live(ground: Ground) -> list[Line]:
    """How long it takes to make them, to look into them all and to abort them all, and what they hold in memory."""
    root = ground.planted(1_000)
    workspace = ground.workspace(root)
    ground.say(f"{_BRANCHES:,} branches")
    taken: dict[str, list[float]] = {"made": [], "seen": [], "aborted": [], "process": [], "objects": []}
    for _ in range(ground.rounds(3, 1)):
        live: list[Branch] = []
        taken["made"].append(timed(partial(_make, workspace, live)))
        taken["seen"].append(timed(partial(_look_into, live)))
        taken["aborted"].append(timed(partial(_abort, live)))
        trash.wait_until_empty()
        for what in ("process", "objects"):
            taken[what].append(_memory(root, what) / _BRANCHES)
    made, seen, aborted = (Figure(tuple(taken[name])) for name in ("made", "seen", "aborted"))
    process, objects = (Figure(tuple(taken[name]), "B") for name in ("process", "objects"))
    return [
        Line(f"{_BRANCHES:,} live branches: made", made, goals=[Goal("< 3 s", made.median, 3)]),
        Line(f"{_BRANCHES:,} live branches: all views mounted", seen),
        Line(f"{_BRANCHES:,} live branches: process memory each", process, goals=[_small(process)]),
        Line(f"{_BRANCHES:,} live branches: Python objects each", objects, goals=[_small(objects)]),
        Line(f"{_BRANCHES:,} live branches: all aborted", aborted, goals=[Goal("< 3 s", aborted.median, 3)]),
    ]


def _make(workspace: Workspace, live: list[Branch]) -> None:
    live += [workspace.branch(f"live-{number}") for number in range(_BRANCHES)]


def _look_into(live: list[Branch]) -> None:
    for branch in live:
        str(branch.path)


def _abort(live: list[Branch]) -> None:
    for branch in live:
        branch.abort()


def _small(figure: Figure) -> Goal:
    return Goal("< 20 KB", figure.median / 1024, 20)


def _memory(root: str, what: str) -> float:
    command = [sys.executable, "-c", _MEMORY, root, str(_BRANCHES), what]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
