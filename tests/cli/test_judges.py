"""``forkwise judges``: how often the picks of each judge were undone or overridden."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

from forkwise import BranchSpec, ForkCoordinator, MergeStrategy, Workspace
from tests.live.test_calibration import Named
from tests.live.worker import BEFORE, worker

AUTO = MergeStrategy(kind="auto", confidence_threshold=0.0)


def judged(project: Path, judge: str, number: int) -> None:
    async def fork() -> None:
        coordinator = ForkCoordinator(worker(), workspace=project, judge=Named(judge, "one", 0.8))
        specs = [BranchSpec(label, f"write {label}{number}.txt x") for label in ("one", "two")]
        await coordinator.fork(specs, parent_history=BEFORE, strategy=AUTO)
        await coordinator.resolve()

    asyncio.run(fork())


def test_judges(run: Callable[..., Result], ask: Callable[..., Any], project: Path) -> None:
    assert "No picks by judges yet" in run("judges").stdout
    assert ask("judges") == {"workspace": str(project), "judges": []}
    judged(project, "wise", 0)
    judged(project, "wise", 1)
    judged(project, "hasty", 2)
    Workspace(project).undo()  # through the library: the ledger is updated when the command runs
    run("run", "--quiet", "--", "true")  # decided by no judge
    first, second = ask("judges")["judges"]
    assert (first["judge"], first["picks"], first["undone"], first["overridden"], first["rate"]) == ("wise", 2, 0, 0, 1)
    assert (second["judge"], second["undone"], second["rate"]) == ("hasty", 1, 0.0)
    assert round(second["brier"], 2) == 0.64
    table = [line.split() for line in run("judges").stdout.splitlines()]
    assert table[0] == ["judge", "picks", "undone", "overridden", "rate", "Brier", "score"]
    assert table[1:] == [["wise", "2", "0", "0", "100%", "0.04"], ["hasty", "1", "1", "0", "0%", "0.64"]]
    forks = [fork["id"] for fork in ask("ls")["forks"] if fork["kind"] != "run"]
    assert "by hasty (confidence 0.80)" in run("show", forks[0]).stdout
