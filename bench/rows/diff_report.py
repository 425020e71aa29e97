"""The diff report of a fork: a thousand paths in each of ten branches, no two of which agree on any."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

from bench.figure import Figure
from bench.ground import Ground
from bench.line import Line
from bench.peers import pydantic_deep
from forkwise import BranchDiffReport, BranchOverlay, StateBackend, build_diff_report
from forkwise.live.diff.build import BranchLike

__all__ = ["measure_diff_report"]

_PATHS = 1_000
_BRANCHES = 10
_LINES = 60
# Seconds, as seen for pydantic-deep from PyPI on the machine this was written on.
_THEIRS = 1.5


def measure_diff_report(ground: Ground) -> list[Line]:
    """The CPU time it takes to build, and to read every diff in it too."""
    ground.say(f"a diff report on {_PATHS:,} paths")
    parent, branches = _fork()
    rounds = ground.rounds(7, 3)
    built, read = [], []
    for _ in range(rounds):
        runtimes = _runtimes(parent, branches)
        begun = time.process_time()
        report = build_diff_report("fork", runtimes)
        built.append(time.process_time() - begun)
        _read(report)
        read.append(time.process_time() - begun)
    peers = {pydantic_deep.NAME: _peer(ground, parent, branches, rounds)}
    size = f"{_PATHS:,} paths × {_BRANCHES} branches, CPU time"
    lines = [
        Line(f"diff report, {size}", Figure(tuple(built)), peers=peers),
        Line(f"diff report, {size}, every diff read", Figure(tuple(read)), peers=peers),
    ]
    for line in lines:
        line.faster_than_seen(pydantic_deep.NAME, _THEIRS, 5)
    return lines


def _fork() -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """The files of the parent, and those of each branch: two lines changed in every one."""
    parent = {
        f"src/part{number % 20}/module{number}.py": "".join(f"line {n} of {number}\n" for n in range(_LINES))
        for number in range(_PATHS)
    }
    return parent, {
        f"branch-{branch}": {
            path: text.replace("line 7 ", f"LINE {branch} ").replace("line 45 ", f"Line {branch} ")
            for path, text in parent.items()
        }
        for branch in range(_BRANCHES)
    }


def _runtimes(parent: dict[str, str], branches: dict[str, dict[str, str]]) -> list[BranchLike]:
    backend = StateBackend()
    for path, text in parent.items():
        backend.write(path, text)
    runtimes: list[BranchLike] = []
    for name, files in branches.items():
        overlay = BranchOverlay(backend)
        for path, text in files.items():
            overlay.write(path, text)
        runtimes.append(
            SimpleNamespace(status=SimpleNamespace(id=name), spec=SimpleNamespace(label=name), overlay=overlay)
        )
    return runtimes


def _read(report: BranchDiffReport) -> int:
    return sum(len(change.unified_diff_vs_parent) for path in report.paths for change in path.branches.values())


def _peer(ground: Ground, parent: dict[str, str], branches: dict[str, dict[str, str]], rounds: int) -> Figure | None:
    root = Path(ground.directory("diffed"))
    for path, text in parent.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    told = Path(ground.directory("told")) / "branches.json"
    told.write_text(json.dumps(branches))
    return pydantic_deep.measure("diff_report", root=str(root), branches=str(told), rounds=rounds)
