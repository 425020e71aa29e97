"""A thousand branches of one workspace at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial

from bench.figure import Figure
from bench.line import Goal, Line
from bench.rounds import timed
from bench.scratch import Scratch
from forkwise import Branch, Workspace
from forkwise.files.store import trash

__all__ = ["measure_live"]

_BRANCHES = 1_000

# In a process of its own, because an older one may reuse freed memory. tracemalloc counts Python objects; the resident
# size also contains the overhead of the allocator.
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


def measure_live(scratch: Scratch) -> list[Line]:
    """Measure the time to create, mount and abort all branches, and the memory of each."""
    root = scratch.shared_tree(1_000)
    workspace = scratch.workspace(root)
    scratch.report(f"creating {_BRANCHES:,} branches")
    taken: dict[str, list[float]] = {"made": [], "seen": [], "aborted": [], "process": [], "objects": []}
    for _ in range(scratch.rounds(3, 1)):
        live: list[Branch] = []
        taken["made"].append(timed(partial(_make, workspace, live)))
        taken["seen"].append(timed(partial(_mount, live)))
        taken["aborted"].append(timed(partial(_abort, live)))
        trash.wait_until_empty()
        for kind in ("process", "objects"):
            taken[kind].append(_memory(root, kind) / _BRANCHES)
    made, seen, aborted = (Figure(tuple(taken[name])) for name in ("made", "seen", "aborted"))
    process, objects = (Figure(tuple(taken[name]), "B") for name in ("process", "objects"))
    return [
        Line(f"{_BRANCHES:,} live branches: created", made, goals=[Goal("< 3 s", made.median, 3)]),
        Line(f"{_BRANCHES:,} live branches: all views mounted", seen),
        Line(f"{_BRANCHES:,} live branches: process memory each", process, goals=[_memory_goal(process)]),
        Line(f"{_BRANCHES:,} live branches: Python objects each", objects, goals=[_memory_goal(objects)]),
        Line(f"{_BRANCHES:,} live branches: all aborted", aborted, goals=[Goal("< 3 s", aborted.median, 3)]),
    ]


def _make(workspace: Workspace, live: list[Branch]) -> None:
    live += [workspace.branch(f"live-{number}") for number in range(_BRANCHES)]


def _mount(live: list[Branch]) -> None:
    for branch in live:
        str(branch.path)


def _abort(live: list[Branch]) -> None:
    for branch in live:
        branch.abort()


def _memory_goal(figure: Figure) -> Goal:
    return Goal("< 20 KB", figure.median / 1024, 20)


def _memory(root: str, kind: str) -> float:
    command = [sys.executable, "-c", _MEMORY, root, str(_BRANCHES), kind]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
