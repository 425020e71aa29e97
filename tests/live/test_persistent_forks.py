"""Forks survive their process: the next one finds, resumes, merges or drops them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forkwise import (
    BranchSpec,
    ForkCoordinator,
    ForkNotFoundError,
    ForkResolvedError,
    LedgerForkStore,
    LiveForkCapability,
    Workspace,
    open_ledger,
)
from tests.counts import IS_FULL, rounds
from tests.live.kill_at_random import LABELS
from tests.live.worker import BEFORE, work, worker
from tests.modules.brain import Asked, Brain

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

_ROUNDS = rounds(3, 50)
_TURNS = 5  # of every branch
LEFT = """
import asyncio, os
from pathlib import Path
from forkwise import BranchSpec, ForkCoordinator, Workspace, open_ledger
from tests.modules.brain import Brain
from tests.live.worker import BEFORE, work, worker

async def main(project):
    brain = Brain(decide=work)
    coordinator = ForkCoordinator(worker(brain), workspace=Workspace(project))
    slow = "write slow.txt one; run sleep 100; say end"
    specs = [BranchSpec("quick", "write quick.txt one"), BranchSpec("slow", slow)]
    await coordinator.fork(specs, parent_history=BEFORE)
    quick, slow = coordinator.branches.values()
    await asyncio.wait([quick.task])
    with open_ledger(Workspace(project)) as ledger:
        while (ledger.attempt(slow.id).cost or {}).get("requests") != 2:
            await asyncio.sleep(0.01)
    print(coordinator.fork_id, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main({project!r}))
"""


def left_by_a_killed_process(workspace: Workspace) -> str:
    """Create an interrupted fork: one branch done, the other after its first step. Return its id."""
    program = LEFT.replace("{project!r}", repr(str(workspace.path)))
    report = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert report.returncode == -9, report.stderr
    return report.stdout.strip()


def finish_work(asked: Asked) -> Any:
    said = work(asked)
    return "the end" if "sleep 100" in str(said) else said


async def test_the_next_process_resumes_after_the_last_completed_turn(workspace: Workspace) -> None:
    fork = left_by_a_killed_process(workspace)
    assert [handle.fork_id for handle in await LedgerForkStore(workspace).interrupted()] == [fork]
    brain = Brain(decide=finish_work)
    coordinator = await LiveForkCapability(workspace=workspace).resume(worker(brain))
    assert coordinator is not None
    assert coordinator.fork_id == fork
    quick, slow = coordinator.branches.values()
    assert quick.status.state == "done"
    assert quick.overlay.touched() == ["quick.txt"]
    await asyncio.wait([slow.task])
    assert slow.status.state == "done"
    assert len(brain.asked) == 1  # earlier requests are not repeated
    assert "wrote slow.txt" in str(brain.asked[0].messages)
    costs = coordinator.fork_cost().per_branch
    assert [costs[r.id].requests for r in (quick, slow)] == [2, 3]
    result = await coordinator.merge_or_select("pick:slow")
    assert result.applied_paths == ["slow.txt"]
    assert result.history_after_merge[:2] == BEFORE
    assert len(result.history_after_merge) == 6


async def test_what_a_killed_process_left_can_be_merged_or_dropped_at_once(workspace: Workspace) -> None:
    left_by_a_killed_process(workspace)
    coordinator = ForkCoordinator(worker(Brain(decide=work)), workspace=workspace)
    await coordinator.resume()
    await coordinator.merge_or_select("pick:quick")
    assert (workspace.path / "quick.txt").read_text() == "one"
    fork = left_by_a_killed_process(workspace)
    assert await LedgerForkStore(workspace).remove(fork)
    with pytest.raises(ForkResolvedError):
        await coordinator.resume(fork)
    with pytest.raises(ForkNotFoundError):
        await coordinator.resume()


async def test_a_decision_that_was_not_carried_out_is_carried_out(workspace: Workspace) -> None:
    fork = left_by_a_killed_process(workspace)
    with open_ledger(workspace) as ledger:
        assert ledger.resolve(fork, how="pick", winner=f"{fork}.1")
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    handle = await coordinator.resume()
    assert handle.fork_id == fork
    assert coordinator.is_resolved
    result = coordinator.merge_result
    assert result is not None
    assert (result.winner_branch_id, result.applied_paths) == (f"{fork}.1", ["quick.txt"])
    assert (workspace.path / "quick.txt").read_text() == "one"
    assert result.history_after_merge[:2] == BEFORE


async def test_nothing_to_resume(workspace: Workspace) -> None:
    assert await LiveForkCapability(workspace=workspace).resume(worker()) is None
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    await coordinator.fork([BranchSpec("a", "say hi")], parent_history=[])
    with pytest.raises(RuntimeError, match="not resolved"):
        await coordinator.resume()
    await coordinator.aclose()


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(rounds(1, 2)))
def test_killed_at_any_moment_of_a_fork_in_three(tmp_path: Path, seed: int) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    environment.pop("FORKWISE_STATE", None)
    report = subprocess.run(
        [sys.executable, "-m", "tests.live.kill_at_random", str(tmp_path), str(_ROUNDS), str(seed)],
        env=environment,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert report.returncode == 0, report.stderr[-3000:]
    first, *rest = map(json.loads, report.stdout.splitlines())
    before, after = first["before"], first["after"]
    assert set(after) == {"b/1.txt", "b.2", "b/3.txt"}
    assert len(rest) == 2 * _ROUNDS
    seen = set()
    for found, then in zip(rest[::2], rest[1::2], strict=True):
        assert found["found"] in (before, after)  # never half-merged
        assert found["left"] == []
        assert (then["branches"], then["mounts"]) == ([], [])
        has_started = then["outcome"] not in ("not started", "nothing to resume") or found["found"] == after
        assert then["content"] == (after if has_started else before)
        _check_nothing_is_lost(then)
        seen.add(then["outcome"])
    assert not IS_FULL or "resumed" in seen  # a few kills may all come early or late


def _check_nothing_is_lost(then: dict[str, Any]) -> None:
    """The messages of a completed turn are kept, are not repeated, and are counted once."""
    before = then["before"]["said"]
    if then["outcome"] != "resumed":
        return
    kept = 0
    for label in LABELS:
        known = before.get(label, [])
        assert then["said"][label][: len(known)] == known
        spoken = sum("TextPart" in said or "ToolCallPart" in said for said in known[len(BEFORE) :])
        assert then["cost"][label] >= _TURNS
        kept += spoken
    assert then["asked"] == len(LABELS) * _TURNS - kept
