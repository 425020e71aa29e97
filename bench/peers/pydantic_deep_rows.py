"""The rows of pydantic-deep, measured in its own environment: ``python -m bench.peers.pydantic_deep_rows ROW JSON``.

It must not import forkwise. It prints the samples as JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
import tracemalloc
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.usage import RunUsage
from pydantic_ai.workspaces import LocalWorkspaceBackend, Workspace
from pydantic_ai_backends.workspaces import StateWorkspace
from pydantic_deep import (
    BranchOverlay,
    BranchSpec,
    DeepAgentDeps,
    ForkCoordinator,
    InMemoryForkStateStore,
    JudgeVerdict,
    LiveForkCapability,
    MergeStrategy,
    build_diff_report,
)
from pydantic_deep.features.forking import coordinator as coordinators
from pydantic_deep.features.forking.isolation import branch_overlay

from bench.workload import long_history, longest_gap, stepping_model


async def command(root: str, rounds: int) -> list[float]:
    """Measure a shell command in a branch."""
    branch: Any = branch_overlay(Workspace(LocalWorkspaceBackend(Path(root))))
    samples = []
    for _ in range(rounds):
        started = time.perf_counter()
        await branch.run("true", shell=True)
        samples.append(time.perf_counter() - started)
    return samples


async def merge(root: str, rounds: int) -> list[float]:
    """Measure the merge of a branch that changed all files of a directory."""
    parent = Workspace(LocalWorkspaceBackend(Path(root)))
    samples = []
    for number in range(rounds):
        branch = branch_overlay(parent)
        for path in sorted(Path(root).rglob("*")):
            if path.is_file():
                await branch.write_bytes(str(path.relative_to(root)), b"%d" % number + path.read_bytes())
        started = time.perf_counter()
        await branch.flush_to(parent)
        samples.append(time.perf_counter() - started)
    return samples


async def stall(root: str, at_once: int, commands: int) -> list[float]:
    """Measure the longest stall of the event loop while branches run commands."""
    parent = Workspace(LocalWorkspaceBackend(Path(root)))

    async def work(branch: Any) -> None:
        for number in range(commands):
            await branch.run(f"ls -R . > listing; echo {number}", shell=True)

    return [await longest_gap(asyncio.gather, *(work(branch_overlay(parent)) for _ in range(at_once)))]


async def diff_report(root: str, branches: str, rounds: int) -> list[float]:
    """Measure the CPU time of a report on branches whose files are in a JSON file."""
    parent = Workspace(LocalWorkspaceBackend(Path(root)))
    runtimes: Any = []
    for name, files in json.loads(Path(branches).read_text()).items():
        overlay = BranchOverlay(parent)
        for path, text in files.items():
            await overlay.write_bytes(path, text.encode())
        status = SimpleNamespace(id=name, label=name)
        runtimes.append(SimpleNamespace(status=status, spec=SimpleNamespace(label=name), overlay=overlay))
    samples = []
    for _ in range(rounds):
        started = time.process_time()
        await build_diff_report("fork", runtimes)
        samples.append(time.process_time() - started)
    return samples


async def fork(root: str, branches: int, requests: int, messages: int, rounds: int) -> list[float]:
    """Measure branches that run to completion, forked from a long conversation."""
    samples = []
    for _ in range(rounds):
        started = time.perf_counter()
        made = await _fork(root, branches, requests, messages)
        samples.append(time.perf_counter() - started)
        await made.aclose()
    return samples


async def fork_in_memory(mirrors: str, rounds: int) -> list[float]:
    """Measure the call that starts two branches of an agent whose files are in memory."""
    agent: Any = Agent(stepping_model(1), deps_type=DeepAgentDeps)
    specs = [BranchSpec("a", "go a"), BranchSpec("b", "go b")]
    samples = []
    for _ in range(rounds):
        made = ForkCoordinator(
            agent,
            DeepAgentDeps(),
            max_branches=2,
            max_depth=2,
            store=InMemoryForkStateStore(),
            materializer_root=Path(mirrors),
        )
        workspace = Workspace(StateWorkspace())
        started = time.perf_counter()
        await made.fork(specs, parent_history=[], workspace=workspace)
        samples.append(time.perf_counter() - started)
        await asyncio.wait([runtime.task for runtime in made.branches.values()])
        await made.aclose()
    return samples


async def memory(root: str, branches: int, requests: int, messages: int) -> list[float]:
    """Measure the memory of finished branches."""
    await (await _fork(root, 2, requests, 2)).aclose()  # imports on first use must not be counted
    history = long_history(messages)
    gc.collect()
    tracemalloc.start()
    made = await _fork(root, branches, requests, messages, history=history)
    gc.collect()
    held = float(tracemalloc.get_traced_memory()[0])
    await made.aclose()
    return [held]


async def resolve(root: str, branches: int) -> list[float]:
    """Measure the resolution of a fork by a test command and a judge that takes no time."""
    made = await _fork(root, branches, 1, 0, test_command="true")
    coordinators.JudgeAgent = _First
    started = time.perf_counter()
    await made.resolve(MergeStrategy(kind="auto_with_fallback"))
    taken = time.perf_counter() - started
    await made.aclose()
    return [taken]


class _First:
    def __init__(self, *_: object, **__: object) -> None:
        pass

    async def evaluate(self, goal: str, report: object, outcomes: Sequence[Any]) -> tuple[JudgeVerdict, RunUsage]:
        verdict = JudgeVerdict(winner_branch_id=outcomes[0].branch_id, confidence=1.0, reasoning="it is the first")
        return verdict, RunUsage()


async def _fork(
    root: str, branches: int, requests: int, messages: int, *, history: Any = None, test_command: str | None = None
) -> Any:
    # The capability stores the messages of a branch; without it, a branch that is stopped could not be picked.
    capability = LiveForkCapability(max_branches=branches)
    agent: Any = Agent(stepping_model(requests), deps_type=DeepAgentDeps, capabilities=[capability])

    @agent.tool_plain
    async def step() -> str:
        return "ok"

    made = ForkCoordinator(
        agent,
        DeepAgentDeps(),
        max_branches=branches,
        max_depth=2,
        store=InMemoryForkStateStore(),
        materializer_root=Path(root).parent / "mirrors",
        test_command=test_command,
    )
    specs = [BranchSpec(str(number), f"go {number}") for number in range(branches)]
    parent_history = long_history(messages) if history is None else history
    await made.fork(specs, parent_history=parent_history, workspace=Workspace(LocalWorkspaceBackend(Path(root))))
    await asyncio.wait([runtime.task for runtime in made.branches.values()])
    assert {status.state for status in made.inspect_branches()} == {"done"}
    return made


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # it warns that there are no checkpoints
    row = globals()[sys.argv[1]]
    print(json.dumps(asyncio.run(row(**json.loads(sys.argv[2])))))
