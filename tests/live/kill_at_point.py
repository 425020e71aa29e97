"""Processes that are killed at one exact point of a decision, and how the next process recovers.

Runs as a single-threaded program, so that it can fork both processes with all modules loaded. Prints one JSON object
for each point.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forkwise import BranchSpec, ForkCoordinator, ForkNotFoundError, MergeStrategy, Workspace, open_ledger
from forkwise.files.store import trash
from forkwise.files.undo import rewind_to
from forkwise.fork.control import clean_up
from forkwise.ledger.ledger import Ledger
from forkwise.live.backends.local import LocalBackend
from tests.explore.kill_at_random import find_mounts, read_files, run_in_process, wait_for_exit
from tests.live.test_resolution import Judge
from tests.live.worker import BEFORE, work, worker
from tests.modules.brain import Brain

SPECS = [BranchSpec("x", "write both.txt x; write x.txt x"), BranchSpec("y", "write both.txt y; write y.txt y")]


def coordinator_of(project: Path) -> ForkCoordinator:
    return ForkCoordinator(worker(Brain(decide=work)), workspace=Workspace(project, durable=False), judge=Judge("x"))


def cut(where: type, name: str, *, after: bool, times: int = 1) -> None:
    """Kill this process before or after the n-th call of a method (``times``)."""
    method = getattr(where, name)
    left = [times]

    def killed(*args: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*args, **options)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(where, name, killed)


async def override(project: Path, where: type, name: str, after: bool) -> None:
    coordinator = coordinator_of(project)
    await coordinator.fork(SPECS, parent_history=BEFORE, strategy=MergeStrategy(kind="vote"))
    await coordinator.resolve()
    cut(where, name, after=after)
    await coordinator.override("y")


async def pick(project: Path, where: type, name: str, after: bool) -> None:
    coordinator = coordinator_of(project)
    await coordinator.fork(SPECS, parent_history=BEFORE)
    await asyncio.wait([runtime.task for runtime in coordinator.branches.values()])
    cut(where, name, after=after)
    await coordinator.merge_or_select("pick:y")


async def combine(project: Path, where: type, name: str, after: bool) -> None:
    coordinator = coordinator_of(project)
    await coordinator.fork(SPECS, parent_history=BEFORE)
    await asyncio.wait([runtime.task for runtime in coordinator.branches.values()])
    cut(where, name, after=after)
    await coordinator.merge_or_select("combine:x,y", prefer={"both.txt": "y"})


async def rewinding(project: Path, where: type, name: str, after: bool) -> None:
    backend = LocalBackend(Workspace(project, durable=False))
    for number in range(4):
        backend.write("both.txt", str(number))
    cut(where, name, after=after, times=2)
    rewind_to(Workspace(project, durable=False), 1)


#: The operation, and the method before or after which the process is killed.
POINTS: dict[str, tuple[Callable[..., Any], type, str, bool]] = {
    "pick, decided": (pick, Ledger, "resolve", True),
    "pick, committed": (pick, Ledger, "record_commit", False),
    "combine, decided": (combine, Ledger, "resolve", True),
    "combine, committed": (combine, Ledger, "record_commit", False),
    "override, before": (override, Ledger, "override", False),
    "override, meant": (override, Workspace, "undo", False),
    "override, undone": (override, Workspace, "undo", True),
    "override, committed": (override, Ledger, "record_commit", False),
    "rewind, begun": (rewinding, Workspace, "undo", False),
    "rewind, half": (rewinding, Workspace, "undo", True),
}


def go_on(project: Path) -> None:
    """Recover in the next process, and print what it found."""
    workspace = Workspace(project, durable=False)
    report: dict[str, Any] = {"opened": read_files(project)}
    coordinator = coordinator_of(project)
    try:
        asyncio.run(coordinator.resume())
        result = coordinator.merge_result
        report["said"] = None if result is None else str(result.history_after_merge[-1].parts)
        report["winner"] = None if result is None else coordinator.is_resolved
    except ForkNotFoundError:
        report["said"] = "nothing to resume"
    report["content"] = read_files(project)
    clean_up(workspace)
    trash.wait_until_empty()
    report["branches"] = [branch.branch_path for branch in workspace.branches()]
    report["hidden"] = [n for n in os.listdir(workspace.state / "branches") if n.startswith(".aside")]
    report["mounts"] = find_mounts(workspace.state)
    with open_ledger(workspace) as ledger:
        report["forks"] = [[f.state, f.winner and f.winner[-1], f.commit] for f in ledger.forks()]
        report["how"] = [(f.resolution or {}).get("how") for f in ledger.forks()]
    print(json.dumps(report), flush=True)


def main() -> None:
    home = Path(sys.argv[1])
    for number, (what, where, name, after) in enumerate(POINTS.values()):
        project = home / f"project-{number}"
        project.mkdir()
        (project / "a.txt").write_text("one\n")
        pid = run_in_process(lambda: asyncio.run(what(project, where, name, after)))  # noqa: B023 - it runs at once
        assert wait_for_exit(pid) == -signal.SIGKILL, number
        assert wait_for_exit(run_in_process(lambda: go_on(project))) == 0, number  # noqa: B023


if __name__ == "__main__":
    main()
