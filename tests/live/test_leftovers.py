"""What an undecided live fork leaves behind: nothing, however its program, its event loop or its start ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel

from forkwise import BranchSpec, ForkCoordinator, LocalBackend, StateBackend, Workspace
from forkwise.live.deps import DeepAgentDeps

SPECS = [BranchSpec("a", "x"), BranchSpec("b", "y")]

pytestmark = [pytest.mark.filterwarnings("ignore::forkwise.ForkwiseWarning"), pytest.mark.integration]

PROGRAM = """
import asyncio, gc, os, signal, sys, warnings
warnings.simplefilter("ignore")
from pydantic_ai import Agent
from pydantic_ai.models.function import FunctionModel
from forkwise import BranchSpec, ForkCoordinator, StateBackend
from forkwise.live.deps import DeepAgentDeps

async def hang(messages, info):
    await asyncio.Event().wait()

async def main():
    agent = Agent(FunctionModel(hang), deps_type=DeepAgentDeps)
    coordinator = ForkCoordinator(agent, DeepAgentDeps(backend=StateBackend({"a": "b"})))
    await coordinator.fork([BranchSpec("a", "x"), BranchSpec("b", "y")], parent_history=[])
    for _ in range(20):
        await asyncio.sleep(0)
    gc.collect()

async def be_killed():
    await main()
    print(os.listdir(".forkwise/forks")[0], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

match sys.argv[1]:
    case "asyncio.run":
        asyncio.run(main())
    case "closed loop":
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
        loop.close()
        gc.collect()
    case "next fork after a closed loop":
        for _ in range(2):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(main())
            loop.close()
            gc.collect()
    case "open loop":
        loop = asyncio.new_event_loop()
        loop.run_until_complete(main())
    case "exit":
        async def leave():
            await main()
            sys.exit(3)
        asyncio.run(leave())
    case "kill":
        asyncio.run(be_killed())
"""


def run_program(way: str, directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, way]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True)


@pytest.mark.parametrize("way", ["asyncio.run", "closed loop", "next fork after a closed loop", "open loop", "exit"])
def test_nothing_is_left_of_an_undecided_fork_in_memory(way: str, tmp_path: Path) -> None:
    done = run_program(way, tmp_path)
    assert done.returncode == (3 if way == "exit" else 0), done.stderr
    assert "destroyed" not in done.stderr
    assert "Error" not in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.crash
def test_gc_removes_the_mirror_of_a_killed_process(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    killed = run_program("kill", project)
    assert killed.returncode == -signal.SIGKILL
    fork = killed.stdout.strip()
    mirrors = project / ".forkwise/forks"
    for name, content in {"broken": "[", "huge": "[" * 100_000, "mine": "{}"}.items():
        (mirrors / name).mkdir()
        (mirrors / name / "owner").write_text(content)
    os.mkfifo(mirrors / "fifo")
    os.symlink(tmp_path, mirrors / "link")
    (tmp_path / "owner").write_text((mirrors / fork / "owner").read_text())
    workspace = Workspace(project)
    assert f"mirror of fork {fork}" in workspace.gc(dry_run=True).removed
    assert (mirrors / fork).exists()
    assert workspace.gc().removed == (f"mirror of fork {fork}",)
    assert sorted(os.listdir(mirrors)) == ["broken", "fifo", "huge", "link", "mine"]
    assert project.exists()


async def hang(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def fork_and_cancel(backend: object, steps: int) -> tuple[bool, list[str]]:
    """Cancel ``fork()`` after some steps, or drop the fork. Return whether it was made, and the tasks that are left."""
    coordinator = ForkCoordinator(Agent(FunctionModel(hang), deps_type=DeepAgentDeps), DeepAgentDeps(backend=backend))
    before = asyncio.all_tasks()
    making = asyncio.ensure_future(coordinator.fork(SPECS, parent_history=[]))
    for _ in range(steps):
        await asyncio.sleep(0)
    is_made = making.done()
    making.cancel()
    await asyncio.wait([making])
    if is_made:
        await coordinator.aclose()
    assert coordinator.is_resolved
    return is_made, [repr(task) for task in asyncio.all_tasks() - before]


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_nothing_is_left_of_a_fork_that_is_cancelled_at_any_step(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project = tmp_path / "project"
    project.mkdir()

    async def main() -> None:
        made = 0
        for steps in range(40 if kind == "memory" else 12):
            backend = StateBackend() if kind == "memory" else LocalBackend(project)
            is_made, left = await fork_and_cancel(backend, steps)
            assert left == [], steps
            made += is_made
        assert made or kind == "disk"

    asyncio.run(main())
    assert os.listdir(tmp_path) == ["project"]
    if kind == "disk":
        assert Workspace(project).branches() == []
