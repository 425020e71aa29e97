"""Executable configuration in live forks: a merge refuses it and leaves the fork open, unless it is allowed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from forkwise import (
    BranchSpec,
    DeepAgentDeps,
    ExecutableConfigError,
    ForkCoordinator,
    LiveForkCapability,
    MergeStrategy,
    Workspace,
)
from forkwise.live.backends.local import LocalBackend
from tests.live.test_resolution import Judge
from tests.live.worker import BEFORE, all_over, worker

pytestmark = pytest.mark.anyio

SPECS = [BranchSpec("x", "write .envrc x; write x.txt x"), BranchSpec("y", "write y.txt y")]
VOTE = MergeStrategy(kind="vote")


async def forked(workspace: Workspace, strategy: MergeStrategy | None = None, **options: Any) -> ForkCoordinator:
    coordinator = ForkCoordinator(worker(), workspace=workspace, **options)
    await coordinator.fork(SPECS, parent_history=BEFORE, strategy=strategy)
    await all_over(coordinator)
    return coordinator


def names(workspace: Workspace) -> list[str]:
    return sorted(path.name for path in workspace.path.iterdir())


@pytest.mark.parametrize("action", ["pick:x", "combine:x,y", "auto"])
async def test_a_refused_merge_leaves_the_fork_open(workspace: Workspace, action: str) -> None:
    coordinator = await forked(workspace, VOTE, judge=Judge("x"))
    with pytest.raises(ExecutableConfigError, match=r"\.envrc \(direnv\)") as caught:
        await coordinator.merge_or_select(action)
    assert caught.value.executors == {".envrc": "direnv"}
    assert names(workspace) == ["a.txt"]
    assert not coordinator.is_resolved
    result = await coordinator.merge_or_select(action, allow_executable_config=True)
    assert result.errors == []
    assert ".envrc" in result.applied_paths
    assert (workspace.path / ".envrc").read_text() == "x"
    await coordinator.aclose()


async def test_a_refused_merge_stops_no_other_branch(workspace: Workspace) -> None:
    coordinator = ForkCoordinator(worker(), workspace=workspace)
    specs = [SPECS[0], BranchSpec("y", "write y.txt y; run sleep 1000")]
    await coordinator.fork(specs, parent_history=BEFORE)
    x, y = coordinator.branches.values()
    await asyncio.wait([x.task])
    with pytest.raises(ExecutableConfigError):
        await coordinator.merge_or_select("pick:x")
    assert y.is_running
    await coordinator.abort_fork()
    assert names(workspace) == ["a.txt"]


@pytest.mark.parametrize("where", ["coordinator", "capability", "workspace"])
async def test_it_can_be_allowed_for_all_merges(workspace: Workspace, where: str) -> None:
    if where == "workspace":
        workspace.allow_executable_config = True
        coordinator = await forked(workspace)
    elif where == "coordinator":
        coordinator = await forked(workspace, allow_executable_config=True)
    else:
        capability = LiveForkCapability(allow_executable_config=True)
        coordinator = capability.coordinator_for(worker(), DeepAgentDeps(LocalBackend(workspace.path)))
        await coordinator.fork(SPECS, parent_history=BEFORE)
        await all_over(coordinator)
    result = await coordinator.merge_or_select("pick:x")
    assert (result.applied_paths, result.errors) == ([".envrc", "x.txt"], [])
    await coordinator.aclose()


async def test_a_refused_override_keeps_the_winner(workspace: Workspace) -> None:
    coordinator = await forked(workspace, VOTE, judge=Judge("y"))
    assert (await coordinator.resolve()).committed
    assert names(workspace) == ["a.txt", "y.txt"]
    with pytest.raises(ExecutableConfigError):
        await coordinator.override("x")
    assert names(workspace) == ["a.txt", "y.txt"]
    assert workspace.history()[-1].kind == "commit"
    await coordinator.override("x", allow_executable_config=True)
    assert names(workspace) == [".envrc", "a.txt", "x.txt"]
    await coordinator.aclose()
