"""The diff report of a fork: a thousand paths that differ in each of ten branches."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

from bench.figure import Figure
from bench.line import Line
from bench.peers import pydantic_deep
from bench.scratch import Scratch
from forkwise import BranchDiffReport, BranchOverlay, StateBackend, build_diff_report
from forkwise.live.diff.build import BranchLike

__all__ = ["measure_diff_report"]

_PATHS = 1_000
_BRANCHES = 10
_LINES = 60
# Seconds, measured for pydantic-deep from PyPI on the machine where this was written.
_THEIRS = 1.5


def measure_diff_report(scratch: Scratch) -> list[Line]:
    """Measure the CPU time to build the report, and to read every diff in it as well."""
    scratch.report(f"building a diff report on {_PATHS:,} paths")
    parent, branches = _fork()
    rounds = scratch.rounds(7, 3)
    built, read = [], []
    for _ in range(rounds):
        runtimes = _runtimes(parent, branches)
        started = time.process_time()
        report = build_diff_report("fork", runtimes)
        built.append(time.process_time() - started)
        _read(report)
        read.append(time.process_time() - started)
    peers = {pydantic_deep.NAME: _peer(scratch, parent, branches, rounds)}
    size = f"{_PATHS:,} paths × {_BRANCHES} branches, CPU time"
    lines = [
        Line(f"diff report, {size}", Figure(tuple(built)), peers=peers),
        Line(f"diff report, {size}, every diff read", Figure(tuple(read)), peers=peers),
    ]
    for line in lines:
        line.faster_than_seen(pydantic_deep.NAME, _THEIRS, 5)
    return lines


def _fork() -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the files of the parent and of each branch, which changes two lines in every file."""
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


def _peer(scratch: Scratch, parent: dict[str, str], branches: dict[str, dict[str, str]], rounds: int) -> Figure | None:
    root = Path(scratch.make_directory("parent"))
    for path, text in parent.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    branches_file = Path(scratch.make_directory("peer")) / "branches.json"
    branches_file.write_text(json.dumps(branches))
    return pydantic_deep.measure("diff_report", root=str(root), branches=str(branches_file), rounds=rounds)
