"""A thousand branches of one workspace, alive at once."""

from __future__ import annotations

import gc
import os
import tracemalloc

from bench.figure import Figure
from bench.ground import Ground
from bench.line import Goal, Line
from bench.rounds import timed
from forkwise import Branch, Workspace
from forkwise.files import trash

__all__ = ["measure_live"]

_BRANCHES = 1_000
_PAGE = os.sysconf("SC_PAGE_SIZE")


def measure_live(ground: Ground) -> list[Line]:
    """How long it takes to make them, to look into them all and to abort them all, and what they hold in memory."""
    workspace = ground.workspace(ground.planted(1_000))
    ground.say(f"{_BRANCHES:,} branches")
    rounds = ground.rounds(3, 1)
    taken: dict[str, list[float]] = {"made": [], "seen": [], "aborted": [], "resident": [], "traced": []}
    for _ in range(rounds):
        live: list[Branch] = []
        gc.collect()
        before = _resident()
        taken["made"].append(timed(lambda live=live: live.extend(_make(workspace))))
        taken["seen"].append(timed(lambda live=live: [b.path for b in live]))
        taken["resident"].append(max(_resident() - before, 0) / _BRANCHES)
        taken["aborted"].append(timed(lambda live=live: [b.abort() for b in live]))
        trash.wait()
    taken["traced"].append(_traced(workspace))
    made, seen, aborted = (Figure(tuple(taken[name])) for name in ("made", "seen", "aborted"))
    resident, traced = (Figure(tuple(taken[name]), "B") for name in ("resident", "traced"))
    return [
        Line(f"{_BRANCHES:,} live branches: made", made, goals=[Goal("< 3 s", made.median, 3)]),
        Line(f"{_BRANCHES:,} live branches: all views mounted", seen),
        Line(f"{_BRANCHES:,} live branches: process memory each", resident, goals=[_small(resident)]),
        Line(f"{_BRANCHES:,} live branches: Python objects each", traced, goals=[_small(traced)]),
        Line(f"{_BRANCHES:,} live branches: all aborted", aborted, goals=[Goal("< 3 s", aborted.median, 3)]),
    ]


def _make(workspace: Workspace) -> list[Branch]:
    return [workspace.branch(f"live-{number}") for number in range(_BRANCHES)]


def _small(figure: Figure) -> Goal:
    return Goal("< 20 KB", figure.median / 1024, 20)


def _traced(workspace: Workspace) -> float:
    """What the objects hold, without the allocator's own leftovers: not timed, because tracing is slow."""
    tracemalloc.start()
    live = _make(workspace)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    for branch in live:
        branch.abort()
    trash.wait()
    return held / _BRANCHES


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * _PAGE
