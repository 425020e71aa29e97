"""Processes that fork an agent into three branches, killed at random moments, and how the next process recovers.

Runs as a single-threaded program, so that it can fork a driver with all modules loaded. Prints one JSON object for each
round.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

from forkwise import BranchSpec, ForkCoordinator, ForkNotFoundError, Workspace, open_ledger
from forkwise.conversation.store import StoredConversation
from forkwise.files.store import trash
from forkwise.fork.control import clean_up
from tests.explore.kill_at_random import find_mounts, kill_at_random_moments, read_files, run_in_process, wait_for_exit
from tests.live.worker import BEFORE, work, worker
from tests.modules.brain import Brain

STEER = "write {0}/1.txt one; run echo two > {0}.2; write {0}/3.txt three; run rm gone"
LABELS = ("a", "b", "c")
SPECS = [BranchSpec(label, STEER.format(label)) for label in LABELS]


def coordinator_of(project: Path, brain: Brain) -> ForkCoordinator:
    return ForkCoordinator(worker(brain), workspace=Workspace(project, durable=False))


async def drive(project: Path) -> None:
    """Fork, wait for all branches, and merge one of them."""
    coordinator = coordinator_of(project, Brain(decide=work, seconds=0.01))
    await coordinator.fork(SPECS, parent_history=BEFORE)
    await asyncio.wait([runtime.task for runtime in coordinator.branches.values()])
    await coordinator.merge_or_select("pick:b")


def completed(project: Path) -> dict[str, Any]:
    """Read the killed fork from the ledger: the number of messages and the files of each branch."""
    workspace = Workspace(project, durable=False)
    with open_ledger(workspace) as ledger:
        [fork] = ledger.forks(limit=1)
        report: dict[str, Any] = {"id": fork.id, "state": fork.state, "said": {}, "requests": {}}
        known = {record.id for record in ledger.conversations.all()}
        if fork.spec["conversation"] in known:
            talk = StoredConversation.load(ledger.conversations, fork.spec["conversation"]).conversation
            for number, label in enumerate(LABELS):
                if f"branch-{number}" in talk.labels:
                    report["said"][label] = [str(m.parts) for m in talk.path(talk.labels[f"branch-{number}"])]
        report["requests"] = {a.label: (a.cost or {}).get("requests", 0) for a in ledger.attempts(fork.id)}
    return report


async def resume_fork(project: Path) -> dict[str, Any]:
    """Resume the fork in the next process, and merge it."""
    brain = Brain(decide=work)
    coordinator = coordinator_of(project, brain)
    try:
        await coordinator.resume()
    except ForkNotFoundError:
        return {"outcome": "nothing to resume"}
    if coordinator.merge_result is not None:
        result = coordinator.merge_result
    else:
        await asyncio.wait([runtime.task for runtime in coordinator.branches.values()])
        states = {s.label: s.state for s in coordinator.inspect_branches()}
        assert set(states.values()) == {"done"}, (states, [s.error for s in coordinator.inspect_branches()])
        said = {r.spec.label: [str(m.parts) for m in r.thread.history()] for r in coordinator.branches.values()}
        cost = {c.branch_label: c.requests for c in coordinator.fork_cost().per_branch.values()}
        result = await coordinator.merge_or_select("pick:b")
        assert not result.errors
        return {"outcome": "resumed", "said": said, "asked": len(brain.asked), "cost": cost}
    return {"outcome": "completed", "said": {"b": [str(m.parts) for m in result.history_after_merge]}}


def recover(project: Path, state: Path) -> None:
    last = state / "last"
    before = completed(project)
    report: dict[str, Any] = {"before": before, "outcome": "not started"}
    if not last.exists() or last.read_text() != before["id"]:
        last.write_text(before["id"])
        report |= asyncio.run(resume_fork(project))
    workspace = Workspace(project, durable=False)
    clean_up(workspace)
    trash.wait_until_empty()
    report["branches"] = [branch.branch_path for branch in workspace.branches()]
    report["mounts"] = find_mounts(state)
    report["content"] = read_files(project)
    if (project / "b.2").exists():
        workspace.undo()
    print(json.dumps(report), flush=True)


def rehearse(project: Path, drive: Callable[[Path], Coroutine[Any, Any, None]]) -> tuple[dict[str, str], float]:
    """Create a project and drive it twice without a kill; the first run loads modules that are imported late.

    Print the contents before and after. Return the contents before, and the duration in seconds.
    """
    project.mkdir()
    (project / "gone").write_text("once")
    before = read_files(project)
    assert wait_for_exit(run_in_process(lambda: asyncio.run(drive(project)))) == 0
    after = read_files(project)
    Workspace(project, durable=False).undo()
    started = time.monotonic()
    assert wait_for_exit(run_in_process(lambda: asyncio.run(drive(project)))) == 0
    taken = time.monotonic() - started
    Workspace(project, durable=False).undo()
    print(json.dumps({"before": before, "after": after}), flush=True)
    return before, taken


def main() -> None:
    home, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    project = home / "project"
    _, taken = rehearse(project, drive)
    with open_ledger(Workspace(project)) as ledger:
        (home / "state" / "last").write_text(ledger.forks(limit=1)[0].id)
    kill_at_random_moments(
        project,
        Random(seed),
        rounds,
        longest=taken * 1.1,
        run=lambda: asyncio.run(drive(project)),
        recover=lambda: recover(project, home / "state"),
    )


if __name__ == "__main__":
    main()
