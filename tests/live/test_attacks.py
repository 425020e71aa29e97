"""Live forks under attack: killed between two writes, resolved twice, stopped during a merge, with odd labels."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from forkwise import BranchSpec, ForkCoordinator, ForkResolvedError, MergeStrategy, Workspace, open_ledger, pick
from tests.live.kill_at_point import POINTS
from tests.live.test_resolution import Judge
from tests.live.worker import BEFORE, all_over, worker

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

A = {"a.txt": "one\n"}
X = A | {"both.txt": "x", "x.txt": "x"}
Y = A | {"both.txt": "y", "y.txt": "y"}


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The report of the next process for each kill."""
    home = tmp_path_factory.mktemp("cut")
    environment = {**os.environ, "XDG_STATE_HOME": str(home / "state")}
    environment.pop("FORKWISE_STATE", None)
    document = subprocess.run(
        [sys.executable, "-m", "tests.live.kill_at_point", str(home)],
        env=environment,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert document.returncode == 0, document.stderr[-3000:]
    return dict(zip(POINTS, map(json.loads, document.stdout.splitlines()), strict=True))


@pytest.mark.parametrize(
    ("point", "outcome", "how"),
    [
        ("pick, decided", Y, "pick"),
        ("pick, committed", Y, "pick"),
        ("combine, decided", X | Y, "combination"),
        ("combine, committed", X | Y, "combination"),
        ("override, before", X, "vote"),
        ("override, meant", Y, "override"),
        ("override, undone", Y, "override"),
        ("override, committed", Y, "override"),
    ],
)
@pytest.mark.usefixtures("recorded_changes")
def test_a_kill_between_two_writes(
    cut: dict[str, dict[str, Any]], point: str, outcome: dict[str, str], how: str
) -> None:
    """A resolution is committed, with its conversation; nothing else is left."""
    document = cut[point]
    assert document["content"] == outcome
    assert (document["branches"], document["hidden"], document["mounts"]) == ([], [], [])
    [[state, winner, commit]] = document["forks"]
    assert (state, winner) == ("resolved", {"pick": "2", "combination": None, "vote": "1", "override": "2"}[how])
    assert commit is not None
    assert document["how"] == [how]
    if how != "vote":
        assert "done: write y.txt y" in document["said"]


@pytest.mark.parametrize("point", ["rewind, begun", "rewind, half"])
@pytest.mark.usefixtures("recorded_changes")
def test_an_interrupted_rewind_is_finished_by_the_next_process(cut: dict[str, dict[str, Any]], point: str) -> None:
    document = cut[point]
    assert document["opened"] == document["content"] == A | {"both.txt": "0"}


# Resolved twice

TWO = [BranchSpec("x", "write both.txt x; write x.txt x"), BranchSpec("y", "write both.txt y; write y.txt y")]


def files(workspace: Workspace) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(workspace.path.iterdir())}


@pytest.fixture
def coordinator(workspace: Workspace) -> ForkCoordinator:
    return ForkCoordinator(worker(), workspace=workspace, judge=Judge("x"))


async def test_of_two_concurrent_merges_one_succeeds(coordinator: ForkCoordinator, workspace: Workspace) -> None:
    await coordinator.fork(TWO, parent_history=BEFORE)
    done = await asyncio.gather(
        *(coordinator.merge_or_select(f"pick:{label}") for label in ("x", "y", "x")), return_exceptions=True
    )
    assert [isinstance(one, RuntimeError) for one in done].count(True) == 2
    assert files(workspace) in (X, Y)
    assert len(workspace.history()) == 1


async def test_a_merge_after_one_from_outside_is_an_error(coordinator: ForkCoordinator, workspace: Workspace) -> None:
    """From the command line, or another coordinator on the same ledger."""
    handle = await coordinator.fork(TWO, parent_history=BEFORE)
    await all_over(coordinator)
    other = ForkCoordinator(worker(), workspace=workspace)
    with pytest.raises(ForkResolvedError, match="running"):
        await other.resume(handle.fork_id)  # its process is alive
    await asyncio.to_thread(pick, workspace, handle.branches[1])
    with pytest.raises(ForkResolvedError, match=rf"resolved for {handle.branches[1]} by another process"):
        await coordinator.merge_or_select("pick:x")
    assert coordinator.is_resolved
    assert files(workspace) == Y
    await coordinator.fork([BranchSpec("z", "write z.txt z")], parent_history=BEFORE)
    await coordinator.merge_or_select("pick:z")
    assert files(workspace) == Y | {"z.txt": "z"}


async def test_a_combination_after_a_merge_from_outside(coordinator: ForkCoordinator, workspace: Workspace) -> None:
    handle = await coordinator.fork(TWO, parent_history=BEFORE)
    await all_over(coordinator)
    await asyncio.to_thread(pick, workspace, handle.branches[1])
    with pytest.raises(ForkResolvedError, match="by another process"):
        await coordinator.merge_or_select("combine:x,y", prefer={"both.txt": "x"})
    assert files(workspace) == Y


async def test_dropping_and_merging_at_once(coordinator: ForkCoordinator, workspace: Workspace) -> None:
    await coordinator.fork(TWO, parent_history=BEFORE)
    await all_over(coordinator)
    merge, _ = await asyncio.gather(
        coordinator.merge_or_select("pick:x"), coordinator.abort_fork(), return_exceptions=True
    )
    assert files(workspace) == (A if isinstance(merge, RuntimeError) else X)
    assert coordinator.is_resolved


async def test_overridden_twice_at_once_and_closed_meanwhile(
    coordinator: ForkCoordinator, workspace: Workspace
) -> None:
    await coordinator.fork(TWO, parent_history=BEFORE, strategy=MergeStrategy(kind="vote"))
    await coordinator.resolve()
    done = await asyncio.gather(
        coordinator.override("y"), coordinator.override("y"), coordinator.aclose(), return_exceptions=True
    )
    assert [isinstance(one, RuntimeError) for one in done] == [False, True, False]
    assert files(workspace) == Y
    assert not [p for p in (workspace.state / "branches").iterdir() if p.name.startswith(".aside")]


# Stopped meanwhile


async def test_a_branch_that_is_ended_while_it_is_waited_for(
    coordinator: ForkCoordinator, workspace: Workspace
) -> None:
    await coordinator.fork([BranchSpec("x", "write x.txt x; run sleep 100"), TWO[1]], parent_history=BEFORE)
    runtime = next(iter(coordinator.branches.values()))
    while len(runtime.partial_history) < len(BEFORE) + 3:
        await asyncio.sleep(0.01)
    merging = asyncio.create_task(coordinator.merge_or_select("pick:x"))
    await asyncio.sleep(0)
    await coordinator.terminate_branch("x")
    await merging
    assert files(workspace) == A | {"x.txt": "x"}


async def test_a_branch_that_is_prompted_during_a_merge(coordinator: ForkCoordinator, workspace: Workspace) -> None:
    await coordinator.fork(TWO, parent_history=BEFORE)
    await all_over(coordinator)
    await coordinator.run_on_branch("x", "run sleep 100")
    await coordinator.merge_or_select("pick:y")
    assert files(workspace) == Y
    with pytest.raises(RuntimeError):
        await coordinator.run_on_branch("y", "write more.txt x")


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55])
async def test_a_fork_that_is_cancelled_while_it_is_made(
    coordinator: ForkCoordinator, workspace: Workspace, turns: int
) -> None:
    """Either all of it is committed, or nothing is left."""
    making = asyncio.create_task(coordinator.fork(TWO, parent_history=BEFORE))
    for _ in range(turns):
        await asyncio.sleep(0.001)
    making.cancel()
    with suppress(asyncio.CancelledError):
        await making
    await coordinator.aclose()
    assert files(workspace) == A
    handle = await coordinator.fork(TWO, parent_history=BEFORE)
    await coordinator.merge_or_select(f"pick:{handle.branches[0]}")
    assert files(workspace) == X


async def test_ten_branches_dropped_in_the_middle_of_commands(
    coordinator: ForkCoordinator, workspace: Workspace
) -> None:
    """No process, mount, branch or task is left; the workspace fixture checks that."""
    before = asyncio.all_tasks()
    command = "run echo begun > begun && (setsid sleep 300 & sleep 300)"
    await coordinator.fork([BranchSpec(str(n), command) for n in range(10)], parent_history=BEFORE)
    while not all(r.overlay is not None and r.overlay.touched() for r in coordinator.branches.values()):
        await asyncio.sleep(0.02)
    await coordinator.abort_fork()
    assert {status.state for status in coordinator.inspect_branches()} == {"terminated"}
    while asyncio.all_tasks() - before:
        await asyncio.sleep(0.01)
    assert files(workspace) == A


class Slow(Judge):
    """A judge that blocks until it is released, or fails."""

    def __init__(self, label: str) -> None:
        super().__init__(label)
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.fails = False

    async def evaluate(self, goal: str, report: Any, outcomes: Sequence[Any]) -> Any:
        self.begun.set()
        await self.gate.wait()
        if self.fails:
            raise ConnectionError("the judge hung up")
        return await super().evaluate(goal, report, outcomes)


async def test_a_resolution_that_is_cancelled_or_fails_decides_nothing(workspace: Workspace) -> None:
    judge = Slow("x")
    coordinator = ForkCoordinator(worker(), workspace=workspace, judge=judge)
    await coordinator.fork(TWO, parent_history=BEFORE, strategy=MergeStrategy(kind="vote"))
    resolving = asyncio.create_task(coordinator.resolve())
    await judge.begun.wait()
    resolving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resolving
    assert not coordinator.is_resolved
    judge.fails = True
    judge.gate.set()
    outcome = await coordinator.resolve()
    assert (outcome.committed, outcome.verdict) == (False, None)
    assert "hung up" in outcome.judge_failures[0]
    assert files(workspace) == A
    judge.fails = False
    assert (await coordinator.resolve()).committed
    assert files(workspace) == X
    await coordinator.aclose()


async def test_a_cancelled_merge_happens_completely_or_not_at_all(
    coordinator: ForkCoordinator, workspace: Workspace
) -> None:
    """Whichever call won, the files match the result of the coordinator."""
    await coordinator.fork(TWO, parent_history=BEFORE)
    await all_over(coordinator)
    merging = asyncio.create_task(coordinator.merge_or_select("pick:x"))
    await asyncio.sleep(0.005)
    merging.cancel()
    with suppress(asyncio.CancelledError):
        await merging
    assert files(workspace) == (X if coordinator.is_resolved else A)
    await coordinator.aclose()
    with open_ledger(workspace) as ledger:
        [fork] = ledger.forks()
        assert fork.is_over


# Odd labels


async def test_labels_that_mean_something_elsewhere(coordinator: ForkCoordinator, workspace: Workspace) -> None:
    labels = ["../../etc", "a,b", "pick:x", "x\ny", "nul\0", "\udcff", "-rf", "..", "x" * 300, "ﬀ", "FF", "$(rm -r .)"]
    specs = [BranchSpec(label, f"write {number}.txt {number}") for number, label in enumerate(labels[:10])]
    handle = await coordinator.fork(specs, parent_history=BEFORE)
    await all_over(coordinator)
    assert {status.state for status in coordinator.inspect_branches()} == {"done"}
    used = [status.label for status in coordinator.inspect_branches()]
    assert len(set(used)) == len(used)
    assert not [label for label in used if {"/", "\n", "\0"} & set(label) or label.startswith(".")]
    assert coordinator.materializer is not None
    mirrored = {coordinator.materializer.branch_path(label, "f").resolve() for label in used}
    assert len(mirrored) == len(used)
    assert all(path.is_relative_to(coordinator.materializer.root.resolve()) for path in mirrored)
    await coordinator.merge_or_select(f"combine:{','.join(handle.branches)}")
    assert files(workspace) == A | {f"{number}.txt": str(number) for number in range(10)}


async def test_a_label_that_is_another_branchs_id(coordinator: ForkCoordinator, workspace: Workspace) -> None:
    """An id takes precedence over an equal label."""
    first = await coordinator.fork([BranchSpec("x", "say hi")], parent_history=BEFORE)
    await coordinator.aclose()
    specs = [BranchSpec("x", "write x.txt x"), BranchSpec(f"{first.fork_id}.1", "write y.txt y")]
    handle = await coordinator.fork(specs, parent_history=BEFORE)
    result = await coordinator.merge_or_select(f"pick:{first.fork_id}.1")  # not an id of this fork, so it is a label
    assert result.winner_branch_id == handle.branches[1]


async def test_words_that_no_provider_could_be_sent(coordinator: ForkCoordinator, workspace: Workspace) -> None:
    """A lone surrogate, as a terminal may produce: the fork starts or is refused, and nothing is left of it."""
    try:
        await coordinator.fork([BranchSpec("x", "say \udcff")], parent_history=BEFORE)
        await all_over(coordinator)
    except (ValueError, RuntimeError):
        pass
    await coordinator.aclose()
    assert files(workspace) == A
